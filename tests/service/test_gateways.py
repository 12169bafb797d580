"""Real gateways in front of a real service on a real Redis: what passes is counted behind them.

Every story is the same: a user may come five times, and is refused in the rule's own words after that; another
user is not concerned. Each gateway is configured as the how-to says.
"""

import json
from collections.abc import Iterator
from typing import cast

import httpx
import pytest

from tests.servers import Backend, Caddy, Envoy, Nginx, Proxy, RedisServer, Traefik
from tests.servers.envoy import Json, http_cluster
from tests.service.documented import cluster, described, filter_of, told
from tests.service.running import Service

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
    text = told("behind-gateways.md", "nginx")[0].replace("127.0.0.1:8000", backend.address)
    http, _, server = text.replace("127.0.0.1:8080", service).partition("server {\n  listen 80;")
    return Nginx(server.rstrip().removesuffix("}"), http)


def test_nginx_auth_request(service: Service, backend: Backend) -> None:
    with Proxy(cast(RedisServer, service)) as link, nginx(f"127.0.0.1:{link.port}", backend) as gateway:
        refused = five_pass(gateway.url, backend)
        assert refused.headers["ratelimit"].startswith('"user";r=0')
        assert int(refused.headers["retry-after"]) >= 1
        assert link.opened <= 2, "an answer without a body keeps the connection"


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
    site = told("behind-gateways.md", "caddyfile")[0].replace("127.0.0.1:8080", service.http)
    with Caddy(site.replace("127.0.0.1:8000", backend.address)) as gateway:
        refused = five_pass(gateway.url, backend)
    assert refused.text == "slow down"
    assert refused.headers["ratelimit"].startswith('"user";r=0')
    assert refused.headers["x-headgate-rule"] == "user"


def test_traefik(service: Service, backend: Backend) -> None:
    text = told("behind-gateways.md", "json")[0].replace("127.0.0.1:8080", service.http)
    dynamic = json.loads(text.replace("127.0.0.1:8000", backend.address))
    with Traefik(dynamic) as gateway:
        refused = five_pass(gateway.url, backend)
    assert refused.text == "slow down"
    assert refused.headers["ratelimit"].startswith('"user";r=0')


def test_envoy_ext_authz(service: Service, backend: Backend) -> None:
    authz = filter_of("ext_authz")
    authz["typed_config"]["http_service"]["server_uri"]["timeout"] = PATIENCE
    clusters = [http_cluster("headgate", service.http)]
    with Envoy([authz], backend, clusters=clusters, connections={"use_remote_address": True}) as gateway:
        refused = five_pass(gateway.url, backend)
        assert httpx.get(gateway.url, headers={"X-User": "eve"}).headers["ratelimit"].startswith('"user";r=4')
        assert gateway.stats("cluster.headgate.upstream_cx_total")["cluster.headgate.upstream_cx_total"] <= 2
    assert refused.text == "slow down"


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
    with Service(described(), engine=server.url) as service:
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
        Service(described(), engine=server.url, envoy_headers="off", envoy_names="off") as service,
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
        with Service(described(), engine=engine) as service:
            clusters = [cluster(service.grpc)]
            with Envoy([ratelimit()], backend, clusters=clusters, route=ROUTE) as gateway:
                assert httpx.get(gateway.url, headers={"X-User": "ann"}).status_code == 200
                mortal.kill()
                assert httpx.get(gateway.url, headers={"X-User": "ann"}).status_code == 500
        assert backend.total == 1
