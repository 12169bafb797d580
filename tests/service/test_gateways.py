"""Real gateways in front of a real service on a real Redis: what passes is counted behind them.

Every story is the same: a user may come five times, and is refused in the rule's own words after that; another
user is not concerned. Each gateway is configured as the how-to says.
"""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest

from tests.servers import Backend, Caddy, Envoy, Nginx, Proxy, RedisServer, Traefik
from tests.servers.envoy import Json, http_cluster
from tests.service.documented_configs import cluster, config_blocks, connections, filter_of, reference_config
from tests.service.service_harness import Service

BOOK = {
    "rules": [
        {
            "name": "user",
            "key": "header.x-user",
            "missing": "skip",
            "limit": "5/day fixed",
            "refuse": {"status": 429, "body": "slow down", "type": "text/plain"},
        },
        {"name": "path", "when": {"method": "POST", "path": "/closed"}, "limit": "1/day fixed"},
        {"name": "address", "key": "address", "missing": "skip", "limit": "1000/day fixed"},
        {"name": "host", "when": {"host": "api.test"}, "limit": "1/day fixed"},
        {"name": "below", "when": {"path": "/below/**"}, "limit": "1/day fixed"},
    ]
}
PATIENCE = "5s"  # the page's are short for a busy machine


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def running(server: RedisServer) -> Iterator[Service]:
    with Service(BOOK, engine=server.url) as service:
        yield service


@pytest.fixture
def service(running: Service, server: RedisServer) -> Service:
    server.call("FLUSHALL")
    return running


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as running:
        yield running


def five_pass(url: str, backend: Backend) -> httpx.Response:
    """The story; what the sixth was answered."""
    with httpx.Client(base_url=url, timeout=20) as client:
        passed = [client.get("/shop?sku=7", headers={"X-User": "ann"}).status_code for _ in range(5)]
        refused = client.get("/shop?sku=7", headers={"X-User": "ann"})
        assert (passed, refused.status_code) == ([200] * 5, 429)
        assert client.get("/shop", headers={"X-User": "bob"}).status_code == 200
        assert client.post("/closed", content=b"body").status_code == 200
        assert client.post("/closed", content=b"body").status_code == 429
        assert client.get("/closed").status_code == 200
    assert (backend.counts["/shop"], backend.counts["/closed"]) == (6, 2)
    return refused


def nginx(service: str, backend: Backend) -> Nginx:
    text = config_blocks("behind-gateways.md", "nginx")[0].replace("127.0.0.1:8000", backend.address)
    http, _, server = text.replace("127.0.0.1:8080", service).partition("server {\n  listen 80;")
    return Nginx(server.rstrip().removesuffix("}"), http)


def test_nginx_auth_request(service: Service, backend: Backend) -> None:
    with Proxy(cast(RedisServer, service)) as link, nginx(f"127.0.0.1:{link.port}", backend) as gateway:
        refused = five_pass(gateway.url, backend)
        assert refused.headers["ratelimit"].startswith('"user";r=0')
        assert int(refused.headers["retry-after"]) >= 1
        assert link.opened <= 2, "an answer without a body keeps the connection"


def caddy(service: str, backend: Backend) -> Caddy:
    site = config_blocks("behind-gateways.md", "caddyfile")[0].replace("127.0.0.1:8080", service)
    return Caddy(site.replace("127.0.0.1:8000", backend.address))


def traefik(service: str, backend: Backend) -> Traefik:
    text = config_blocks("behind-gateways.md", "json")[0].replace("127.0.0.1:8080", service)
    return Traefik(json.loads(text.replace("127.0.0.1:8000", backend.address)))


def envoy(service: str, backend: Backend, **host: Any) -> Envoy:
    authz = filter_of("ext_authz")
    authz["typed_config"]["http_service"]["server_uri"]["timeout"] = PATIENCE
    clusters = [http_cluster("headgate", service)]
    return Envoy([authz], backend, clusters=clusters, host=host, connections=connections())


@pytest.mark.parametrize("made", [nginx, caddy, traefik, envoy])
def test_a_target_that_is_a_whole_url_names_the_host_whatever_host_says(
    made: Callable[[str, Backend], Any], service: Service, backend: Backend
) -> None:
    with made(service.http, backend) as gateway:
        assert [_status(gateway.port, "http://api.test/") for _ in range(2)] == [b"200", b"429"]
        assert _status(gateway.port, "/") == b"200"


def test_nginx_gets_an_answer_when_nobody_can_decide(server: RedisServer, backend: Backend) -> None:
    book = {"rules": [{"name": "all", "limit": "5/day fixed"}]}
    with (
        RedisServer() as mortal,
        Service(book, engine=f"{mortal.url}?deadline=300ms") as service,
        nginx(service.http, backend) as gateway,
    ):
        assert httpx.get(gateway.url).status_code == 200
        mortal.kill()
        assert httpx.get(gateway.url).status_code == 503
        assert "unexpected status" not in gateway.log


