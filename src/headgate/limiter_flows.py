"""Flows of several steps that both limiters run: wait, serve, cancel, refund, settle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headgate.algorithms.decision import (
    AT_US,
    AdaptiveOutcome,
    Decision,
    DegradedOutcome,
    Outcome,
    PausedOutcome,
    Receipt,
)
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US, SECOND, UNLIMITED
from headgate.algorithms.slots import Slots
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.flow import Flow
from headgate.validation import check_cost, check_units


def patience_us(timeout: object) -> int:
    """Returns the longest time that a caller waits, in microseconds; raises InvalidCharge if it is no timeout."""
    if timeout is None:
        return HORIZON_US
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidCharge(f"A timeout is a number of seconds of at least 0, or None; not {timeout!r}.")
    return round(min(timeout, HORIZON_US / SECOND) * SECOND)


def wait(
    decide: Callable[..., Any], batch: Any, timeout: float | None, sleep_us: Callable[[int], Any]
) -> Flow[Decision]:
    """Takes a place in the queue, then sleeps until it is served. One reservation, one sleep, no polling.

    Whether the timeout suffices is known before anything is charged. A caller that is interrupted while it sleeps
    gives the place back; a process that dies loses it.
    """
    decision: Decision = yield partial(decide, batch, patience_us(timeout))
    yield from serve(decision, sleep_us)
    return decision


def wait_through_pauses(
    decide: Callable[..., Any],
    peek: Callable[[], Any],
    batch: Any,
    timeout: float | None,
    sleep_us: Callable[..., Any],
) -> Flow[Decision]:
    """Waits like `wait`, and looks again when its turn has come: if the key was paused meanwhile, every turn comes
    that much later. One more request after each sleep; none if there was nothing to wait for.

    In a long pause it looks every MAX_PAUSED_SLEEP_US. If a reset has ended the pause, it has deleted the place as
    well: the caller takes another one."""
    max_wait_us, waited_us = patience_us(timeout), 0
    decision: Decision = yield partial(decide, batch, max_wait_us)
    left_us, paused_us = decision.delay_us if decision.allowed else 0, _paused_us(decision)
    while left_us:
        nap_us = min(left_us, MAX_PAUSED_SLEEP_US) if paused_us > MAX_PAUSED_SLEEP_US else left_us
        try:
            yield partial(sleep_us, nap_us)
            waited_us += nap_us
            now: Decision = yield peek
        except EngineUnavailable:
            raise
        except BaseException:
            yield from cancel(decision)
            raise
        parts = list(zip(decision.counter_decisions, now.counter_decisions, strict=True))
        was_reset = paused_us - nap_us > _paused_us(now) + MAX_CLOCK_SWING_US and not now.degraded
        left_us, paused_us = (
            max(_until_served_us(mine.outcome, current.outcome) for mine, current in parts),
            _paused_us(now),
        )
        if waited_us + left_us > max_wait_us:
            yield from cancel(decision)
            return _refused(batch, now, left_us)
        if was_reset or any(_is_void(mine.outcome, current.outcome) for mine, current in parts):
            decision = yield partial(decide, batch, max_wait_us - waited_us)
            left_us, paused_us = decision.delay_us if decision.allowed else 0, _paused_us(decision)
    return decision


# How long a caller sleeps at most before it looks whether a long pause was ended.
MAX_PAUSED_SLEEP_US = 10 * SECOND

# By how much a sleep may end too early, and the turn still counts as come.
MAX_EARLY_US = 1000


def _until_served_us(reserved: Outcome, now: Outcome) -> int:
    """Returns how long a place is still not served, by the key's clock and its pause at this instant."""
    if isinstance(reserved, DegradedOutcome) or isinstance(now, DegradedOutcome):
        return 0  # no engine that knows of a pause
    paused_us = now.paused_us if isinstance(now, PausedOutcome) else 0
    left_us = Receipt.from_outcome(reserved, 1).served_us - now[AT_US]
    return paused_us + (left_us if left_us > MAX_EARLY_US else 0)


def _paused_us(decision: Decision) -> int:
    """Returns how long the key of a decision is still paused: of several, the longest."""
    outcomes = (part.outcome for part in decision.counter_decisions)
    return max((outcome.paused_us for outcome in outcomes if isinstance(outcome, PausedOutcome)), default=0)


def _is_void(reserved: Outcome, now: Outcome) -> bool:
    """Returns whether the window that a place was taken in ends before the pause does."""
    receipt = Receipt.from_outcome(reserved, 1)
    return isinstance(now, PausedOutcome) and receipt.at_us + receipt.reset_after_us <= now[AT_US]


