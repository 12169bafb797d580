"""The attributes of a request that a real nginx serves: those that Python makes of the same bytes.

Every request of tests/vectors is sent over a socket as it stands. The address comes by the PROXY protocol,
as it does behind a load balancer, so that nothing else of the request is touched.
"""

import base64
import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from headgate.gateway.bundle import compile_bundle
from headgate.rules import load
from headgate.rules.ip_networks import canonical
from tests.nginx.rules.luajit_process import raw_bytes
from tests.rules.match_vectors import lines
from tests.servers import Nginx
from tests.servers.redis_server import free_port

HTTP = """
lua_shared_dict books 10m;
set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
underscores_in_headers on; ignore_invalid_headers off; merge_slashes off;
client_header_buffer_size 64k; large_client_header_buffers 8 512k;
server {
  listen 127.0.0.1:%d proxy_protocol;
  location / {
    access_by_lua_block {
      local json, match = require "resty.headgate.rules.bundle_json", require "resty.headgate.rules.match"
      local met = match.compile(json.decode(ngx.shared.books:get("book")))
      local one, found = met(require("resty.headgate.request.request_attributes").request())
      if one then found = { one } end
      for i, one in ipairs(found) do
        found[i] = ngx.encode_base64(one.rule.name) .. " " .. ngx.encode_base64(one.key) .. " " .. one.cost
      end
      ngx.header["Matches"] = table.concat(found, ",")
      return ngx.exit(200)
    }
  }
}
"""
BOOKS = """
location = /book {
  client_max_body_size 10m; client_body_buffer_size 10m;
  content_by_lua_block { ngx.req.read_body() ngx.shared.books:set("book", ngx.req.get_body_data()) ngx.say("ok") }
}
"""
# What no HTTP server takes for a request: blanks and controls in the line, names that are no names.
_line = re.compile(rb"[^\x00-\x20\x7f]+")
_name = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_value = re.compile(rb"[^\x00\r\n]*")


class MatchNginx:
    """A real nginx that says which rules of a book a request meets."""

    def __init__(self) -> None:
        self.proxied = free_port()
        self.nginx = Nginx(BOOKS, HTTP % self.proxied).start()
        self._book = ""

    def use(self, book: str) -> None:
        if book == self._book:
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.nginx.port, timeout=20)
        connection.request("POST", "/book", book.encode())
        assert connection.getresponse().read() == b"ok\n"
        connection.close()
        self._book = book

    def send_request(self, request: bytes, address: str) -> tuple[int, list[tuple[bytes, bytes, int]]]:
        family = "TCP6" if ":" in address else "TCP4"
        here = "::1" if ":" in address else "127.0.0.1"
        with socket.create_connection(("127.0.0.1", self.proxied), timeout=20) as link:
            link.sendall(f"PROXY {family} {address} {here} 1000 80\r\n".encode() + request)
            answer = b"".join(iter(lambda: link.recv(65536), b""))
        head, _, _ = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        header = re.search(rb"\r\nMatches: ([^\r]+)", head)
        matches = [one.split(b" ") for one in header[1].split(b",")] if header else []
        return status, [(base64.b64decode(r), base64.b64decode(k), int(cost)) for r, k, cost in matches]


@pytest.fixture(scope="module")
def gate() -> Iterator[MatchNginx]:
    running = MatchNginx()
    yield running
    running.nginx.stop()


def sent(text: str) -> bytes:
    """The vectors write bytes as characters."""
    return text.encode("latin-1")


def sendable(request: dict[str, Any]) -> bool:
    """Returns whether the request can come over a wire: nginx answers 400 to anything else."""
    hosts = [value for name, value in request["headers"] if name.lower() == "host"]
    return (
        re.fullmatch(r"[A-Z_-]+", request["method"]) is not None
        and _line.fullmatch(sent(request["target"])) is not None
        and all(
            _name.fullmatch(sent(name)) and _value.fullmatch(sent(value)) for name, value in request["headers"]
        )
        and len(hosts) <= 1
        and canonical(request["address"] or "") is not None
        and not re.search("%|255.255.255.255", request["address"])  # this is "no address" to nginx
    )


def written(request: dict[str, Any]) -> bytes:
    head = [b"%b %b HTTP/1.0" % (sent(request["method"]), sent(request["target"]))]
    head += [b"%b: %b" % (sent(name), sent(value)) for name, value in request["headers"]]
    return b"\r\n".join(head) + b"\r\n\r\n"


def of_match(line: dict[str, Any]) -> tuple[str, list[tuple[bytes, bytes, int]]]:
    expected = [(one["rule"].encode(), raw_bytes(one["key"]), one["cost"]) for one in line["expect"]]
    return json.dumps(compile_bundle(load.from_mapping(line["rules"]), 0)), expected


def of_key(line: dict[str, Any]) -> tuple[str, list[tuple[bytes, bytes, int]]]:
    rule = {"name": "r", "limit": "10/s", "key": line["key"], "missing": line["missing"]}
    expected = [] if line["expect"] is None else [(b"r", raw_bytes(line["expect"]), 1)]
    return json.dumps({"rules": [rule]}), expected


def of(line: dict[str, Any]) -> tuple[str, list[tuple[bytes, bytes, int]]]:
    return of_match(line) if "rules" in line else of_key(line)


ALL = [param for name in ("match.jsonl", "keys.jsonl") for param in lines(name) if "request" in param.values[0]]
SENT = [param for param in ALL if "cost" not in param.values[0] and sendable(param.values[0]["request"])]


@pytest.mark.parametrize("line", SENT)
def test_nginx_and_python_read_the_same_attributes(gate: MatchNginx, line: dict[str, Any]) -> None:
    book, expected = of(line)
    gate.use(book)
    status, answer = gate.send_request(written(line["request"]), line["request"]["address"])
    if status != 400:  # nginx has no ear for some of them: no backend sees those either
        assert (status, answer) == (200, expected)


def test_nginx_accepts_nearly_all_vectors(gate: MatchNginx) -> None:
    count = sum(
        gate.send_request(written(p.values[0]["request"]), p.values[0]["request"]["address"])[0] == 200
        for p in SENT
    )
    assert count > 0.8 * len(ALL)
