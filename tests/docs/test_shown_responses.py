"""Answers of nginx, the service and Redis that pages show are what those send."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate import CorruptState, Limiter
from headgate.rules import load, serialization
from tests.docs.shown_command_setup import blocks
from tests.nginx.gateway_harness import NginxGateway
from tests.repo_rules.repository import ROOT
from tests.servers import BASE_US, DrivenClock, RedisServer
from tests.service.service_harness import Service


def indented(page: str, beginning: str) -> list[str]:
    """The lines of the indented block that has this line, from there on."""
    lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(f"    {beginning}")]
    found = []
    for line in lines[begin:]:
        if line and not line.startswith("    "):
            break
        found.append(line.removeprefix("    "))
    return "\n".join(found).strip().splitlines()


def test_curl_at_nginx() -> None:
    """The sixth POST to /login, by the page's rulebook."""
    command, status, *fields = indented("how-to/nginx.md", "$ curl -i -X POST http://127.0.0.1/login")
    book = serialization.document(load.parse(blocks("how-to/nginx.md")[0]))
    with DrivenClock(BASE_US) as clock, NginxGateway(book, driven=clock) as gate:
        replies = [gate.get("/login", method=command.split()[4]) for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 5 + [int(status.split()[1])]
    for field in fields:
        name, _, value = field.partition(": ")
        assert replies[-1].headers[name.lower()] == value


def test_curl_at_the_service() -> None:
    """Of the sample rulebook, by the command that the service prints."""
    command, answer = indented("how-to/service.md", "curl -s http://127.0.0.1:8080/v1/check")
    match = re.fullmatch(r"curl -s http://127.0.0.1:8080(\S+) -d '(.*)'", command)
    assert match is not None
    with Service() as service:
        assert command.replace("127.0.0.1:8080", service.http) in service.output
        assert service.send_request("POST", match[1], match[2].encode()).body.decode() == answer


def test_a_problem_of_nginx() -> None:
    field, _, body = indented("reference/nginx.md", "Content-Type: application/problem+json")
    with NginxGateway({"rules": [{"name": "login", "key": "address", "limit": "1/hour"}]}) as gate:
        gate.get("/")
        reply = gate.get("/", {"Accept": "application/json"})
    assert (reply.headers["content-type"], reply.body.decode().strip()) == (field.partition(": ")[2], body)


def test_a_value_that_headgate_did_not_write(server: RedisServer) -> None:
    (sentence,) = indented("reference/storage.md", "WRONGTYPE headgate: ")
    (key,) = re.findall(r"the key (\S+) holds", sentence)
    server.call("LPUSH", key, "x")
    limiter = Limiter("5/minute", server.url, name="login")
    with pytest.raises(CorruptState) as refused:
        limiter.take("user=ann")
    assert sentence.removeprefix("WRONGTYPE headgate: the key ") in str(refused.value)
    limiter.close()
    server.call("DEL", key)


def test_modules_that_are_named_are_there() -> None:
    text = "\n".join(re.findall(r"^\| (`.*?) \|", (ROOT / "nginx" / "README.md").read_text("utf-8"), re.M))
    lib = ROOT / "nginx" / "lib" / "resty" / "headgate"
    there = {path.stem for path in lib.rglob("*")} | {"headgate"}
    named = {Path(name.rstrip("/")).stem for name in re.findall(r"`([a-z_0-9./]+)`", text)}
    assert named - there - {"ngx", "luajit"} == set()
