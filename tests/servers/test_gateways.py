"""Real gateways before a real backend, and the sub-requests that each sends before a request passes.

The services here are a few lines each. They hold no limit: they show what a gateway must be told, what it sends,
and what of an answer reaches the client.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from envoy.config.core.v3.base_pb2 import HeaderValue  # type: ignore[import-untyped]
from envoy.service.rate_limit_quota.v3 import rlqs_pb2, rlqs_pb2_grpc  # type: ignore[import-untyped]
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # type: ignore[import-untyped]
from envoy.type.v3.ratelimit_strategy_pb2 import RateLimitStrategy  # type: ignore[import-untyped]

from tests.servers import Backend, BackendRequest, BackendResponse, Caddy, Envoy, StartFailed, Traefik
from tests.servers.envoy import Json, grpc_cluster, grpc_service, http_cluster, http_filter, typed_config
from tests.servers.redis_server import free_port
from tests.servers.server_programs import GatewayProcess
from tests.servers.traefik import dynamic_config
from tests.servers.wait_until import until

PATIENCE_S = 20
FIVE = {"max_tokens": 5, "tokens_per_fill": {"value": 1}, "fill_interval": {"seconds": 1000}}
FORGED = {"X-User": "joe", "X-Forwarded-For": "1.2.3.4", "X-Forwarded-Uri": "/free", "X-Forwarded-Method": "HEAD"}


Made = Callable[[Backend], GatewayProcess]

each = pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda backend: Caddy(f"reverse_proxy {backend.address}"), id="caddy"),
        pytest.param(lambda backend: Traefik(dynamic_config(backend)), id="traefik"),
        pytest.param(lambda backend: Envoy([], backend), id="envoy"),
    ],
)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns where every folder of this test is made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@each
def test_it_forwards_and_keeps_its_connections(made: Made) -> None:
    with Backend() as backend, made(backend) as gateway, httpx.Client(base_url=gateway.url) as client:
        for _ in range(20):
            assert client.get("/shop?sku=1", headers={"X-Of-The-Test": "1"}).text == "answered by the backend"
        assert client.post("/orders", content=b"one").status_code == 200
        assert backend.counts == {"/shop": 20, "/orders": 1}
        assert backend.connections < 5
        request, ordered = backend.last[0], backend.last[-1]
        assert (request.method, request.target, request.headers["x-of-the-test"]) == ("GET", "/shop?sku=1", "1")
        assert (ordered.method, ordered.body) == ("POST", b"one")


@each
def test_a_stopped_gateway_restarts_on_its_port(made: Made, folders: Path) -> None:
    with Backend() as backend:
        gateway = made(backend).start()
        port, pid = gateway.port, gateway.pid
        gateway.stop()
        assert not Path(f"/proc/{pid}").exists()
        assert os.listdir(folders) == []
        assert gateway.log
        with gateway:
            assert gateway.port == port
            assert httpx.get(gateway.url).status_code == 200
        assert os.listdir(folders) == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda to: Caddy("nonsense 1"), "unrecognized directive: nonsense"),
        (lambda to: Traefik(dynamic_config(to, middleware={"forwardAuth": {"adress": "x"}})), "field not found"),
        (lambda to: Envoy([http_filter("router", "router.v3.Router", domian=1)], to), r":\n.critical.*domian"),
        (lambda to: Envoy([http_filter("router", "router.v3.NoSuch")], to), r":\n.critical.*NoSuch"),
    ],
)
def test_a_refused_configuration_raises_the_message_of_the_gateway(made: Made, words: str, folders: Path) -> None:
    with Backend() as backend:
        gateway = made(backend)
        with pytest.raises(StartFailed, match=words):
            gateway.start()
        assert (gateway.alive, os.listdir(folders)) == (False, [])


@each
def test_a_port_that_somebody_took_is_given_up_unless_it_was_ours_before(made: Made) -> None:
    with Backend() as backend:
        gateway = made(backend)
        taken = gateway.port
        with socket.create_server(("127.0.0.1", taken)), gateway:
            assert gateway.port != taken
            assert httpx.get(gateway.url).status_code == 200
        refused = pytest.raises(StartFailed, match=r"(?i)address already in use")
        with socket.create_server(("127.0.0.1", gateway.port)), refused:
            gateway.start()


def test_two_envoys_run_side_by_side_and_count_for_themselves() -> None:
    with Backend() as backend, Envoy([], backend, concurrency=2) as one, Envoy([], backend) as other:
        for _ in range(3):
            httpx.get(one.url)
        httpx.get(other.url)
        assert one.stats("http.ingress.downstream_rq_2xx") == {"http.ingress.downstream_rq_2xx": 3}
        assert other.stats("http.ingress.downstream_rq_2xx") == {"http.ingress.downstream_rq_2xx": 1}
        assert one.stats("server.concurrency") == {"server.concurrency": 2}
        assert backend.total == 4


def test_a_backends_answer_that_fails_is_a_500_and_is_kept() -> None:
    with Backend(lambda request: BackendResponse(1 // 0)) as backend:
        assert (httpx.get(backend.url).status_code, len(backend.errors)) == (500, 1)


def gatekeeper(request: BackendRequest) -> BackendResponse:
    """Refuses who calls himself `greedy`."""
    if request.headers.get("x-user") == "greedy":
        return BackendResponse(
            429, {"RateLimit": '"a";r=0', "Retry-After": "3", "Content-Type": "text/x"}, b"too much"
        )
    return BackendResponse(200, {"RateLimit": '"a";r=7'}, b"")


def greedy_is_refused_by(gateway: GatewayProcess, backend: Backend) -> None:
    """A refusal reaches the client whole, and the backend not at all."""
    refused = httpx.get(f"{gateway.url}/shop", headers={"X-User": "greedy"})
    assert (refused.status_code, refused.text) == (429, "too much")
    assert (refused.headers["ratelimit"], refused.headers["retry-after"]) == ('"a";r=0', "3")
    assert refused.headers["content-type"] == "text/x"
    assert backend.counts["/shop"] == 0


def test_caddys_forward_auth() -> None:
    with Backend() as backend, Backend(gatekeeper) as service:
        site = f"forward_auth {service.address} {{\n uri /check\n}}\nreverse_proxy {backend.address}"
        with Caddy(site) as gateway:
            greedy_is_refused_by(gateway, backend)
            passed = httpx.post(f"{gateway.url}/orders?sku=1", headers=FORGED, content=b"one")
        request = service.last[-1]
        # The query of the request becomes the check's, unless `uri` has one of its own.
        assert (request.method, request.target, request.body) == ("GET", "/check?sku=1", b"")
        assert (request.headers["x-forwarded-method"], request.headers["x-forwarded-uri"]) == (
            "POST",
            "/orders?sku=1",
        )
        assert request.headers["x-forwarded-for"] == "127.0.0.1"
        assert backend.last[-1].body == b"one"
        assert "ratelimit" not in passed.headers


def test_caddy_copies_headers_of_a_permission_to_the_client_if_forward_auth_is_written_out() -> None:
    with Backend() as backend, Backend(gatekeeper) as service:
        site = f"""
            reverse_proxy {service.address} {{
                method GET
                rewrite /check
                header_up X-Forwarded-Method {{method}}
                header_up X-Forwarded-Uri {{uri}}
                @passed status 2xx
                handle_response @passed {{
                    copy_response_headers {{
                        include RateLimit RateLimit-Policy
                    }}
                }}
            }}
            reverse_proxy {backend.address}"""
        with Caddy(site) as gateway:
            greedy_is_refused_by(gateway, backend)
            passed = httpx.post(f"{gateway.url}/orders", headers=FORGED, content=b"one")
        assert (passed.status_code, passed.headers["ratelimit"]) == (200, '"a";r=7')
        assert (backend.last[-1].method, backend.last[-1].body) == ("POST", b"one")
        assert service.last[-1].headers["x-forwarded-method"] == "POST"


def test_traefiks_forward_auth() -> None:
    with Backend() as backend, Backend(gatekeeper) as service:
        middleware = {"forwardAuth": {"address": f"{service.url}/check", "authResponseHeaders": ["RateLimit"]}}
        with Traefik(dynamic_config(backend, middleware=middleware)) as gateway:
            greedy_is_refused_by(gateway, backend)
            passed = httpx.post(f"{gateway.url}/orders?sku=1", headers=FORGED, content=b"one")
        request = service.last[-1]
        assert (request.method, request.target, request.body) == ("GET", "/check", b"")
        assert (request.headers["x-forwarded-method"], request.headers["x-forwarded-uri"]) == (
            "POST",
            "/orders?sku=1",
        )
        assert request.headers["x-forwarded-for"] == "127.0.0.1"
        # authResponseHeaders go on to the backend; nothing of a permission reaches the client.
        assert backend.last[-1].headers["ratelimit"] == '"a";r=7'
        assert "ratelimit" not in passed.headers


def ext_authz(service: Backend, **fields: Any) -> Json:
    service_config = {
        "server_uri": {"uri": service.url, "cluster": "service", "timeout": "5s"},
        "path_prefix": "/check",
    }
    answer = {"allowed_client_headers_on_success": {"patterns": [{"prefix": "ratelimit"}]}}
    return http_filter(
        "ext_authz",
        "ext_authz.v3.ExtAuthz",
        http_service=service_config | {"authorization_response": answer},
        allowed_headers={"patterns": [{"exact": "x-user"}, {"exact": "x-forwarded-for"}]},
        **fields,
    )


def test_envoys_ext_authz_over_http() -> None:
    with Backend() as backend, Backend(gatekeeper) as service:
        clusters = [http_cluster("service", service.address)]
        with Envoy([ext_authz(service)], backend, clusters=clusters) as gateway:
            greedy_is_refused_by(gateway, backend)
            passed = httpx.post(f"{gateway.url}/orders?sku=1", headers=FORGED, content=b"one")
            check_request = service.last[-1]
            assert (check_request.method, check_request.target, check_request.body) == (
                "POST",
                "/check/orders?sku=1",
                b"",
            )
            assert (check_request.headers["x-user"], check_request.headers["x-forwarded-for"]) == (
                "joe",
                "1.2.3.4",
            )
            assert "x-forwarded-uri" not in check_request.headers
            assert passed.headers["ratelimit"] == '"a";r=7'

            # Only 200 lets a request pass: a 204 is what the client gets. And a 5xx is Envoy's own 403.
            backend.forget()
            service.answer = lambda request: BackendResponse(204)
            assert httpx.get(gateway.url).status_code == 204
            service.answer = lambda request: BackendResponse(503)
            assert httpx.get(gateway.url).status_code == 403
            assert backend.total == 0


@asynccontextmanager
async def serving(register: Callable[[Any, Any], None], servicer: object) -> AsyncIterator[str]:
    """A gRPC server for as long as the block; says its address."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    register(servicer, server)
    address = f"127.0.0.1:{free_port()}"
    server.add_insecure_port(address)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


