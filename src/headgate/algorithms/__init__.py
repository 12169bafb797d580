"""The algorithms, each a pure function of limit, state, time and cost.

One file per algorithm: its story, its Limit, its State, and the functions that the table below names. Nothing
here reads a clock, draws a random number or does I/O; engines load, decide and save. `None` for a state means
"never used". Each file has a twin of the same name in lua/algorithms.

    decide(limit, state, now_us, cost, patience_us=None) -> (Outcome, State | None)
        cost 0 peeks: the current numbers, and whether one unit would pass. Without patience it decides a take;
        with patience a reservation, which is allowed if it would be served within that time.
        It returns the very state that it got if there is nothing to save: a peek or a refusal leaves no trace.
        There are two exceptions. If the clock was set back behind a state by more than MAX_CLOCK_SWING_US, that is
        put right at once: otherwise everybody would wait until the clock has caught up. And a refusal that meets
        the count of another limit may note when.
    refund(limit, state, now_us, units, receipt, cancel) -> State | None
        None: nothing to give back. With `cancel` the charge is a reservation that must not have been served.
    surcharge(limit, state, now_us, units, receipt) -> State | None
        Charges units that the receipt's charge used beyond its cost: at once, and whether they fit or not, because
        they have been used. None: that changes nothing. Buckets go into debt, windows count beyond their amount.
    dead_at_us(limit, state) -> int                   the instant from which on the state means the same as None
    convert_pace(limit, state, pace) -> State         converts a state that was written at another pace, where
        limits have one (limit.pace): the same units under this limit
    pack(state) -> str, unpack(text) -> State         the stored form, which is an API (docs/reference/storage.md)

Modules:
    token_bucket      a steady rate that allows bursts (GCRA)
    leaky_bucket      nginx's limit_req
    fixed_window      so many units in each window of the clock or the calendar
    sliding_window    so many units in the last period, counted in cells
    sliding_log       so many units in any period, each unit remembered
    smooth            Guava's RateLimiter: even pacing with a warm-up
    slots             concurrency: leases and the queue for them
    lockout           refuses a key for longer after repeated refusals
    pause             refuses a key until an instant; its clock stands, and waiting callers keep their order
    limit             Limit, the base of all limits
    decision          Outcome, Verdict, Decision, Charge and Receipt
    quota_grants      divides a limit among holders that decide by themselves
    divisible_limit   which limits can be divided, and into how many units
    durations         writes lengths of time
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit


class Algorithm(NamedTuple):
    """The functions of one model file. Any stands for that file's State."""

    decide: Callable[..., tuple[Outcome, Any]]
    refund: Callable[..., Any]
    surcharge: Callable[..., Any]
    dead_at_us: Callable[[Any, Any], int]
    write_pending: Callable[[Any, Any], Any] | None
    retune: Callable[[Any, Any, int], Any] | None
    convert_pace: Callable[[Any, Any, int], Any] | None


def _functions_of(module: ModuleType) -> Algorithm:
    optional = (getattr(module, name, None) for name in ("write_pending", "retune", "convert_pace"))
    return Algorithm(module.decide, module.refund, module.surcharge, module.dead_at_us, *optional)


# A row for each algorithm that is charged. A new one adds its name.
ALGORITHMS = {
    name: _functions_of(import_module(f"headgate.algorithms.{name}"))
    for name in (
        "token_bucket",
        "leaky_bucket",
        "fixed_window",
        "sliding_window",
        "sliding_log",
        "smooth",
    )
}


def algorithm(limit: Limit) -> Algorithm:
    """Returns the functions that decide charges of this limit. Slots are held, not charged: see slots.py."""
    return ALGORITHMS[limit.algorithm]
