"""A server counts by its own clock: another one is refused beside its URL. So is what is no clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidRule, Limiter, ManualClock, open_async_engine, open_engine
from headgate.clock import SystemClock
from headgate.engines.redis.sync_engine import RedisEngine

RULES = {"rules": [{"name": "all", "limit": "3/minute"}]}
MAKERS: list[Callable[..., Any]] = [
    lambda url, clock: Limiter("1/s", url, clock=clock),
    lambda url, clock: AsyncLimiter("1/s", url, clock=clock),
    lambda url, clock: Limiter.from_rules(RULES, url, clock=clock),
    lambda url, clock: AsyncLimiter.from_rules(RULES, url, clock=clock),
    lambda url, clock: open_engine(url, clock=clock),
    lambda url, clock: open_async_engine(url, clock=clock),
]
every = pytest.mark.parametrize(
    "make", MAKERS, ids=["limiter", "async_limiter", "from_rules", "async_from_rules", "engine", "async_engine"]
)


@every
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "unix:///no/such.sock"])
def test_a_server_goes_by_its_clock(make: Callable[..., Any], url: str) -> None:
    sentence = r"^redis.*://…|unix://… counts by the server's clock.*Leave clock out, or use memory://"
    with pytest.raises(InvalidRule, match=sentence):
        make(url, ManualClock())


@every
def test_the_systems_clock_changes_nothing(make: Callable[..., Any]) -> None:
    make("redis://127.0.0.1:1", SystemClock())
    make("memory://", ManualClock())


@every
@pytest.mark.parametrize("clock", [3, "now", object(), ManualClock], ids=["int", "str", "object", "class"])
def test_invalid_clocks_are_refused(make: Callable[..., Any], clock: Any) -> None:
    with pytest.raises(
        InvalidRule, match=r"^A clock has now_us, sleep_us and asleep_us, as ManualClock\(\) has; not "
    ):
        make("memory://", clock)


def test_an_engine_that_is_brought_along_has_any_clock() -> None:
    """Tests that turn a server's clock sleep on it."""
    clock = ManualClock()
    assert Limiter("1/s", RedisEngine("redis://127.0.0.1:1", clock=clock), clock=clock).clock is clock
