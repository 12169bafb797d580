"""Cancelled waits, on every engine: nothing stays charged, in whatever order the waiters leave."""

import random
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.limiter import AsyncLimiter, Limiter
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES
from tests.servers.wait_until import until

ANSWERED_S = 30.0  # servers give places back in the background

ORDERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "first first": lambda places: places,
    "last first": lambda places: places[::-1],
    "mixed": lambda places: random.Random(7).sample(places, len(places)),
}
orders = pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
texts = pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()], ids=list(EXAMPLES))


def stands(limiter: Limiter) -> tuple[object, ...]:
    return limiter.peek("key").outcome[:5]


def becomes(look: Callable[[], object], wanted: object) -> None:
    """Wait until the look is what is wanted."""
    until(lambda: None if look() == wanted else f"{look()}, not {wanted}", ANSWERED_S)


@orders
@texts
def test_reservations_that_are_cancelled_leave_nothing_behind(
    text: str, order: Callable[[list[Any]], list[Any]], harness: EngineHarness
) -> None:
    limiter = harness.limiter(text)
    limiter.take("key", 10)
    before = stands(limiter)
    places = [limiter.reserve("key", 10) for _ in range(8)]
    assert places[-1].delay >= 7
    for each in order(places):
        each.cancel()
    becomes(lambda: stands(limiter), before)
    harness.advance(2)
    assert limiter.take("key", 10).allowed


@pytest.mark.parametrize("text", [EXAMPLES[name].text for name in ("SlidingWindow", "SlidingLog", "Smooth")])
def test_reservations_of_any_cost_that_are_cancelled_leave_nothing_behind(
    text: str, harness: EngineHarness
) -> None:
    limiter = harness.limiter(text)
    limiter.take("key", 10)
    before = stands(limiter)
    places = [limiter.reserve("key", cost) for cost in (1, 10, 2, 9, 3, 3, 8, 10, 1)]
    for each in places:
        each.cancel()
    becomes(lambda: stands(limiter), before)


@texts
def test_places_before_one_that_stays_come_back_with_it(text: str, harness: EngineHarness) -> None:
    """A waiter keeps its place while others leave; once it leaves as well, nothing is charged."""
    limiter = harness.limiter(text)
    limiter.take("key", 10)
    before = stands(limiter)
    places = [limiter.reserve("key", 10) for _ in range(5)]
    stays = places.pop(2)
    for each in places:
        each.cancel()
    behind = limiter.reserve("key", 10)
    assert behind.delay > stays.delay
    behind.cancel()
    stays.cancel()
    becomes(lambda: stands(limiter), before)


@orders
def test_places_of_a_rulebook_leave_nothing_behind(
    order: Callable[[list[Any]], list[Any]], harness: EngineHarness
) -> None:
    rules = {
        "rules": [
            {"name": "all", "limit": "1/minute"},
            {"name": "user", "limit": "1/s burst 2; 100/hour sliding", "key": "user", "missing": "deny"},
        ]
    }
    limiter = AsyncLimiter.from_rules(rules, harness.async_engine)
    call = {"user": "ann"}

    async def story() -> None:
        await limiter.check(call)
        places = [await limiter.reserve(call) for _ in range(5)]
        assert places[-1].delay == 300
        for each in order(places):
            await limiter.cancel(each)

    harness.run(story())
    becomes(lambda: harness.run(limiter.peek(call)).retry_after, 60)


@texts
def test_threads_that_leave_an_engine_in_memory_leave_nothing_behind(text: str) -> None:
    limiter = Limiter(text, MemoryEngine(ManualClock()))
    limiter.take("key", 10)
    before = stands(limiter)

    def come_and_go() -> None:
        for _ in range(50):
            places = [limiter.reserve("key", 5) for _ in range(3)]
            for each in places:
                each.cancel()

    threads = [Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stands(limiter) == before


def test_a_cancellation_from_before_a_reset_is_not_tried_again() -> None:
    limiter = Limiter("1/minute smooth", clock=ManualClock())
    limiter.take("key")
    first, _ = limiter.reserve("key"), limiter.reserve("key")
    first.cancel()
    limiter.reset("key")
    limiter.take("key")
    stays, last = limiter.reserve("key"), limiter.reserve("key")
    last.cancel()
    assert (stays.delay, limiter.peek("key").retry_after) == (60, 120)
