"""Rulebooks in the clients of somebody else's service: rates and adaptive limits of real calls to a real server.

The server moves the limiter's clock instead of sleeping: 25 answers of 50 ms fill a window of a target of 10 ms.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import pytest
import requests

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.clock import ManualClock
from headgate.errors import InvalidRule, InvalidSetting, RateLimited
from headgate.integrations.httpx import LimitedTransport
from headgate.integrations.outbound_turns import outcome_of_answer
from headgate.integrations.requests import LimitedAdapter
from headgate.limiter import Limiter
from tests.integrations.outbound_clients import CLIENTS, OutboundClient
from tests.integrations.server_harness import serve
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers
kinds = pytest.mark.parametrize("kind", CLIENTS)

TARGET = {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}
ADAPTIVE = {"rules": [{"name": "partner", "limit": TARGET}]}
ENOUGH = 25  # calls


class ClockedPartner:
    """A server whose answers take 50 ms of the client's clock; its path says with which status."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.fields: list[tuple[bytes, bytes]] = []
        self.reset()

    def reset(self) -> None:
        self.clock = ManualClock()
        self.fields = []
        self.in_flight = self.most_in_flight = 0
        self.is_open = threading.Event()
        self.is_open.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        while not self.is_open.is_set():  # noqa: ASYNC110 - a thread opens it
            await asyncio.sleep(0.005)
        self.in_flight -= 1
        self.clock.advance(0.05)
        status = int(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": status, "headers": self.fields})
        await send({"type": "http.response.body", "body": b"answer"})


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ClockedPartner, str]]:
    partner = ClockedPartner()
    with serve(partner) as url:
        yield partner, url


@pytest.fixture
def partner(served: tuple[ClockedPartner, str]) -> ClockedPartner:
    served[0].reset()
    return served[0]


@pytest.fixture
def url(served: tuple[ClockedPartner, str]) -> str:
    return served[1]


def limit_of(client: OutboundClient, rule: str = "partner", key: str = "all") -> tuple[int, int, str]:
    """Returns the limit, the calls in flight, and the reason."""
    limits: dict[str, tuple[int, int, str]] = client.limiter.adaptive.rules[rule].limits()
    return limits[key]


def assert_was_lowered(client: OutboundClient) -> None:
    """Drops complete a window sooner than answers do."""
    limit, in_flight, reason = limit_of(client)
    assert (limit < 20, in_flight, reason) == (True, 0, "above the target")


@kinds
@pytest.mark.parametrize("status", [200, 404])
def test_answers_that_take_longer_than_the_target_lower_the_limit(
    kind: str, status: int, url: str, partner: ClockedPartner
) -> None:
    client = OutboundClient(kind, ADAPTIVE, clock=partner.clock)
    for _ in range(ENOUGH):
        assert client.fetch(f"{url}/{status}") == status
    assert limit_of(client) == (16, 0, "above the target")
    client.close()


@kinds
@pytest.mark.parametrize("status", [429, 500])
def test_answers_that_turn_the_client_away_are_drops(
    kind: str, status: int, url: str, partner: ClockedPartner
) -> None:
    """Within a target that any answer would meet. The answers say when to come again: at once."""
    limit = {**TARGET, "target": "p50 200ms"}
    partner.fields = [(b"retry-after", b"0")]
    client = OutboundClient(kind, {"rules": [{"name": "partner", "limit": limit}]}, clock=partner.clock)
    for _ in range(ENOUGH):
        assert client.fetch(f"{url}/{status}") == status
    assert_was_lowered(client)
    client.close()


@kinds
def test_a_connection_that_is_refused_is_a_drop(kind: str, partner: ClockedPartner) -> None:
    client = OutboundClient(kind, ADAPTIVE, clock=partner.clock)
    nowhere = f"http://127.0.0.1:{free_port()}/200"
    for _ in range(ENOUGH):
        partner.clock.advance(0.05)
        with pytest.raises((httpx.ConnectError, requests.ConnectionError, aiohttp.ClientConnectionError)):
            client.fetch(nowhere)
    assert_was_lowered(client)
    client.close()


