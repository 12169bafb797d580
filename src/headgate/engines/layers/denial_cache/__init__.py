"""The denial cache: repeats a refusal in this process while it is surely still valid.

A client that floods a dry bucket sends the same request ten thousand times and gets the same answer. The first
refusal says when the same charge could pass, so until then this process can repeat it by itself, and the engine
has its time for callers that may pass.

    0.0 s   take 3 of "key"   engine   refused, retry after 0.4 s
    0.1 s   take 3, take 5    cache    refused, retry after 0.3 s
    0.1 s   take 2            engine   less than what was refused: it might fit
    0.4 s   take 3            engine   the refusal has run out

Law:
  - it never over-admits: the cache returns refusals only, and whatever passes was passed by the engine;
  - it refuses what another process has freed meanwhile for at most min(retry_after, 1 s) of the local clock;
  - a refusal applies to costs at least as large as the refused one. To a larger cost it gives the smaller one's
    retry_after, which is then the least it can be;
  - a refund, reset or change of rule in this process ends it, even a refusal that was on its way: retune, and the
    same count charged under another limit;
  - only what was refused by itself is cached: not a charge that was rolled back because of another one, not what a
    fallback decided, no peek, no reservation; slots go straight to the engine;
  - charges decided together are cached together, until the longest of their refusals ends, and answer the same
    charges only. A cached refusal of one of them does not answer for all: the other verdicts are missing;
  - a rule with a lockout always reaches the engine, because each of its refusals must be counted; only a lockout
    is repeated, which counts nothing. A shadow always reaches the engine, because it is stored by itself. So do
    charges decided together with such a one, and a preview that commits nothing;
  - once a refusal has ended, as many callers of its key ask at once as may pass, and the others wait for at most
    50 ms for what they learn (recheck.py). So the engine is asked at most twice for each unit that passes;
  - an override that is changed here ends the cached refusals of its key; one that is changed elsewhere is like
    units that another process has freed;
  - it holds a fixed number of refusals. The oldest go first; dead ones go when they are looked up and, two for
    each new one, when they are the oldest. No call looks at all of them.

Time. The local clock is read before the request, so a refusal ends here early rather than late, and a clock that
steps back to before the request ends it. A repeated refusal is aged by the time that has passed since.

denial_table    the cached refusals; pure
recheck         who asks again once a refusal has ended; pure
async_waiter    how a task waits for its turn; sync_waiter for threads; both written by hand
async_engine    the layer; sync_engine is generated from it
"""

from headgate.engines.layers.denial_cache.async_engine import AsyncDenialCacheEngine
from headgate.engines.layers.denial_cache.sync_engine import DenialCacheEngine

__all__ = ["AsyncDenialCacheEngine", "DenialCacheEngine"]
