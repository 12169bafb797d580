"""The promises of every engine, as stories: functions that check an empty engine and set its clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from headgate.algorithms import algorithm
from headgate.algorithms.decision import ALLOWED, AT_US, DELAY_US, REMAINING, RETRY_AFTER_US, Receipt
from headgate.algorithms.limit import HORIZON_US, HOUR, SECOND, Limit
from headgate.algorithms.slots import TICKET_US, Slots
from headgate.calendar import resolve
from headgate.engines.port import Engine
from headgate.limit_syntax import parse


class TurnedClock(Protocol):
    """The engine's clock, set by the story.

    >>> clock: TurnedClock = ManualClock()
    >>> clock.set_us(clock.now_us() + 1_000_000)
    """

    def now_us(self) -> int:
        """Returns microseconds since 1970."""

    def set_us(self, now_us: int) -> None:
        """Sets the clock to so many microseconds since 1970."""


Story = Callable[[Engine, TurnedClock], None]

_TEXTS = (
    *("10/s burst 3", "123457/day burst 7", "6/s queue 3", "6/s queue 5 delay 2", "5/s fixed"),
    *("7/day fixed in Asia/Shanghai", "6/s sliding", "5/s log", "9/s smooth", "9/s smooth warmup 2s"),
)


def a_charge_counts_and_a_look_does_not(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.meter(parse("3/hour"), "looks")
    assert meter.decide("key", 0)[:3] == (True, 3, 0)
    assert meter.decide("key", 2)[:3] == (True, 1, 0)
    assert meter.decide("key", 0)[REMAINING] == 1
    assert meter.decide("key", 0)[AT_US] == clock.now_us()


def a_refusal_leaves_no_trace_and_ends_at_its_retry_after(engine: Engine, clock: TurnedClock) -> None:
    for text in _TEXTS:
        meter = engine.meter(parse(text), text)
        while meter.decide("key", 1)[ALLOWED]:
            pass
        refused = meter.decide("key", 1)
        assert meter.decide("key", 1) == refused, text
        retry_us = refused[RETRY_AFTER_US]
        assert retry_us, text
        clock.set_us(clock.now_us() + retry_us - 1)
        assert not meter.decide("key", 1)[ALLOWED], text
        clock.set_us(clock.now_us() + 1)
        assert meter.decide("key", 1)[ALLOWED], text


def keys_and_names_do_not_meet(engine: Engine, clock: TurnedClock) -> None:
    limit = parse("1/hour")
    for name in ("one", "one:", "one:{", "{one}", "%", "one two", "eins\n", "一"):
        meter = engine.meter(limit, name)
        for key in (
            "a",
            "b",
            "a:b",
            "{a}",
            "a}",
            "%61",
            " ",
            "\n",
            "\0",
            "ä",
            "键",
            "\ud800",
            "a" * 200,
            "a" * 65_536,
        ):
            assert meter.decide(key, 1)[ALLOWED], (name, key)
            assert not meter.decide(key, 1)[ALLOWED], (name, key)


def meters_of_one_name_share_a_count(engine: Engine, clock: TurnedClock) -> None:
    assert engine.meter(parse("5/hour"), "shared").decide("key", 5)[ALLOWED]
    assert not engine.meter(parse("5/hour"), "shared").decide("key", 1)[ALLOWED]
    # Another limit under the same name goes on with the count; another algorithm keeps something else.
    assert not engine.meter(parse("5/hour burst 2"), "shared").decide("key", 1)[ALLOWED]
    assert engine.meter(parse("5/hour log"), "shared").decide("key", 5)[ALLOWED]


def reservations_are_served_in_order_and_within_patience(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.meter(parse("1/s"), "places")
    assert meter.decide("key", 1)[ALLOWED]
    waits = [meter.decide("key", 1, HORIZON_US)[DELAY_US] for _ in range(3)]
    assert waits == [SECOND, 2 * SECOND, 3 * SECOND]
    assert not meter.decide("key", 1, 4 * SECOND - 1)[ALLOWED]
    assert meter.decide("key", 1, 4 * SECOND)[DELAY_US] == 4 * SECOND


def what_is_given_back_can_be_taken_again(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.meter(parse("3/hour"), "refunds")
    taken = meter.decide("key", 3)
    assert meter.refund("key", 1, Receipt.from_outcome(taken, 3))[REMAINING] == 1
    assert meter.refund("key", 3, Receipt.from_outcome(taken, 3, 1))[REMAINING] == 3
    assert meter.refund("key", 3, Receipt.from_outcome(taken, 3, 3))[REMAINING] == 3
    assert meter.refund("never seen", 3, Receipt.from_outcome(taken, 3))[REMAINING] == 3


def what_was_used_beyond_a_charge_is_charged(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.meter(parse("3/hour"), "surcharges")
    receipt = Receipt.from_outcome(meter.decide("key", 1), 1)
    assert meter.surcharge("key", 1, receipt)[REMAINING] == 1
    assert meter.surcharge("key", 4, receipt)[REMAINING] == 0
    assert meter.decide("key", 1)[RETRY_AFTER_US] == 4 * HOUR // 3


def a_cancelled_place_is_free_again(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.meter(parse("1/s"), "cancels")
    meter.decide("key", 1)
    place = meter.decide("key", 1, HORIZON_US)
    meter.refund("key", 1, Receipt.from_outcome(place, 1), True)
    assert meter.decide("key", 1, HORIZON_US)[DELAY_US] == SECOND
    clock.set_us(clock.now_us() + SECOND + 1)
    assert (
        meter.refund("key", 1, Receipt.from_outcome(place, 1), True)[REMAINING] == 0
    )  # served: nothing comes back


def charges_pass_together_or_not_at_all(engine: Engine, clock: TurnedClock) -> None:
    meters = [engine.meter(parse(text), f"together {text}") for text in _TEXTS]
    charges = [(meter, "key", 1) for meter in meters]
    assert all(outcome[ALLOWED] for outcome in engine.decide_all(charges))
    full = engine.meter(parse("1/hour"), "full")
    full.decide("key", 1)
    before = [meter.decide("key", 0) for meter in meters]
    outcomes = engine.decide_all([*charges, (full, "key", 1)], HORIZON_US // 10**6)
    assert [outcome[ALLOWED] for outcome in outcomes] == [True] * len(meters) + [False]
    assert [meter.decide("key", 0) for meter in meters] == before


def a_key_that_was_reset_was_never_seen(engine: Engine, clock: TurnedClock) -> None:
    for text in _TEXTS:
        meter = engine.meter(parse(text), f"resets {text}")
        fresh = meter.decide("key", 0)
        meter.decide("key", 1)
        meter.decide("other", 1)
        meter.reset("key")
        assert meter.decide("key", 0) == fresh, text
        assert meter.decide("other", 0) != fresh, text


def every_answer_is_the_models(engine: Engine, clock: TurnedClock) -> None:
    rng = random.Random(1)
    for text in _TEXTS:
        limit = parse(text)
        meter, model, state = engine.meter(limit, f"walk {text}"), algorithm(limit), None
        for _ in range(60):
            now_us = clock.now_us() + rng.choice((0, 1, 1000, rng.randrange(SECOND), 2 * SECOND))
            clock.set_us(now_us)
            cost, patience_us = rng.choice((0, 1, 1, 2, 3, 9)), rng.choice((None, None, 0, SECOND, HORIZON_US))
            outcome, state = _model_decide(model, limit, state, now_us, cost, patience_us)
            assert meter.decide("key", cost, patience_us) == outcome, (text, now_us, cost, patience_us)


def _model_decide(
    model: Any, limit: Limit, state: Any, now_us: int, cost: int, patience_us: int | None
) -> tuple[Any, Any]:
    outcome, after = model.decide(resolve(limit, now_us), state, now_us, cost, patience_us)
    if after is not state and model.write_pending is not None:
        after = model.write_pending(limit, after)
    return outcome, after


def slots_are_held_renewed_and_released(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.slots(Slots(2, ttl=10), "slots")
    (first, _), (second, _) = meter.acquire("key"), meter.acquire("key")
    fences = first[-1], second[-1]
    assert (first[ALLOWED], second[ALLOWED], fences[0] < fences[1]) == (True, True, True)
    denied, ticket = meter.acquire("key")
    assert (denied[ALLOWED], denied[RETRY_AFTER_US], ticket) == (False, 10 * SECOND, None)
    clock.set_us(clock.now_us() + 9 * SECOND)
    assert meter.renew("key", fences[0]) == clock.now_us() + 10 * SECOND
    clock.set_us(clock.now_us() + SECOND)
    assert meter.renew("key", fences[1]) is None  # it has expired
    assert not meter.release("key", fences[1])
    assert meter.free("key")[REMAINING] == 1
    assert meter.release("key", fences[0])
    assert not meter.release("key", fences[0])
    assert meter.free("key")[REMAINING] == 2


def waiters_are_served_by_ticket(engine: Engine, clock: TurnedClock) -> None:
    meter = engine.slots(Slots(1, ttl=10), "line")
    held, _ = meter.acquire("key")
    _, first = meter.acquire("key", None, True)
    _, second = meter.acquire("key", None, True)
    assert first is not None
    assert second is not None
    assert meter.release("key", held[-1])
    assert not meter.acquire("key")[0][ALLOWED]  # a newcomer is behind them
    assert not meter.acquire("key", second, True)[0][ALLOWED]
    granted, ticket = meter.acquire("key", first, True)
    assert (granted[ALLOWED], ticket) == (True, None)
    assert meter.acquire("key", second, True)[1] == second
    clock.set_us(clock.now_us() + TICKET_US)
    assert meter.release("key", granted[-1])
    assert meter.acquire("key")[0][ALLOWED]  # a waiter that stops polling loses its place in the queue
    _, third = meter.acquire("key", None, True)
    assert third is not None
    meter.leave("key", third)
    meter.reset("key")
    assert meter.acquire("key")[0][ALLOWED]


engine_stories: tuple[Story, ...] = (
    a_charge_counts_and_a_look_does_not,
    a_refusal_leaves_no_trace_and_ends_at_its_retry_after,
    keys_and_names_do_not_meet,
    meters_of_one_name_share_a_count,
    reservations_are_served_in_order_and_within_patience,
    what_is_given_back_can_be_taken_again,
    what_was_used_beyond_a_charge_is_charged,
    a_cancelled_place_is_free_again,
    charges_pass_together_or_not_at_all,
    a_key_that_was_reset_was_never_seen,
    every_answer_is_the_models,
    slots_are_held_renewed_and_released,
    waiters_are_served_by_ticket,
)
