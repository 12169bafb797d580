"""Wrong arguments in place of an engine or a decision are refused with a sentence that says what is expected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headgate import (
    AsyncLimiter,
    Decision,
    InvalidCharge,
    InvalidRule,
    Limiter,
    ManualClock,
    open_async_engine,
    open_engine,
)
from headgate.client import AsyncClient, Client
from headgate.testing import SyncAdapter
from tests.servers import RedisServer

RULES = {"rules": [{"name": "all", "limit": "3/minute"}, {"name": "jobs", "limit": "2 slots"}]}

SYNC: list[Callable[[Any], Any]] = [
    lambda engine: Limiter("3/s", engine),
    lambda engine: Limiter.from_rules(RULES, engine),
]
ASYNC: list[Callable[[Any], Any]] = [
    lambda engine: AsyncLimiter("3/s", engine),
    lambda engine: AsyncLimiter.from_rules(RULES, engine),
]
both = pytest.mark.parametrize("make", range(2), ids=["limiter", "from_rules"])


def urls(server: RedisServer) -> list[str]:
    return ["memory://", server.url, f"{server.url}?denial_cache=on&fallback=local"]


@both
def test_an_async_engine_is_not_for_limiter(make: int, redis_server: RedisServer) -> None:
    for url in urls(redis_server):
        engine = open_async_engine(url)
        with pytest.raises(InvalidRule, match=r"is awaited.*Use AsyncLimiter, or open_engine\("):
            SYNC[make](engine)
        asyncio.run(engine.close())


@both
def test_a_sync_engine_is_not_for_async_limiter(make: int, redis_server: RedisServer) -> None:
    for url in urls(redis_server):
        engine = open_engine(url)
        with pytest.raises(InvalidRule, match=r"is not awaited.*Use Limiter, or open_async_engine\("):
            ASYNC[make](engine)
        engine.close()


def type_name(given: object) -> str:
    return type(given).__name__


@both
@pytest.mark.parametrize("given", [None, 3, b"memory://", object(), Limiter("3/s"), open_engine], ids=type_name)
def test_invalid_engines_are_refused(given: Any, make: int) -> None:
    for kind in (SYNC, ASYNC):
        with pytest.raises(
            InvalidRule, match=r"^An engine is a URL such as memory:// or redis://host:6379/0, or "
        ):
            kind[make](given)


def test_a_redis_client_is_no_engine_and_its_url_is() -> None:
    import redis

    with pytest.raises(InvalidRule, match=r"not a Redis: give its URL\.$"):
        Limiter("3/s", redis.Redis())  # type: ignore[arg-type]


def test_an_engine_of_the_right_kind_is_taken(redis_server: RedisServer) -> None:
    for url in urls(redis_server):
        with Limiter("3/s", open_engine(url), name=url) as limiter:
            assert limiter.take("key")

        async def taken(url: str = url) -> bool:
            async with AsyncLimiter("3/s", open_async_engine(url), name=f"async {url}") as limiter:
                return bool(await limiter.take("key"))

        assert asyncio.run(taken())
    with Limiter("3/s", SyncAdapter(open_async_engine("memory://"))) as limiter:
        assert limiter.take("key")


NOT_DECISIONS = ["nonsense", None, 3, {"allowed": True}, (True, 1)]


@pytest.mark.parametrize("given", NOT_DECISIONS, ids=repr)
def test_invalid_decisions_are_refused(given: Any) -> None:
    limiter, ruled = Limiter("3/s"), Limiter.from_rules(RULES)
    settle: Any = partial(limiter.settle, cost=2), partial(ruled.settle, cost=2)
    for verb in (*settle, limiter.refund, ruled.refund, ruled.cancel, ruled.renew, ruled.release, ruled.receipts):
        with pytest.raises(InvalidCharge, match=r"^A decision is expected, as take or check returns it; not "):
            verb(given)


@pytest.mark.parametrize("given", NOT_DECISIONS, ids=repr)
async def test_invalid_decisions_are_refused_by_async_limiters(given: Any) -> None:
    limiter, ruled = AsyncLimiter("3/s"), AsyncLimiter.from_rules(RULES)
    settle: Any = partial(limiter.settle, cost=2), partial(ruled.settle, cost=2)
    for verb in (*settle, limiter.refund, ruled.refund, ruled.cancel, ruled.renew, ruled.release):
        with pytest.raises(InvalidCharge, match=r"^A decision is expected, as take or check returns it; not "):
            await verb(given)


@pytest.mark.parametrize("given", [None, 3, {"receipt": "x"}, Limiter("3/s").take("key")], ids=type_name)
async def test_invalid_responses_of_the_service_are_refused(given: Any) -> None:
    """It is not even asked: nobody listens at this address."""
    sentence = r"^An answer of the service, or its receipt, is expected; not "
    with Client("http://127.0.0.1:1") as gate:
        for verb in (gate.refund, gate.settle, gate.cancel, gate.renew, gate.release):
            with pytest.raises(InvalidCharge, match=sentence):
                verb(given)
    async with AsyncClient("http://127.0.0.1:1") as agate:
        for averb in (agate.refund, agate.settle, agate.cancel, agate.renew, agate.release):
            with pytest.raises(InvalidCharge, match=sentence):
                await averb(given)


def test_a_reservation_and_a_lease_are_no_decisions_and_the_sentence_says_what_to_do() -> None:
    limiter: Any = Limiter("3/s")
    with pytest.raises(InvalidCharge, match=r"not a Reservation\. Give its \.decision\.$"):
        limiter.refund(limiter.reserve("key"))
    with pytest.raises(InvalidCharge, match=r"not a Lease\. Slots are held, not charged: release it instead\.$"):
        limiter.refund(Limiter("1 slot").acquire("key"))


async def test_a_decision_goes_back_the_way_it_came() -> None:
    """Asked without awaiting, an awaited engine would give nothing back, and say nothing."""
    limiter, awaited = Limiter("3/minute"), AsyncLimiter("3/minute")
    ruled, ruled_awaited = Limiter.from_rules(RULES), AsyncLimiter.from_rules(RULES)
    taken, taken_awaited = limiter.take("key"), await awaited.take("key")
    checked, checked_awaited = ruled.check({}), await ruled_awaited.check({})
    for decision in (taken_awaited, checked_awaited):
        for verb in (limiter.refund, ruled.refund, ruled.cancel, ruled.renew, ruled.release):
            with pytest.raises(InvalidCharge, match=r"^This decision was awaited: give it to an Async"):
                verb(decision)
    for decision in (taken, checked):
        for averb in (
            *(awaited.refund, ruled_awaited.refund, ruled_awaited.cancel),
            *(ruled_awaited.renew, ruled_awaited.release),
        ):
            with pytest.raises(InvalidCharge, match=r"^This decision was not awaited: give it to a Limiter"):
                await averb(decision)
    assert limiter.peek("key").remaining == 2
    assert (await awaited.peek("key")).remaining == 2


def test_a_decision_of_another_limiter_is_given_back_where_it_was_charged() -> None:
    clock = ManualClock()
    one, other = Limiter("3/minute", clock=clock), Limiter("5/hour", clock=clock)
    ruled = Limiter.from_rules(RULES, clock=clock)
    taken: Decision = one.take("key", 2)
    other.refund(taken)
    assert (one.peek("key").remaining, other.peek("key").remaining) == (3, 5)
    checked = ruled.check({})
    other.refund(checked)
    assert ruled.peek({}).verdicts[0].remaining == 3
