"""Paces loops: hands out the items of an iterable when the limit lets each pass.

    for page in limiter.pace(pages, "crawler"): ...
    async for page in async_limiter.pace(pages, "crawler"): ...

An item is fetched first and then waits, so that the end of the iterable costs nothing. All wait in the queue of
`wait`, together with other callers and other processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from headgate.errors import InvalidCharge
from headgate.limiter_flows import patience_us
from headgate.validation import check_cost, check_key, describe

if TYPE_CHECKING:
    from headgate.limiter import AsyncLimiter, Limiter

T = TypeVar("T")


def pace(
    limiter: Limiter,
    items: Iterable[T],
    key: str | Callable[[T], str],
    cost: int | Callable[[T], int],
    timeout: float | None,
) -> Iterator[T]:
    """Returns an iterator over the items that sleeps until each may pass."""
    if isinstance(items, AsyncIterable):
        raise InvalidCharge("These items are awaited, and a Limiter would block their loop: use AsyncLimiter.")
    _check(items, key, cost, timeout)
    return _pace(limiter, items, key, cost, timeout)


def _pace(
    limiter: Limiter,
    items: Iterable[T],
    key: str | Callable[[T], str],
    cost: int | Callable[[T], int],
    timeout: float | None,
) -> Iterator[T]:
    for item in items:
        limiter.wait(_of(key, item), _of(cost, item), timeout).or_raise()
        yield item


def pace_async(
    limiter: AsyncLimiter,
    items: Iterable[T] | AsyncIterable[T],
    key: str | Callable[[T], str],
    cost: int | Callable[[T], int],
    timeout: float | None,
) -> AsyncIterator[T]:
    """Returns an iterator over the items that awaits the turn of each."""
    _check(items, key, cost, timeout)
    return _pace_async(limiter, items, key, cost, timeout)


async def _pace_async(
    limiter: AsyncLimiter,
    items: Iterable[T] | AsyncIterable[T],
    key: str | Callable[[T], str],
    cost: int | Callable[[T], int],
    timeout: float | None,
) -> AsyncIterator[T]:
    async for item in items if isinstance(items, AsyncIterable) else _each(items):
        (await limiter.wait(_of(key, item), _of(cost, item), timeout)).or_raise()
        yield item


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item


V = TypeVar("V", str, int)


def _of(value: V | Callable[[T], V], item: T) -> V:
    return value(item) if callable(value) else value


def _check(items: object, key: object, cost: object, timeout: object) -> None:
    """Raises InvalidCharge where the loop is written, not where it begins."""
    if not isinstance(items, Iterable | AsyncIterable):
        raise InvalidCharge(f"pace takes something to iterate over, such as a list; not {describe(items)}.")
    if not callable(key):
        check_key(key)
    if not callable(cost):
        check_cost(cost, spends=True)
    patience_us(timeout)
