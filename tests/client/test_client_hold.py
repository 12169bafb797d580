"""Slots that a client holds around a block are renewed while it runs, and lost ones are reported."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from headgate.client import AsyncClient, Client, Refused
from headgate.errors import LeaseLost
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service

BOOK = {
    "rules": [
        {"name": "slow", "when": {"path": "/slow"}, "limit": "1 slot ttl 3s"},
        {"name": "all", "limit": "1000/day"},
    ]
}
SLOW = {"path": "/slow"}
SURE_S = 20.0


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def service(redis: RedisServer) -> Iterator[Service]:
    with Service(BOOK, engine=f"{redis.url}?deadline=1s") as running:
        yield running


def test_a_block_that_outlasts_the_ttl_keeps_its_slot(service: Service) -> None:
    with Client(service.url, timeout=20) as gate:
        with gate.hold(SLOW) as held:
            end = time.monotonic() + 7
            while time.monotonic() < end:
                with pytest.raises(Refused), gate.hold(SLOW):
                    raise AssertionError("two hold the slot")
                assert not held.lost
                time.sleep(0.1)
        with gate.hold(SLOW) as held:
            assert held.expires_after == 3
        with gate.hold({"path": "/quick"}) as held:  # holds nothing
            assert held.expires_after is None
            assert not held.lost


def test_released_in_the_block_nothing_is_lost(service: Service) -> None:
    with Client(service.url, timeout=20) as gate, gate.hold(SLOW) as held:
        assert gate.release(held)
        assert not held.lost


async def test_awaited_it_is_the_same(service: Service) -> None:
    async with AsyncClient(service.url, timeout=20) as gate:
        async with gate.hold(SLOW) as held:
            end = time.monotonic() + 7
            while time.monotonic() < end:
                with pytest.raises(Refused):
                    async with gate.hold(SLOW):
                        raise AssertionError("two hold the slot")
                assert not held.lost
                await asyncio.sleep(0.1)
        async with gate.hold({"path": "/quick"}) as held:
            assert not held.lost


def test_a_lost_slot_raises_at_the_holder(service: Service, redis: RedisServer) -> None:
    with Client(service.url, timeout=20) as gate:

        def lose(error: Exception | None = None) -> None:
            with gate.hold(SLOW) as held:
                redis.restart()  # it has forgotten everything
                until(lambda: None if held.lost else "nobody noticed", SURE_S)
                if error is not None:
                    raise error

        with pytest.raises(LeaseLost, match="somebody else may hold"):
            lose()
        with pytest.raises(KeyError) as raised:
            lose(KeyError())
        assert any("somebody else may hold" in note for note in raised.value.__notes__)
