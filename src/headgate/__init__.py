"""headgate decides, for every call, whether it may pass, be delayed or be refused.

In one process, across a cluster through Redis or Valkey, and always by the same exact arithmetic.
"""

from headgate.clock import ManualClock, SystemClock
from headgate.engine.url import open_async_engine, open_engine
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
from headgate.limiter import AsyncLimiter, Limiter
from headgate.model.decision import Charge, Decision, Verdict
from headgate.model.fixed_window import FixedWindow
from headgate.model.leaky_bucket import LeakyBucket
from headgate.model.limit import Limit
from headgate.model.sliding_log import SlidingLog
from headgate.model.sliding_window import SlidingWindow
from headgate.model.slots import Slots
from headgate.model.smooth import Smooth
from headgate.model.token_bucket import TokenBucket
from headgate.reservation import AsyncReservation, Reservation
from headgate.ruled.decision import RuledDecision
from headgate.ruled.limiter import AsyncRuledLimiter, RuledLimiter
from headgate.rules.rule import Rule, Rulebook
from headgate.text import parse

__all__ = [
    "AsyncLease",
    "AsyncLimiter",
    "AsyncReservation",
    "AsyncRuledLimiter",
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
    "RuledDecision",
    "RuledLimiter",
    "SlidingLog",
    "SlidingWindow",
    "Slots",
    "Smooth",
    "SystemClock",
    "TokenBucket",
    "Verdict",
]
__version__ = "0.1.0"
