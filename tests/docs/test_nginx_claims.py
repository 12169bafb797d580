"""The warnings in docs/how-to/nginx.md are true of a real nginx."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from headgate.cli import main
from tests.nginx.gateway_harness import NginxGateway
from tests.servers.redis_server import free_port


def book(**rule: Any) -> dict[str, Any]:
    return {"rules": [{"name": "all", "key": "address", "limit": "2/hour", **rule}]}


SATISFIED = "access_by_lua_block { require('resty.headgate').access() }"
COUNTED = """rewrite_by_lua_block { require("resty.headgate").access() }
access_by_lua_block { ngx.exit(ngx.DECLINED) }"""


@pytest.mark.parametrize(
    ("lines", "allow", "statuses"),
    [
        (SATISFIED, "10.0.0.0/8", [200, 200, 429]),  # our pass is a permission
        (COUNTED, "10.0.0.0/8", [403, 403, 429]),
        (SATISFIED, "127.0.0.0/8", [200, 200, 200]),  # the other's permission is enough: we are not asked
        (COUNTED, "127.0.0.0/8", [200, 200, 429]),
    ],
)
def test_satisfy_any(lines: str, allow: str, statuses: list[int]) -> None:
    place = f"""
    location /internal/ {{
      satisfy any; allow {allow}; deny all;
      {lines}
      content_by_lua_block {{ ngx.say("inside") }}
    }}
    """
    with NginxGateway(book(), server=place) as gate:
        assert [gate.get("/internal/").status for _ in statuses] == statuses


@pytest.mark.parametrize(
    ("http", "statuses"),
    [("", [401, 401, 401, 401]), ("access_by_lua_no_postpone on;", [401, 401, 429, 429])],
    ids=["last", "first"],
)
def test_wrong_passwords_are_counted_only_if_we_are_first(http: str, statuses: list[int], tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ann:{PLAIN}secret\n")
    place = f"""
    location /locked {{
      auth_basic "who"; auth_basic_user_file {tmp_path}/users;
      content_by_lua_block {{ ngx.say("inside") }}
    }}
    """
    with NginxGateway(book(key="user", missing="skip"), http=http, server=place) as gate:
        wrong = {"Authorization": "Basic YW5uOndyb25n"}  # ann:wrong
        assert [gate.get("/locked", wrong).status for _ in statuses] == statuses


def test_responses_of_the_rewrite_phase_are_not_limited() -> None:
    with NginxGateway(book(limit="1/hour"), server="location = /gone { return 410; }") as gate:
        assert [gate.get("/gone").status for _ in range(3)] == [410, 410, 410]
        assert [gate.get("/").status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("http", "fields"),
    [("", '"all";r=1;t=1800, "theirs";r=7'), ("proxy_hide_header RateLimit;", '"all";r=1;t=1800')],
    ids=["both", "hidden"],
)
def test_fields_of_the_backend_arrive_too_unless_they_are_hidden(http: str, fields: str) -> None:
    places = """
    location /api/ { proxy_pass http://127.0.0.1:$server_port/behind; }
    location /behind {
      access_by_lua_block { return }
      content_by_lua_block { ngx.header["RateLimit"] = '"theirs";r=7' ngx.say("ok") }
    }
    """
    with NginxGateway(book(), http=http, server=places) as gate:
        assert gate.get("/api/").headers["ratelimit"] == fields


def test_a_header_of_auth_request_can_be_an_attribute() -> None:
    places = """
    location = /auth { internal; proxy_pass http://127.0.0.1:$server_port/service; }
    location = /service {
      access_by_lua_block { return }
      content_by_lua_block { ngx.header["X-Plan"] = ngx.var.http_x_who == "ann" and "pro" or "free" }
    }
    location /api {
      auth_request /auth; auth_request_set $plan $upstream_http_x_plan;
      content_by_lua_block { ngx.say("ok") }
    }
    """
    limit = {"by": "plan", "cases": {"pro": "2/hour"}, "otherwise": "1/hour"}
    with NginxGateway(book(limit=limit), server=places) as gate:
        assert [gate.get("/api", {"X-Who": "ann"}).status for _ in range(3)] == [200, 200, 429]
        assert [gate.get("/api", {"X-Who": "bob"}).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("http", "statuses"),
    [("", [200, 200, 200]), ("underscores_in_headers on;", [200, 429, 429])],
    ids=["dropped", "kept"],
)
def test_fields_with_underscores_are_seen_if_nginx_keeps_them(http: str, statuses: list[int]) -> None:
    with NginxGateway(book(key="header.api_key", missing="skip", limit="1/hour"), http=http) as gate:
        names = ("api_key", "Api_Key", "api_key")
        assert [gate.get("/", {name: "4711"}).status for name in names] == statuses


def test_a_cost_is_a_variable() -> None:
    http = "map $http_x_rows $rows { default 1; ~^[0-9]+$ $http_x_rows; }"
    with NginxGateway(book(limit="1000/hour", cost="rows", missing="one"), http=http) as gate:
        assert gate.get("/", {"X-Rows": "300"}).headers["ratelimit"].startswith('"all";r=700;')
        assert gate.get("/").headers["ratelimit"].startswith('"all";r=699;')


def test_streams_of_http_2_are_requests_on_one_connection() -> None:
    port = free_port()
    server = f"""
    listen 127.0.0.1:{port} http2;
    location /slow/ {{ content_by_lua_block {{ ngx.sleep(0.5) ngx.say("ok") }} }}
    """
    rate = {"name": "rate", "when": {"path": "/fast/*"}, "key": "host", "limit": "2/hour"}
    slots = {"name": "slots", "when": {"path": "/slow/*"}, "key": "address", "limit": "2 slots"}
    with NginxGateway({"rules": [rate, slots]}, server=server) as gate:
        assert _streams(port, ["/fast/1", "/fast/2", "/fast/3", "/other"]) == [200, 200, 429, 200]
        gate.lines(4)
        assert _streams(port, ["/slow/1", "/slow/2", "/slow/3"]) == [200, 200, 429]
        gate.lines(7)
        assert _streams(port, ["/slow/1", "/slow/2"]) == [200, 200]  # they came back


def _streams(port: int, paths: list[str]) -> list[int]:
    """The statuses of requests that are made at once on one connection of HTTP/2."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        for number, path in enumerate(paths):
            fields = b"\x82\x86" + _field(4, path) + _field(1, "shop.example")  # GET, http, :path, :authority
            sock.sendall(_frame(1, 0x05, 2 * number + 1, fields))  # HEADERS, and nothing follows
        frames: dict[int, int] = {}
        with sock.makefile("rb") as replies:
            while len(frames) < len(paths):
                head = replies.read(9)
                stream, payload = int.from_bytes(head[5:9]), replies.read(int.from_bytes(head[:3]))
                if head[3] == 1:
                    frames[stream] = _status(payload)
    return [status for _, status in sorted(frames.items())]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _field(name: int, value: str) -> bytes:
    """A field with a name of HPACK's static table, as it is, not to be remembered."""
    return bytes([name, len(value)]) + value.encode()


def _status(fields: bytes) -> int:
    """The first field, as nginx writes it: 200 is one byte, others are texts. A table's size may come before."""
    fields = fields.lstrip(b"\x20")
    return 200 if fields[0] == 0x88 else int(fields[2:5])


def test_a_compiled_bundle_has_the_stated_size(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "nginx.md").read_text("utf-8")
    (stated,) = re.findall(r"A compiled bundle lies in it, too:\s(\d+) kB and more", page)
    (tmp_path / "rules.json").write_text(json.dumps(book()))
    bundle = tmp_path / "rules.bundle.json"
    assert main(["rules", "compile", str(tmp_path / "rules.json"), "-o", str(bundle)]) == 0
    assert int(stated) * 1000 <= bundle.stat().st_size < int(stated) * 2000
