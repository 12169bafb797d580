"""Hostile requests and configurations: none changes which key is counted, passes uncounted, is counted twice, or
gets an error page.

One nginx serves all stories, with all that nginx can do around a request. Each story has an address of its own, so
what was charged is what is missing under that address.
"""

import random
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.engines.redis import keys
from headgate.rules import load
from headgate.rules.attributes import request
from headgate.rules.match import Matcher
from tests.nginx import gateway_harness
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.redis_server import free_port

LIMIT = 1_000_000
BOOK = {
    "rules": [
        {"name": "each", "key": "address", "limit": f"{LIMIT}/day fixed"},
        {"name": "aside", "key": ["method", "host"], "missing": "one", "mode": "shadow", "limit": "1/day"},
    ]
}
ONE = "content_by_lua_block { ngx.say(1) }"
GATE = 'local gate = require("resty.headgate")'
HTTP = """
underscores_in_headers on; ignore_invalid_headers off; merge_slashes off;
client_header_buffer_size 1k; large_client_header_buffers 8 512k;
lua_need_request_body off;
server { listen 127.0.0.1:%(second)d http2; %(server)s }
server {
  listen 127.0.0.1:%(behind)d;
  location = /accel { content_by_lua_block { ngx.header["X-Accel-Redirect"] = "/inside/file" } }
  location = /accel-named { content_by_lua_block { ngx.header["X-Accel-Redirect"] = "@named" } }
  location = /fails { content_by_lua_block { ngx.exit(502) } }
  location / { content_by_lua_block { ngx.req.read_body() ngx.say("behind ", #(ngx.req.get_body_data() or "")) } }
}
"""
SERVER = """
location = /twice { access_by_lua_block { %(gate)s gate.access() gate.access() } %(one)s }
location = /both { rewrite_by_lua_block { %(gate)s gate.access() } %(one)s }
location /old/ { rewrite ^/old/(.*)$ /older/$1 last; }
location /older/ { rewrite ^/older/(.*)$ /new/$1 last; }
location /new/ { content_by_lua_block { ngx.say("new") } }
location /unlogged/ { log_by_lua_block { local nothing } rewrite ^ /unlogged-too last; }
location /unlogged-too { log_by_lua_block { local nothing } %(one)s }
location = /any { satisfy any; allow all; access_by_lua_block { local nothing }
  rewrite_by_lua_block { %(gate)s gate.access() } %(one)s }
location = /any-denied { satisfy any; deny all;
  access_by_lua_block { %(gate)s gate.access() ngx.exit(ngx.DECLINED) } %(one)s }
location = /all { satisfy all; allow all; %(one)s }
location = /authorized { auth_request /allowed; %(one)s }
location = /allowed { internal;
  access_by_lua_block { %(gate)s gate.access() } content_by_lua_block { ngx.exit(204) } }
location = /ssi { ssi on; ssi_types *; content_by_lua_block {
  ngx.print('<!--#include virtual="/new/1" --><!--#include virtual="/twice" -->') } }
location = /mirrored { mirror /mirror; proxy_pass http://127.0.0.1:%(behind)d; }
location = /mirror { internal; proxy_pass http://127.0.0.1:%(behind)d/; }
location = /accel { proxy_pass http://127.0.0.1:%(behind)d; }
location = /accel-named { proxy_pass http://127.0.0.1:%(behind)d; }
location = /inside/file { internal; content_by_lua_block { ngx.say("inside") } }
location @named { content_by_lua_block { ngx.say("named") } }
location = /fails { proxy_pass http://127.0.0.1:%(behind)d; proxy_intercept_errors on;
  recursive_error_pages on; error_page 502 = /fails-again; }
location = /fails-again { internal; proxy_pass http://127.0.0.1:%(behind)d/fails; proxy_intercept_errors on;
  recursive_error_pages on; error_page 502 =200 @named; }
location = /exec { content_by_lua_block { ngx.exec("/new/exec") } }
location = /tries { try_files /no /nor/this /old/x; }
location /usr/ { index nothing.html /new/index; root /; }
location = /418 { error_page 418 = @named; return 418; }
location = /wait { content_by_lua_block { ngx.req.read_body() ngx.say(#(ngx.req.get_body_data() or "")) } }
location = /socket { proxy_pass http://127.0.0.1:%(socket)d; proxy_http_version 1.1;
  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }
error_page 400 414 494 /bad;
location = /bad { internal; content_by_lua_block { ngx.say("bad") } }
"""


