"""The faulty proxy does to bytes and connections what a test says, and nothing else."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until

pytestmark = pytest.mark.servers
PING, PONG = b"PING\r\n", b"+PONG\r\n"


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server) as started:
        yield started


def test_a_link_passes_and_counts(link: Proxy) -> None:
    with redis.Redis.from_url(link.url, single_connection_client=True) as client:
        client.set("a", b"x" * 3_000_000)
        assert client.strlen("a") == len(client.get("a") or b"") == 3_000_000
        with _connect(link.port):
            link.await_open(2)
        link.await_open(1)
        assert link.opened == 2
    link.await_open(0)


def test_a_link_delays_each_way_or_one(link: Proxy) -> None:
    with _connect(link.port) as line:
        link.delay(50)
        assert 100 <= _fastest_ms(line) < 110
        link.delay(0, "requests")
        assert 50 <= _fastest_ms(line) < 58
        link.heal()
        assert _fastest_ms(line) < 10


def test_a_busy_test_does_not_hold_up_the_link(link: Proxy) -> None:
    with _connect(link.port) as line:
        link.delay(20)
        line.sendall(PING)
        until_s = time.monotonic() + 0.3
        while time.monotonic() < until_s:
            pass
        line.setblocking(False)
        assert line.recv(100) == PONG


def test_a_request_that_has_set_out_arrives_though_its_caller_has_gone(
    link: Proxy, redis_server: RedisServer
) -> None:
    with _connect(link.port) as line:
        link.delay(500, "requests")
        line.sendall(b"INCR a\r\n")
    link.await_open(0)
    assert redis_server.call("EXISTS", "a") == 0
    until(lambda: None if redis_server.call("GET", "a") == b"1" else "it has not arrived", 5)


def test_a_link_swallows_everything_or_replies_only(link: Proxy, redis_server: RedisServer) -> None:
    with _connect(link.port) as line:
        link.swallow("replies")
        line.sendall(b"SET a 1\r\n")
        assert _silent(line)
        assert redis_server.call("GET", "a") == b"1"
        link.swallow()
        line.sendall(b"SET a 2\r\n")
        with _connect(link.port) as another:
            another.sendall(PING)
            assert _silent(another)
        assert redis_server.call("GET", "a") == b"1"
        link.heal()
        line.sendall(PING)
        assert line.recv(100) == PONG  # what was swallowed is lost


def test_a_link_refuses_callers_and_keeps_those_it_has(link: Proxy) -> None:
    with _connect(link.port) as line:
        line.sendall(PING)
        assert line.recv(100) == PONG
        link.refuse()
        with pytest.raises(ConnectionRefusedError):
            _connect(link.port)
        line.sendall(PING)
        assert line.recv(100) == PONG
    link.heal()
    with _connect(link.port) as line:
        line.sendall(PING)
        assert line.recv(100) == PONG


def test_a_link_cuts_what_is_open_and_takes_new_callers(link: Proxy) -> None:
    with _connect(link.port) as line:
        link.await_open(1)
        link.cut()
        with pytest.raises(ConnectionResetError):
            line.recv(100)
    assert link.open == 0
    with _connect(link.port) as line:
        line.sendall(PING)
        assert line.recv(100) == PONG


def test_a_link_trickles_one_byte_at_a_time(link: Proxy) -> None:
    with _connect(link.port) as line:
        link.trickle(10, "replies")
        line.sendall(PING)
        started_s = time.monotonic()
        with line.makefile("rb") as stream:
            assert stream.read(len(PONG)) == PONG
        assert time.monotonic() - started_s >= (len(PONG) - 1) * 0.010


def test_a_link_tells_that_the_server_is_gone_unless_replies_are_swallowed() -> None:
    with RedisServer() as server, Proxy(server) as link:
        with _connect(link.port) as hearing:
            hearing.sendall(PING)
            assert hearing.recv(100) == PONG
            server.restart()
            assert hearing.recv(100) == b""
        with _connect(link.port) as deaf:
            deaf.sendall(PING)
            assert deaf.recv(100) == PONG
            link.swallow("replies")
            server.kill()
            deaf.sendall(PING)
            assert _silent(deaf)
        link.heal()
        with _connect(link.port) as caller:
            assert _rest(caller) == b""


def test_a_link_dies_with_the_process_that_started_it() -> None:
    program = """if True:
        from tests.servers import Proxy, RedisServer
        server = RedisServer().start()
        link = Proxy(server).start()
        print(server.pid, link.pid, flush=True)
        input()
    """
    with (
        tempfile.TemporaryDirectory() as leftovers,
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"TMPDIR": leftovers},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as starter,
    ):
        assert starter.stdout is not None
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert all(_runs(pid) for pid in pids)
        starter.send_signal(signal.SIGKILL)
    until(lambda: f"of {pids} some still run" if any(map(_runs, pids)) else None, 5)


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def _fastest_ms(line: socket.socket) -> float:
    """The fastest of some round trips: whatever else the machine does only makes them slower."""
    taken = []
    for _ in range(6):
        started_s = time.monotonic()
        line.sendall(PING)
        assert line.recv(100) == PONG
        taken.append(time.monotonic() - started_s)
    return min(taken) * 1000


def _silent(line: socket.socket) -> bool:
    line.settimeout(0.1)
    try:
        line.recv(100)
    except TimeoutError:
        return True
    finally:
        line.settimeout(5)
    return False


def _rest(line: socket.socket) -> bytes:
    """All that comes until the other side ends it."""
    with line.makefile("rb") as stream:
        try:
            return stream.read()
        except ConnectionResetError:
            return b""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
