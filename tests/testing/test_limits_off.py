"""Limits that are switched off: every verb passes, nothing is counted, no engine is asked."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from headgate import (
    AdaptiveConcurrency,
    AdaptiveLimiter,
    AsyncLimiter,
    Charge,
    InvalidCharge,
    Limiter,
    ManualClock,
    RateLimited,
)
from headgate.enforcement.check_together import BatchedCall
from headgate.errors import InvalidSetting
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.asgi import limit as asgi_limit
from headgate.integrations.fastapi import limit, rate_limits
from headgate.integrations.flask import RateLimiter
from headgate.integrations.flask import limit as flask_limit
from headgate.testing import limits_off
from tests.servers.redis_server import free_port

RULES = {"rules": [{"name": "all", "limit": "1/hour"}, {"name": "jobs", "limit": "1 slot"}]}


def _no_server() -> str:
    return f"redis://127.0.0.1:{free_port()}/0"


def test_every_verb_of_a_limiter_passes_and_counts_nothing() -> None:
    clock = ManualClock()
    limiter = Limiter("1/hour; 2/day", clock=clock)
    with limits_off():
        decisions = [limiter.take("ann") for _ in range(3)]
        assert [(each.allowed, each.remaining, each.cost) for each in decisions] == [(True, 1, 1)] * 3
        assert limiter.take("ann", cost=99)
        assert limiter.peek("ann")
        assert limiter.take_all([Charge("ann"), Charge("bob", "1/hour"), Charge("bob", "1/hour")])
        assert [limiter.wait("ann").delay for _ in range(3)] == [0, 0, 0]
        limiter.reserve("ann").cancel()
        limiter.refund(decisions[0])
        with limiter.guard("ann"), limiter.guard("ann"):
            pass
    assert clock.now_us() == ManualClock().now_us(), "nobody slept"
    assert [limiter.take("ann").allowed for _ in range(2)] == [True, False]


def test_a_refund_of_a_call_that_passed_gives_nothing_back() -> None:
    limiter = Limiter("2/hour")
    assert limiter.take("ann", cost=2)
    with limits_off():
        passed = limiter.take("ann", cost=2)
    limiter.refund(passed)
    assert limiter.peek("ann").remaining == 0


def test_no_slots_are_held() -> None:
    limiter = Limiter("1 slot", clock=ManualClock())
    held = limiter.acquire("export")
    with limits_off(), limiter.acquire("export") as lease, limiter.guard("export"):
        assert (lease.renew(), limiter.peek("export").remaining) == (True, 1)
    with pytest.raises(RateLimited):
        limiter.acquire("export")
    assert held.release()
    limiter.acquire("export")


def test_wrong_calls_are_still_wrong() -> None:
    with limits_off():
        with pytest.raises(InvalidCharge):
            Limiter("1/hour").take("")
        with pytest.raises(InvalidCharge):
            Limiter("1 slot").take("ann")


async def test_every_verb_of_an_async_limiter_passes() -> None:
    limiter, slots = AsyncLimiter("1/hour", clock=ManualClock()), AsyncLimiter("1 slot")
    with limits_off():
        decisions = [await limiter.take("ann") for _ in range(3)]
        assert all(decisions)
        assert await limiter.peek("ann")
        assert await limiter.take_all([Charge("ann"), Charge("bob", "1/hour")])
        assert [(await limiter.wait("ann")).delay for _ in range(3)] == [0, 0, 0]
        await (await limiter.reserve("ann")).cancel()
        await limiter.refund(decisions[0])
        async with slots.guard("export"), await slots.acquire("export") as lease:
            assert await lease.renew()
    assert [(await limiter.take("ann")).allowed for _ in range(2)] == [True, False]


def test_every_verb_of_a_rulebook_passes() -> None:
    limiter = Limiter.from_rules(RULES, clock=ManualClock())
    with limits_off():
        assert [str(limiter.check({})) for _ in range(2)] == ["allowed: no limit applies"] * 2
        assert limiter.peek({})
        assert all(limiter.wait({}).delay == 0 for _ in range(2))
        assert limiter.cancel(limiter.reserve({}))
        assert [
            decision.allowed for decision in limiter.check_together([BatchedCall({}), BatchedCall({}, cost=9)])
        ] == [True] * 2
        assert limiter.give_back(BatchedCall({}), 1)
        with limiter.hold({}) as first, limiter.hold({}):
            assert limiter.refund(first)
    assert [limiter.check({}).allowed for _ in range(2)] == [True, False]


async def test_every_verb_of_an_async_rulebook_passes() -> None:
    limiter = AsyncLimiter.from_rules(RULES, clock=ManualClock())
    with limits_off():
        assert [(await limiter.check({})).allowed for _ in range(2)] == [True, True]
        assert await limiter.peek({})
        assert (await limiter.wait({})).delay == 0
        assert len(await limiter.check_together([BatchedCall({}), BatchedCall({}, cost=9)])) == 2
        assert await limiter.give_back(BatchedCall({}), 1)
        async with limiter.hold({}), limiter.hold({}):
            pass
    assert [(await limiter.check({})).allowed for _ in range(2)] == [True, False]


def test_an_adaptive_limiter_passes_and_learns_nothing() -> None:
    limiter = AdaptiveLimiter(AdaptiveConcurrency(floor=1, initial=1, ceiling=1), priorities=("all",), queue=60)
    with limiter.guard():
        with limits_off(), limiter.guard(), limiter.guard() as call:
            limiter.acquire().drop()
            call.drop()
        assert limiter.in_flight == 1
        with pytest.raises(RateLimited):
            limiter.acquire()


def test_no_engine_is_used() -> None:
    limiter, rules = Limiter("1/hour", _no_server()), Limiter.from_rules(RULES, _no_server())
    with limits_off():
        assert all(limiter.take("ann") for _ in range(2))
        assert all(rules.check({}) for _ in range(2))


def test_only_the_limiters_that_are_named() -> None:
    first, second, rules = Limiter("1/hour"), Limiter("1/hour"), Limiter.from_rules(RULES)
    with limits_off(first, rules):
        assert all(first.take("ann") for _ in range(3))
        assert all(rules.check({}) for _ in range(3))
        assert [second.take("ann").allowed for _ in range(2)] == [True, False]
    assert [first.take("ann").allowed for _ in range(2)] == [True, False]
    assert vars(first).keys().isdisjoint({"take", "_take_all", "acquire", "peek"})


def test_blocks_may_be_nested_and_end_by_an_exception() -> None:
    limiter = Limiter("1/hour")
    with pytest.raises(ZeroDivisionError), limits_off(), limits_off(limiter):
        raise ZeroDivisionError
    assert [limiter.take("ann").allowed for _ in range(2)] == [True, False]
    with limits_off():
        with limits_off():
            pass
        assert all(limiter.take("ann") for _ in range(2))
    assert not limiter.take("ann")


def test_objects_without_limits_are_refused() -> None:
    for wrong in (FastAPI(), Flask("app"), "app", None):
        with pytest.raises(InvalidSetting, match="Limits are switched off for a limiter, or for an application"):
            limits_off(wrong).__enter__()


def _fastapi(engine: str) -> FastAPI:
    app = FastAPI()
    rate_limits(app, {"rules": [{"name": "all", "limit": "5/hour"}]}, engine)

    @app.get("/", dependencies=[Depends(limit("1/hour"))])
    async def root() -> str:
        return "root"

    return app


def _asgi(engine: str) -> Any:
    return RateLimitMiddleware(FastAPI(), engine=engine, limits=[asgi_limit("1/hour")])


def _flask(engine: str) -> Flask:
    app = Flask("app")
    RateLimiter(app, engine=engine)

    @app.get("/")
    @flask_limit("1/hour")
    def root() -> str:
        return "root"

    return app


async def _call_asgi(app: Any) -> list[int]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        responses = [await client.get("/") for _ in range(3)]
        return [each.status_code if "ratelimit" in each.headers else -each.status_code for each in responses]


async def _call_flask(app: Flask) -> list[int]:
    responses = [app.test_client().get("/") for _ in range(3)]
    return [each.status_code if "ratelimit" in each.headers else -each.status_code for each in responses]


Call = Callable[[Any], Awaitable[list[int]]]


@pytest.mark.parametrize(
    ("make", "call", "statuses"),
    [
        (_fastapi, _call_asgi, [200, 429, 429]),
        (_asgi, _call_asgi, [404, 429, 429]),
        (_flask, _call_flask, [200, 429, 429]),
    ],
)
async def test_an_application_is_switched_off(make: Callable[[str], Any], call: Call, statuses: list[int]) -> None:
    """A status without the fields of a limit is shown as a negative number."""
    app, other = make("memory://"), make("memory://")
    with limits_off(app):
        assert await call(app) == [-statuses[0]] * 3
        assert await call(other) == statuses
    assert await call(app) == statuses
    without_server = make(_no_server())
    with limits_off():
        assert await call(without_server) == [-statuses[0]] * 3


def test_threads_and_loops_of_the_process_are_switched_off() -> None:
    limiter = Limiter("1/hour")

    async def take_in_threads() -> list[bool]:
        taken = await asyncio.gather(*(asyncio.to_thread(limiter.take, "ann") for _ in range(5)))
        return [each.allowed for each in taken]

    with limits_off():
        assert asyncio.run(take_in_threads()) == [True] * 5
