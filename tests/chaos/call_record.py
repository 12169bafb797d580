"""The records of calls that load processes write, and the settings that they read.

Three limits, each on keys of its own. The fixed window and the token bucket are asked for twice what they admit,
so any permit that should not be there is found at once. The ledger's limit is never reached: what was admitted is
compared with what the server has counted in the end, and the difference is what a failover has forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

FIXED, BUCKET, LEDGER = "fixed", "bucket", "ledger"
LIMITS = {FIXED: "20/s fixed", BUCKET: "30/s", LEDGER: "100000000/day fixed"}
AMOUNT = {FIXED: 20, BUCKET: 30}  # per second; the bucket's burst is the same
KEYS = 12  # of each limit
LEDGER_KEYS = 4
ADMITTED = KEYS * sum(AMOUNT.values())  # per second, by all limits together
DEADLINE = 0.05


class CallRecord(NamedTuple):
    """One call, as its caller saw it. Seconds are the monotonic clock's, which all processes share."""

    limit: str
    key: int
    start: float
    end: float
    allowed: bool
    degraded: bool
    error: str  # empty if there was none
    at_us: int  # when it was decided, by the clock of whoever decided


class TimerTick(NamedTuple):
    """The control timer: a sleep of five milliseconds, when it should have ended and when it did."""

    due: float
    woke: float


class ProcessRecord(NamedTuple):
    """All that one process saw. `layout` is the version of the keys that it writes."""

    layout: int
    calls: list[CallRecord]
    ticks: list[TimerTick]


def key_of(limit: str, number: int) -> str:
    """The key's text, which in a cluster is also what its slot goes by."""
    return f"{limit}-{number}"
