"""One connection: deadlines hold, connections are reused, and no request is sent twice."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from headgate.engines.redis import protocol
from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, NginxRedisError, RedisDriverNginx
from tests.servers import Proxy, RedisServer

SLACK = 1.0  # seconds that a busy machine may be late


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds + SLACK


@pytest.fixture
def link(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(redis_server) as proxy:
        yield proxy


def open_engine(gate: RedisDriverNginx, url: str) -> NginxRedisEngine:
    return gate.engine(f"{url}{'&' if '?' in url else '?'}deadline=10s", {"login": "100/day"})


def test_connections_are_used_again(gate: RedisDriverNginx, link: Proxy) -> None:
    engine = open_engine(gate, link.url)
    for left in range(99, 79, -1):
        assert engine.take("login", "ada")[1] == left
    assert link.opened == 1


def test_one_that_hangs(gate: RedisDriverNginx) -> None:
    with RedisServer() as server:
        engine = open_engine(gate, server.url)
        engine.take("login", "ada")
        server.pause()
        with within(0.2), pytest.raises(NginxRedisError, match="no answer within the deadline") as late:
            engine.take("login", "ada", deadline=0.2)
        assert (late.value.kind, late.value.retry) == ("timeout", None)
        with (
            within(0.2),
            pytest.raises(NginxRedisError) as late,
        ):  # on a new connection, which the kernel takes for it
            engine.take("login", "ada", deadline=0.2)
        assert late.value.kind == "timeout"
        server.resume()
        assert engine.take("login", "ada", 0)[1] < 100


def test_a_stopped_server_is_unreachable(gate: RedisDriverNginx) -> None:
    with RedisServer() as server:
        url = server.url
    engine = open_engine(gate, url)
    with within(0), pytest.raises(NginxRedisError, match=r"connection failed.*refused") as unreachable:
        engine.take("login", "ada")
    assert (unreachable.value.kind, unreachable.value.retry) == ("unreachable", "connect_failed")


@pytest.mark.parametrize("used", [True, False])
def test_a_silent_link(gate: RedisDriverNginx, link: Proxy, used: bool) -> None:
    engine = open_engine(gate, link.url)
    if used:
        engine.take("login", "ada")
    link.swallow()
    with within(0.15), pytest.raises(NginxRedisError) as late:
        engine.take("login", "ada", deadline=0.15)
    assert late.value.kind == "timeout"
    link.heal()
    assert engine.take("login", "ada", 0)[1] == (99 if used else 100)


def test_a_reply_that_trickles(gate: RedisDriverNginx, link: Proxy) -> None:
    """Each byte comes in time, and the whole does not."""
    engine = open_engine(gate, link.url)
    engine.take("login", "ada")
    link.trickle(20, "replies")
    with within(0.3), pytest.raises(NginxRedisError) as late:
        engine.take("login", "ada", deadline=0.3)
    assert late.value.kind == "timeout"
    link.trickle(1, "replies")
    assert engine.take("login", "ada", 0, deadline=5)[1] == 98  # the one that was not heard has been charged


def test_an_unanswered_request_is_not_sent_again(gate: RedisDriverNginx, link: Proxy) -> None:
    engine = open_engine(gate, link.url)
    engine.take("login", "ada")
    link.swallow("replies")
    with pytest.raises(NginxRedisError):
        engine.take("login", "ada", deadline=0.1)
    link.heal()
    assert engine.take("login", "ada", 0)[1] == 98


def test_a_late_reply_is_nobody_elses(gate: RedisDriverNginx, link: Proxy) -> None:
    engine = open_engine(gate, link.url)
    engine.take("login", "ada")
    link.delay(300, "replies")
    with pytest.raises(NginxRedisError):
        engine.take("login", "ada", 50, deadline=0.1)
    link.heal()
    assert engine.take("login", "bob")[1] == 99
    time.sleep(0.4)
    assert engine.take("login", "bob")[1] == 98


def test_a_restart_between_costs_nothing(gate: RedisDriverNginx) -> None:
    with RedisServer() as server:
        engine = open_engine(gate, server.url)
        for _ in range(5):
            answer = engine.do("decide_many", charges=engine.charges(("login", "ada", 1)), commit=1, times=10)
            assert all("answers" in each for each in answer)
            server.restart()
            assert engine.take("login", "ada")[1] == 99


def test_connections_that_the_server_closed(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    engine = open_engine(gate, redis_server.url)
    for left in range(99, 89, -1):
        assert engine.take("login", "ada")[1] == left
        redis_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(0.01)


def test_a_link_that_is_cut_during_a_request(gate: RedisDriverNginx, link: Proxy) -> None:
    engine = open_engine(gate, link.url)
    engine.take("login", "ada")
    link.delay(200, "replies")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.take, "login", "ada", 1, 5)
        time.sleep(0.1)
        link.cut()
        with pytest.raises(NginxRedisError, match="connection failed") as lost:
            future.result()
    assert (lost.value.kind, lost.value.retry) == ("unreachable", None)
    link.heal()
    assert engine.take("login", "ada", 0)[1] == 98, "it was charged, and must not be charged again"


def test_a_login_and_a_database(gate: RedisDriverNginx) -> None:
    lines = ["user ada on >p%/:@w ~* &* +@all"]
    with RedisServer(password="open-sesame", config=lines) as server:
        place = f"127.0.0.1:{server.port}"
        default = open_engine(gate, f"redis://:open-sesame@{place}/0")
        named = open_engine(gate, f"redis://ada:p%25%2F%3A%40w@{place}/3")
        assert default.take("login", "ada")[1] == 99
        assert named.take("login", "ada")[1] == 99
        assert default.take("login", "ada")[1] == 98
        assert named.take("login", "ada")[1] == 98
        assert "user=ada" in str(server.call("CLIENT", "LIST"))
        assert "db=3" in str(server.call("CLIENT", "LIST"))
        for url in (f"redis://:wrong@{place}", f"redis://{place}"):
            with pytest.raises(NginxRedisError, match="refused the user or the password") as refused:
                open_engine(gate, url).take("login", "ada")
            assert refused.value.kind == "refused"
            assert "wrong@" not in str(refused.value)
        with pytest.raises(NginxRedisError, match="DB index is out of range"):
            open_engine(gate, f"redis://:open-sesame@{place}/99").take("login", "ada")
        assert default.take("login", "ada", 0)[1] == 98


def test_a_socket(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    assert open_engine(gate, redis_server.unix_url).take("login", "ada")[1] == 99
    with pytest.raises(NginxRedisError, match="no such file"):
        open_engine(gate, "unix:///no/such.sock").take("login", "ada")


def test_rights(gate: RedisDriverNginx) -> None:
    lines = [
        "user keys on >k ~other:* &* +@all",
        "user runs on >r ~* &* -@all +evalsha +eval +time +get",
    ]
    with RedisServer(config=lines) as server:
        place = f"127.0.0.1:{server.port}"
        with pytest.raises(
            NginxRedisError, match=r"may not touch our keys.*Grant them: ACL SETUSER <user> ~hg2:\*"
        ):
            open_engine(gate, f"redis://keys:k@{place}").take("login", "ada")
        with pytest.raises(
            NginxRedisError, match=r"lacks the right to run .*Grant it: ACL SETUSER <user> .*\+set"
        ):
            open_engine(gate, f"redis://runs:r@{place}").take("login", "ada")


def test_a_name_needs_a_resolver(gate: RedisDriverNginx) -> None:
    with pytest.raises(NginxRedisError, match="Write a resolver into the http block"):
        open_engine(gate, "redis://redis.example.com").take("login", "ada")


def test_localhost_needs_none(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    assert open_engine(gate, f"redis://localhost:{redis_server.port}").take("login", "ada")[1] == 99


def test_a_far_server_is_reached_later(gate: RedisDriverNginx, link: Proxy) -> None:
    """To open takes a round trip more than to ask, and longer than the deadline; the next ones find it open."""
    link.server.call("ACL", "SETUSER", "far", "on", ">x", "~*", "&*", "+@all")
    try:
        engine = open_engine(gate, f"redis://far:x@127.0.0.1:{link.port}")
        open_engine(gate, link.server.url).take("login", "bob")  # it knows the script
        link.delay(60)  # 120 ms for the login, 120 ms for the question
        with pytest.raises(NginxRedisError) as late:
            engine.take("login", "ada", deadline=0.2)
        assert (late.value.kind, late.value.retry) in {("timeout", None), ("timeout", "connect_failed")}
        time.sleep(0.5)
        before = link.opened
        assert engine.take("login", "ada", 0, deadline=0.2)[0] == 1
        assert link.opened == before
    finally:
        link.heal()
        link.server.call("ACL", "DELUSER", "far")


def test_an_unsent_request_is_sent_on_another_connection(gate: RedisDriverNginx, link: Proxy) -> None:
    """The connection was reset while nginx looked away: the send fails, so nobody has the question."""
    engine = open_engine(gate, link.url)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.do, "blindly", charges=engine.charges(("login", "ada", 1)), seconds=0.5)
        time.sleep(0.25)
        link.cut()
        assert future.result()[0][1] == 98
    assert link.opened == 2


def test_a_question_that_was_sent_is_not(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    """The server hung up while nginx looked away, and the send succeeds: nobody here knows whether it was read."""
    engine = open_engine(gate, redis_server.url)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(engine.do, "blindly", charges=engine.charges(("login", "ada", 1)), seconds=0.5)
        time.sleep(0.25)
        redis_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(NginxRedisError, match="the connection failed") as lost:
            future.result()
    assert (lost.value.kind, lost.value.retry) == ("unreachable", None)
    assert engine.take("login", "ada", 0)[1] == 99


@contextmanager
def scripted(answers: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[bytes]]]:
    """A server that does with a connection what a test says, and what was sent to it."""
    requests: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65536))
                answers(connection)

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        yield listening.getsockname()[1], requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


PING = protocol.command("PING").hex()


def test_a_malformed_reply_is_reported(gate: RedisDriverNginx) -> None:
    with scripted(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")) as (port, requests):
        with pytest.raises(NginxRedisError, match="malformed reply") as wrong:
            gate.call_driver("line", port=port, packed=PING, seconds=5)
        assert wrong.value.kind == "wrong"
        assert len(requests) == 1


def test_a_connection_with_surplus_replies_is_not_reused(gate: RedisDriverNginx) -> None:
    """A line that says too much would give the next one somebody else's answer: it is not used again."""
    with scripted(lambda connection: connection.sendall(b"+PONG\r\n+PONG\r\n")) as (port, requests):
        for count in (1, 2):
            with pytest.raises(NginxRedisError, match="more replies than there were requests") as wrong:
                gate.call_driver("line", port=port, packed=PING, seconds=5)
            assert wrong.value.kind == "wrong"
            assert len(requests) == count