def _refused(batch: Any, now: Decision, left_us: int) -> Decision:
    """Returns the decision of a caller whose turn would come too late."""
    outcomes: list[Outcome] = []
    for part in now.counter_decisions:
        _, remaining, _, reset_us, _, at_us, mark = part.outcome
        outcome: Outcome = (False, remaining, left_us, reset_us, 0, at_us, mark)
        if isinstance(part.outcome, PausedOutcome):
            outcome = PausedOutcome.wrap(outcome, part.outcome.paused_us)
        outcomes.append(outcome)
    refused: Decision = batch.decision(outcomes)
    return refused


def serve(decision: Decision, sleep_us: Callable[[int], Any]) -> Flow[None]:
    """Sleeps until an allowed call is served; if interrupted, gives its place back."""
    if decision.allowed and decision.delay_us:
        try:
            yield partial(sleep_us, decision.delay_us)
        except BaseException:
            yield from cancel(decision)
            raise


def cancel(decision: Decision) -> Flow[bool]:
    """Gives a reservation back, as far as nothing was built on it. False: the engine did not reply for some
    part."""
    complete = True
    for part in reversed((*decision.counter_decisions, *decision.shadow_decisions)):
        if part.allowed and not part.settled and not (yield from _give_back(part, part.cost, cancel=True)):
            complete = False
    return complete


def refund(decision: Decision, cost: int | None) -> Flow[bool]:
    """Refunds what each charge of the decision still holds, once. False: the engine did not reply for some
    part."""
    complete = True
    units = None if cost is None else check_units(cost)
    if isinstance(decision.limit, Slots) and len(decision.counter_decisions) == 1:
        raise InvalidCharge(f'"{decision.limit}" is held, not taken: release its lease instead.')
    if decision.allowed:
        for part in (*decision.counter_decisions, *decision.shadow_decisions):
            refunded = part.cost if units is None else units
            if part.allowed and not part.settled and not (yield from _give_back(part, refunded, cancel=False)):
                complete = False
    return complete


def settle(decision: Decision, cost: object) -> Flow[bool]:
    """Makes each charge of the decision count its real cost, once. False: the engine did not reply for some
    part."""
    units, complete = check_settlement(decision, cost), True
    if decision.allowed:
        for part in (*decision.counter_decisions, *decision.shadow_decisions):
            if part.allowed and not (yield from _settle_part(part, units)):
                complete = False
    return complete


def check_settlement(decision: Decision, cost: object) -> int:
    """Returns the real cost if the decision can be settled with it; raises InvalidCharge otherwise."""
    if len(decision.counter_decisions) == 1 and decision.limit.is_held:
        way = "Release its lease" if isinstance(decision.limit, Slots) else "Finish the call"
        raise InvalidCharge(f'"{decision.limit}" is held, not taken: it has no cost to settle. {way}.')
    if not decision.has_one_cost:
        raise InvalidCharge(_several_costs(decision))
    return check_cost(cost)


def _settle_part(part: Decision, units: int) -> Flow[bool]:
    """Gives back or charges what one part holds more or less than its real cost; False if the engine did not
    reply."""
    if part.settled or part.limit.is_held or part.limit is UNLIMITED:
        return True
    part.settled = True
    held = part.cost - part.refunded_units
    if units <= held:
        return (yield from _give_back(part, held - units, cancel=False))
    receipt = Receipt.from_outcome(part.outcome, part.cost, part.refunded_units)
    part.surcharged_units = units - held
    meter: Any = part.source
    outcome: Outcome = yield partial(meter.surcharge, part.key, units - held, receipt)
    return not isinstance(outcome, DegradedOutcome)


def _several_costs(decision: Decision) -> str:
    """Returns why a decision whose charges differ cannot be settled as one."""
    parts = decision.counter_decisions
    charged = " and ".join(f'{part.cost} by "{part.rule or part.limit}"' for part in parts)
    way = "name the rule" if parts[0].rule else "settle each of decision.counter_decisions by itself"
    return f"This call was charged {charged}, and the real cost may be of one of them only: {way}."


def _give_back(part: Decision, units: int, *, cancel: bool) -> Flow[bool]:
    """Refunds or cancels up to so many units of one part; False if the engine did not reply."""
    if isinstance(part.outcome, AdaptiveOutcome):
        if part.outcome.call is not None:
            part.outcome.call.cancel()
        return True
    units = min(units, part.cost - part.refunded_units)
    if units > 0 and not isinstance(part.limit, Slots):
        receipt = Receipt.from_outcome(part.outcome, part.cost, part.refunded_units)
        part.refunded_units += units
        meter: Any = part.source
        outcome: Outcome = yield partial(meter.refund, part.key, units, receipt, cancel)
        return not isinstance(outcome, DegradedOutcome)
    return True
