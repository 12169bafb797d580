"""The nginx configuration in docs/how-to/gateways.md runs: Debian's nginx, its Redis client, and a real Redis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headgate.engines.redis.published_scripts import publish
from tests.docs.shown_command_setup import blocks
from tests.repo_rules.repository import ROOT
from tests.servers import Backend, Nginx, RedisServer

KEY = "rate_limiter:seckill:1"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def gate(server: RedisServer, tmp_path: Path) -> Iterator[Nginx]:
    """The page's configuration, but for the ports of Redis and the backend, and the place of the Lua file."""
    (module,) = blocks("how-to/gateways.md", "lua")
    (conf,) = blocks("how-to/gateways.md", "nginx")
    connect = 'redis:connect("127.0.0.1", 6379)'
    assert connect in module
    (tmp_path / "rate_limiter.lua").write_text(module.replace(connect, connect.replace("6379", str(server.port))))
    path, conf = conf.split("\n", 1)
    assert path == 'lua_package_path "/etc/nginx/lua/?.lua;;";'
    inside = conf.split("server {\n")[1].rstrip().removesuffix("}")
    with Backend() as backend:
        nginx = Nginx(inside.replace("http://127.0.0.1:8080", backend.url))
        nginx.lib = tmp_path
        with nginx:
            yield nginx


def init(server: RedisServer, max_permits: int, rate: str) -> None:
    sha = server.call("GET", "lua:sha1:rate_limiter")
    assert isinstance(sha, bytes)
    assert server.call("EVALSHA", sha, 1, KEY, "init", max_permits, rate) == 1


def statuses(gate: Nginx, count: int, item: int = 1) -> list[int]:
    return [gate.get(f"/seckill/{item}").status for _ in range(count)]


def test_the_limit_is_kept(gate: Nginx, server: RedisServer) -> None:
    publish(server.url)
    init(server, 3, "0.001")
    assert statuses(gate, 5) == [200, 200, 200, 429, 429]
    assert gate.get("/seckill/1").headers["retry-after"] == "1"
    assert statuses(gate, 1, item=2) == [429]  # never initialised


def test_forgotten_scripts_are_loaded_and_the_request_is_decided(gate: Nginx, server: RedisServer) -> None:
    publish(server.url)
    init(server, 4, "0.001")
    assert statuses(gate, 2) == [200, 200]
    server.call("SCRIPT", "FLUSH")
    assert statuses(gate, 3) == [200, 200, 429]
    assert "[error]" not in gate.log


def test_a_newer_script_is_taken_when_the_old_one_is_forgotten(gate: Nginx, server: RedisServer) -> None:
    """As after an upgrade: the published SHA1 is another one, and Redis was restarted."""
    publish(server.url)
    init(server, 4, "0.001")
    assert statuses(gate, 1) == [200]
    (sha,) = [server.call("GET", "lua:sha1:rate_limiter")]
    assert isinstance(sha, bytes)
    text = server.call("HGET", "hg2:scripts", sha)
    assert isinstance(text, bytes)
    server.call("SCRIPT", "FLUSH")
    newer = server.call("SCRIPT", "LOAD", text + b"-- newer\n")
    assert isinstance(newer, bytes)
    server.call("HSET", "hg2:scripts", newer, text + b"-- newer\n")
    server.call("SET", "lua:sha1:rate_limiter", newer)
    assert statuses(gate, 4) == [200, 200, 200, 429]
    assert server.call("SCRIPT", "EXISTS", sha, newer) == [0, 1]


def test_a_bucket_of_another_script_is_taken_over(gate: Nginx, server: RedisServer) -> None:
    publish(server.url)
    time = server.call("TIME")
    assert isinstance(time, list)
    assert isinstance(time[0], bytes)
    fields = (
        "max_permits",
        "100",
        "rate",
        "0.001",
        "curr_permits",
        "2",
        "last_mill_second",
        f"{time[0].decode()}000",
    )
    server.call("HSET", KEY, *fields)
    assert statuses(gate, 3) == [200, 200, 429]


def test_without_published_scripts_and_without_redis_there_is_no_decision(
    gate: Nginx, server: RedisServer
) -> None:
    assert statuses(gate, 1) == [503]
    assert "no script is published: run headgate lua publish" in gate.log
    server.stop()
    assert statuses(gate, 1) == [503]


def test_traefiks_two_files_belong_together() -> None:
    page = (ROOT / "docs" / "how-to" / "behind-gateways.md").read_text("utf-8")
    section = page.split("## Traefik")[1].split("\n## ")[0]
    static = yaml.safe_load(re.findall(r"^((?: {4}.*\n)+)", section, re.M)[0])
    (dynamic,) = [yaml.safe_load(text) for text in re.findall(r"^```json\n(.*?)^```", section, re.M | re.S)]
    assert static["providers"]["file"]["filename"].endswith(".yaml")
    assert f"`{static['providers']['file']['filename']}`, has the router" in section
    assert set(dynamic["http"]["routers"]["shop"]["entryPoints"]) == set(static["entryPoints"])