@kinds
def test_a_body_that_breaks_off_is_a_drop(kind: str, partner: ClockedPartner) -> None:
    """The header came; its call is in flight until the connection is lost."""
    client = OutboundClient(kind, ADAPTIVE, clock=partner.clock)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        here = f"http://127.0.0.1:{listening.getsockname()[1]}/200"

        def answer() -> None:
            for _ in range(ENOUGH):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    partner.clock.advance(0.05)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

        thread = threading.Thread(target=answer)
        thread.start()
        for _ in range(ENOUGH):
            broken = (
                httpx.RemoteProtocolError,
                requests.exceptions.ChunkedEncodingError,
                requests.ConnectionError,
                aiohttp.ClientPayloadError,
            )
            with pytest.raises(broken):
                client.fetch(here)
        thread.join()
    assert_was_lowered(client)
    client.close()


def _opened(kind: str, url: str, client: OutboundClient) -> tuple[Any, Callable[[], Any]]:
    """Opens a response without reading its body; returns what its limit shows, and a function that closes it."""
    if kind == "httpx":
        transport = LimitedTransport(client.limiter)
        session = httpx.Client(transport=transport, trust_env=False)
        response = session.send(session.build_request("GET", url), stream=True)

        def close() -> None:
            response.close()
            session.close()

        return limit_of(client), close
    http = requests.Session()
    http.trust_env = False
    http.mount("http://", LimitedAdapter(client.limiter))
    answer = http.get(url, stream=True)

    def close_both() -> None:
        answer.close()
        http.close()

    return limit_of(client), close_both


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_a_call_is_in_flight_until_its_body_is_read_or_closed(
    kind: str, url: str, partner: ClockedPartner
) -> None:
    client = OutboundClient(kind, ADAPTIVE, clock=partner.clock)
    seen, close = _opened(kind, f"{url}/200", client)
    assert seen == (20, 1, "start")
    close()
    assert limit_of(client) == (20, 0, "start")
    client.close()


def test_a_response_that_nobody_reads_or_closes_does_not_stay_in_flight() -> None:
    """By a rule and by adaptive=: the next call finds room."""
    body = httpx.MockTransport(lambda _: httpx.Response(200, content=iter([b"half", b"half"])))
    limit = {"adaptive": "concurrency", "between": [1, 1]}
    for transport in (
        LimitedTransport(Limiter.from_rules({"rules": [{"name": "app", "limit": limit}]}), body, timeout=60),
        LimitedTransport(None, body, adaptive=AdaptiveConcurrency(initial=1, ceiling=1), timeout=60),
    ):
        client = httpx.Client(transport=transport)
        for _ in range(3):
            client.send(client.build_request("GET", "http://partner.test/"), stream=True)
            gc.collect()


@kinds
def test_calls_above_the_limit_wait_in_line(kind: str, url: str, partner: ClockedPartner) -> None:
    """Of twelve calls at once two are in flight, and each passes at last."""
    rules = {
        "rules": [{"name": "partner", "key": "host", "limit": {"adaptive": "concurrency", "between": [1, 2]}}]
    }
    client = OutboundClient(kind, rules, clock=partner.clock)
    partner.is_open.clear()

    def open_soon() -> None:
        until(lambda: None if partner.in_flight == 2 else f"{partner.in_flight} in flight", 60)
        partner.is_open.set()

    opening = threading.Thread(target=open_soon)
    opening.start()
    if client.awaited:

        async def story() -> None:
            assert await asyncio.gather(*(client.fetch_async(f"{url}/200") for _ in range(12))) == [200] * 12

        client.loop.run_until_complete(story())
    else:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(client.fetch(f"{url}/200"))) for _ in range(12)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert answers == [200] * 12
    opening.join()
    assert partner.most_in_flight == 2
    assert limit_of(client, key=f"host={url.partition('//')[2].partition(':')[0]}")[1] == 0
    client.close()


