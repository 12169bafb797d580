"""Repeated requests get the answer of a service without a cache."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Counts, ManualClock, Observer
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.rules.load import from_mapping
from headgate.service import request_cache
from headgate.service.app import App
from headgate.service.asgi import Asgi
from headgate.service.check import Checker
from headgate.service.envoy.messages import RateLimitRequest, RateLimitResponse
from headgate.service.envoy.rls import RateLimits
from headgate.service.receipt_tokens import ReceiptSigner
from headgate.service.settings import Settings

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", "when": {"user": True}, "key": "user", "limit": "3/minute", "missing": "skip"},
        {"name": "item", "key": "sku", "limit": "5/minute fixed", "missing": "skip"},
        {"name": "odd", "when": {"path": "/odd"}, "limit": "2/minute sliding"},
        {"name": "quiet", "when": {"path": "/quiet"}, "limit": "1/minute", "mode": "shadow"},
        {"name": "free", "when": {"path": "/free"}, "limit": "unlimited"},
        {"name": "here", "when": {"path": "/here"}, "limit": "2/minute", "where": "node"},
        {"name": "held", "when": {"path": "/held"}, "limit": "1 slot"},
        {
            "name": "strict",
            "when": {"path": "/strict"},
            "key": "header.x-user",
            "limit": "2/minute",
            "missing": "deny",
        },
        {"name": "sid", "when": {"path": "/sid"}, "key": "cookie.sid", "limit": "2/minute", "missing": "skip"},
        {
            "name": "locked",
            "when": {"path": "/lock"},
            "limit": "1/minute",
            "lockout": {"after": 1, "within": "1m", "for": "1h"},
        },
    ]
}


LIMITED = {"rules": [rule for rule in BOOK["rules"] if rule["limit"] != "unlimited"]}


class InProcessService:
    """A service in this process, asked without a socket."""

    def __init__(
        self, clock: ManualClock, book: dict[str, Any] = BOOK, observers: Sequence[Observer] = ()
    ) -> None:
        self.limiter = AsyncRuleLimiter(book, clock=clock, observers=observers)
        checker = Checker(self.limiter, ReceiptSigner("a secret of sixteen letters"), 100)
        self.limits = RateLimits(self.limiter)
        self.app = App(checker, self.limits, Settings())
        self._asgi = Asgi(self.app)

    async def send_request(
        self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
    ) -> Any:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers}
        await self._asgi({**scope, "client": ("127.0.0.1", 5000)}, receive, send)
        start, answer = sent
        return start["status"], start["headers"], answer["body"]

    async def check(self, request: dict[str, Any]) -> Any:
        body = json.dumps(request).encode()
        return await self.send_request("POST", "/v1/check", [(b"content-length", b"%d" % len(body))], body)

    async def forwarded(self, uri: str, more: list[tuple[bytes, bytes]]) -> Any:
        fields = [
            (b"x-original-method", b"GET"),
            (b"x-original-uri", uri.encode()),
            (b"x-original-host", b"shop.example"),
            (b"x-forwarded-for", b"192.0.2.7"),
        ]
        return await self.send_request("GET", "/auth/nginx", [*fields, *more])

    async def envoy(self, request: Any, at_once: bool = False) -> Any:
        data = request.SerializeToString()
        reply = self.limits.answer_at_once(data) if at_once else None
        return RateLimitResponse.FromString(await self.limits.should_rate_limit(data) if reply is None else reply)

    def forget(self) -> None:
        self.app._check_cache, self.app._subrequest_cache = (
            request_cache.RequestCache(),
            request_cache.RequestCache(),
        )
        self.limits._request_cache = request_cache.RequestCache()


PATHS = st.sampled_from(["/", "/odd", "/quiet", "/free", "/held", "/strict", "/lock"])
CACHED_REQUESTS = st.fixed_dictionaries(
    {
        "attributes": st.fixed_dictionaries(
            {"path": PATHS}, optional={"user": st.sampled_from("ab"), "sku": st.just("7")}
        )
    },
    optional={"cost": st.integers(0, 2), "verdicts": st.booleans()},
)


@settings(max_examples=150)
@given(st.lists(st.tuples(CACHED_REQUESTS, st.integers(0, 40)), max_size=15), st.booleans())
async def test_a_repeated_request_gets_the_same_response(
    story: list[tuple[dict[str, Any], int]], observed: bool
) -> None:
    clock = ManualClock()
    counts, plain_counts = Counts(clock=clock), Counts(clock=clock)
    ours = InProcessService(clock, observers=[counts] if observed else [])
    plain = InProcessService(clock, observers=[plain_counts] if observed else [])
    for request, pause in story:
        plain.forget()
        assert await ours.check(request) == await plain.check(request)
        clock.advance(pause)
    assert counts.totals() == plain_counts.totals()


USERS = st.sampled_from(
    [[], [(b"x-user", b"ann")], [(b"x_user", b"bob")], [(b"x-user", b"ann"), (b"x-user", b"bob")]]
)
COOKIES = st.sampled_from([[], [(b"cookie", b"sid=1")], [(b"cookie", b"sid=1; x=\xe9")], [(b"cookie", b"sid=2")]])
NOISE = st.sampled_from([[], [(b"x-request-id", b"1")], [(b"x-request-id", b"2")]])


@settings(max_examples=150)
@given(st.lists(st.tuples(PATHS | st.just("/sid"), USERS, COOKIES, NOISE, st.integers(0, 20)), max_size=15))
async def test_gateways_get_the_same_answer(story: list[Any]) -> None:
    clock = ManualClock()
    ours, plain = InProcessService(clock), InProcessService(clock)
    for path, users, cookies, noise, pause in story:
        plain.forget()
        fields = [*noise, *users, *cookies]
        assert await ours.forwarded(path, fields) == await plain.forwarded(path, fields)
        clock.advance(pause)


ENTRIES = st.fixed_dictionaries({}, optional={"path": PATHS, "user": st.sampled_from("ab"), "sku": st.just("7")})
DESCRIPTORS = st.tuples(ENTRIES, st.sampled_from(["", "", "peek", "two", "back", "own"]))


REQUESTS = st.lists(st.lists(DESCRIPTORS, min_size=1, max_size=3), min_size=1, max_size=2)


@settings(max_examples=200)
@given(
    REQUESTS,
    st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.integers(0, 40)), min_size=3, max_size=12),
    st.booleans(),
)
async def test_envoy_gets_the_same_answer(
    requests: list[Any], story: list[tuple[int, bool, int]], observed: bool
) -> None:
    clock = ManualClock()
    counts, plain_counts = Counts(clock=clock), Counts(clock=clock)
    ours = InProcessService(clock, LIMITED, [counts] if observed else [])
    plain = InProcessService(clock, LIMITED, [plain_counts] if observed else [])
    for number, at_once, pause in story:
        request = RateLimitRequest(domain="edge")
        for entries, kind in requests[number % len(requests)]:
            one = request.descriptors.add(is_negative_hits=kind == "back")
            for key, value in entries.items():
                one.entries.add(key=key, value=value)
            if kind in ("peek", "two"):
                one.hits_addend.value = 2 if kind == "two" else 0
            if kind == "own":
                one.limit.requests_per_unit, one.limit.unit = 2, 2
        plain.forget()
        assert await ours.envoy(request, at_once) == await plain.envoy(request)
        clock.advance(pause)
    assert counts.totals() == plain_counts.totals()


async def test_each_descriptor_reports_its_count() -> None:
    service = InProcessService(ManualClock(), LIMITED)
    request = RateLimitRequest(domain="edge")
    for key, value in (("user", "a"), ("nothing", "at all"), ("sku", "7")):
        request.descriptors.add().entries.add(key=key, value=value)
    left = [[each.limit_remaining for each in (await service.envoy(request)).statuses] for _ in range(4)]
    assert left == [[2, 0, 4], [1, 0, 3], [0, 0, 2], [0, 0, 2]]


async def test_an_odd_letter_hides_no_cookie() -> None:
    service = InProcessService(ManualClock())
    statuses = [
        (await service.forwarded("/sid", [(b"cookie", b"sid=1; x=" + odd)]))[0] for odd in (b"a", b"\xe9", b"\xff")
    ]
    assert statuses == [200, 200, 403]


@pytest.mark.parametrize("protocol", ["check", "forwarded"])
async def test_a_changed_book_is_gone_by_at_once(protocol: str) -> None:
    service = InProcessService(ManualClock())

    async def limit() -> str:
        if protocol == "check":
            return str(json.loads((await service.check({"attributes": {"user": "ann"}}))[2])["limit"])
        return str((await service.forwarded("/odd", []))[1][0][1])

    before = [await limit(), await limit(), await limit()]
    changed = json.loads(json.dumps(BOOK).replace("3/minute", "9/minute").replace("2/minute", "8/minute"))
    service.limiter.replace(from_mapping(changed))
    after = [await limit(), await limit(), await limit()]
    assert len(set(before)) == len(set(after)) == 1
    assert before != after


def test_requests_that_come_often_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_cache, "MAX_CACHED_REQUESTS", 3)
    cache: request_cache.RequestCache[int] = request_cache.RequestCache()
    rulebook: Any = object()
    for number in range(20):
        cache.get("often", rulebook)
        cache.store("often" if number == 0 else f"seldom {number}", rulebook, number)
    assert cache.get("often", rulebook) == 0
    assert cache.get("seldom 1", rulebook) is None
    assert cache.get("seldom 19", rulebook) == 19
    assert cache.get("often", object()) is None  # type: ignore[arg-type]


async def test_the_request_cache_is_bounded() -> None:
    service = InProcessService(ManualClock())
    checks = service.app._check_cache
    for number in range(request_cache.MAX_CACHED_REQUESTS + 10):
        for times in (0, 1):
            before = len(checks._cached)
            await service.check({"attributes": {"user": f"user-{number}"}})
            assert times or len(checks._cached) == before
        assert checks._cached
    assert len(checks._cached) <= request_cache.MAX_CACHED_REQUESTS
    assert len(checks._seen_hashes) <= request_cache.MAX_CACHED_REQUESTS
    assert len(checks._older) <= request_cache.MAX_CACHED_REQUESTS
    for _ in range(2):
        await service.check({"attributes": {"user": "x" * request_cache.MAX_CACHED_REQUEST_BYTES}})
    assert not any(len(words) > request_cache.MAX_CACHED_REQUEST_BYTES for words in checks._cached)  # type: ignore[arg-type]
