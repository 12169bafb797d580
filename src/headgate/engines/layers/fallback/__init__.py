"""The fallback layer: answers every call, also when the engine does not.

    FallbackEngine(engine, fallback="local", members=Membership(...))

is a layer around an engine. While the engine answers, calls go straight to it, and only the last outcome of each
count is remembered. When it does not, the fallback answers, with DegradedOutcome.

While the engine is gone, a process that decides by a share keeps account of it (settlement). When the engine
answers again, a second begins in which accounts are settled: the engine is charged with what a share admitted
before it decides about that count, and counts that are not used are settled in the background. Meanwhile a call
must pass both, its share and the engine, because other members may not have noticed yet. After that the shares are
dropped. All of this is for charges whose fallback is local; a call none of whose charges has a fallback goes
straight to the engine, whatever the breaker says.

Refunds. The outcomes of a fallback carry a mark that no engine gives (`FALLBACK_MARK` and below), so a receipt
shows who made it. What a share admitted is given back to that share while it exists, and to nothing after: the
engine was charged with a sum, maybe not all of it. What the engine admitted is given back to the engine, or lost.
A surcharge goes to the engine, whoever admitted the call. If that does not answer, it goes to the share, and is
settled with what the share admits; where there is none, it is lost.

Laws (tests/engines/layers: test_fallback.py and _laws.py, test_fallback_by_rule.py, test_settlement_by_rule.py):
  - no EngineUnavailable reaches a caller, unless a charge has no fallback (an operator's overrides may fail);
  - with allow nothing is refused; with deny nothing passes while the breaker is open;
  - local: the law of docs/explanation/outages.md, which nginx keeps too (test_stated_node_count.py);
  - a request whose reply was lost is not repeated: it may have been charged;
  - no refund gives back more than was charged where it is given back;
  - a preview that commits nothing charges no share either.

async_engine        the layer: passes calls on while all is well; sync_engine is generated from it
async_verbs         the steps of each verb when the engine does not answer; sync_verbs is generated from it
async_slot_meter    the same for slots; sync_slot_meter is generated from it
async_settlers      settles in the background: tasks; in sync_settlers threads; both written by hand
routing             which way a call takes: to the engine, or past it
degraded_answers    the answer to each charge without the engine, by the fallback of its rule
breaker             when to stop calling the engine, and when to try again
limit_share         a limit, divided among processes that cannot reach each other
explain_fallback    states in words how processes share a limit
membership          how many processes share the limits
shard               one part of the engine: its breaker, the local counts, what is unsettled
settlement          where a share starts, and what is unsettled
"""

from headgate.engines.layers.fallback.async_engine import AsyncFallbackEngine
from headgate.engines.layers.fallback.sync_engine import FallbackEngine

__all__ = ["AsyncFallbackEngine", "FallbackEngine"]