@pytest.mark.parametrize("kind", ["httpx", "requests"])
def test_a_call_that_finds_no_room_in_time_is_refused_and_gives_its_rate_back(
    kind: str, url: str, partner: ClockedPartner
) -> None:
    rules = {
        "rules": [
            {"name": "partner", "limit": {"adaptive": "concurrency", "between": [1, 1]}},
            {"name": "rate", "limit": "100/day"},
        ]
    }
    client = OutboundClient(kind, rules, clock=partner.clock, max_wait=0.05)
    _, close = _opened(kind, f"{url}/200", client)
    with pytest.raises(RateLimited) as refused:
        client.fetch(f"{url}/200")
    assert refused.value.decision.rule == "partner"
    close()
    assert client.limiter.peek({}).verdicts[1].remaining == 99
    assert client.fetch(f"{url}/200") == 200
    client.close()


@kinds
def test_rules_match_the_request_and_wait_for_their_rate(kind: str, url: str, partner: ClockedPartner) -> None:
    """Method, path, host and fields are attributes; attributes= adds others."""
    rules = {
        "rules": [
            {"name": "slow", "when": {"method": "POST", "path": "/slow/*"}, "limit": "1/s"},
            {"name": "tenants", "key": "tenant", "missing": "skip", "limit": "1000/day"},
        ]
    }
    client = OutboundClient(kind, rules, clock=partner.clock, attributes=lambda _: {"tenant": "acme"})
    began_us = partner.clock.now_us()
    for _ in range(3):
        client.fetch(f"{url}/slow/200", "POST")
        client.fetch(f"{url}/quick/200", "POST")
    assert round((partner.clock.now_us() - began_us) / 1e6, 2) == 2.1, (
        "two waits of a second, less 5 answers of 50 ms"
    )
    assert client.call_limiter("peek", {"tenant": "acme"}).remaining == 994
    client.close()


@kinds
def test_a_refusal_pauses_the_rules_that_can_be_paused(kind: str, url: str, partner: ClockedPartner) -> None:
    rules = {"rules": [{"name": "partner", "key": "host", "limit": "100/s", "pausable": True}]}
    partner.fields = [(b"retry-after", b"30")]
    client = OutboundClient(kind, rules, clock=partner.clock)
    assert client.fetch(f"{url}/429") == 429
    host = url.partition("//")[2].partition(":")[0]
    assert 29 < client.call_limiter("peek", {"host": host}).paused_for <= 30
    began_us = partner.clock.now_us()
    partner.fields = []
    assert client.fetch(f"{url}/200") == 200
    assert (partner.clock.now_us() - began_us) / 1e6 > 29
    client.close()


@kinds
def test_without_such_a_rule_a_refusal_pauses_this_process(kind: str, url: str, partner: ClockedPartner) -> None:
    partner.fields = [(b"retry-after", b"30")]
    client = OutboundClient(kind, ADAPTIVE, clock=partner.clock)
    assert client.fetch(f"{url}/429") == 429
    began_us = partner.clock.now_us()
    assert client.fetch(f"{url}/200") == 200
    assert (partner.clock.now_us() - began_us) / 1e6 > 29
    client.close()


def test_settings_that_a_rulebook_replaces_are_refused() -> None:
    limiter = Limiter.from_rules(ADAPTIVE)
    with pytest.raises(
        InvalidSetting, match=r"^A rulebook says which calls count together: write `key: host` in "
    ):
        LimitedTransport(limiter, key="partner")
    with pytest.raises(InvalidSetting, match=r"^A rulebook has its adaptive limits as rules: write limit: "):
        LimitedTransport(limiter, adaptive=AdaptiveConcurrency())
    with pytest.raises(InvalidSetting, match=r"^attributes= is for a rulebook: make the limiter with from_rules"):
        LimitedTransport(Limiter("10/s", pausable=True), attributes=lambda _: {})
    with pytest.raises(InvalidRule, match=r'^Rule "jobs" holds slots, and calls to somebody else wait for a rate'):
        LimitedTransport(Limiter.from_rules({"rules": [{"name": "jobs", "limit": "5 slots"}]}))


def test_what_an_answer_says_about_the_other_side() -> None:
    outcomes = {status: outcome_of_answer(status) for status in (200, 301, 400, 404, 429, 499, 500, 502, 503, 504)}
    assert [status for status, outcome in outcomes.items() if outcome == "dropped"] == [429, 500, 502, 503, 504]
    assert [status for status, outcome in outcomes.items() if outcome == "ignored"] == [499]
