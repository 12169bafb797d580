"""Health over gRPC for a plain client and a real Envoy, and on the reference service's path."""

import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from headgate import AsyncLimiter
from headgate.service.degradations import Degradations
from headgate.service.envoy import rlqs, rls
from headgate.service.grpc_health import CHECK, NOT_SERVING, SERVICE_UNKNOWN, SERVING, WATCH, Health
from tests.servers import Backend, Envoy
from tests.servers.envoy import grpc_cluster
from tests.servers.wait_until import until
from tests.service.service_harness import Service
from tests.service.test_supervisor import BOOK


def status(data: bytes) -> int:
    return UInt32Value.FromString(data).value


def health_request(service: str) -> bytes:
    return StringValue(value=service).SerializeToString()


@pytest.mark.parametrize("name", ["", "ratelimit", rls.SERVICE, rlqs.SERVICE])
def test_registered_services_are_served(name: str) -> None:
    with Service(BOOK) as service, grpc.insecure_channel(service.grpc) as channel:
        check: Any = channel.unary_unary(CHECK)
        assert status(check(health_request(name), timeout=10)) == SERVING


def test_unknown_names_and_bytes() -> None:
    with Service(BOOK) as service, grpc.insecure_channel(service.grpc) as channel:
        check: Any = channel.unary_unary(CHECK)
        watch: Any = channel.unary_stream(WATCH)
        for data, code in (
            (health_request("x"), grpc.StatusCode.NOT_FOUND),
            (b"\xff", grpc.StatusCode.INVALID_ARGUMENT),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                check(data, timeout=10)
            assert refused.value.code() == code
        call = watch(health_request("x"), timeout=10)
        assert status(next(call)) == SERVICE_UNKNOWN
        call.cancel()


def test_a_watch_reports_that_the_service_stops() -> None:
    with Service(BOOK) as service, grpc.insecure_channel(service.grpc) as channel:
        watch: Any = channel.unary_stream(WATCH)
        call = watch(health_request(""), timeout=30)
        assert status(next(call)) == SERVING
        service.send_signal(signal.SIGTERM)
        assert [status(data) for data in call] == [NOT_SERVING]
        assert service.wait() == 0


async def test_a_service_that_stops_while_the_first_status_is_sent_is_reported() -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield health_request("")

    limiter = AsyncLimiter.from_rules({"rules": [{"name": "calls", "limit": "5/s"}]})
    health = Health([], Degradations(limiter))
    handler = health.methods()[WATCH].streaming
    assert handler is not None
    watch = handler(requests(), {})
    assert status(await anext(watch)) == SERVING
    health.drain()  # the generator has not gone on yet
    assert [status(data) async for data in watch] == [NOT_SERVING]


def test_envoy_takes_it_for_healthy() -> None:
    checks = {
        "timeout": "5s",
        "interval": "0.2s",
        "no_traffic_interval": "0.2s",
        "unhealthy_threshold": 1,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": "ratelimit"},
    }
    with Service(BOOK) as service, Backend() as backend:
        cluster = grpc_cluster("headgate", service.grpc, health_checks=[checks])
        with Envoy([], backend, clusters=[cluster]) as envoy:

            def unchecked() -> str | None:
                stats = envoy.stats("cluster.headgate.health_check.")
                return None if stats["cluster.headgate.health_check.success"] else str(stats)

            until(unchecked, 20)
            assert envoy.stats("cluster.headgate.membership_healthy")["cluster.headgate.membership_healthy"] == 1


def test_the_path_of_the_reference_service() -> None:
    with Service(BOOK) as service:
        reply = service.send_request("GET", "/healthcheck")
        assert (reply.status, reply.body) == (200, b"OK")
