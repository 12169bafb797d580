"""Paced loops, as stories on a clock that moves: when each item passes, and what each mistake is told."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidCharge, Limiter, ManualClock, RateLimited

START_US = ManualClock().now_us()


def _seconds(clock: ManualClock) -> float:
    return (clock.now_us() - START_US) / 1_000_000


async def _slowly(items: str) -> AsyncIterator[str]:
    for item in items:
        await asyncio.sleep(0)
        yield item


def test_items_pass_at_the_rate_of_the_limit() -> None:
    clock = ManualClock()
    passed = [(item, _seconds(clock)) for item in Limiter("2/s burst 2", clock=clock).pace("abcd", "crawler")]
    assert passed == [("a", 0), ("b", 0), ("c", 0.5), ("d", 1.0)]


@pytest.mark.parametrize("items", ["abcd", _slowly("abcd")], ids=["a list", "awaited"])
async def test_items_pass_at_the_rate_of_an_async_limit(items: Any) -> None:
    clock = ManualClock()
    limiter = AsyncLimiter("2/s burst 2", clock=clock)
    passed = [(item, _seconds(clock)) async for item in limiter.pace(items, "crawler")]
    assert passed == [("a", 0), ("b", 0), ("c", 0.5), ("d", 1.0)]


def test_each_item_may_have_a_key_and_a_cost() -> None:
    clock = ManualClock()
    limiter = Limiter("1/s burst 3", clock=clock)
    pages = [("a.example", 3), ("b.example", 3), ("a.example", 2)]
    paced = limiter.pace(pages, lambda page: page[0], cost=lambda page: page[1])
    assert [_seconds(clock) for _ in paced] == [0, 0, 2]
    assert limiter.peek("b.example").remaining == 2


def test_a_slow_consumer_does_not_wait() -> None:
    clock = ManualClock()
    for _ in Limiter("1/s burst 1", clock=clock).pace(range(3), "crawler"):
        clock.advance(5)
    assert _seconds(clock) == 15


def test_the_end_of_the_items_and_a_break_cost_nothing() -> None:
    limiter = Limiter("3/hour", clock=ManualClock())
    assert list(limiter.pace("ab", "crawler")) == ["a", "b"]
    assert limiter.peek("crawler").remaining == 1
    for _ in limiter.pace("cd", "crawler"):
        break
    assert limiter.peek("crawler").remaining == 0


def test_an_item_is_fetched_before_its_turn() -> None:
    limiter = Limiter("1/hour", clock=ManualClock())

    def broken() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(limiter.pace(broken(), "crawler", timeout=0))


async def test_a_refused_item_raises() -> None:
    clock = ManualClock()
    with pytest.raises(RateLimited):
        list(Limiter("1/s burst 1", clock=clock).pace("abc", "crawler", timeout=0.5))
    with pytest.raises(RateLimited) as refused:
        list(Limiter("1/s burst 1", clock=clock).pace("abc", "crawler", cost=2))
    assert refused.value.decision.retry_after is None
    with pytest.raises(RateLimited):
        [item async for item in AsyncLimiter("1/s burst 1", clock=clock).pace("abc", "crawler", timeout=0.5)]
    assert _seconds(clock) == 0


async def test_other_tasks_run_while_an_item_waits() -> None:
    limiter = AsyncLimiter("1/s burst 1", clock=ManualClock())
    order: list[str] = []

    async def work(name: str) -> None:
        async for item in limiter.pace("12", name):
            order.append(name + item)  # noqa: PERF401 (the order is what is looked at)

    await asyncio.gather(work("a"), work("b"))
    assert order == ["a1", "b1", "a2", "b2"]


@pytest.mark.parametrize("limiter", [Limiter("1/s"), AsyncLimiter("1/s")], ids=["sync", "async"])
def test_a_mistake_is_an_error_where_the_loop_is_written(limiter: Any) -> None:
    for arguments, sentence in (
        ((7, "key"), "pace takes something to iterate over, such as a list; not 7"),
        (("abc", ""), "A key must not be empty"),
        (("abc", 7), "A key is a string, not int"),
        (("abc", "key", 0), "A cost is at least 1, not 0"),
        (("abc", "key", 1, -1), "A timeout is a number of seconds"),
    ):
        with pytest.raises(InvalidCharge, match=sentence):
            limiter.pace(*arguments)


def test_awaited_items_need_an_async_limiter() -> None:
    items: Any = _slowly("abc")
    with pytest.raises(InvalidCharge, match=r"These items are awaited, .*: use AsyncLimiter"):
        Limiter("1/s").pace(items, "crawler")


def test_slots_are_not_paced() -> None:
    with pytest.raises(InvalidCharge, match="is held, not taken"):
        list(Limiter("2 slots").pace("abc", "crawler"))