class StubRateLimits:
    """Refuses the descriptor whose user is `greedy`."""

    def __init__(self) -> None:
        self.requests: list[list[list[tuple[str, str]]]] = []

    async def ShouldRateLimit(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert request.domain == "edge"
        descriptors = [
            [(entry.key, entry.value) for entry in descriptor.entries] for descriptor in request.descriptors
        ]
        self.requests.append(descriptors)
        code = "OVER_LIMIT" if [("user", "greedy")] in descriptors else "OK"
        limit = {"requests_per_unit": 10, "unit": "MINUTE", "name": "per-user"}
        outcome = {"current_limit": limit, "limit_remaining": 3, "duration_until_reset": {"seconds": 41}}
        answer = rls_pb2.RateLimitResponse(
            overall_code=code,
            statuses=[{"code": code, **outcome} for _ in descriptors],
            response_headers_to_add=[HeaderValue(key="x-rule", value="per-user")],
            raw_body=b"too much",
        )
        answer.dynamic_metadata.update({"rule": "per-user"})
        return answer


async def test_envoys_ratelimit_filter() -> None:
    limits = StubRateLimits()
    per_user = {"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}
    route_config: Json = {"rate_limits": [{"actions": [{"remote_address": {}}]}, {"actions": [per_user]}]}
    metadata = {"key": "x-metadata", "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:rule)%"}
    async with serving(rls_pb2_grpc.add_RateLimitServiceServicer_to_server, limits) as address:
        ratelimit = http_filter(
            "ratelimit",
            "ratelimit.v3.RateLimit",
            domain="edge",
            timeout="5s",  # the default of 20 ms is short for a busy machine
            failure_mode_deny=True,
            enable_x_ratelimit_headers="DRAFT_VERSION_03",
            rate_limit_service={"grpc_service": grpc_service("service"), "transport_api_version": "V3"},
        )
        clusters = [grpc_cluster("service", address)]
        host = {"response_headers_to_add": [{"header": metadata}]}
        with (
            Backend() as backend,
            Envoy([ratelimit], backend, clusters=clusters, route=route_config, host=host) as gateway,
        ):
            async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S) as client:
                passed = await client.get("/", headers={"X-User": "joe"})
                refused = await client.get("/", headers={"X-User": "greedy"})
                await client.get("/")
            assert backend.total == 2

    here = [("remote_address", "127.0.0.1")]
    # An action that finds no header makes no descriptor.
    assert limits.requests == [[here, [("user", "joe")]], [here, [("user", "greedy")]], [here]]
    assert (passed.status_code, passed.headers["x-metadata"]) == (200, "per-user")
    assert (refused.status_code, refused.text, refused.headers["x-envoy-ratelimited"]) == (429, "too much", "true")
    for answer in (passed, refused):
        assert answer.headers["x-rule"] == "per-user"
        assert answer.headers["x-ratelimit-limit"].startswith('10, 10;w=60;name="per-user"')
        assert (answer.headers["x-ratelimit-remaining"], answer.headers["x-ratelimit-reset"]) == ("3", "41")


class StubQuotas:
    """Remembers reports, and sends what the test puts into `actions`."""

    def __init__(self) -> None:
        self.streams = 0
        self.reports: list[Any] = []
        self.actions: asyncio.Queue[Any] = asyncio.Queue()

    async def StreamRateLimitQuotas(self, reports: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.streams += 1
        reading = asyncio.create_task(self._read(reports))
        try:
            while True:
                yield await self.actions.get()
        finally:
            reading.cancel()

    async def _read(self, reports: Any) -> None:
        async for report in reports:
            self.reports.append(report)

    def assign(self, seconds: int, **strategy: Any) -> None:
        response = rlqs_pb2.RateLimitQuotaResponse()
        action = response.bucket_action.add()
        action.bucket_id.bucket["name"] = "all"
        action.quota_assignment_action.assignment_time_to_live.FromSeconds(seconds)
        action.quota_assignment_action.rate_limit_strategy.CopyFrom(RateLimitStrategy(**strategy))
        self.actions.put_nowait(response)


async def test_envoys_rate_limit_quota_filter() -> None:
    quotas = StubQuotas()
    settings = typed_config(
        "filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings",
        bucket_id_builder={"bucket_id_builder": {"name": {"string_value": "all"}}},
        reporting_interval="5s",
        no_assignment_behavior={"fallback_rate_limit": {"blanket_rule": "DENY_ALL"}},
    )
    async with serving(rlqs_pb2_grpc.add_RateLimitQuotaServiceServicer_to_server, quotas) as address:
        quota = http_filter(
            "rate_limit_quota",
            "rate_limit_quota.v3.RateLimitQuotaFilterConfig",
            domain="edge",
            rlqs_server=grpc_service("service"),
            bucket_matchers={"on_no_match": {"action": {"name": "all", "typed_config": settings}}},
        )
        clusters = [grpc_cluster("service", address)]
        anew = {"Connection": "close"}  # every request comes on a connection of its own, to either thread
        with Backend() as backend, Envoy([quota], backend, clusters=clusters, concurrency=2) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S, headers=anew) as client:

                async def passing(wanted: int) -> None:
                    async with asyncio.timeout(PATIENCE_S):
                        while backend.total < wanted:
                            await client.get("/")

                async def refusing() -> bool:
                    return {(await client.get("/")).status_code for _ in range(10)} == {429}

                async def logged(words: str) -> None:
                    missing = f"Envoy has not said: {words}"
                    await asyncio.to_thread(until, lambda: None if words in gateway.log else missing, PATIENCE_S)

                # Before any assignment: refused, and reported at once.
                assert (await client.get("/")).status_code == 429
                await asyncio.to_thread(until, lambda: None if quotas.reports else "no report", PATIENCE_S)
                first = quotas.reports[0]
                (usage,) = first.bucket_quota_usages
                assert (first.domain, dict(usage.bucket_id.bucket)) == ("edge", {"name": "all"})
                assert (usage.num_requests_allowed, usage.num_requests_denied) == (0, 1)

                # A bucket begins full, and both of Envoy's threads share it.
                quotas.assign(600, token_bucket=FIVE)
                await passing(5)
                assert await refusing()
                # The same again fills nothing, and requests_per_time_unit is not known to Envoy.
                quotas.assign(600, token_bucket=FIVE)
                await logged("is carried over")
                quotas.assign(600, requests_per_time_unit={"requests_per_time_unit": 1000, "time_unit": "SECOND"})
                await logged("not yet supported")
                assert await refusing()
                assert backend.total == 5
                # But after an assignment of another kind the bucket is new, and full.
                quotas.assign(600, blanket_rule="DENY_ALL")
                quotas.assign(600, token_bucket=FIVE)
                await passing(10)
                assert await refusing()
                assert backend.total == 10
                quotas.assign(600, blanket_rule="ALLOW_ALL")
                await passing(30)
            seen = gateway.stats(f"listener.127.0.0.1_{gateway.port}.worker_")
            assert sum(bool(count) for name, count in seen.items() if name.endswith("downstream_cx_total")) == 2
            assert quotas.streams == 1
