"""Adaptive rules in the check service: a check lets a call pass, and a report says how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # type: ignore[import-untyped]

from headgate import ManualClock
from headgate.client import Answer, AsyncClient, Client, Refused
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.service.check import Checker
from headgate.service.check_schema import FinishBody, ReceiptBody
from headgate.service.degradations import Degradations
from headgate.service.receipt_tokens import ReceiptNotUsable, ReceiptSigner
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service

RULES = {
    "rules": [
        {"name": "app", "limit": {"adaptive": "concurrency", "between": [2, 2]}},
        {"name": "users", "limit": "1000/s"},
        {"name": "jobs", "when": {"path": "/jobs"}, "limit": "5 slots"},
    ]
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(RULES) as running:
        yield running


@pytest.fixture
def gate(service: Service) -> Iterator[Client]:
    with Client(service.url, timeout=30) as client:
        yield client


def test_a_call_is_in_flight_until_it_is_reported(gate: Client) -> None:
    first, second = gate.check({}, receipt=True), gate.check({}, receipt=True)
    assert (first.allowed, first.finish_within) == (True, 30.0)
    refused = gate.check({})
    assert (refused.allowed, refused.rule, refused.refusal) == (
        False,
        "app",
        {"status": 503, "body": None, "type": None, "redirect": None},
    )
    assert gate.finish(first)
    third = gate.check({}, receipt=True)
    assert third.allowed
    gate.finish(second, "dropped")
    gate.finish(third, "ignored")


def test_calls_that_nobody_can_report_are_not_in_flight(service: Service, gate: Client) -> None:
    """Checks without a receipt, sub-requests of a gateway, requests of Envoy: they end at once."""
    parts = {"For": "192.0.2.1", "Method": "GET", "Host": "shop", "Proto": "https", "Uri": "/app"}
    forwarded = {f"X-Forwarded-{name}": value for name, value in parts.items()}
    for _ in range(20):
        assert gate.check({}).allowed
        assert service.send_request("GET", "/auth/forward", headers=forwarded).status == 200
    descriptor = ratelimit_pb2.RateLimitDescriptor(entries=[{"key": "path", "value": "/app"}])
    request = rls_pb2.RateLimitRequest(domain="edge", descriptors=[descriptor])
    with grpc.insecure_channel(service.grpc) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        codes = {stub.ShouldRateLimit(request, timeout=30).overall_code for _ in range(20)}
    assert codes == {rls_pb2.RateLimitResponse.OK}


def test_a_report_works_once_and_needs_something_to_end(gate: Client) -> None:
    answer = gate.check({}, receipt=True)
    gate.finish(answer)
    with pytest.raises(InvalidCharge, match="This call has ended: it was reported before, or not within 30 s"):
        gate.finish(answer)
    with pytest.raises(InvalidCharge, match="outcome"):
        gate.finish(answer, "timeout")  # type: ignore[arg-type]


def test_a_cancelled_check_is_not_in_flight(gate: Client) -> None:
    for _ in range(5):
        gate.cancel(gate.check({}, receipt=True))


def test_a_block_reports_how_it_ended(gate: Client) -> None:
    for _ in range(5):
        with gate.hold({"path": "/jobs"}), gate.hold({}), pytest.raises(Refused), gate.hold({}):
            pass
        with pytest.raises(TimeoutError), gate.hold({}):
            raise TimeoutError


def test_an_awaited_block_does_the_same(service: Service) -> None:
    async def story() -> None:
        async with AsyncClient(service.url, timeout=30) as gate:
            for _ in range(5):
                async with gate.hold({}), gate.hold({"path": "/jobs"}):
                    assert not await gate.check({})
                answer = await gate.check({}, receipt=True)
                assert await gate.finish(answer)

    asyncio.run(story())


class CheckerStory:
    """A checker whose clock the story moves."""

    def __init__(self) -> None:
        self.now = 0.0
        limit = {"adaptive": "concurrency", "target": "p50 10ms", "between": [1, 20]}
        book: Any = {"rules": [{"name": "app", "limit": limit}, {"name": "users", "limit": "1000/s"}]}
        self.clock = ManualClock()
        self.limiter = AsyncRuleLimiter(book, clock=self.clock)
        self.checker = Checker(self.limiter, ReceiptSigner(""), batch=10, finish_within=5.0)
        self.checker.calls._clock = lambda: self.now

    async def check(self) -> str:
        receipt = self.checker.answer(await self.limiter.check({}), receipt=True).receipt
        assert isinstance(receipt, str)
        return receipt

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance(seconds)

    @property
    def in_flight(self) -> int:
        return self.limiter.adaptive.rules["app"].limits()["all"][1]

    @property
    def limit(self) -> int:
        return self.limiter.adaptive.rules["app"].limits()["all"][0]


def test_a_refunded_check_is_not_in_flight_and_without_units_there_is_nothing_to_settle(gate: Client) -> None:
    for _ in range(5):
        gate.refund(gate.check({}, receipt=True))
    rules = {"rules": RULES["rules"][:1]}
    with Service(rules) as service, Client(service.url, timeout=30) as alone:
        answer = alone.check({}, receipt=True)
        with pytest.raises(InvalidCharge, match="an adaptive rule, which charges nothing: report the call to"):
            alone.settle(answer, 3)
        assert alone.finish(answer)


def test_a_report_that_no_engine_answered_can_be_repeated() -> None:
    with (
        RedisServer() as redis,
        Service(RULES, engine=redis.url) as service,
        Client(service.url, timeout=30) as gate,
    ):
        answer = gate.check({"path": "/jobs"}, receipt=True)
        redis.kill()
        with pytest.raises(EngineUnavailable):
            gate.finish(answer)
        redis.start()
        until(lambda: None if _is_finished(gate, answer) else "the service has not reconnected", 30)
        with pytest.raises(InvalidCharge, match="This call has ended"):
            gate.finish(answer)


def _is_finished(gate: Client, answer: Answer) -> bool:
    try:
        gate.finish(answer)
    except EngineUnavailable:
        return False
    return True


async def test_a_call_that_is_never_reported_counts_as_dropped_after_its_timeout() -> None:
    story = CheckerStory()
    receipts = [await story.check() for _ in range(20)]
    story.advance(4.9)
    assert (await story.limiter.check({})).allowed is False
    story.advance(0.2)
    story.checker.calls.expire()  # as its timer does
    late = await story.check()
    assert (story.in_flight, story.limit) == (1, 16)
    with pytest.raises(ReceiptNotUsable, match="not within 5 s"):
        await story.checker.finish(FinishBody(receipts[0]))
    await story.checker.finish(FinishBody(late))
    assert story.in_flight == 0


async def test_lost_calls_end_also_if_no_other_call_comes() -> None:
    story = CheckerStory()
    story.checker.calls.within = 0.01
    story.checker.calls._clock = asyncio.get_running_loop().time
    for _ in range(3):
        await story.check()
    for _ in range(3000):
        if story.in_flight:
            await asyncio.sleep(0.01)
    assert story.in_flight == 0


async def test_response_times_are_those_between_check_and_report() -> None:
    story = CheckerStory()
    for _ in range(2):
        receipts = [await story.check() for _ in range(15)]
        story.advance(1.0)
        for receipt in receipts:
            await story.checker.finish(FinishBody(receipt))
    assert story.limit == 16


async def test_a_receipt_of_another_process_is_refused_as_such() -> None:
    here, there = CheckerStory(), CheckerStory()
    there.checker._receipts = here.checker._receipts
    receipt = await here.check()
    with pytest.raises(ReceiptNotUsable, match="in flight in another process of the service"):
        await there.checker.finish(FinishBody(receipt))
    await here.checker.cancel(ReceiptBody(receipt))
    assert here.in_flight == 0


async def test_a_service_without_reports_says_that_its_rule_stands_still() -> None:
    story = CheckerStory()
    degradations = Degradations(story.limiter)
    assert degradations.sentences() == []
    for _ in range(30):
        assert story.checker.answer(await story.limiter.check({})).allowed
    [sentence] = degradations.sentences()
    assert sentence.startswith('The adaptive rule "app" stands still: nobody reports how calls end.')
    [sentence] = Degradations(story.limiter, workers=2).sentences()
    assert sentence.startswith('The adaptive rule "app" learns in each of 2 workers by itself')
