"""Clients that hang up before they are answered keep no place in a queue and no slot."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service

BOOK = {
    "rules": [
        {"name": "queue", "when": {"path": "/queue"}, "limit": "1/minute"},
        {"name": "slow", "when": {"path": "/slow"}, "limit": "40 slots ttl 1h"},
        {"name": "paced", "when": {"path": "/paced"}, "limit": "1/s queue 50"},
    ],
}
CLIENTS = 30
WAY_S = 0.2


@pytest.fixture(scope="module")
def link(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server) as made:
        yield made


@pytest.fixture(scope="module")
def service(link: Proxy) -> Iterator[Service]:
    with Service(BOOK, engine=f"{link.url}?deadline=5s", trusted="127.0.0.1") as running:
        yield running


def hang_up(service: Service, verb: str, body: dict[str, Any], clients: int = CLIENTS) -> None:
    """So many ask and leave, long before the answer can have come."""
    text = json.dumps(body).encode()
    for number in range(clients):
        with socket.create_connection(("127.0.0.1", service.port)) as line:
            head = f"POST /v1/{verb} HTTP/1.1\r\nhost: service\r\ncontent-length: {len(text)}\r\n\r\n"
            line.sendall(head.encode() + text)
            time.sleep(number / clients * WAY_S / 4)


def answer(service: Service, verb: str, **body: Any) -> Any:
    return service.post(verb, body).json


def test_a_place_is_given_back(service: Service, link: Proxy) -> None:
    answer(service, "check", attributes={"path": "/queue"})
    link.delay(1000 * WAY_S)
    try:
        hang_up(service, "reserve", {"attributes": {"path": "/queue"}})
    finally:
        link.heal()

    def look() -> str | None:
        place = answer(service, "reserve", attributes={"path": "/queue"})
        answer(service, "cancel", receipt=place["receipt"])
        return None if place["delay"] <= 60 else f"the next place is {place['delay']} s away"

    until(look, 20)


@pytest.mark.parametrize("verb", ["check", "checks"])
def test_a_slot_is_given_back(verb: str, service: Service, link: Proxy) -> None:
    one = {"attributes": {"path": "/slow"}, "receipt": True}
    link.delay(1000 * WAY_S)
    try:
        hang_up(service, verb, one if verb == "check" else {"checks": [one]})
    finally:
        link.heal()

    def look() -> str | None:
        free = answer(service, "peek", attributes={"path": "/slow"})["remaining"]
        return None if free == 40 else f"{free} of 40 slots are free"

    until(look, 20)


def test_a_gateway_that_does_not_wait_for_a_delay_gives_its_place_back(service: Service) -> None:
    fields = {
        "x-forwarded-for": "192.0.2.7", "x-forwarded-host": "shop", "x-forwarded-method": "GET",
        "x-forwarded-uri": "/paced",
    }  # fmt: skip
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    lines = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(40)]
    for line in lines:
        line.sendall(f"GET /auth/forward HTTP/1.1\r\nhost: service\r\n{head}\r\n".encode())
    until(lambda: None if (delay := waits(service)) > 30 else f"the queue is {delay} s long", 20)
    for line in lines:
        line.close()
    until(lambda: None if (delay := waits(service)) < 5 else f"the queue is {delay} s long", 20)


def waits(service: Service) -> float:
    place = answer(service, "reserve", attributes={"path": "/paced"})
    answer(service, "cancel", receipt=place["receipt"])
    delay: float = place["delay"]
    return delay
