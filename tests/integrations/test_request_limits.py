"""Requests decided without a framework: stages, refunds, slots, outages, and what a response needs."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from headgate import ManualClock
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.integrations import outage_log
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.request_parts import RequestParts

BOOK = {"rules": [{"name": "all", "limit": "3/minute", "key": "address"}]}


def get(
    path: str = "/items/7", *, headers: Mapping[str, str] | None = None, native: Any = None, **more: Any
) -> RequestParts:
    return RequestParts("GET", path, "", list((headers or {}).items()), "192.0.2.7", native, **more)


def test_a_rulebook_and_limits_in_code_are_one_decision() -> None:
    limits = RequestLimits(BOOK, clock=ManualClock())
    route = limits.bind("GET /items/{id}", [CodeLimit("2/minute"), CodeLimit("1/s; 9/hour", key=None)])
    record = limits.begin(get())
    assert limits.decide(record, route) is None
    assert [decision.atomic for decision in record.decisions] == [True]
    assert dict(record.fields()) == {
        "RateLimit-Policy": '"all";q=3;w=60, "GET /items/{id}";q=2;w=60, "GET /items/{id} (2)";q=1;w=1, '
        '"GET /items/{id} (2)#1";q=9;w=3600',
        "RateLimit": '"all";r=2;t=20, "GET /items/{id}";r=1;t=30, "GET /items/{id} (2)";r=0;t=1, '
        '"GET /items/{id} (2)#1";r=8;t=400',
    }


def test_a_later_refusal_gives_the_earlier_charge_back() -> None:
    limits = RequestLimits(BOOK, clock=ManualClock())
    route = limits.bind("GET /", [CodeLimit("1/minute")])
    record = limits.begin(get())
    for expected in (None, 429, 429, 429, 429):
        record = limits.begin(get())
        assert limits.decide(record) is None
        answer = limits.decide(record, route, with_rules=False)
        assert (answer and answer.status) == expected
    assert limits.limiter.peek({"address": "192.0.2.7"}).remaining == 2
    assert dict(record.fields())["RateLimit"] == '"GET /";r=0;t=60'
    assert dict(record.fields())["Retry-After"] == "60"


def test_the_record_of_a_refusal_is_true_and_has_the_fields() -> None:
    limits = RequestLimits(limits=[CodeLimit("1/minute")], clock=ManualClock())
    first, record = limits.begin(get()), limits.begin(get())
    for each in (first, record):
        limits.decide(each, limits.app_limits)
    assert bool(record)
    assert not record.decision
    assert not record.allowed
    status, fields, body = record.response()
    assert status == 429
    assert [name for name, _ in fields] == ["Content-Type", "RateLimit-Policy", "RateLimit", "Retry-After"]
    assert b'"violated-policies":["app"]' in body


def test_keys_are_names_or_functions_and_none_is_one_counter() -> None:
    limits = RequestLimits(clock=ManualClock(), user=lambda request: request["user"])
    route = limits.bind(
        "GET /items/{id}",
        [
            CodeLimit("9/s", key="user", missing="deny"),
            CodeLimit("9/s", key=("param.id", "route")),
            CodeLimit("9/s", key="header.x-api-key", missing="one"),
            CodeLimit("9/s", key=lambda request: request["tenant"]),
            CodeLimit("9/s", key=lambda request: None),
            CodeLimit("9/s", key=None),
        ],
    )
    request = get(native={"user": "ann", "tenant": 5}, route="/items/{id}", params={"id": 7})
    record = limits.begin(request)
    limits.decide(record, route)
    assert record.decision is not None
    assert [verdict.key for verdict in record.decision.verdicts] == [
        "user=ann", "param.id=7|route=/items/{id}", "header.x-api-key=", "key=5", "all",
    ]  # fmt: skip


def test_costs_and_exemptions_may_be_functions() -> None:
    limits = RequestLimits(clock=ManualClock())
    costly = CodeLimit("9/minute", cost=lambda request: request["cost"], exempt=lambda request: request["admin"])
    route = limits.bind("GET /", [costly])
    remaining = []
    for cost, admin in ((4, False), (3, False), (3, True), (0, False), (2, False)):
        record = limits.begin(get(native={"cost": cost, "admin": admin}))
        limits.decide(record, route)
        remaining.append(record.decision and record.decision.remaining)
    assert remaining == [5, 2, None, None, 0]
    with pytest.raises(InvalidCharge, match=r"test_request_limits.py:\d+: A cost is a whole number"):
        limits.decide(limits.begin(get(native={"cost": -1, "admin": False})), route)


def test_tiers_come_from_the_attributes_of_the_application() -> None:
    tiers = {"by": "plan", "cases": {"pro": "100/s"}, "otherwise": "5/s"}
    limits = RequestLimits(attributes=lambda request: {"plan": request}, clock=ManualClock())
    route = limits.bind("GET /", [CodeLimit(tiers)])
    quotas = []
    for plan in ("pro", "free", None):
        record = limits.begin(get(native=plan))
        limits.decide(record, route)
        quotas.append(dict(record.fields())["RateLimit-Policy"])
    assert quotas == ['"GET /";q=100;w=1', '"GET /";q=5;w=1', '"GET /";q=5;w=1']


def test_successes_are_refunded_so_that_failures_count() -> None:
    limits = RequestLimits(clock=ManualClock())
    route = limits.bind("POST /login", [CodeLimit("2/hour", refund="2xx, 3xx"), CodeLimit("100/hour", name="all")])
    statuses = []
    for status in (200, 302, 401, 200, 401, 200):
        record = limits.begin(get("/login"))
        answer = limits.decide(record, route)
        limits.finish(record, status)
        limits.finish(record, status)  # once is enough
        statuses.append(answer.status if answer else status)
    assert statuses == [200, 302, 401, 200, 401, 429]
    record = limits.begin(get("/login"))
    limits.decide(record, limits.bind("GET /", [CodeLimit("100/hour", name="all")]))
    assert record.decision is not None
    assert record.decision.remaining == 94, "the other limit counts successes, too"


def test_a_function_of_the_response_may_refund() -> None:
    limits = RequestLimits(clock=ManualClock())
    route = limits.bind("GET /", [CodeLimit("1/hour", refund=lambda response: response == "cached")])
    for response, refused in (("cached", False), ("new", False), ("cached", True)):
        record = limits.begin(get())
        assert (limits.decide(record, route) is not None) == refused
        limits.finish(record, 200, response)


def test_slots_are_held_until_the_response_ends() -> None:
    limits = RequestLimits(limits=[CodeLimit("1 slot", key=None)])
    first, second, third = (limits.begin(get()) for _ in range(3))
    assert limits.decide(first, limits.app_limits) is None
    assert limits.decide(second, limits.app_limits) is not None
    limits.finish(second, 429)
    limits.finish(first, 200)
    assert limits.decide(third, limits.app_limits) is None
    limits.finish(third, 200)
    limits.close()


def test_a_slot_is_released_if_a_later_stage_refuses() -> None:
    limits = RequestLimits(limits=[CodeLimit("1 slot", key=None)])
    route = limits.bind("GET /", [CodeLimit("1/hour")])
    for refused in (False, True, True):
        record = limits.begin(get())
        assert limits.decide(record, limits.app_limits) is None
        assert (limits.decide(record, route, with_rules=False) is not None) == refused
        limits.finish(record, 200)


async def test_a_delay_is_awaited_on_the_limiters_clock() -> None:
    clock = ManualClock(0)
    limits = AsyncRequestLimits(limits=[CodeLimit("10/s queue 5", key=None)], clock=clock)
    for at_us in (0, 100_000, 200_000):
        record = limits.begin(get())
        assert await limits.decide(record, limits.app_limits) is None
        assert clock.now_us() == at_us
    await limits.close()


async def test_functions_may_be_coroutines_where_the_application_is_async() -> None:
    async def user(request: str) -> str:
        return request

    limits = AsyncRequestLimits(user=user, clock=ManualClock())
    route = limits.bind("GET /", [CodeLimit("1/s", key="user", missing="deny"), CodeLimit("2/s", key=user)])
    for name, allowed in (("ann", True), ("bob", True), ("ann", False)):
        record = limits.begin(get(native=name))
        assert (await limits.decide(record, route) is None) == allowed
    sync = RequestLimits(user=user)
    route = sync.bind("GET /", [CodeLimit("1/s", key="user", missing="deny")])
    with pytest.raises(InvalidCharge, match="coroutine, but this application is sync"):
        sync.decide(sync.begin(get(native="ann")), route)


@pytest.mark.parametrize("accept", ["application/json", "text/html", "*/*"])
def test_an_engine_that_does_not_answer_is_a_503(accept: str, caplog: pytest.LogCaptureFixture) -> None:
    limits = RequestLimits(BOOK, "redis://127.0.0.1:1")
    record = limits.begin(get(headers={"Accept": accept}))
    with caplog.at_level(logging.ERROR):
        answer = limits.decide(record)
        for _ in range(3):
            limits.decide(limits.begin(get()))
    assert answer is not None
    assert answer.status == 503
    assert ("Retry-After", "1") in answer.headers
    assert record.fields() == []
    [report] = caplog.records
    assert "could not be decided" in report.getMessage()
    limits.close()


def test_the_fallback_decides_where_there_is_one() -> None:
    limits = RequestLimits(limits=[CodeLimit("5/s", fallback="allow")], engine="redis://127.0.0.1:1")
    record = limits.begin(get())
    assert limits.decide(record, limits.app_limits) is None
    assert record.decision is not None
    assert record.fields() == []  # nothing was counted, so nothing is known
    limits.close()


def test_the_end_of_an_outage_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, failure = [100.0], [True]
    monkeypatch.setattr(outage_log, "monotonic", lambda: seconds[0])
    limits = RequestLimits(BOOK, clock=ManualClock())
    decide_plan = limits.limiter.decide_plan

    def decide_or_fail(plan: Any) -> Any:
        if failure[0]:
            raise EngineUnavailable("The engine is down.")
        return decide_plan(plan)

    monkeypatch.setattr(limits.limiter, "decide_plan", decide_or_fail)

    def statuses(*story: tuple[float, bool]) -> list[int | None]:
        codes = []
        for seconds[0], failure[0] in story:
            answer = limits.decide(limits.begin(get()))
            codes.append(None if answer is None else answer.status)
        return codes

    with caplog.at_level(logging.WARNING):
        assert statuses((100, True), (101, True), (101.5, False)) == [503, 503, None]
        assert len(caplog.records) == 1  # one node of a cluster may be down while others answer
        assert statuses((102.5, False), (103, False)) == [None, None]
        assert statuses((104, True)) == [503]
    assert [record.getMessage().partition(",")[0].partition(" (")[0] for record in caplog.records] == [
        "headgate: requests could not be decided and were answered 503",
        "headgate: requests are decided again",
        "headgate: requests could not be decided and were answered 503",
    ]
    assert "after 2.5 s and 2 that were answered 503" in caplog.records[1].getMessage()


def test_exempt_paths_are_not_limited() -> None:
    limits = RequestLimits(BOOK, exempt=["/health", "/static/**"], limits=[CodeLimit("1/day")])
    for path in ("/health", "/%68ealth/", "/static/a/b.css"):
        record = limits.begin(get(path))
        assert limits.decide(record, limits.app_limits) is None
        assert record.fields() == []


def test_limits_of_one_name_share_a_counter_and_must_be_equal() -> None:
    limits = RequestLimits(clock=ManualClock())
    first, second = (limits.bind(route, [CodeLimit("1/s", name="search")]) for route in ("GET /a", "GET /b"))
    assert limits.decide(limits.begin(get()), first) is None
    assert limits.decide(limits.begin(get()), second) is not None
    with pytest.raises(InvalidRule, match=r'The limit "search" is written differently at .*test_request_limits'):
        limits.bind("GET /c", [CodeLimit("2/s", name="search")])


def test_a_limit_may_not_have_the_name_of_a_rule() -> None:
    limits = RequestLimits(BOOK, limits=[CodeLimit("1/s", name="all")])
    with pytest.raises(InvalidRule, match='"all" has the name of a rule'):
        limits.decide(limits.begin(get()))
