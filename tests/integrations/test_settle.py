"""Real costs without a framework: what the application says, what a function finds, refunds, stages, mistakes."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headgate import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord

TOKENS = {
    "rules": [{"name": "tokens", "limit": "1000/day fixed", "cost": 100}, {"name": "calls", "limit": "9/day"}]
}


def get(native: Any = None) -> RequestParts:
    return RequestParts("GET", "/ask", "", [], "192.0.2.7", native)


class Requests:
    """The requests of one route, and what each of its limits has left."""

    def __init__(self, *limits: CodeLimit, rules: Any = None) -> None:
        self.limits = RequestLimits(rules, clock=ManualClock())
        self.route = self.limits.bind("GET /ask", limits)

    def begin(self, native: Any = None) -> RequestRecord:
        record = self.limits.begin(get(native))
        self.limits.decide(record, self.route)
        return record

    def left(self) -> dict[str, int]:
        record = self.begin()
        assert record.decision is not None
        left = {verdict.rule or "": verdict.remaining + verdict.cost for verdict in record.decision.verdicts}
        self.limits.limiter.refund(record.decision)
        return left


def test_the_last_word_of_the_application_is_charged_once() -> None:
    requests = Requests(CodeLimit("1000/day fixed", cost=100, name="tokens"), CodeLimit("9/day", name="calls"))
    for words, left in (((150, 320), 680), ((5,), 675), ((), 575), ((900,), 0)):
        record = requests.begin()
        for cost in words:
            record.settle(cost)
        requests.limits.finish(record, 200)
        requests.limits.finish(record, 200)
        assert requests.left()["tokens"] == left if left else record.decision is not None
    assert requests.begin().answer is not None


def test_a_function_of_the_record_finds_the_cost() -> None:
    seen: list[tuple[int | None, int]] = []

    def cost_after(record: RequestRecord) -> int | None:
        seen.append((record.status, record.bytes_sent))
        return record.bytes_sent or None

    requests = Requests(CodeLimit("1000/day fixed", cost_after=cost_after))
    for sent, left in ((300, 700), (0, 699), (5, 694)):
        record = requests.begin()
        record.bytes_sent += sent
        requests.limits.finish(record, 206)
        assert requests.left() == {"GET /ask": left}
    assert seen == [(206, 300), (206, 0), (206, 5)]


def test_the_application_knows_better_than_the_function() -> None:
    requests = Requests(CodeLimit("1000/day fixed", cost_after=lambda record: 999))
    record = requests.begin()
    record.settle(20)
    requests.limits.finish(record, 200)
    assert requests.left() == {"GET /ask": 980}


def test_a_refund_by_status_comes_first() -> None:
    tokens = CodeLimit("1000/day fixed", cost=10, refund="5xx", cost_after=lambda record: 400)
    requests = Requests(tokens)
    for word in (None, 300):
        record = requests.begin()
        if word is not None:
            record.settle(word)
        requests.limits.finish(record, 500)
    assert requests.left() == {"GET /ask": 1000}
    requests.limits.finish(requests.begin(), 200)
    assert requests.left() == {"GET /ask": 600}


def test_a_rule_of_the_rulebook_that_states_a_cost_is_settled() -> None:
    requests = Requests(rules=TOKENS)
    record = requests.begin()
    record.settle(7)
    requests.limits.finish(record, 200)
    assert requests.left() == {"tokens": 993, "calls": 8}
    record = requests.begin()
    record.settle(3, rule="calls")
    requests.limits.finish(record, 200)
    assert requests.left() == {"tokens": 893, "calls": 5}


def test_a_request_that_is_refused_later_settles_nothing() -> None:
    requests = Requests(CodeLimit("1000/day fixed", cost=10, name="tokens"))
    second = requests.limits.bind("second", [CodeLimit("1/day", name="second")])
    for _ in range(2):
        record = requests.begin()
        record.settle(50)
        requests.limits.decide(record, second, with_rules=False)
        requests.limits.finish(record, 200)
        record.settle(60)
        requests.limits.finish(record, 200)
    assert requests.left() == {"tokens": 950}


def test_who_is_exempt_costs_nothing_and_breaks_nothing() -> None:
    requests = Requests(
        CodeLimit("1000/day fixed", cost=10, name="tokens", exempt=lambda native: native == "admin"),
        CodeLimit("9/day", name="calls"),
    )
    record = requests.begin("admin")
    record.settle(50)
    record.settle(50, rule="tokens")
    requests.limits.finish(record, 200)
    assert requests.left() == {"tokens": 1000, "calls": 8}
    free = RequestLimits(exempt=["/ask"], limits=[CodeLimit("9/day", cost=2)])
    record = free.begin(get())
    assert free.decide(record, free.app_limits) is None
    record.settle(50)
    assert not record.unfinished


def test_mistakes_are_reported_where_they_are_made() -> None:
    record = Requests(CodeLimit("9/day", name="calls")).begin()
    with pytest.raises(InvalidCharge, match=r"No limit of this request states a cost: write limit\(\.\.\., cost="):
        record.settle(5)
    with pytest.raises(InvalidCharge, match=r"""There is no limit 'call'; there are "calls"\."""):
        record.settle(5, rule="call")
    record = Requests(CodeLimit("9/day", name="a", cost=2), CodeLimit("9/day", name="b", cost=2)).begin()
    with pytest.raises(InvalidCharge, match=r'"a" and "b" state a cost: name one of them, settle\(5, rule='):
        record.settle(5)
    for cost in (-1, 1.5, "7", None, True):
        with pytest.raises(InvalidCharge, match="A cost is "):
            record.settle(cost, rule="a")  # type: ignore[arg-type]
    assert not record.unfinished
    with pytest.raises(
        InvalidRule, match=r"test_settle\.py:\d+: cost_after: 7 is no function: write one of the record"
    ):
        CodeLimit("9/day", cost_after=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match="cost_after: slots are held, not charged, and have no cost"):
        CodeLimit("9 slots", cost_after=lambda record: 7)


def test_a_function_that_returns_no_cost_is_an_error_with_its_line() -> None:
    requests = Requests(CodeLimit("9/day", cost_after=lambda record: "many"))
    with pytest.raises(
        InvalidCharge, match=r"test_settle\.py:\d+: A cost is a whole number of at least 0, not 'many'"
    ):
        requests.limits.finish(requests.begin(), 200)
    assert requests.left() == {"GET /ask": 8}


def test_an_engine_that_is_gone_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    engine = MemoryEngine(ManualClock())
    limits = RequestLimits(engine=engine, limits=[CodeLimit("9/day", cost=2, name="tokens")])
    record = limits.begin(get())
    limits.decide(record, limits.app_limits)
    record.settle(5)

    def fail(*_: object) -> Any:
        raise EngineUnavailable("Nobody is there.")

    meter: Any = record.decisions[0].counter_decisions[0].source
    meter.surcharge = fail
    with caplog.at_level(logging.WARNING, "headgate"):
        limits.finish(record, 200)
    assert [each.getMessage() for each in caplog.records] == [
        'headgate: a charge of "tokens" could not be refunded or settled: Nobody is there.'
    ]


async def test_functions_may_be_awaited() -> None:
    async def cost_after(record: RequestRecord) -> int:
        return 40

    limits = AsyncRequestLimits(limits=[CodeLimit("100/day fixed", cost=30, cost_after=cost_after)])
    for left in (70, 30):
        record = limits.begin(get())
        assert await limits.decide(record, limits.app_limits) is None
        assert record.decision is not None
        assert record.decision.remaining == left
        await limits.finish(record, 200)
    assert await limits.decide(limits.begin(get()), limits.app_limits) is not None
