"""Plans that are kept by address change nothing: without them an application decides and answers alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from inspect import isawaitable
from typing import Any, cast

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.errors import EngineUnavailable
from headgate.integrations import request_plan_cache
from headgate.integrations.asgi import RateLimitMiddleware, limit
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord
from headgate.rules import load

PROXY = "10.0.0.1"
PEERS = ("192.0.2.7", "192.0.2.8:4711", "2001:db8::1", "2001:db8::2", PROXY, "not an address", "", None)
FORWARDED: Sequence[tuple[bytes, bytes]] = (
    (b"x-forwarded-for", b"198.51.100.1"),
    (b"x-forwarded-for", b"198.51.100.1, 192.0.2.7"),
    (b"X-Forwarded-For", b"rubbish"),
    (b"x_forwarded_for", b"198.51.100.9"),
    (b"forwarded", b"for=198.51.100.1"),
    (b"x-forwarded-by", b"198.51.100.3"),
)

texts = st.sampled_from(
    ["2/s", "3/minute burst 5", "4/minute fixed", "2/s; 5/minute", "3/10s sliding", "3/10s log", "2/s queue 3"]
)
keys = st.sampled_from([None, "address", "address/16"])
fields: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"mode": "shadow"},
        {"candidate": "1/s"},
        {"lockout": {"after": 2, "within": "10s", "for": "30s"}},
        {"exempt": {"address": "192.0.2.7"}},
        {"cost": 2},
        {"refund": "5xx"},
        {"where": "node"},
        {"mode": {"enforce": 50, "shadow": 50}},
    ]
)


@st.composite
def code_limits(draw: st.DrawFn) -> list[CodeLimit]:
    count = draw(st.integers(1, 2))
    return [limit(draw(texts), draw(keys), **draw(fields)) for _ in range(count)]


requests = st.tuples(
    st.sampled_from(PEERS), st.lists(st.sampled_from(FORWARDED), max_size=2), st.integers(0, 3_000_000)
)


class _PlainLimits(RequestLimits):
    """Plans every request by itself."""

    def _cached_plan(self, *args: object) -> None:
        return None


class _LimitsAtOnce(AsyncRequestLimits):
    """Decides without a coroutine what it can, as the ASGI middleware does."""

    def decide(self, record: RequestRecord, limits: Sequence[BoundLimit] = (), *, with_rules: bool = True) -> Any:
        assert with_rules
        return self.decide_at_once(record, limits)


def finished(result: Any) -> None:
    """Runs what an async application awaits; in memory nothing suspends it."""
    if isawaitable(result):
        asyncio.run(cast("Coroutine[Any, Any, None]", result))


def answer_of(limits: Any, record: RequestRecord) -> tuple[Any, ...]:
    """All that the response and the application see of a decision."""
    decision = record.decision
    seen = None if decision is None else (str(decision), decision.verdicts, decision.shadow_verdicts)
    answer = record.answer
    found = record.encoded_fields(), record.fields(), record.allowed, record.states_cost, record.estimates
    finished(limits.finish(record, 500))
    return seen, None if answer is None else (answer.status, answer.body), found


@settings(max_examples=150, deadline=None)
@given(code_limits(), st.lists(requests, min_size=1, max_size=25), st.sampled_from(["draft-11", "legacy", "off"]))
def test_an_application_without_kept_plans_answers_alike(
    limited: list[CodeLimit], requests: list[tuple[str | None, list[tuple[bytes, bytes]], int]], form: Any
) -> None:
    kinds: list[Any] = [RequestLimits, AsyncRequestLimits, _LimitsAtOnce, _PlainLimits]
    applications = [
        kind(None, "memory://", limits=limited, trusted_proxies=[PROXY], headers=form, clock=ManualClock())
        for kind in kinds
    ]
    for peer, headers, pause_us in requests:
        answers = []
        for limits in applications:
            limits.clock.advance(pause_us / 1_000_000)
            record = limits.begin(RequestParts("GET", "/", "", headers, peer, None))
            finished(limits.decide(record, limits.app_limits))
            assert [(name.lower().encode(), value.encode()) for name, value in record.fields()] == (
                record.encoded_fields()
            )
            answers.append(answer_of(limits, record))
        assert answers[0] == answers[1] == answers[2] == answers[3]


def count_plans(limits: RequestLimits) -> int:
    """Returns how many plans an application keeps."""
    return sum(len(each.by_peer) + len(each.by_client) for each in limits._address_plans._plans.values())


def decide_request(limits: RequestLimits, peer: str = "192.0.2.7", *headers: tuple[bytes, bytes]) -> RequestRecord:
    record = limits.begin(RequestParts("GET", "/", "", headers, peer, None))
    limits.decide(record, limits.app_limits)
    return record


@pytest.mark.parametrize(
    ("limited", "count"),
    [
        (limit("5/s"), 1),
        (limit("5/s", None), 1),
        (limit("5/s", mode="shadow"), 1),
        (limit("5/s", lambda request: "one"), 0),
        (limit("5/s", cost=lambda request: 2), 0),
        (limit("5/s", cost=2), 0),
        (limit("5/s", refund="5xx"), 0),
        (limit("5/s", cost_after=lambda record: 1), 0),
        (limit("5/s", exempt=lambda request: False), 0),
        (limit("5/s", "header.x-tenant", missing="one"), 0),
        (limit("5/s", where="split", nodes=2), 0),
        (limit("3 slots"), 0),
    ],
)
def test_only_limits_by_address_are_kept(limited: CodeLimit, count: int) -> None:
    limits = RequestLimits(limits=[limited], clock=ManualClock())
    decide_request(limits)
    decide_request(limits)
    assert count_plans(limits) == count


def test_a_rulebook_is_decided_each_time() -> None:
    rules = {"rules": [{"name": "pages", "when": {"path": "/a"}, "limit": "1/s"}]}
    limits = RequestLimits(rules, limits=["5/s"], clock=ManualClock())
    decide_request(limits)
    assert count_plans(limits) == 0


def test_another_rulebook_replaces_the_plans() -> None:
    limits = RequestLimits(limits=["5/s"], clock=ManualClock())
    decide_request(limits)
    assert decide_request(limits).decision is not None
    assert count_plans(limits) == 1
    limits.limiter.replace(load.from_mapping({"rules": [{"name": "all", "limit": "1/s"}]}))
    assert [decide_request(limits).allowed for _ in range(2)] == [True, False]


def test_the_number_of_kept_plans_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_plan_cache, "MAX_ADDRESSES", 3)
    limits = RequestLimits(limits=["5/s"], clock=ManualClock())
    for number in range(10):
        decide_request(limits, f"192.0.2.{number}")
        decide_request(limits, "10.0.0.1", (b"forwarded", f"for=192.0.2.{number}".encode()))
        assert count_plans(limits) <= 6


def test_an_engine_that_fails_is_a_503_all_the_same() -> None:
    limits = RequestLimits(limits=["5/s"], clock=ManualClock())
    decide_request(limits)

    def fail(*args: object) -> Any:
        raise EngineUnavailable("no reply")

    limits.limiter.decide_plan = fail  # type: ignore[method-assign, assignment]
    record = decide_request(limits)
    assert record.answer is not None
    assert record.answer.status == 503
    assert record.fields() == []


async def test_an_engine_in_memory_that_fails_is_a_503_too() -> None:
    limits = AsyncRequestLimits(limits=["5/s"], clock=ManualClock())
    parts = RequestParts("GET", "/", "", (), "192.0.2.7", None)
    assert await limits.decide(limits.begin(parts), limits.app_limits) is None
    record = limits.begin(parts)
    assert limits.decide_at_once(record, limits.app_limits) is None
    assert record.decision is not None

    def fail() -> Any:
        raise EngineUnavailable("no reply")

    plan = record.address_plan
    assert plan is not None
    plan.decide_now = fail
    record = limits.begin(parts)
    undecided = limits.decide_at_once(record, limits.app_limits)
    assert undecided is not None
    answer = await undecided
    assert answer is not None
    assert answer.status == 503
    assert record.fields() == []


async def test_a_middleware_keeps_them_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    limited = RateLimitMiddleware(app, limits=[limit("2/minute")], clock=ManualClock())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(limited), base_url="http://test") as client:
        responses = [await client.get("/") for _ in range(3)]
    assert [each.status_code for each in responses] == [204, 204, 429]
    assert [each.headers["RateLimit"] for each in responses] == [
        '"app";r=1;t=30',
        '"app";r=0;t=60',
        '"app";r=0;t=30',
    ]
    assert len(limited.limits._address_plans._plans) == 1
