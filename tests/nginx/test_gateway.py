"""The whole gateway in a real nginx: what a client sees, what the log says, what is charged."""

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Limiter
from headgate.enforcement.rule_limiter import RuleLimiter
from tests.nginx.gateway_harness import NginxGateway, push
from tests.servers import RedisServer
from tests.servers.wait_until import until


def book(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rules": list(rules), **more}


@pytest.fixture(params=["redis", "shared"])
def where(request: pytest.FixtureRequest, redis_server: RedisServer) -> str | None:
    """The URL of a Redis, or None: on the shared dict."""
    return redis_server.url if request.param == "redis" else None


ADDRESS = {"name": "per-address", "key": "address", "limit": "2/minute"}


def test_two_pass_and_the_third_is_refused(where: str | None) -> None:
    with NginxGateway(book(ADDRESS), where) as gate:
        replies = [gate.get("/") for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert replies[0].headers["ratelimit-policy"] == '"per-address";q=2;w=60'
        assert replies[0].headers["ratelimit"] == '"per-address";r=1;t=30'
        assert "retry-after" not in replies[1].headers
        assert replies[2].headers["retry-after"] == "30"
        assert replies[2].headers["ratelimit"] == '"per-address";r=0;t=30'
        assert gate.lines(3) == [
            "200 PASSED per-address 1",
            "200 PASSED per-address 0",
            "429 REJECTED per-address 0",
        ]
        assert gate.get("/", source="127.0.0.9").status == 200  # somebody else


def test_no_rule_applies(where: str | None) -> None:
    with NginxGateway(book({**ADDRESS, "when": {"path": "/api/**"}}), where) as gate:
        assert [gate.get("/").status for _ in range(4)] == [200] * 4
        assert gate.lines(4) == ["200 PASSED  "] * 4
        assert "ratelimit" not in gate.get("/").headers


@pytest.mark.parametrize(
    ("refuse", "status", "headers", "body"),
    [
        (None, 429, {"content-type": "text/html"}, b"429 Too Many Requests"),
        ({"status": 503, "body": "Sold out."}, 503, {"content-type": "text/plain; charset=utf-8"}, b"Sold out."),
        ({"body": "<p>Later!", "type": "text/html"}, 429, {"content-type": "text/html"}, b"<p>Later!"),
        ({"redirect": "/slow-down"}, 302, {"location": "/slow-down"}, b""),
    ],
)
def test_the_configured_response_of_a_refusal(
    where: str | None, refuse: dict[str, Any] | None, status: int, headers: dict[str, str], body: bytes
) -> None:
    rule = {**ADDRESS, "limit": "1/minute", **({} if refuse is None else {"refuse": refuse})}
    with NginxGateway(book(rule), where) as gate:
        gate.get("/")
        reply = gate.get("/")
        assert reply.status == status
        assert headers.items() <= reply.headers.items()
        assert body in reply.body
        assert reply.headers["retry-after"] == "60"


def test_a_client_that_prefers_json_gets_problem_json(where: str | None) -> None:
    with NginxGateway(book({**ADDRESS, "limit": "1/minute"}), where) as gate:
        gate.get("/")
        reply = gate.get("/", {"Accept": "application/json"})
        assert (reply.status, reply.headers["content-type"]) == (429, "application/problem+json")
        assert b'"violated-policies":["per-address"]' in reply.body


def test_an_error_page_of_nginx_is_shown_and_charged_once(where: str | None) -> None:
    pages = """
    error_page 429 /busy; error_page 404 /nothing;
    location = /busy { internal; content_by_lua_block { ngx.say("a friendly page") } }
    location = /nothing { internal; content_by_lua_block { ngx.say("nothing here") } }
    location = /missing { return 404; }
    location /tried { try_files /no/such/file @named; }
    location @named { content_by_lua_block { ngx.say("named") } }
    """
    with NginxGateway(book(ADDRESS), where, server=pages) as gate:
        assert gate.get("/tried").body == b"named\n"
        assert gate.get("/").status == 200
        reply = gate.get("/")
        assert (reply.status, reply.body) == (429, b"a friendly page\n")
        assert reply.headers["retry-after"] == "30"
        assert gate.lines(3) == [
            "200 PASSED per-address 1",
            "200 PASSED per-address 0",
            "429 REJECTED per-address 0",
        ]


def test_sub_requests_are_charged_with_their_request(where: str | None) -> None:
    parts = """
    location = /auth { internal; content_by_lua_block { ngx.exit(204) } }
    location = /part { content_by_lua_block { ngx.say("part") } }
    location = /whole { auth_request /auth; content_by_lua_block {
      local one, two = ngx.location.capture("/part"), ngx.location.capture("/part")
      ngx.print(one.body, two.body)
    } }
    """
    with NginxGateway(book(ADDRESS), where, server=parts) as gate:
        assert gate.get("/whole").body == b"part\npart\n"
        assert gate.get("/whole").headers["ratelimit"] == '"per-address";r=0;t=60'


def test_shadows_and_candidates_refuse_nobody(where: str | None) -> None:
    rules = book(
        {"name": "live", "key": "address", "limit": "100/minute", "candidate": "1/minute"},
        {"name": "dry", "key": "address", "limit": "1/minute", "mode": "shadow"},
    )
    with NginxGateway(rules, where) as gate:
        assert [gate.get("/").status for _ in range(3)] == [200] * 3
        assert gate.lines(3) == [
            "200 PASSED live 99",
            "200 REJECTED_DRY_RUN live 98",
            "200 REJECTED_DRY_RUN live 97",
        ]
        assert gate.get("/").headers["ratelimit-policy"] == '"live";q=100;w=60'


def test_the_log_names_what_would_have_refused(where: str | None) -> None:
    rules = book(
        {"name": "live", "key": "address", "limit": "3/minute", "candidate": "1/minute; 1/hour"},
        {"name": "dry", "key": "address", "limit": "2/minute", "mode": "shadow"},
        {
            "name": "users",
            "key": "user",
            "missing": "deny",
            "limit": "2/minute",
            "mode": "shadow",
            "when": {"path": "/users"},
        },
    )
    http = """
    map "" $headgate_dry_run { default ""; }
    log_format trial '$headgate_status $headgate_rule:$headgate_dry_run';
    """
    with NginxGateway(rules, where, http=http, server="access_log trial.log trial;") as gate:
        for target in ("/", "/", "/", "/", "/users"):
            gate.get(target)
        path = gate.folder / "trial.log"
        until(lambda: None if path.read_text().count("\n") == 5 else "the log is not written", 10)
        assert path.read_text().splitlines() == [
            "PASSED live:",
            "REJECTED_DRY_RUN live:live~",
            "REJECTED_DRY_RUN live:live~,dry",
            "REJECTED live:live~,dry",
            "REJECTED live:live~,dry,users",
        ]


def test_a_dry_run_without_a_live_rule_has_a_name() -> None:
    rules = book({"name": "dry", "limit": "1/minute", "mode": "shadow"})
    http = 'map "" $headgate_dry_run { default ""; } log_format trial "$headgate_status $headgate_dry_run";'
    with NginxGateway(rules, http=http, server="access_log trial.log trial;") as gate:
        for _ in range(2):
            gate.get("/")
        path = gate.folder / "trial.log"
        until(lambda: None if path.read_text().count("\n") == 2 else "the log is not written", 10)
        assert path.read_text().splitlines() == ["PASSED ", "REJECTED_DRY_RUN dry"]


def test_a_missing_dimension(where: str | None) -> None:
    rules = book({"name": "users", "key": "header.x-user", "missing": "deny", "limit": "5/s"})
    with NginxGateway(rules, where) as gate:
        assert gate.get("/", {"X-User": "ada"}).status == 200
        reply = gate.get("/")
        assert reply.status == 429
        assert "retry-after" not in reply.headers
        assert gate.lines(2)[1] == "429 REJECTED users 0"


def test_a_variable_of_nginx_is_a_dimension(where: str | None) -> None:
    rules = book({"name": "tenants", "key": ["tenant", "user"], "missing": "deny", "limit": "1/minute"})
    tenants = 'map $http_host $tenant { default "none"; ~^(?<t>[^.]+) $t; }'
    options = 'attributes = { user = "$cookie_uid" }'
    with NginxGateway(rules, where, http=tenants, options=options) as gate:
        ada = {"Host": "acme.example", "Cookie": "uid=ada"}
        assert [gate.get("/", ada).status for _ in range(2)] == [200, 429]
        assert gate.get("/", {**ada, "Cookie": "uid=bob"}).status == 200
        assert gate.get("/", {**ada, "Host": "other.example"}).status == 200


def test_delayed_requests_block_no_worker(where: str | None) -> None:
    rules = book({"name": "queue", "when": {"path": "/slow"}, "key": "address", "limit": "2/s queue 2"})
    with NginxGateway(rules, where) as gate:
        began = time.monotonic()
        ended: list[tuple[int, float]] = []

        def one() -> None:
            status = gate.get("/slow").status
            ended.append((status, time.monotonic() - began))

        threads = [threading.Thread(target=one) for _ in range(4)]
        for thread in threads:
            thread.start()
        quick = [gate.get("/").status for _ in range(20)]
        took = time.monotonic() - began
        for thread in threads:
            thread.join()
        assert quick == [200] * 20
        assert sorted(status for status, _ in ended) == [200, 200, 200, 429]
        passed = sorted(after for status, after in ended if status == 200)
        assert passed[1] >= 0.45
        assert passed[2] >= 0.95
        assert took < passed[2]  # the only worker had time for others
        words = sorted(line.split()[1] for line in gate.lines(24))
        assert words == ["DELAYED"] * 2 + ["PASSED"] * 21 + ["REJECTED"]


def test_all_or_nothing(where: str | None) -> None:
    rules = book(
        {"name": "wide", "key": "address", "limit": "10/minute"},
        {"name": "narrow", "when": {"path": "/narrow"}, "key": "address", "limit": "1/minute"},
        {"name": "here", "where": "node", "key": "address", "limit": "20/minute"},
    )
    with NginxGateway(rules, where) as gate:
        assert [gate.get("/narrow").status for _ in range(5)] == [200] + [429] * 4
        left = gate.get("/").headers["ratelimit"]
        assert '"wide";r=8' in left
        assert '"here";r=18' in left


def test_python_and_nginx_drain_one_bucket(redis_server: RedisServer) -> None:
    rules = book(
        {"name": "items", "when": {"path": "/items/{sku}"}, "key": ["sku", "address"], "limit": "30/hour"}
    )
    with NginxGateway(rules, redis_server.url) as gate, RuleLimiter("pushed", redis_server.url) as limiter:
        passed = 0
        for turn in range(50):
            if turn % 2:
                passed += gate.get("/items/a%2D7").status == 200
            else:
                passed += limiter.check({"path": "/items/a-7", "address": "127.0.0.1"}).allowed
        assert passed == 30


def test_a_limiter_of_python_sees_the_same_count(redis_server: RedisServer) -> None:
    with NginxGateway(book(ADDRESS), redis_server.url) as gate:
        gate.get("/")
        with Limiter("2/minute", redis_server.url, name="per-address") as limiter:
            assert limiter.peek("address=127.0.0.1").remaining == 1


@pytest.fixture
def sock(where: str | None) -> Iterator[http.client.HTTPConnection]:
    with NginxGateway(book({**ADDRESS, "limit": "3/minute"}), where) as gate:
        yield http.client.HTTPConnection("127.0.0.1", gate.port, timeout=10)


def test_every_request_of_a_connection_is_charged(sock: http.client.HTTPConnection) -> None:
    statuses = []
    for _ in range(4):
        sock.request("GET", "/")
        reply = sock.getresponse()
        reply.read()
        statuses.append(reply.status)
    sock.close()
    assert statuses == [200, 200, 200, 429]


def test_a_pushed_book_is_followed_within_a_second(redis_server: RedisServer) -> None:
    with NginxGateway(book(ADDRESS), redis_server.url, workers=2) as gate:
        assert [gate.get("/").status for _ in range(3)] == [200, 200, 429]
        push(book({**ADDRESS, "limit": "5/minute"}), redis_server.url)
        time.sleep(1)
        replies = [gate.get("/") for _ in range(4)]
        assert {reply.headers["ratelimit-policy"] for reply in replies} == {'"per-address";q=5;w=60'}
        passed = [reply.status for reply in replies].count(200)
        assert passed in (2, 3)  # what was used stays used, rounded up by at most a unit
