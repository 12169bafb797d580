"""Rate limiting: headgate decides for every call whether it passes, waits or is refused.

In one process, or across a cluster through Redis or Valkey, by the same exact arithmetic. Import public names from
here; ARCHITECTURE.md says what each folder may depend on.

    algorithms, lua        the algorithms, in Python and in Lua
    engines                where decisions are atomic: memory, Redis, and layers around them
    rules, enforcement     rulebooks, and limiters that follow them
    adaptive               limits that follow the service: algorithms, AdaptiveLimiter, the simulator
    limiter                Limiter and AsyncLimiter; guard, lease and reservation are what their verbs return
    pacing, paced_executor loops and pools of threads whose items and calls wait for their turn
    validation             checks engines, keys, costs and limits before an engine sees them
    limiter_flows          wait, cancel and refund, with slot_queue, slot_renewal and refund_without_decision
    observer               the port to counts, logs and metrics
    limit_syntax, explain  limits from text, and in words
    calendar, clock, flow  days of a time zone; time and sleep; steps that sync and async share
    extras, errors         missing packages; all exceptions
    lazy_property          properties that are computed when they are first read
    http                   decisions as header fields and bodies
    telemetry              counts of decisions, hot keys and distinct keys; decision logs and metrics
    gateway, operations    files for nginx; an operator's actions
    integrations           web frameworks, HTTP clients and task queues, one file each
    traffic                suggests limits from logs, replays them, simulates traffic
    service, client, cli   the check service, its client, the command line
    testing                the test kit
"""

import typing as _typing

from headgate.algorithms.decision import Charge, Decision, Verdict
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.clock import ManualClock, SystemClock
from headgate.engines.url import open_async_engine, open_engine
from headgate.errors import (
    CorruptState,
    EngineUnavailable,
    HeadgateError,
    InvalidCharge,
    InvalidRule,
    InvalidRulebook,
    LeaseLost,
    MissingExtra,
    RateLimited,
)
from headgate.lease import AsyncLease, Lease
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from headgate.observer import Observer
from headgate.reservation import AsyncReservation, Reservation

if _typing.TYPE_CHECKING:
    from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
    from headgate.adaptive.call_in_flight import AdaptiveCall
    from headgate.adaptive.limiter import AdaptiveLimiter
    from headgate.enforcement.rule_decision import RuleDecision
    from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
    from headgate.paced_executor import PacedExecutor
    from headgate.rules.rule import Rule, Rulebook
    from headgate.telemetry.counts import Counts
    from headgate.telemetry.decision_counts import DecisionCounts

__all__ = [
    "AdaptiveCall",
    "AdaptiveConcurrency",
    "AdaptiveLimiter",
    "AsyncLease",
    "AsyncLimiter",
    "AsyncReservation",
    "AsyncRuleLimiter",
    "Charge",
    "CorruptState",
    "Counts",
    "Decision",
    "DecisionCounts",
    "EngineUnavailable",
    "FixedWindow",
    "HeadgateError",
    "InvalidCharge",
    "InvalidRule",
    "InvalidRulebook",
    "LeakyBucket",
    "Lease",
    "LeaseLost",
    "Limit",
    "Limiter",
    "ManualClock",
    "MissingExtra",
    "Observer",
    "open_async_engine",
    "open_engine",
    "PacedExecutor",
    "parse",
    "RateLimited",
    "Reservation",
    "Rule",
    "Rulebook",
    "RuleDecision",
    "RuleLimiter",
    "SlidingLog",
    "SlidingWindow",
    "Slots",
    "Smooth",
    "SystemClock",
    "TokenBucket",
    "Verdict",
]
__version__ = "0.1.0"

# Loaded on first use: a program without a rulebook, an adaptive limit or a pool needs none of it.
_LAZY = {
    "AdaptiveCall": "headgate.adaptive.limiter",
    "AdaptiveConcurrency": "headgate.adaptive.adaptive_concurrency",
    "AdaptiveLimiter": "headgate.adaptive.limiter",
    "AsyncRuleLimiter": "headgate.enforcement.rule_limiter",
    "Counts": "headgate.telemetry.counts",
    "DecisionCounts": "headgate.telemetry.decision_counts",
    "PacedExecutor": "headgate.paced_executor",
    "Rule": "headgate.rules.rule",
    "Rulebook": "headgate.rules.rule",
    "RuleDecision": "headgate.enforcement.rule_decision",
    "RuleLimiter": "headgate.enforcement.rule_limiter",
}


def __getattr__(name: str) -> object:
    """Imports a name of rulebooks, adaptive limits or pools when it is first used."""
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
