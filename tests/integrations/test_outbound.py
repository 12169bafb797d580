"""Clients against a real server that limits: stories on a clock that only sleeping moves."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from examples import outbound_client
from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.clock import ManualClock
from headgate.errors import InvalidCharge, InvalidRule, InvalidSetting, RateLimited
from headgate.integrations.aiohttp_client import LimitedCalls
from headgate.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from headgate.integrations.requests import LimitedAdapter
from headgate.limiter import AsyncLimiter, Limiter
from tests.integrations.outbound_clients import CLIENTS, OutboundClient
from tests.integrations.server_harness import serve

pytestmark = pytest.mark.servers
kinds = pytest.mark.parametrize("kind", CLIENTS)


class Partner:
    """A server that answers what it is told to, and 200 after that; it remembers paths and bodies."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.seen: list[tuple[str, bytes]] = []
        self.in_flight = self.most_in_flight = 0
        self.delay_s = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((scope["path"], body))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(self.delay_s)
        self.in_flight -= 1
        status, fields = self.answers.pop(0) if self.answers else (200, {})
        headers = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"answer"})


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Partner, str]]:
    partner = Partner()
    with serve(partner) as url:
        yield partner, url


@pytest.fixture
def partner(served: tuple[Partner, str]) -> Partner:
    served[0].reset()
    return served[0]


@pytest.fixture
def url(served: tuple[Partner, str]) -> str:
    return served[1]


def seconds(clock: ManualClock) -> float:
    return (clock.now_us() - ManualClock().now_us()) / 1_000_000


@kinds
def test_every_call_waits_its_turn(kind: str, url: str, partner: Partner) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "2/s burst 1", clock=clock)
    times = []
    for number in range(4):
        assert client.fetch(f"{url}/{number}") == 200
        times.append(seconds(clock))
    client.close()
    assert times == [0, 0.5, 1, 1.5]
    assert [path for path, _ in partner.seen] == ["/0", "/1", "/2", "/3"]


@kinds
def test_a_refusal_pauses_everybody_until_its_retry_after(kind: str, url: str, partner: Partner) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "10/s", clock=clock)
    partner.answers = [(429, {"Retry-After": "30"}), (200, {}), (503, {"Retry-After": "5"}), (503, {})]
    host = url.partition("//")[2]
    assert client.fetch(url) == 429
    assert client.call_limiter("peek", host).paused_for == 30
    assert client.fetch(url) == 200
    assert seconds(clock) == 30
    assert client.fetch(url) == 503
    assert client.fetch(url) == 503
    assert seconds(clock) == pytest.approx(35)
    assert client.call_limiter("peek", host).paused_for == 0, "a 503 that does not say when is no limit"
    client.close()


@kinds
def test_a_refused_call_is_sent_again_in_its_turn_if_its_body_is_in_memory(
    kind: str, url: str, partner: Partner
) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "10/s", clock=clock, retries=2)
    partner.answers = [(429, {"Retry-After": "3"}), (429, {"Retry-After": "4"})]
    assert client.fetch(f"{url}/order", "POST", b"one bolt") == 200
    assert seconds(clock) == pytest.approx(7)
    assert partner.seen == [("/order", b"one bolt")] * 3
    partner.answers = [(429, {"Retry-After": "1"})] * 3
    assert client.fetch(url) == 429, "retries are used up"
    partner.answers = [(429, {"Retry-After": "1"})]

    async def stream() -> Any:
        yield b"a stream"

    generator = iter([b"a stream"])
    assert client.fetch(url, "POST", stream() if client.awaited else generator) == 429
    client.close()


@kinds
def test_a_client_slows_down_before_it_is_refused(kind: str, url: str, partner: Partner) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "10/s", clock=clock)
    policy = {"RateLimit-Policy": '"minute";q=100;w=60'}
    partner.answers = [
        (200, {**policy, "RateLimit": '"minute";r=60;t=50'}),
        (200, {**policy, "RateLimit": '"minute";r=4;t=50'}),
        (200, {**policy, "RateLimit": '"minute";r=0;t=40'}),
    ]
    times = []
    for _ in range(4):
        client.fetch(url)
        times.append(round(seconds(clock), 1))
    client.close()
    assert times == [0, 0, 10, 50]


@kinds
def test_a_call_whose_turn_comes_too_late_is_not_sent(kind: str, url: str, partner: Partner) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "10/s", clock=clock, max_wait=5)
    partner.answers = [(429, {"Retry-After": "30"})]
    client.fetch(url)
    with pytest.raises(RateLimited) as refused:
        client.fetch(url)
    assert refused.value.decision.retry_after == 30
    assert (seconds(clock), len(partner.seen)) == (0, 1)
    client.close()