class HostileRequestNginx:
    """The nginx of all stories."""

    def __init__(self, gate: NginxGateway, second: int) -> None:
        self.gate, self.second = gate, second
        self.stories = 0

    def story(self) -> str:
        """Somebody new."""
        self.stories += 1
        return f"127.7.{self.stories // 250}.{self.stories % 250 + 1}"

    def send(self, raw: bytes, source: str) -> bytes:
        """Everything that is answered until nginx closes."""
        with socket.create_connection(("127.0.0.1", self.gate.port), 20, source_address=(source, 0)) as link:
            link.sendall(raw)
            return b"".join(iter(lambda: link.recv(65536), b""))

    def used(self, source: str) -> int:
        """Returns how often this address was charged before now."""
        header = self.gate.get("/", source=source).headers["ratelimit"]
        return LIMIT - 1 - int(header.partition(";r=")[2].partition(";")[0])


@pytest.fixture(scope="module", params=["redis", "shared"])
def tried(request: pytest.FixtureRequest) -> Iterator[HostileRequestNginx]:
    ports = {"second": free_port(), "behind": free_port(), "socket": free_port()}
    server = SERVER % {"gate": GATE, "one": ONE, **ports}
    with RedisServer() as redis, UpgradeEcho(ports["socket"]):
        http = HTTP % {"server": gateway_harness.SERVER + server, **ports}
        with NginxGateway(BOOK, redis.url if request.param == "redis" else None, server=server, http=http) as gate:
            yield HostileRequestNginx(gate, ports["second"])
            assert "undecided" not in gate.log
            assert "[alert]" not in gate.log
            assert "lua entry thread aborted" not in gate.log


