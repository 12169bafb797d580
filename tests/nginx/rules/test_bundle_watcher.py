"""The bundle in force: followed, kept, and never lost because its source is away."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.nginx.gateway_harness import NginxGateway, push
from tests.servers import Cluster, RedisServer
from tests.servers.wait_until import until

ADDRESS: dict[str, Any] = {"name": "per-address", "key": "address", "limit": "2/minute"}
BOOK = {"rules": [ADDRESS]}
LARGER = {"rules": [{**ADDRESS, "limit": "7/minute"}]}


def policy(gate: NginxGateway) -> str:
    return gate.get("/").headers.get("ratelimit-policy", "none")


def follows(gate: NginxGateway, wanted: str) -> None:
    until(lambda: None if (current := policy(gate)) == wanted else f"the policy is {current}", 5)


SMALL, LARGE = '"per-address";q=2;w=60', '"per-address";q=7;w=60'


def unlimited(gate: NginxGateway) -> list[str]:
    """The lines of the log that say it, once there is one."""

    def lines() -> list[str]:
        return [line for line in gate.log.splitlines() if "nothing is limited" in line]

    until(lambda: None if lines() else "no line says that nothing is limited", 10)
    time.sleep(1)  # in which others would follow: each worker looks more than twice
    return lines()


def test_without_a_rulebook_nothing_is_limited_and_one_line_logged() -> None:
    with RedisServer() as server, NginxGateway(None, server.url, workers=3) as gate:
        assert [policy(gate) for _ in range(3)] == ["none"] * 3
        (line,) = unlimited(gate)
        assert "[warn]" in line
        assert "headgate: there is no rulebook, so nothing is limited: none was pushed to Redis" in line
        assert "headgate rules push" in line
        push(BOOK, server.url)
        follows(gate, SMALL)


def test_without_redis_at_start_nothing_is_limited_and_one_line_logged() -> None:
    with RedisServer() as server:
        gate = NginxGateway(None, f"{server.url}?fallback=local", workers=2)
    with gate:
        assert policy(gate) == "none"
        (line,) = unlimited(gate)
        assert "[warn]" in line
        assert "so nothing is limited: it cannot be read: " in line
        gate.reload()
        until(lambda: None if len(unlimited(gate)) == 2 else "the new workers do not say it", 10)


def test_the_log_names_the_url_of_a_cluster(cluster: Cluster) -> None:
    """One of its nodes was named as if it were all of Redis."""
    node = next(node for node in cluster.masters() if node is not cluster.master_of("hg2:rules"))
    with NginxGateway(None, node.url) as gate:
        (line,) = unlimited(gate)
        assert f"Write redis+cluster://127.0.0.1:{node.port} as the engine's URL." in line


def test_with_a_broken_only_version_nothing_is_limited_and_one_line_logged() -> None:
    with RedisServer() as server:
        push(BOOK, server.url)
        server.call("HSET", "hg2:rules", "1", "{half a")
        with NginxGateway(None, server.url) as gate:
            (line,) = unlimited(gate)
            assert "[warn]" in line
            assert "version 1 of the rulebook cannot be followed" in gate.log


def test_a_broken_version_is_logged_once_and_the_last_one_stays() -> None:
    with RedisServer() as server, NginxGateway(BOOK, server.url) as gate:
        assert policy(gate) == SMALL
        version = json.loads(server.call("HGET", "hg2:rules", "1"))  # type: ignore[arg-type]
        broken = json.dumps({**version, "version": 2, "document": '{"rules": [{"name": "x", "limit": "9/s"}]}'})
        server.call("HSET", "hg2:rules", "2", broken, "version", "2")
        time.sleep(1.2)
        assert policy(gate) == SMALL
        assert gate.log.count("version 2 of the rulebook cannot be followed") == 1
        server.call("HSET", "hg2:rules", "3", "{half a", "version", "3")
        time.sleep(1.2)
        assert policy(gate) == SMALL
        assert gate.log.count("version 3 of the rulebook cannot be followed: This is not JSON") == 1
        server.call("DEL", "hg2:rules")
        push(LARGER, server.url)
        follows(gate, LARGE)


def test_a_server_that_lost_its_memory_changes_nothing() -> None:
    with RedisServer() as server, NginxGateway(BOOK, server.url) as gate:
        assert policy(gate) == SMALL
        server.call("FLUSHALL")
        time.sleep(1)
        assert policy(gate) == SMALL  # also without its scripts: they are loaded again


def test_the_last_good_bundle_is_kept_on_disk() -> None:
    with RedisServer() as server:
        gate = NginxGateway(BOOK, f"{server.url}?fallback=local")
        disk_cache = gate.folder / "kept.json"
        gate.configure(http=gate.block("http").replace("init {", f'init {{ keep = "{disk_cache}",'))
        with gate:
            follows(gate, SMALL)
            until(lambda: None if disk_cache.exists() else "nothing was kept", 5)
            server.stop()
            gate.restart()
            assert [gate.get("/").status for _ in range(4)].count(200) == 2
            assert "cannot be read" in gate.log


def test_a_file_is_watched(tmp_path: Path) -> None:
    with NginxGateway(BOOK) as gate:
        assert policy(gate) == SMALL
        gate.follow(LARGER)
        follows(gate, LARGE)
        gate.bundle.write_text("{}")
        time.sleep(1)
        assert policy(gate) == LARGE
        assert gate.log.count("This is no bundle") == 1
        gate.bundle.unlink()
        time.sleep(1)
        assert policy(gate) == LARGE


def test_new_workers_know_the_bundle_at_once() -> None:
    with RedisServer() as server, NginxGateway(BOOK, f"{server.url}?fallback=local", workers=2) as gate:
        assert policy(gate) == SMALL
        server.stop()
        gate.reload()
        time.sleep(0.3)
        assert policy(gate) == SMALL
        for pid in gate.worker_pids:
            os.kill(pid, signal.SIGKILL)
        until(lambda: None if len(gate.worker_pids) == 2 else "workers are missing", 5)
        assert policy(gate) == SMALL


def test_a_worker_that_takes_the_place_of_another_knows_the_bundle() -> None:
    """The master began before the book was known, and Redis is gone now."""
    with RedisServer() as server, NginxGateway(BOOK, f"{server.url}?fallback=local") as gate:
        assert policy(gate) == SMALL
        server.stop()
        for pid in gate.worker_pids:
            os.kill(pid, signal.SIGKILL)
        assert [policy(gate) for _ in range(3)] == [SMALL] * 3


def test_the_first_request_waits_for_the_book() -> None:
    with RedisServer() as server:
        push(BOOK, server.url)
        for _ in range(5):
            with NginxGateway(None, server.url) as gate:
                assert policy(gate) == SMALL


def test_nginx_does_not_start_without_anything_to_follow() -> None:
    gate = NginxGateway(BOOK)
    gate.bundle.write_text('{"rules": [], "limits": 7')
    with pytest.raises(RuntimeError, match=r"bundle\.json cannot be followed: This is not JSON"):
        gate.start()
    gate.stop()


def test_overrides_without_redis_are_logged_once() -> None:
    with NginxGateway({"rules": [{**ADDRESS, "overrides": True}]}) as gate:
        assert policy(gate) == SMALL
        assert gate.log.count("they are not used by per-address") == 1


TYPOS: dict[str, Any] = {"rules": [ADDRESS, {"name": "nobody", "key": "ip", "missing": "skip", "limit": "1/s"}]}
MORE_TYPOS = {"rules": [{**ADDRESS, "limit": "7/minute"}, TYPOS["rules"][1] | {"when": {"pth": "/login"}}]}


def warned(gate: NginxGateway, count: int) -> list[str]:
    """The lines of the log that warn of attributes, once there are so many."""

    def lines() -> list[str]:
        return [line for line in gate.log.splitlines() if "no gateway sets" in line]

    until(lambda: None if len(lines()) >= count else f"there are {len(lines())} warnings, not {count}", 10)
    time.sleep(1)  # in which others would follow: each worker looks more than twice
    assert len(lines()) == count
    return lines()


@pytest.mark.parametrize("pushed", [True, False])
def test_attributes_that_look_misspelled_are_logged_once_for_all_workers(pushed: bool) -> None:
    with RedisServer() as server, NginxGateway(TYPOS, server.url if pushed else None, workers=3) as gate:
        follows(gate, SMALL)
        (line,) = warned(gate, 1)
        assert "[warn]" in line
        assert 'book.json:1: rule "nobody": no gateway sets the attribute "ip": did you mean address?' in line
        gate.follow(MORE_TYPOS)
        follows(gate, LARGE)
        assert "did you mean path?" in "".join(warned(gate, 3)[1:])
        gate.follow(TYPOS)
        follows(gate, SMALL)
        warned(gate, 4)
        gate.reload()
        follows(gate, SMALL)
        warned(gate, 5)
