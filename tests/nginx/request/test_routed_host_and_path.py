"""The host and the path that rules see are those that nginx routes by, however a client spells its request.

A rule for the host api.test, or for what lies below /api, must meet every request that nginx serves there: else a
spelling would be a way around it.
"""

import random
import socket
from collections.abc import Iterator

import pytest

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import Nginx
from tests.servers.redis_server import free_port

HOSTS = {"rules": [{"name": "api", "when": {"host": ["api.test", "[::1]"]}, "key": "address", "limit": "1/day"}]}
GATE = 'access_by_lua_block { require("resty.headgate").access() }'
SERVERS = """
server { listen 127.0.0.1:%(port)d; server_name other.test; %(gate)s
         location / { content_by_lua_block { ngx.say("by other.test") } } }
server { listen 127.0.0.1:%(port)d; server_name api.test [::1]; %(gate)s
         location / { content_by_lua_block { ngx.say("by api.test") } } }
server { listen 127.0.0.1:%(only)d; server_name api.test; %(gate)s
         location / { content_by_lua_block { ngx.say("by api.test") } } }
server { listen 127.0.0.1:%(second)d http2; server_name other.test; %(gate)s
         location / { content_by_lua_block { ngx.say("by other.test") } } }
server { listen 127.0.0.1:%(second)d http2; server_name api.test; %(gate)s
         location / { content_by_lua_block { ngx.say("by api.test") } } }
"""


class VirtualHosts:
    """One nginx with a server for api.test beside others, a port of api.test alone, and one that speaks HTTP/2."""

    def __init__(self) -> None:
        self.ports = {"port": free_port(), "only": free_port(), "second": free_port()}
        self.gate = NginxGateway(HOSTS, http=SERVERS % {"gate": GATE, **self.ports})
        self._sources = 0

    def source(self) -> str:
        """An address that nobody had before."""
        self._sources += 1
        return f"127.8.0.{self._sources}"

    def exchange(self, port: str, raw: bytes, source: str) -> bytes:
        with socket.create_connection(("127.0.0.1", self.ports[port]), 20, source_address=(source, 0)) as link:
            link.sendall(raw)
            return b"".join(iter(lambda: link.recv(65536), b""))


@pytest.fixture(scope="module")
def hosts() -> Iterator[VirtualHosts]:
    running = VirtualHosts()
    with running.gate:
        yield running


def spelled(target: str, *fields: str, version: str = "1.1") -> bytes:
    return "\r\n".join([f"GET {target} HTTP/{version}", *fields, "Connection: close", "", ""]).encode()


BY_API = {
    "plain": spelled("/", "Host: api.test"),
    "capitals": spelled("/", "Host: API.Test"),
    "port": spelled("/", "Host: api.test:99"),
    "closing dot": spelled("/", "Host: api.test."),
    "all of these": spelled("/", "hOST:  API.TEST.:80 "),
    "junk for a port": spelled("/", "Host: api.test:other.test"),
    "address": spelled("/", "Host: [::1]:80"),
    "absolute": spelled("http://api.test/", "Host: other.test"),
    "absolute, Host of nobody": spelled("http://api.test/", "Host: nobody"),
    "absolute in capitals": spelled("HTTP://API.TEST.:99/", "Host: other.test"),
    "absolute with a query alone": spelled("http://api.test?a=/", "Host: other.test"),
    "absolute with nothing behind": spelled("http://api.test", "Host: other.test"),
    "absolute address": spelled("http://[::1]:80/", "Host: other.test"),
    "absolute without Host": spelled("http://api.test/", version="1.0"),
    "absolute of another scheme": spelled("https://api.test/", "Host: other.test"),
}
BY_OTHER = {
    "plain": spelled("/", "Host: other.test"),
    "nobody": spelled("/", "Host: nobody"),
    "without Host": spelled("/", version="1.0"),
    "absolute": spelled("http://other.test/", "Host: api.test"),
    "absolute with a name in the path": spelled("http://other.test/http://api.test/", "Host: api.test"),
    "a field of proxies": spelled(
        "/", "Host: other.test", "X-Forwarded-Host: api.test", "Forwarded: host=api.test"
    ),
}


