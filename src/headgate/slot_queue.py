"""Waits in the queue for a slot: draws a ticket and polls with it. The flow runs in sync and async limiters.

A holder may release its slot at any time. So this wait polls, unlike other waits: often if the
queue moves and the waiter is near its head, ever less often while the queue does not move. The ticket keeps the
waiter's place. Each poll renews it, and a waiter that stops polling loses its place. An interrupted waiter gives
up its ticket. If a reply is under way at that moment, an async engine gives back the slot that the reply brings;
with a sync engine, the lease expires after its ttl.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, MARK, RETRY_AFTER_US, Decision, Outcome
from headgate.errors import RateLimited
from headgate.flow import Flow

# The pause of the first waiter after the queue has moved; and the longest pause, well within the life of a ticket.
MIN_PAUSE_US = 10_000
MAX_PAUSE_US = 100_000


def acquire(meter: Any, key: str, timeout_us: int, sleep_us: Callable[[int], Any]) -> Flow[Decision]:
    """Acquires a slot within the timeout, first come, first served; raises RateLimited if there is none."""
    outcome, ticket = yield partial(meter.acquire, key, None, timeout_us > 0)
    if not outcome[ALLOWED] and ticket is not None:
        outcome = yield from _wait_in_queue(meter, key, outcome, ticket, timeout_us, sleep_us)
    decision = Decision(outcome, meter, key, 1)
    if not decision.allowed:
        raise RateLimited(decision)
    return decision


def _wait_in_queue(
    meter: Any, key: str, outcome: Outcome, ticket: int | None, timeout_us: int, sleep_us: Callable[[int], Any]
) -> Flow[Outcome]:
    started_at_us, waited_us, place, pause_us = _at_us(outcome), 0, 0, 0
    try:
        while not outcome[ALLOWED] and waited_us < timeout_us:
            moved, place = outcome[MARK] != place, outcome[MARK]
            pause_us = min(MIN_PAUSE_US * place if moved else pause_us * 2, MAX_PAUSE_US)
            sleep_for_us = min(pause_us, timeout_us - waited_us, outcome[RETRY_AFTER_US] or pause_us)
            yield partial(sleep_us, sleep_for_us)
            # By the engine's clock, which includes the time of the requests; by the sleeps, should it step back.
            waited_us = max(waited_us, _at_us(outcome) - started_at_us) + sleep_for_us
            # The last request gives the ticket up.
            outcome, ticket = yield partial(meter.acquire, key, ticket, waited_us < timeout_us)
    except BaseException:
        if ticket is not None:
            yield partial(meter.leave, key, ticket)
        raise
    return outcome


def _at_us(outcome: Outcome) -> int:
    return outcome[5]
