"""The sync and the async client against a running service."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.client import AsyncClient, Client, Refused
from headgate.errors import EngineUnavailable, InvalidCharge
from tests.servers.redis_server import free_port
from tests.service.service_harness import Service

BOOK = {
    "rules": [
        {"name": "user", "key": "user", "missing": "skip", "limit": "10/day fixed"},
        {"name": "slow", "when": {"path": "/slow"}, "key": "user", "missing": "one", "limit": "1 slot"},
        {"name": "queue", "when": {"path": "/queue"}, "limit": "1/minute burst 1"},
    ]
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(BOOK) as running:
        yield running


class BlockingClient:
    """An AsyncClient that is waited for, so that one story serves both."""

    def __init__(self, client: AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: self._loop.run_until_complete(getattr(self._client, name)(*args, **more))


@pytest.fixture(params=["sync", "async"])
def client(request: pytest.FixtureRequest, service: Service) -> Iterator[Any]:
    if request.param == "sync":
        with Client(service.url, timeout=20) as made:
            yield made
    else:
        loop = asyncio.new_event_loop()
        blocking = BlockingClient(AsyncClient(service.url, timeout=20), loop)
        yield blocking
        blocking.close()
        loop.close()


@pytest.fixture
def ann(request: pytest.FixtureRequest) -> dict[str, str]:
    """Somebody whom no other test has met."""
    return {"user": f"{request.node.name}-{time.monotonic_ns()}"}


def test_the_facts(client: Any, ann: dict[str, str]) -> None:
    answer = client.check(ann, 4, verdicts=True)
    assert (bool(answer), answer.rule, answer.limit, answer.remaining) == (True, "user", "10/day fixed", 6)
    assert [verdict["rule"] for verdict in answer.verdicts] == ["user"]
    assert client.peek(ann).remaining == 6
    refused = client.check(ann, 7)
    assert (bool(refused), refused.rule, refused.refusal["status"]) == (False, "user", 429)
    assert refused.retry_after > 0


def test_giving_back(client: Any, ann: dict[str, str]) -> None:
    taken = client.check(ann, 6, receipt=True)
    rest = client.refund(taken, 2)
    assert client.peek(ann).remaining == 6
    assert client.refund(rest) is None
    assert client.peek(ann).remaining == 10
    client.settle(client.check(ann, 5, receipt=True), 1)
    assert client.peek(ann).remaining == 9
    with pytest.raises(InvalidCharge, match="redeemed before"):
        client.refund(rest)
    with pytest.raises(InvalidCharge, match="ask with receipt=True"):
        client.refund(client.check(ann))


def test_settling(client: Any, ann: dict[str, str]) -> None:
    more = client.check(ann, 2, receipt=True)
    client.settle(more, 4)
    with pytest.raises(InvalidCharge, match="redeemed before"):
        client.settle(more, 4)
    assert client.peek(ann).remaining == 6
    client.settle(client.check(ann, receipt=True), 12, rule="user")
    assert client.peek(ann).remaining == 0
    with pytest.raises(InvalidCharge, match="nothing to settle: ask with receipt=True"):
        client.settle(client.check({"user": f"{ann['user']}-2"}), 2)


def test_all_or_none(client: Any, ann: dict[str, str]) -> None:
    bob = {"user": ann["user"] + "-bob"}
    assert [bool(each) for each in client.together([ann, bob, bob])] == [True, True, True]
    client.check(bob, 7)
    assert [bool(each) for each in client.together([ann, bob, bob])] == [True, False, False]
    assert client.peek(ann).remaining == 9


def test_slots(client: Any, ann: dict[str, str]) -> None:
    slow = {**ann, "path": "/slow"}
    held = client.check(slow, receipt=True)
    assert client.renew(held)
    assert not client.check(slow)
    client.release(held)
    again = client.check(slow, receipt=True)
    assert again
    client.release(again)


def test_a_place(client: Any) -> None:
    queue = {"path": "/queue"}
    places = [client.reserve(queue) for _ in range(2)]
    assert places[1].delay > 30
    assert not client.reserve(queue, timeout=1)
    for place in reversed(places):
        client.cancel(place)


def test_around_a_block(service: Service, ann: dict[str, str]) -> None:
    slow = {**ann, "path": "/slow"}
    with Client(service.url, timeout=20) as client:
        with client.hold(slow), pytest.raises(Refused) as refused, client.hold(slow):
            pass
        assert refused.value.answer.rule == "slow"
        with client.hold(slow):
            pass


async def test_around_a_block_awaited(service: Service, ann: dict[str, str]) -> None:
    slow = {**ann, "path": "/slow"}
    async with AsyncClient(service.url, timeout=20) as client:
        async with client.hold(slow):
            with pytest.raises(Refused):
                async with client.hold(slow):
                    pass
        async with client.hold(slow):
            pass


def test_invalid_attributes_raise_an_error(client: Any) -> None:
    with pytest.raises(InvalidCharge, match="attributes"):
        client.check({"user": ["ann"]})


async def test_without_a_service() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with Client(nowhere) as client, pytest.raises(EngineUnavailable, match="gave no answer"):
        client.check({})
    with Client(nowhere, fallback="allow") as client:
        assert client.check({}).degraded
        assert [bool(each) for each in client.together([{}, {}])] == [True, True]
    async with AsyncClient(nowhere, fallback="deny") as awaited:
        answer = await awaited.check({})
        assert (answer.allowed, answer.degraded, answer.retry_after) == (False, True, 1.0)
    with pytest.raises(InvalidCharge, match="fallback is None, allow or deny"):
        Client(nowhere, fallback="local")  # type: ignore[arg-type]
