"""The servers of the tests start, answer, die and come back, and the driven clock drives them."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.servers import BASE_US, KINDS, DrivenClock, Kind, MissingComponent, RedisServer
from tests.servers.raw_redis_client import ErrorReply, send_commands

pytestmark = pytest.mark.servers
each_kind = pytest.mark.parametrize("kind", KINDS)
MS = 1000
HOUR_US = 3_600_000_000


def test_it_answers_on_its_port_and_on_its_socket(server: RedisServer) -> None:
    assert server.call("PING") == b"PONG"
    assert server.call("CONFIG", "GET", "port") == [b"port", str(server.port).encode()]
    assert server.url == f"redis://127.0.0.1:{server.port}/0"
    assert server.unix_url == f"unix://{server.unix_path}?db=0"


def test_it_is_the_server_it_says(redis_server: RedisServer, valkey_server: RedisServer) -> None:
    assert b"server_name:valkey" in _info(valkey_server)
    assert b"server_name:valkey" not in _info(redis_server)


def test_it_keeps_nothing_on_disk(server: RedisServer) -> None:
    assert server.call("CONFIG", "GET", "save") == [b"save", b""]
    assert server.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"no"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_it_empty(server: RedisServer, turn: str) -> None:
    assert server.call("DBSIZE") == 0
    server.call("SET", "left behind", turn)


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_the_clock_at_its_base(driven_server: RedisServer, turn: str) -> None:
    assert driven_server.time_us() == BASE_US
    driven_server.clock.advance_us(HOUR_US)


def test_on_the_real_clock_there_is_nothing_to_turn(server: RedisServer) -> None:
    assert abs(server.time_us() - time.time_ns() // 1000) < 5_000_000
    with pytest.raises(RuntimeError, match="real clock"):
        _ = server.clock


@each_kind
def test_a_restart_is_empty_and_on_the_same_port(kind: Kind) -> None:
    with RedisServer(kind) as server:
        port, pid = server.port, server.pid
        server.call("SET", "a", "1")
        server.restart()
        assert (server.port, server.call("DBSIZE")) == (port, 0)
        assert server.pid != pid


@each_kind
def test_a_killed_server_is_gone_until_it_is_started_again(kind: Kind) -> None:
    with RedisServer(kind) as server:
        server.kill()
        assert not server.alive
        with pytest.raises(OSError, match=r"refused|No such file"):
            server.call("PING")
        server.start()
        assert server.call("PING") == b"PONG"


@each_kind
def test_a_password_and_acl_users_are_enforced(kind: Kind) -> None:
    rules = ["user limiter on >secret ~hg:* +get"]
    with RedisServer(kind, password="p@ss/word", config=rules) as server:
        assert server.url.startswith("redis://:p%40ss%2Fword@")
        assert server.call("PING") == b"PONG"
        with pytest.raises(ErrorReply, match="NOAUTH"):
            send_commands(server.unix_path, ("GET", "hg:a"))
        login = ("AUTH", "limiter", "secret")
        assert send_commands(server.unix_path, login, ("GET", "hg:a")) == [b"OK", None]
        with pytest.raises(ErrorReply, match="NOPERM"):
            send_commands(server.unix_path, login, ("GET", "other"))


def test_arguments_are_passed_on() -> None:
    with RedisServer(args=["--maxmemory", "64mb"]) as server:
        assert server.call("CONFIG", "GET", "maxmemory") == [b"maxmemory", str(64 * 1024 * 1024).encode()]


def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match="maxmemory"), RedisServer(args=["--maxmemory", "plenty"]):
        pass


def test_a_missing_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingComponent, match="or install: "), RedisServer():
        pass


def test_a_server_dies_with_the_process_that_started_it() -> None:
    program = "from tests.servers import RedisServer; print(RedisServer().start().pid, flush=True); input()"
    root = Path(__file__).parents[2]
    with (
        tempfile.TemporaryDirectory() as leftovers,
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=root,
            env=os.environ | {"TMPDIR": leftovers},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as starter,
    ):
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        os.kill(pid, 0)
        starter.send_signal(signal.SIGKILL)
    assert _ends_within(pid, seconds=5)


def test_a_script_sees_the_driven_time_to_the_microsecond(driven_server: RedisServer) -> None:
    for step in (1, 999, 12 * HOUR_US, -HOUR_US, -1, 0):
        before = driven_server.time_us()
        assert driven_server.clock.advance_us(step) == driven_server.time_us() == before + step


def test_a_frozen_clock_does_not_stop_the_server(driven_server: RedisServer) -> None:
    # Longer than the millisecond for which Valkey would otherwise extrapolate from the processor's ticks,
    # and than the tenth of a second between two runs of the server's cron.
    time.sleep(0.15)
    assert [driven_server.time_us() for _ in range(50)] == [BASE_US] * 50


def test_expiry_follows_the_clock_forwards(driven_server: RedisServer) -> None:
    driven_server.call("SET", "a", "1", "PX", 1000)
    driven_server.clock.advance_us(1000 * MS)
    # A key is gone once its millisecond has passed, not when it begins: it outlives its PX by up to one.
    assert (driven_server.call("GET", "a"), driven_server.call("PTTL", "a")) == (b"1", 0)
    driven_server.clock.advance_us(1 * MS)
    assert (driven_server.call("GET", "a"), driven_server.call("PTTL", "a")) == (None, -2)


def test_a_step_back_lengthens_what_is_left(driven_server: RedisServer) -> None:
    driven_server.call("SET", "a", "1", "PX", 1000)
    driven_server.clock.advance_us(-HOUR_US)
    assert driven_server.call("PTTL", "a") == 1000 + HOUR_US // MS
    driven_server.call("SET", "b", "1", "PX", 500)
    driven_server.clock.advance_us(501 * MS)
    assert driven_server.call("EXISTS", "a", "b") == 1


def test_the_server_expires_by_itself_even_after_a_step_back(driven_server: RedisServer) -> None:
    driven_server.clock.advance_us(-24 * HOUR_US)
    driven_server.call("EVAL", "for i = 1, 500 do redis.call('SET', i, i, 'PX', 100) end", 0)
    driven_server.clock.advance_us(101 * MS)
    deadline = time.monotonic() + 10
    while driven_server.call("DBSIZE") != 0:
        assert time.monotonic() < deadline, "expired keys were never removed"
        time.sleep(0.02)


@each_kind
def test_a_driven_server_can_start_on_real_time_and_be_taken_over(kind: Kind) -> None:
    with DrivenClock() as clock, RedisServer(kind, driven=clock) as server:
        assert abs(server.time_us() - time.time_ns() // 1000) < 5_000_000
        with pytest.raises(ValueError, match="real time"):
            clock.advance_us(1)
        clock.set_us(BASE_US)
        assert server.time_us() == BASE_US
        server.restart()
        assert server.time_us() == BASE_US


def test_a_lost_clock_file_is_an_error_and_not_the_real_time() -> None:
    with DrivenClock(BASE_US) as clock:
        clock.path.unlink()
        with pytest.raises(RuntimeError, match="cannot map"), RedisServer(driven=clock):
            pass


def _info(server: RedisServer) -> bytes:
    reply = server.call("INFO", "server")
    assert isinstance(reply, bytes)
    return reply


def _ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":  # dead; only its new parent has not looked yet
            return True
        time.sleep(0.01)
    return False