def test_a_server_that_hangs_up_on_a_request(gate: RedisDriverNginx) -> None:
    """It may have done what it was asked for: nobody asks again, new connection or not."""
    with scripted(lambda connection: None) as (port, requests):
        with pytest.raises(NginxRedisError, match="closed") as lost:
            gate.call_driver("line", port=port, packed=PING, seconds=5)
        assert (lost.value.kind, lost.value.retry) == ("unreachable", None)
        assert len(requests) == 1


def test_a_server_that_hangs_up_on_the_second_request(gate: RedisDriverNginx) -> None:
    def once(connection: socket.socket) -> None:
        connection.sendall(b"+PONG\r\n")
        requests.append(connection.recv(65536))

    with scripted(once) as (port, requests):
        assert gate.call_driver("line", port=port, packed=PING, seconds=5) == "PONG"
        with pytest.raises(NginxRedisError, match="closed"):
            gate.call_driver("line", port=port, packed=PING, seconds=5)
        assert len(requests) == 2


def test_a_long_reply_in_many_pieces(gate: RedisDriverNginx) -> None:
    body = b"x" * 70_000

    def slowly(connection: socket.socket) -> None:
        reply = b"*2\r\n" + protocol.bulk(body) + b":7\r\n"
        for at in range(0, len(reply), 9000):
            connection.sendall(reply[at : at + 9000])
            time.sleep(0.002)

    with scripted(slowly) as (port, _):
        answer = gate.call_driver("line", port=port, packed=PING, seconds=5)
        assert answer == [body.decode(), 7]
