"""The service counts every decision: also of requests that it has cached, and over all its workers."""

from typing import Any

from headgate import Counts, ManualClock
from headgate.service.envoy.messages import RateLimitRequest
from headgate.telemetry.shared_counts import SharedCounts
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service
from tests.service.test_request_cache import InProcessService

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "user", "when": {"user": True}, "key": "user", "limit": "3/minute", "missing": "skip"},
        {"name": "odd", "when": {"path": "/odd"}, "limit": "2/minute"},
    ]
}


async def test_cached_requests_are_counted_as_well() -> None:
    counts = Counts(clock=ManualClock())
    service = InProcessService(ManualClock(), BOOK, [counts])
    for _ in range(6):
        await service.check({"attributes": {"user": "ann"}})
        await service.forwarded("/odd", [])
    assert counts.totals()["user"][:2] == (3, 3)
    assert counts.totals()["odd"][:2] == (2, 4)


async def test_cached_requests_of_envoy_are_counted_as_well() -> None:
    counts = Counts(clock=ManualClock())
    service = InProcessService(ManualClock(), BOOK, [counts])
    descriptor = {"entries": [{"key": "user", "value": "ann"}]}
    for _ in range(6):
        await service.envoy(RateLimitRequest(domain="shop", descriptors=[descriptor]))
    assert counts.totals()["user"][:2] == (3, 3)


def test_a_service_of_two_workers_shares_its_counts(redis_server: RedisServer) -> None:
    with Service(BOOK, engine=redis_server.url, workers=2) as service:
        for _ in range(10):
            service.check(user="ann")
        with SharedCounts(redis_server.url) as shared:
            until(lambda: _missing(shared), 30)
            assert shared.last(minutes=5)["user"][:2] == (3, 7)


def _missing(shared: SharedCounts) -> str | None:
    calls = sum(each.calls for each in shared.last(minutes=5).values())
    return None if calls >= 10 else f"{calls} calls are counted"