@kinds
def test_keys_and_costs_are_those_of_the_request(kind: str, url: str, partner: Partner) -> None:
    clock = ManualClock()
    client = OutboundClient(
        kind,
        "10/s",
        clock=clock,
        key=lambda request: f"{request.method} {str(request.url)[-2:]}",
        cost=lambda _: 4,
    )
    client.fetch(f"{url}/a")
    assert client.call_limiter("peek", "GET /a").remaining == 6
    assert client.call_limiter("peek", "GET /b").remaining == 10
    client.close()


@kinds
def test_a_pause_holds_in_the_process_if_the_engine_is_gone(
    kind: str, url: str, partner: Partner, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    client = OutboundClient(kind, "10/s", "redis://127.0.0.1:1/0?fallback=allow&deadline=50ms", clock=clock)
    partner.answers = [(429, {"Retry-After": "30"})]
    with caplog.at_level(logging.ERROR, "headgate"):
        assert client.fetch(url) == 429
    assert "for 30 s holds in this process only: " in caplog.text
    assert client.fetch(url) == 200
    assert seconds(clock) == 30
    client.close()


@kinds
def test_an_adaptive_client_finds_how_many_calls_may_be_in_flight(kind: str, url: str, partner: Partner) -> None:
    """It starts with one, and grows while answers come without delay; a refusal makes it smaller."""
    partner.delay_s = 0.02
    client = OutboundClient(kind, None, adaptive=AdaptiveConcurrency(initial=1, ceiling=4))
    if client.awaited:

        async def story() -> None:
            await asyncio.gather(*(client.fetch_async(url) for _ in range(80)))

        client.loop.run_until_complete(story())
    else:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(client.fetch, [url] * 80)) == [200] * 80
    client.close()
    assert len(partner.seen) == 80
    assert 1 < partner.most_in_flight <= 4


@pytest.mark.parametrize(
    "make", [LimitedTransport, AsyncLimitedTransport, LimitedCalls], ids=lambda make: make.__name__
)
def test_an_unknown_setting_names_the_one_that_was_meant(make: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"^retires= is not a setting of this client\. .* retries=\?$"):
        make(None, retires=2)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(InvalidRule, match=r"^This limiter cannot be paused, as a 429 requires: make it with "):
        LimitedTransport(Limiter("10/s"))
    with pytest.raises(InvalidRule, match=r"^This client needs a Limiter, not an AsyncLimiter\.$"):
        LimitedTransport(AsyncLimiter("10/s", pausable=True))  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match=r"^This client needs an AsyncLimiter, not a Limiter\.$"):
        AsyncLimitedTransport(Limiter("10/s", pausable=True))  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match=r"^Give a limiter, or adaptive=AdaptiveConcurrency\(initial=1\) if "):
        LimitedTransport()
    with pytest.raises(InvalidRule, match=r"^Calls to somebody else wait for a rate, such as 10/s; slots are "):
        LimitedTransport(Limiter("10 slots", pausable=True))
    with pytest.raises(InvalidRule, match=r"^retries is a whole number of at least 0, not -1\.$"):
        LimitedTransport(Limiter("10/s", pausable=True), retries=-1)


@pytest.mark.parametrize(
    ("setting", "value", "problem"),
    [
        ("key", 5, "A key is a string, not int"),
        ("key", "", "A key must not be empty"),
        ("cost", 2.5, "A cost is a whole number"),
        ("cost", "5", "A cost is a whole number"),
        ("cost", -1, "A cost is at least 1, not -1"),
        ("timeout", -1, "A timeout is a number of seconds of at least 0"),
        ("timeout", "5", "A timeout is a number of seconds of at least 0"),
    ],
)
def test_a_value_that_no_call_could_use_is_refused_when_the_client_is_made(
    setting: str, value: object, problem: str
) -> None:
    limiter = Limiter("10/s", pausable=True)
    settings: Any = {setting: value}
    with pytest.raises(InvalidCharge, match=f"^{problem}"):
        LimitedTransport(limiter, **settings)
    with pytest.raises(InvalidCharge, match=f"^{problem}"):
        LimitedAdapter(limiter, **({"max_wait": value} if setting == "timeout" else settings))


def test_the_adapter_of_requests_names_the_option_that_was_meant() -> None:
    limiter = Limiter("10/s", pausable=True)
    with pytest.raises(InvalidSetting, match=r"^timeout= .* Write max_wait=5 "):
        LimitedAdapter(limiter, timeout=5)
    with pytest.raises(InvalidSetting, match=r"^pool_size= is not a setting of this client\. .* pool_maxsize="):
        LimitedAdapter(limiter, pool_size=5)
    LimitedAdapter(limiter, pool_maxsize=5, max_wait=5)


def test_the_example_waits_its_turn_and_tries_again(url: str, partner: Partner) -> None:
    partner.answers = [(200, {}), (429, {"Retry-After": "1"})]
    assert outbound_client.main(url, calls=3) == [200, 200, 200]
    assert len(partner.seen) == 4