def test_caddy(service: Service, backend: Backend) -> None:
    with caddy(service.http, backend) as gateway:
        refused = five_pass(gateway.url, backend)
    assert refused.text == "slow down"
    assert refused.headers["ratelimit"].startswith('"user";r=0')
    assert refused.headers["x-headgate-rule"] == "user"


def test_traefik(service: Service, backend: Backend) -> None:
    with traefik(service.http, backend) as gateway:
        refused = five_pass(gateway.url, backend)
    assert refused.text == "slow down"
    assert refused.headers["ratelimit"].startswith('"user";r=0')


def test_envoy_ext_authz(service: Service, backend: Backend) -> None:
    with envoy(service.http, backend) as gateway:
        refused = five_pass(gateway.url, backend)
        assert httpx.get(gateway.url, headers={"X-User": "eve"}).headers["ratelimit"].startswith('"user";r=4')
        assert gateway.stats("cluster.headgate.upstream_cx_total")["cluster.headgate.upstream_cx_total"] <= 2
    assert refused.text == "slow down"


def test_requests_that_envoy_routes_below_a_path_match_its_rule(
    service: Service, server: RedisServer, backend: Backend
) -> None:
    routes = [
        {"match": {"prefix": prefix}, "direct_response": {"status": status}}
        for prefix, status in (("/below/", 201), ("/", 202))
    ]
    statuses = {}
    with envoy(service.http, backend, routes=routes) as gateway:
        for target in (
            "/below/x",
            "/below/../x",
            "/below/%2e%2e/x",
            "/y/../below/x",
            "//below//x",
            "/y%2f../below/x",
        ):
            server.call("FLUSHALL")
            statuses[target] = [_status(gateway.port, target) for _ in range(2)]
    assert statuses.pop("/below/../x") == statuses.pop("/below/%2e%2e/x") == [b"202", b"202"]
    assert list(statuses.values()) == [[b"201", b"429"]] * 4


def _status(port: int, target: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as link:
        link.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        return link.recv(65536)[9:12]


def ratelimit() -> Json:
    made = filter_of("ratelimit")
    made["typed_config"] |= {"timeout": PATIENCE, "failure_mode_deny": True}
    return made


ROUTE: Json = {
    "rate_limits": [
        {"actions": [{"remote_address": {}}]},
        {"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]},
    ]
}


def test_envoy_ratelimit_by_the_reference_services_file(server: RedisServer, backend: Backend) -> None:
    server.call("FLUSHALL")
    with Service(reference_config(), engine=server.url) as service:
        clusters = [cluster(service.grpc)]
        with (
            Envoy([ratelimit()], backend, clusters=clusters, route=ROUTE) as one,
            Envoy([ratelimit()], backend, clusters=clusters, route=ROUTE) as other,
        ):
            statuses = [
                httpx.get(gateway.url, headers={"X-User": "ann"}).status_code for gateway in (one, other) * 4
            ]
            assert statuses == [200] * 5 + [429] * 3
            refused = httpx.get(one.url, headers={"X-User": "ann"})
            assert httpx.get(one.url, headers={"X-User": "bob"}).status_code == 200
    assert backend.total == 6
    assert refused.headers["x-ratelimit-limit"].startswith("5, ")
    assert '5;w=86400;name="user"' in refused.headers["x-ratelimit-limit"]
    assert refused.headers["x-ratelimit-remaining"] == "0"
    assert int(refused.headers["retry-after"]) >= 1


def test_envoy_sends_an_empty_header_and_is_limited(server: RedisServer, backend: Backend) -> None:
    server.call("FLUSHALL")
    with (
        Service(reference_config(), engine=server.url, envoy_headers="off", envoy_names="off") as service,
        Envoy([ratelimit()], backend, clusters=[cluster(service.grpc)], route=ROUTE) as gateway,
    ):
        answers = [httpx.get(gateway.url, headers={"X-User": ""}) for _ in range(6)]
        assert httpx.get(gateway.url, headers={"X-User": "ann"}).status_code == 200
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert "5;w=86400" in answers[0].headers["x-ratelimit-limit"], "Envoy's own field"
    assert "name=" not in answers[0].headers["x-ratelimit-limit"]
    assert not {"ratelimit", "ratelimit-policy", "retry-after"} & set(answers[-1].headers)


def test_envoy_does_what_its_failure_mode_says_when_nobody_can_decide(backend: Backend) -> None:
    with RedisServer() as mortal:
        engine = f"{mortal.url}?deadline=300ms"
        with Service(reference_config(), engine=engine) as service:
            clusters = [cluster(service.grpc)]
            with Envoy([ratelimit()], backend, clusters=clusters, route=ROUTE) as gateway:
                assert httpx.get(gateway.url, headers={"X-User": "ann"}).status_code == 200
                mortal.kill()
                assert httpx.get(gateway.url, headers={"X-User": "ann"}).status_code == 500
        assert backend.total == 1