class UpgradeEcho:
    """Takes an upgrade, and says back what it hears."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            link.recv(65536)
            link.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
            with link:
                while received := link.recv(100):
                    link.sendall(received.upper())


def plain(target: bytes = b"/", *headers: bytes, method: bytes = b"GET", body: bytes = b"") -> bytes:
    lines = [b"%b %b HTTP/1.1" % (method, target), b"Host: h", *headers, b"Connection: close"]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


# What a configuration does with a request: it is charged once.


@pytest.mark.parametrize(
    ("target", "status", "body"),
    [
        ("/twice", 200, b"1"), ("/both", 200, b"1"), ("/old/x", 200, b"new"), ("/any", 200, b"1"),
        ("/any-denied", 403, b""), ("/all", 200, b"1"), ("/authorized", 200, b"1"), ("/ssi", 200, b"new\n1"),
        ("/mirrored", 200, b"behind"), ("/accel", 200, b"inside"), ("/accel-named", 200, b"named"),
        ("/fails", 200, b"named"), ("/exec", 200, b"new"), ("/tries", 200, b"new"), ("/usr/", 200, b"new"),
        ("/418", 200, b"named"), ("/unlogged/x", 200, b"1"),
    ],
)  # fmt: skip
def test_every_kind_of_response_charges_once(
    tried: HostileRequestNginx, target: str, status: int, body: bytes
) -> None:
    source = tried.story()
    for turn in (1, 2, 3):
        reply = tried.gate.get(target, source=source)
        assert (reply.status, reply.body[: len(body)]) == (status, body)
        assert tried.used(source) == 2 * turn - 1


# What a client does with a request: the same.

FINE, BAD = b" 200 ", b" 400 "
CHUNKED, LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: 5"
MANY = b"&".join(b"a%d=%d" % (n, n) for n in range(10_000))
FORWARDED = (b"X-Forwarded-For: 1.2.3.4", b"X-Real-IP: 1.2.3.4", b"Forwarded: for=1.2.3.4")
TRICKS: dict[str, tuple[bytes, bytes]] = {
    "http 0.9": (b"GET /\r\n", b"ok"),
    "http 1.0 without a host": (b"GET / HTTP/1.0\r\n\r\n", FINE),
    "absolute": (plain(b"http://else.where:99/new/?a#b"), FINE),
    "absolute, nothing behind": (plain(b"http://else.where"), FINE),
    "options": (plain(method=b"OPTIONS"), FINE),
    "options *": (plain(b"*", method=b"OPTIONS"), BAD),
    "head": (plain(method=b"HEAD"), FINE),
    "strange method": (plain(method=b"LOCK_IT-NOW"), FINE),
    "small method": (plain(method=b"get"), BAD),
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", BAD),
    "nul in a header": (plain(b"/", b"X-A: a\x00b"), BAD),
    "nul in the path": (plain(b"/a%00b"), BAD),
    "two hosts": (plain(b"/", b"Host: other"), BAD),
    "above the root": (plain(b"/../../x"), BAD),
    "encoded": (plain(b"/n%65w/%2F%2e%2E//./x?%00=%FF&&=&a=%"), FINE),
    "empty values": (plain(b"/?a&b=&=c", b"X-A:", b"Cookie:", b"X-Forwarded-For:"), FINE),
    "64 KB value": (plain(b"/?q=" + b"q" * 65536, b"X-A: " + b"a" * 65536), FINE),
    "line too long": (plain(b"/?q=" + b"q" * 600_000), b" 414 "),
    "header too long": (plain(b"/", b"X-A: " + b"a" * 600_000), BAD),
    "bytes": (plain(b"/\xff\xfe?\xff=\xc3(", b"X-A: \xff\x80", b"Cookie: \xff=\xfe"), FINE),
    "10,000 arguments": (plain(b"/?" + MANY), FINE),
    "900 lines of cookies": (plain(b"/", *(b"Cookie: c%d=%d" % (n, n) for n in range(900))), FINE),
    "10,000 cookies in a line": (plain(b"/", b"Cookie: " + MANY.replace(b"&", b"; ")), FINE),
    "forwarded": (plain(b"/", *FORWARDED), FINE),
    "underscores": (plain(b"/", b"X_Forwarded_For: 1.2.3.4", b"remote_addr: 1.2.3.4"), FINE),
    "range": (plain(b"/", b"Range: bytes=0-0,1-1", b"If-Range: x"), FINE),
    "a body": (plain(b"/wait", LENGTH, method=b"POST", body=b"12345"), b"5\n"),
    "chunks": (plain(b"/wait", CHUNKED, method=b"POST", body=b"5\r\n12345\r\n0\r\n\r\n"), b"5\n"),
    "expected": (plain(b"/wait", LENGTH, b"Expect: 100-continue", method=b"POST", body=b"12345"), b"5\n"),
    "upgrade to nothing": (plain(b"/", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"), FINE),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_hostile_requests_are_charged_to_their_address_once(tried: HostileRequestNginx, trick: str) -> None:
    raw, answer = TRICKS[trick]
    source = tried.story()
    for turn in (1, 2):
        assert answer in tried.send(raw, source)
        assert tried.used(source) == 2 * turn - 1


@pytest.mark.parametrize("target", [b"/", b"/old/x", b"/accel", b"/unlogged/x", b"/418"])
def test_each_of_many_requests_sent_at_once_is_charged(tried: HostileRequestNginx, target: bytes) -> None:
    source = tried.story()
    one = b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target
    answers = tried.send(one * 99 + plain(target), source)
    assert answers.count(b"HTTP/1.1 200") == 100
    assert tried.used(source) == 100


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _fields(**fields: str) -> bytes:
    """As HTTP/2 has them at its plainest: each a literal."""
    words = [(f":{name}".encode(), value.encode()) for name, value in fields.items()]
    return b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in words)


def test_each_stream_of_a_connection_is_charged(tried: HostileRequestNginx) -> None:
    source = tried.story()
    targets = ["/", "/old/x", "/unlogged/x", "/both", "/twice", "/418"] * 5
    frames = [
        _frame(1, 5, 2 * place + 1, _fields(method="GET", scheme="http", authority="h", path=target))
        for place, target in enumerate(targets)
    ]
    with socket.create_connection(("127.0.0.1", tried.second), 20, source_address=(source, 0)) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0) + b"".join(frames))
        link.settimeout(10)
        stream, answered = link.makefile("rb"), 0
        while answered < len(targets):
            head = stream.read(9)
            payload = stream.read(int.from_bytes(head[:3], "big"))
            answered += head[3] == 1 and payload[0] == 0x88  # :status 200
    assert tried.used(source) == len(targets)


def test_an_upgraded_connection_is_one_request(tried: HostileRequestNginx) -> None:
    source = tried.story()
    with socket.create_connection(("127.0.0.1", tried.gate.port), 10, source_address=(source, 0)) as link:
        link.sendall(b"GET /socket HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n")
        assert link.recv(65536).startswith(b"HTTP/1.1 101 ")
        for word in (b"one", b"two"):
            link.sendall(word)
            assert link.recv(100) == word.upper()
    assert tried.used(source) == 1


@pytest.mark.parametrize(
    ("refuse", "status"),
    [({}, "429"), ({"refuse": {"body": "later"}}, "429"), ({"refuse": {"redirect": "/x"}}, "302")],
)
def test_the_body_of_a_refused_request_is_no_request(refuse: dict[str, Any], status: str) -> None:
    posts = {"name": "posts", "when": {"method": ["POST", "HEAD"]}, "limit": "1/day", **refuse}
    inner = b"GET /inner HTTP/1.1\r\nHost: h\r\n\r\n"
    start = b"POST / HTTP/1.1\r\nHost: h\r\n"
    sized = start + b"Content-Length: %d\r\n\r\n" % len(inner) + inner
    chunked = start + CHUNKED + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(inner), inner)
    head = b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
    with NginxGateway({"rules": [posts]}) as gate:
        assert gate.get("/", method="POST").status == 200
        answers = HostileRequestNginx(gate, 0).send(sized + chunked + head + plain(), "127.0.0.1")
        assert answers.count(b"HTTP/1.1 ") == 4
        assert [line.split()[0] for line in gate.lines(5)] == ["200", status, status, status, "200"]


# Whose key is counted: the one that Python counts of the same bytes.

_PIECES = (
    b"/ // /./ /a/../ /..;/ %2F %2f %2e%2e/ %2E %25 %7C % %zz %C3%A9 \xc3\xa9 \xff %ff a A b + ~ | { } \\ ; : @ ="
    b""" , ' " < ^ ` items/7 items/ Items"""
).split()
_VALUES = [*_PIECES, b" ", b"\t", b"&", b"#", b"?", b"x" * 300, b"%0d%0a", b"%00", b"=="]
_HOSTS = [b"h", b"H.Example.", b"a.b:8080", b"[::1]:80", b"EXAMPLE.com...", b"x_y", b"h."]
_ALL = ["method", "path", "host", "address", "header.x-user", "header.cookie", "argument.q", "argument.Q"]