@pytest.mark.parametrize("spelling", BY_API)
def test_requests_routed_to_a_host_match_its_rule(hosts: VirtualHosts, spelling: str) -> None:
    source = hosts.source()
    assert b"by api.test\n" in hosts.exchange("port", BY_API[spelling], source)
    assert b"HTTP/1.1 429 " in hosts.exchange("port", BY_API[spelling], source)
    assert b"HTTP/1.1 429 " in hosts.exchange("port", BY_API["plain"], source)  # it is one count


@pytest.mark.parametrize("spelling", BY_OTHER)
def test_requests_routed_to_another_host_do_not_match(hosts: VirtualHosts, spelling: str) -> None:
    source = hosts.source()
    for _ in range(3):
        assert b"by other.test\n" in hosts.exchange("port", BY_OTHER[spelling], source)


def test_a_request_without_a_host_is_for_the_server_that_gets_it(hosts: VirtualHosts) -> None:
    source = hosts.source()
    assert b"by api.test\n" in hosts.exchange("only", spelled("/", version="1.0"), source)
    assert b" 429 " in hosts.exchange("only", spelled("/", version="1.0"), source)


@pytest.mark.parametrize("fields", [("Host: api.test", "Host: other.test"), ("Host:",), ("Host: a/b",), ()])
def test_requests_without_a_valid_host_get_400(hosts: VirtualHosts, fields: tuple[str, ...]) -> None:
    assert b" 400 " in hosts.exchange("port", spelled("/", *fields), hosts.source())


@pytest.mark.parametrize(
    "fields",
    [
        [(":authority", "api.test")],
        [(":authority", "API.test.:99")],
        [("host", "api.test")],
        [(":authority", "api.test"), ("x-forwarded-host", "other.test")],
    ],
)
def test_the_authority_of_http_2_is_the_host(hosts: VirtualHosts, fields: list[tuple[str, str]]) -> None:
    source = hosts.source()
    assert [_second(hosts, fields, source) for _ in range(2)] == ["200", "429"]


def _second(hosts: VirtualHosts, fields: list[tuple[str, str]], source: str) -> str:
    """The status of a request over HTTP/2 whose fields are literals."""
    pairs = [(":method", "GET"), (":scheme", "http"), (":path", "/"), *fields]
    block = b"".join(b"\0%c%b%c%b" % (len(n), n.encode(), len(v), v.encode()) for n, v in pairs)
    with socket.create_connection(("127.0.0.1", hosts.ports["second"]), 20, source_address=(source, 0)) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0) + _frame(1, 5, 1, block))
        with link.makefile("rb") as replies:
            while head := replies.read(9):
                payload = replies.read(int.from_bytes(head[:3])).lstrip(b"\x20")
                if head[3] == 1:
                    return "200" if payload[0] == 0x88 else payload[2:5].decode()
    raise AssertionError("nginx closed the connection without an answer")


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


# What is said instead of the well-known variables is made normal, too.


def test_a_variable_for_a_standard_attribute_is_normalized() -> None:
    rules = [{"name": "all", "key": ["host", "address", "method", "path"], "missing": "one", "limit": "1/day"}]
    named = ", ".join(f'{name} = "$http_x_{name}"' for name in ("host", "address", "method", "path"))
    spellings = [
        {"X-Host": "api.test", "X-Address": "192.0.2.7", "X-Method": "GET", "X-Path": "/a/b"},
        {"X-Host": "API.Test.:80", "X-Address": "::ffff:192.0.2.7", "X-Method": "get", "X-Path": "//a/c/../b/"},
    ]
    with NginxGateway({"rules": rules}, options=f"attributes = {{ {named} }}") as gate:
        assert [gate.get("/", headers).status for headers in spellings] == [200, 429]


# The path, by a rule for what lies below a location, and by what nginx makes of random targets.

