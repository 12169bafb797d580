"""Waiting for a slot: a ticket, and asking again with it. A flow, driven by both limiters.

A slot comes free when its holder says so, which nobody can know ahead; so unlike other waits this one asks
again and again: often if the line moves and one is near its head, ever less while it stands. The ticket keeps
the order: it is asking within a ticket's life that keeps the place, and whoever stops asking has left. An
interrupted waiter gives its ticket up. If the interruption came while an answer was under way, an engine that is
awaited gives back what that answer brings; of one that blocks, a lease ends by itself after its ttl.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, MARK, RETRY_AFTER_US, Decision, Outcome
from headgate.errors import RateLimited
from headgate.flow import Flow

# The pause of who is next in line, when the line has moved; and the longest, well within the life of a ticket.
FIRST_PAUSE_US = 10_000
LONGEST_PAUSE_US = 100_000


def acquire(meter: Any, key: str, timeout_us: int, sleep_us: Callable[[int], Any]) -> Flow[Decision]:
    """Get a slot within the timeout, in the order of asking; raises RateLimited if there is none."""
    facts, ticket = yield partial(meter.acquire, key, None, timeout_us > 0)
    if not facts[ALLOWED] and ticket is not None:
        facts = yield from _stand_in_line(meter, key, facts, ticket, timeout_us, sleep_us)
    decision = Decision(facts, meter, key, 1)
    if not decision.allowed:
        raise RateLimited(decision)
    return decision


def _stand_in_line(
    meter: Any, key: str, facts: Outcome, ticket: int | None, timeout_us: int, sleep_us: Callable[[int], Any]
) -> Flow[Outcome]:
    started_us, waited_us, place, pause_us = _at_us(facts), 0, 0, 0
    try:
        while not facts[ALLOWED] and waited_us < timeout_us:
            moved, place = facts[MARK] != place, facts[MARK]
            pause_us = min(FIRST_PAUSE_US * place if moved else pause_us * 2, LONGEST_PAUSE_US)
            nap_us = min(pause_us, timeout_us - waited_us, facts[RETRY_AFTER_US] or pause_us)
            yield partial(sleep_us, nap_us)
            # By the engine's clock, which sees how long asking takes; by the naps, should it step back.
            waited_us = max(waited_us, _at_us(facts) - started_us) + nap_us
            # The last question gives the ticket up.
            facts, ticket = yield partial(meter.acquire, key, ticket, waited_us < timeout_us)
    except BaseException:
        if ticket is not None:
            yield partial(meter.leave, key, ticket)
        raise
    return facts


def _at_us(facts: Outcome) -> int:
    return facts[5]