def rule(name: str, key: list[str], limit: str = "9/hour", **more: Any) -> dict[str, Any]:
    return {"name": name, "key": key, "missing": "one", "limit": limit, **more}


RANDOM = {
    "rules": [
        rule("all", [*_ALL, "cookie.sid", "cookies", "headers"]),
        rule("items", ["sku", "host"], "9/day fixed", when={"path": "/items/{sku}"}),
        rule("hosts", ["header.x_user"], when={"host": ["h", "*.example"]}),
        rule("below", ["argument.q"], when={"path": "/a/**", "method": "GET"}),
        rule("letters", ["cookie.sid"], "9/hour sliding", when={"argument.q": ["a*", "%*"]}),
    ]
}


@pytest.fixture(scope="module")
def counted() -> Iterator[tuple[NginxGateway, RedisServer]]:
    http = "client_header_buffer_size 64k; server_name gate.example;"
    with RedisServer() as server, NginxGateway(RANDOM, server.url, server=http) as gate:
        yield gate, server
        assert "undecided" not in gate.log


def _some(chance: random.Random, pieces: list[bytes], most: int) -> bytes:
    return b"".join(chance.choice(pieces) for _ in range(chance.randint(0, most)))


def _any_request(chance: random.Random) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Without a Host it is one of HTTP/1.0, and for gate.example, which gets it."""
    target = b"/" + _some(chance, _PIECES, 5)
    for mark in (b"?", *[b"&"] * chance.randint(0, 4)) if chance.random() < 0.7 else ():
        value = re.sub(rb"[ \t&#]", b"+", _some(chance, _VALUES, 3))
        target += (
            mark + chance.choice([b"q", b"Q", b"%71", b"q%00", b"", b"qq"]) + chance.choice([b"=", b""]) + value
        )
    target += chance.choice([b"", b"", b"#x?q=1", b"?", b"&q=last"])
    if chance.random() < 0.15:
        target = b"http://line.example:81" + target
    headers = [(chance.choice([b"Host", b"hOST"]), chance.choice(_HOSTS))] if chance.random() < 0.9 else []
    for _ in range(chance.randint(0, 4)):
        name = chance.choice([b"X-User", b"x-uSER", b"Cookie", b"X-Other", b"X-Forwarded-For"])
        value = _some(chance, _VALUES, 3)
        if name == b"Cookie":
            value = b"sid=" + value + b"; sid=" + _some(chance, _VALUES, 2) + b";SID=3;;=4"
        headers.insert(chance.randint(0, len(headers)), (name, value))
    return chance.choice([b"GET", b"POST", b"HEAD", b"PURGE_IT"]), target, headers


@pytest.mark.parametrize("seed", range(4))
def test_the_keys_are_pythons(counted: tuple[NginxGateway, RedisServer], seed: int) -> None:
    gate, server = counted
    chance, matcher, sent = random.Random(seed), Matcher(load.from_mapping(RANDOM)), 0
    for turn in range(200):
        method, target, headers = _any_request(chance)
        source = f"127.3.{seed}.{turn + 1}"
        version = b"1.1" if any(name.lower() == b"host" for name, _ in headers) else b"1.0"
        raw = b"%b %b HTTP/%b\r\n" % (method, target, version)
        raw += b"".join(b"%b:%b\r\n" % pair for pair in headers) + b"Connection: close\r\n\r\n"
        status = HostileRequestNginx(gate, 0).send(raw, source).split()[1]
        names: set[bytes] = set(server.call("KEYS", "hg2:??:*:{*"))  # type: ignore[arg-type]
        wanted = set()
        if status != b"400":  # such a request reaches nobody
            seen = request(method, target, headers, source)
            seen.setdefault("host", "gate.example")
            for match in matcher.match(seen):
                for limit in match.limits:
                    head = keys.key_head("hg", limit.algorithm, match.rule.name)
                    wanted.add(keys.build_key(head, match.key))
            sent += 1
        assert names == wanted, (method, target, headers)
        if names:
            server.call("DEL", *names)
    assert sent > 120