LOCATIONS = """
location /api/ { content_by_lua_block { ngx.say("by api") } }
"""
PATHS = {"rules": [{"name": "api", "when": {"path": "/api/**"}, "key": "address", "limit": "1/day"}]}
SPELLED_PATHS = [
    "/api/x", "/api/", "//api/x", "/api//x", "/./api/x", "/y/../api/x", "/%61pi/x", "/%61%70%69/x", "/api%2fx",
    "/api%2Fx", "/%2e/api/x", "/y/%2e%2E/api/x", "/y%2f..%2fapi/x", "/y/%2e./api/x", "/y//../api/x",
    "/api//../x", "/api/%2F../x", "/api//%2e%2e/x", "/api/x;y", "/api/;/../x", "/api/x?/../y",
    "/api/x#/../y", "/api/x%3f/y", "/api/..;/x", "/x%23/../api/y", "http://h/api/x", "http://h//api/x",
    "http://h/y/../api/x", "/api\\x", "/api/../x", "/apis/x", "/API/x", "/%2561pi/x", "/y;/api/x",
]  # fmt: skip


@pytest.fixture(scope="module", params=["on", "off"])
def slashes(request: pytest.FixtureRequest) -> Iterator[NginxGateway]:
    with NginxGateway(PATHS, server=f"merge_slashes {request.param}; {LOCATIONS}") as gate:
        yield gate


@pytest.mark.parametrize("target", SPELLED_PATHS)
def test_requests_routed_to_a_location_match_its_rule(slashes: NginxGateway, target: str) -> None:
    place = SPELLED_PATHS.index(target)
    source = f"127.9.{place // 250}.{place % 250 + 1}"
    raw = spelled(target, "Host: h")
    first = _exchange(slashes, raw, source)
    if b"by api\n" in first:
        assert b" 429 " in _exchange(slashes, raw, source)
    else:
        assert b" 200 " in first  # nginx serves it elsewhere


PIECES = [
    "/",
    "//",
    "/.",
    "/..",
    "/./",
    "/../",
    "%2f",
    "%2F",
    "%2e",
    "%2E%2e",
    ".",
    "a",
    "b",
    ";",
    "%25",
    "%3F",
    "%23",
]
SEEN = """
location / {
  access_by_lua_block { ngx.ctx.path = require("resty.headgate.request.request_attributes").request().path }
  content_by_lua_block { ngx.print(ngx.var.uri, "\\n", ngx.ctx.path) }
}
"""


@pytest.mark.parametrize("merged", ["on", "off"])
def test_any_target_has_the_path_that_nginx_makes_of_it(merged: str) -> None:
    chance, compared = random.Random(7), 0
    with Nginx(f"merge_slashes {merged}; {SEEN}") as nginx:
        for _ in range(1500):
            target = "/" + "".join(chance.choice(PIECES) for _ in range(chance.randint(1, 8)))
            reply = nginx.get(target)
            if reply.status == 200:
                uri, path = reply.body.decode().split("\n")
                segments = [segment for segment in uri.split("/") if segment]
                assert path == "/" + "/".join(segments), target
                compared += 1
    assert compared > 700


def test_a_rewrite_changes_the_path_attribute_only_if_configured() -> None:
    lines = "rewrite ^/old/(.*)$ /api/$1;" + LOCATIONS
    with NginxGateway(PATHS, server=lines) as gate:
        assert [gate.get("/old/x").status for _ in range(3)] == [200, 200, 200]
    with NginxGateway(PATHS, server=lines, options='attributes = { path = "$uri" }') as gate:
        assert [gate.get(target).status for target in ("/old/x", "/api/x", "/old//x/")] == [200, 429, 429]


def _exchange(gate: NginxGateway, raw: bytes, source: str) -> bytes:
    with socket.create_connection(("127.0.0.1", gate.port), 20, source_address=(source, 0)) as link:
        link.sendall(raw)
        return b"".join(iter(lambda: link.recv(65536), b""))
