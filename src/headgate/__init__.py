"""headgate decides, for every call, whether it may pass, be delayed or be refused.

In one process, across a cluster through Redis or Valkey, and always by the same exact arithmetic.
"""

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
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
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
from headgate.reservation import AsyncReservation, Reservation
from headgate.rules.rule import Rule, Rulebook

__all__ = [
    "AsyncLease",
    "AsyncLimiter",
    "AsyncReservation",
    "AsyncRuleLimiter",
    "Charge",
    "CorruptState",
    "Decision",
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
    "open_async_engine",
    "open_engine",
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
