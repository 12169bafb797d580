"""Convoys: questions that travel together, each with its own answer, its own time, and its own trouble.

The file is long for one reason: who travels with whom is only known beside a server that answers when the test
says so (EchoServer), and every law of convoy.lua is a story at it.
"""

import asyncio
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import pytest

from headgate.engines.redis import protocol
from tests.nginx.engines.redis.redis_harness import NginxRedisEngine, RedisDriverNginx
from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until

DRIVERS, SEATS = 4, 16  # as in convoy.lua
SLACK = 1.0  # seconds that a busy machine may be late
LONG = 8.0  # seconds that nobody needs
ECHO = re.compile(rb"ECHO\r\n\$\d+\r\n(.*?)\r\n")
RESET = struct.pack("ii", 1, 0)  # closing then sends RST


class EchoServer:
    """A server that echoes. Each send that arrives is a load of words; a word that is held stops its connection
    until it is let go, and `says` and `ends` do to a word what a faulty server would."""

    def __init__(self, *held: str) -> None:
        self.loads: list[list[str]] = []
        self.held = set(held)
        self.silent = False
        self.says: dict[str, bytes] = {}
        self.ends: set[str] = set()  # at these it hangs up
        self.piece = 65536  # bytes that it says at once
        self._changed = threading.Condition()
        self._connections: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listening.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def words(self) -> list[str]:
        return [word for load in self.loads for word in load]

    def let(self, *words: str) -> None:
        with self._changed:
            self.held -= set(words)
            self._changed.notify_all()

    def hears(self, *words: str) -> None:
        """Return when all of them have come."""
        until(lambda: f"not heard: {missing}" if (missing := set(words) - set(self.words)) else None, 5)

    def reset(self) -> None:
        """Reset all connections on which it is not about to answer."""
        for connection in self._connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._hang_up()

    def _hang_up(self) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # its thread wakes, and closes it

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while text := connection.recv(1 << 20):
                words = [word.decode() for word in ECHO.findall(text)]
                self.loads.append(words)
                for word in words:
                    if word in self.ends:
                        return
                    self._answer(connection, word)
        except OSError:
            pass
        finally:
            connection.close()

    def _answer(self, connection: socket.socket, word: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: word not in self.held and not self.silent, 20)
        reply = self.says.get(word, protocol.bulk(word.encode()))
        for at in range(0, len(reply), self.piece):
            connection.sendall(reply[at : at + self.piece])
            if self.piece < len(reply):
                time.sleep(0.0005)

    def speak(self) -> None:
        with self._changed:
            self.silent = False
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.speak()
        self.let(*self.held)
        self._hang_up()
        for thread in self._threads:
            thread.join(5)


def asks(word: str, seconds: float = LONG, **more: Any) -> dict[str, Any]:
    return {"packed": protocol.command("ECHO", word).hex(), "seconds": seconds, **more}


def outcomes(replies: list[Any]) -> list[Any]:
    """Of each what it was answered; else what kind of trouble it had, and whether it may ask again."""
    assert all(each["trouble"]["had_by"] == 1 for each in replies if "trouble" in each), "trouble is one's own"
    return [_answer_or_trouble(each) for each in replies]


def _answer_or_trouble(each: Any) -> Any:
    return each["answer"] if "answer" in each else (each["trouble"]["kind"], each["trouble"].get("retry"))


LATE, LOST, NOT_SENT = ("timeout", None), ("unreachable", None), ("timeout", "connect_failed")
FIRST = [f"d{i}" for i in range(DRIVERS)]  # those who go straight


@contextmanager
def asking(gate: RedisDriverNginx, port: int, *questions: Any, **more: Any) -> Iterator[Callable[[], list[Any]]]:
    """All of them at once, from one request; what they were told when all are back."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(gate.call_driver, "convoys", port=port, asks=questions, **more)
        yield future.result


async def posted(port: int, body: Any) -> Any:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body).encode()
    writer.write(b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200"), head
    return json.loads(rest)


def all_posted(port: int, bodies: list[Any]) -> list[Any]:
    async def together() -> list[Any]:
        return list(await asyncio.gather(*(posted(port, body) for body in bodies)))

    return asyncio.run(together())


# Answers.


def test_hundreds_of_requests_each_with_its_answer(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    script = "return {ARGV[1], string.rep(ARGV[1], tonumber(ARGV[2])), tonumber(ARGV[2])}"
    with Proxy(redis_server) as link:
        for _ in range(2):
            packed = [protocol.command("EVAL", script, 0, f"w{i};", i % 7 * 40).hex() for i in range(400)]
            bodies = [{"verb": "convoy", "port": link.port, "packed": one, "seconds": LONG} for one in packed]
            for i, reply in enumerate(all_posted(gate.nginx.port, bodies)):
                assert reply["answer"] == [f"w{i};", f"w{i};" * (i % 7 * 40), i % 7 * 40]
        assert link.opened <= DRIVERS, "as many drive at once"


def test_first_requests_go_at_once_and_waiting_ones_share_a_batch(gate: RedisDriverNginx) -> None:
    others = [f"w{i}" for i in range(200)]
    with EchoServer(*FIRST) as station:
        with asking(gate, station.port, *map(asks, FIRST + others)) as answers:
            station.hears(*FIRST)
            assert sorted(station.loads) == [[word] for word in FIRST], "straight, though nobody is answered"
            station.let("d0")
            station.hears(*others)
            station.let(*FIRST)
            assert outcomes(answers()) == FIRST + others
        assert Counter(station.words) == Counter(FIRST + others), "each is asked once"
        assert [len(load) for load in station.loads[DRIVERS:]] == [SEATS] * 12 + [8]
        assert station.words[DRIVERS:] == others, "in the order in which they came"


def test_one_by_one_nobody_waits(gate: RedisDriverNginx) -> None:
    with EchoServer() as station:
        for i in range(20):
            assert gate.call_driver("convoy", port=station.port, **asks(f"w{i}")) == f"w{i}"
        assert station.loads == [[f"w{i}"] for i in range(20)]
        assert gate.call_driver("convoy_now", port=station.port) == {"drive": 0, "wait": 0}


def test_replies_in_pieces(gate: RedisDriverNginx) -> None:
    words = [f"w{i}" for i in range(60)]
    with EchoServer() as station:
        station.piece = 3
        station.says |= {word: protocol.bulk(word.encode() * 50) for word in words[::11]}
        with asking(gate, station.port, *map(asks, words)) as answers:
            assert outcomes(answers()) == [word * 50 if i % 11 == 0 else word for i, word in enumerate(words)]


def test_an_error_reply_reaches_its_request_only(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    redis_server.call("SET", "a text", "x")
    packed = [protocol.command("ECHO", f"w{i}") for i in range(60)]
    packed[11::10] = [protocol.command("EVALSHA", "f" * 40, 0)] * 5
    packed[13::10] = [protocol.command("LPUSH", "a text", "x")] * 5
    packed[15::10] = [protocol.command("GET", "nothing")] * 5
    with asking(gate, redis_server.port, *({"packed": one.hex(), "seconds": LONG} for one in packed)) as answers:
        replies = answers()
    expected: list[Any] = [f"w{i}" for i in range(60)]
    expected[11::10] = [("refused", "no_script")] * 5
    expected[13::10] = [("corrupt", None)] * 5
    expected[15::10] = [False] * 5
    assert outcomes(replies) == expected
    assert all(each["trouble"]["text"].startswith("WRONGTYPE") for each in replies[13::10])


def open_engine(gate: RedisDriverNginx, url: str) -> NginxRedisEngine:
    return gate.engine(f"{url}?deadline=10s", {"login": "100/day"})


def many(engine: NginxRedisEngine, times: int, deadline: float) -> list[Any]:
    charges = engine.charges(("login", "ada", 1))
    answer: list[Any] = engine.do("decide_many", charges=charges, commit=1, times=times, deadline=deadline)
    return answer


def test_a_script_that_the_server_forgot(gate: RedisDriverNginx) -> None:
    with RedisServer() as server:
        engine = open_engine(gate, server.url)
        for rounds in (1, 2):
            replies = many(engine, 40, LONG)
            assert sorted(each["answers"][0][1] for each in replies) == list(
                range(100 - 40 * rounds, 140 - 40 * rounds)
            )
            server.call("SCRIPT", "FLUSH")


# Never charged twice.


@pytest.mark.parametrize("replies", [0, 1, 6])
def test_a_server_that_hangs_up_in_the_middle(gate: RedisDriverNginx, replies: int) -> None:
    others = [f"w{i}" for i in range(SEATS)]
    with EchoServer(*FIRST) as station:
        station.ends.add(others[replies])
        with asking(gate, station.port, *map(asks, FIRST + others)) as answers:
            station.hears(*FIRST)
            station.let("d0")
            station.hears(*others)
            station.let(*FIRST)
            found = outcomes(answers())
        assert found == FIRST + others[:replies] + [LOST] * (SEATS - replies)
        assert Counter(station.words) == Counter(FIRST + others), "each is asked once"
        assert gate.call_driver("convoy", port=station.port, **asks("after")) == "after"


def test_a_link_that_is_cut_under_convoys(gate: RedisDriverNginx, redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        engine = open_engine(gate, link.url)
        engine.take("login", "ada", 0)
        link.trickle(1, "replies")
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(many, engine, 80, LONG)
            time.sleep(0.6)
            link.cut()
            link.heal()
            replies = future.result()
        answered = [each["answers"][0][1] for each in replies if "answers" in each]
        lost = [each["trouble"] for each in replies if "answers" not in each]
        assert lost
        assert len(set(answered)) == len(answered) == 80 - len(lost)
        assert {(each["kind"], each.get("retry")) for each in lost} == {LOST}
        charged = 100 - engine.take("login", "ada", 0)[1]
        assert len(answered) <= charged <= 80


def test_a_convoy_that_could_not_be_sent_is_lost(gate: RedisDriverNginx) -> None:
    """The connection was reset while nginx looked away. Of one question nobody had all; of several, perhaps."""
    others = [f"w{i}" for i in range(3)]
    with EchoServer(*FIRST) as station:
        first = [asks("d0", blind=0.6), *map(asks, FIRST[1:])]
        with asking(gate, station.port, *first, *map(asks, others)) as answers:
            station.hears(*FIRST)
            station.let("d0")
            time.sleep(0.3)
            station.reset()
            station.let(*FIRST)
            replies = outcomes(answers())
        assert replies == FIRST + [LOST] * 3
        assert sorted(station.words) == FIRST, "nobody asks again"
        assert gate.call_driver("convoy", port=station.port, **asks("after")) == "after"


def test_surplus_replies_are_not_used(gate: RedisDriverNginx) -> None:
    others = [f"w{i}" for i in range(5)]
    with EchoServer(*FIRST) as station:
        station.says["w4"] = b"+w4\r\n+w5\r\n"
        with asking(gate, station.port, *map(asks, FIRST + others)) as answers:
            station.hears(*FIRST)
            station.let("d0")
            station.hears(*others)
            station.let(*FIRST)
            assert outcomes(answers()) == FIRST + [("wrong", None)] * 5
        assert gate.call_driver("convoy", port=station.port, **asks("after")) == "after"


def test_a_server_that_is_not_there(gate: RedisDriverNginx) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with asking(gate, port, *(asks(f"w{i}") for i in range(50))) as answers:
        replies = answers()
    assert set(outcomes(replies)) == {("unreachable", "connect_failed")}
    assert all(each["took"] < SLACK for each in replies)


# Deadlines.


def test_a_silent_server(gate: RedisDriverNginx) -> None:
    with EchoServer() as station:
        station.silent = True
        questions = [asks(f"w{i}", 0.3 if i % 2 else 2) for i in range(100)]
        with asking(gate, station.port, *questions) as answers:
            replies = answers()
        assert set(outcomes(replies)) <= {LATE, NOT_SENT}
        for one, each in zip(questions, replies, strict=True):
            assert one["seconds"] - 0.05 < each["took"] < one["seconds"] + SLACK
        arrived = {int(word[1:]) for word in station.words}
        assert {i for i, each in enumerate(outcomes(replies)) if each == LATE} == arrived, (
            "the others say they were not"
        )
        assert gate.call_driver("convoy_now", port=station.port)["drive"] == 0
        station.speak()
        assert gate.call_driver("convoy", port=station.port, **asks("after")) == "after"
        assert gate.call_driver("convoy_now", port=station.port) == {"drive": 0, "wait": 0}


def test_a_batch_excludes_requests_with_much_later_deadlines(gate: RedisDriverNginx) -> None:
    with EchoServer(*FIRST, "short") as station:
        questions = [*map(asks, FIRST), asks("short", 0.4), asks("long"), asks("alike", 0.405)]
        with asking(gate, station.port, *questions) as answers:
            station.hears(*FIRST)
            station.let("d0")
            station.hears("short", "long")
            assert ["short", "alike"] in station.loads
            station.let(*FIRST)
            replies = answers()
        assert outcomes(replies) == [*FIRST, LATE, "long", LATE]
        assert 0.3 < replies[5]["took"] < 0.4 + SLACK


def test_a_request_with_an_earlier_deadline_times_out_by_itself(gate: RedisDriverNginx) -> None:
    with EchoServer(*FIRST, "long") as station:
        questions = [*map(asks, FIRST), asks("long"), asks("short", 0.3), asks("other")]
        with asking(gate, station.port, *questions) as answers:
            station.hears(*FIRST)
            station.let("d0")
            station.hears("long", "short", "other")
            time.sleep(2)
            station.let("long", *FIRST)
            replies = answers()
        assert ["long", "short", "other"] in station.loads
        assert outcomes(replies) == [*FIRST, "long", LATE, "other"]
        assert replies[5]["took"] < 0.3 + SLACK


def test_a_driver_past_its_deadline_passes_its_place_on(gate: RedisDriverNginx) -> None:
    """nginx looks away between the word that he may drive and the moment in which he hears it."""
    with EchoServer(*FIRST) as station:
        first = [asks("d0", blind=0.5), *map(asks, FIRST[1:])]
        with asking(gate, station.port, *first, asks("late", 0.4), asks("next")) as answers:
            station.hears(*FIRST)
            time.sleep(0.1)
            station.let("d0")
            station.hears("next")
            station.let(*FIRST)
            replies = answers()
        assert outcomes(replies) == [*FIRST, NOT_SENT, "next"]
        assert replies[5]["took"] < 1 + SLACK
        assert "late" not in station.words
        with asking(gate, station.port, *(asks(f"w{i}") for i in range(50))) as answers:
            assert outcomes(answers()) == [f"w{i}" for i in range(50)], "no semaphore remembers what was before"


@contextmanager
def slow_names(seconds: float) -> Iterator[int]:
    """Says of every name, so much later, that it is 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        names.bind(("127.0.0.1", 0))

        def serve() -> None:
            while query := names.recvfrom(512):
                name, caller = query
                if len(name) < 12:
                    return
                time.sleep(seconds)
                record = b"\xc0\x0c\0\1\0\1" + struct.pack(">IH", 60, 4) + socket.inet_aton("127.0.0.1")
                names.sendto(name[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + name[12:] + record, caller)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield names.getsockname()[1]
        names.sendto(b"", names.getsockname())
        thread.join(5)


def test_a_driver_that_returns_late_passes_no_place_on() -> None:
    """A name is looked up as long as nginx likes. Meanwhile the four places have gone to others."""
    others = [f"w{i}" for i in range(100)]
    with (
        slow_names(0.8) as port,
        RedisDriverNginx(f"resolver 127.0.0.1:{port} ipv6=off;") as gate,
        EchoServer(*others) as station,
    ):
        questions = [*(asks(word, 0.3) for word in FIRST), *map(asks, others)]
        with asking(gate, station.port, *questions, host="station.test") as answers:
            station.hears(*others[: DRIVERS * SEATS])
            time.sleep(0.2)
            assert [len(load) for load in station.loads] == [SEATS] * DRIVERS
            station.let(*others)
            assert outcomes(answers()) == [NOT_SENT] * DRIVERS + others
        assert gate.call_driver("convoy_now", port=station.port) == {"drive": 0, "wait": 0}


# Those who are broken off.


def test_an_aborted_driver_fails_its_batch(gate: RedisDriverNginx) -> None:
    with EchoServer(*FIRST, "driver") as station:
        questions = [*map(asks, FIRST), *(asks(word, 0.8) for word in ("driver", "r1", "r2"))]
        with asking(gate, station.port, *questions, broken=[5], broken_after=0.3) as answers:
            station.hears(*FIRST)
            station.let("d0")
            station.hears("driver", "r1", "r2")
            time.sleep(0.4)
            station.let(*FIRST)
            replies = answers()
        assert outcomes(replies[:4]) == FIRST
        assert outcomes(replies[5:]) == [LATE] * 2
        assert all(0.7 < each["took"] < 0.8 + SLACK for each in replies[5:])
        assert gate.call_driver("convoy_now", port=station.port) == {"drive": 0, "wait": 0}
        with asking(gate, station.port, *(asks(f"w{i}") for i in range(20))) as answers:
            assert outcomes(answers()) == [f"w{i}" for i in range(20)]


def test_all_drivers_are_broken_and_nobody_else_comes(gate: RedisDriverNginx) -> None:
    """A waiter takes over the lane by itself when the leader's time is over."""
    others = [f"w{i}" for i in range(40)]
    with EchoServer(*FIRST) as station:
        questions = [*(asks(word, 0.5) for word in FIRST), *map(asks, others)]
        with asking(gate, station.port, *questions, broken=[1, 2, 3, 4], broken_after=0.2) as answers:
            replies = answers()[DRIVERS:]
        assert outcomes(replies) == others
        assert all(0.4 < each["took"] < 0.5 + SLACK for each in replies)
        assert Counter(station.words) == Counter(FIRST + others)


def test_later_requests_survive_if_all_drivers_abort(gate: RedisDriverNginx) -> None:
    shorts, others = [f"s{i}" for i in range(DRIVERS)], [f"w{i}" for i in range(40)]
    with EchoServer(*FIRST, *shorts) as station:
        questions = [
            *map(asks, FIRST),
            *(asks(s, 0.6 + 0.03 * i) for i, s in enumerate(shorts)),
            *map(asks, others),
        ]
        with asking(gate, station.port, *questions, broken=[5, 6, 7, 8], broken_after=0.4) as answers:
            station.hears(*FIRST)
            station.let(*FIRST)
            station.hears(*shorts)
            replies = answers()[-40:]
        assert outcomes(replies) == others
        assert all(0.5 < each["took"] < 1 + SLACK for each in replies)


def test_an_aborted_waiting_request_fails_no_other(gate: RedisDriverNginx) -> None:
    gone, others = [f"g{i}" for i in range(40)], [f"w{i}" for i in range(40)]
    broken = [DRIVERS + 1 + i for i in range(40)]
    with EchoServer(*FIRST) as station:
        with asking(
            gate, station.port, *map(asks, FIRST + gone + others), broken=broken, broken_after=0.2
        ) as answers:
            station.hears(*FIRST)
            time.sleep(0.4)
            station.let("d0")
            station.hears(*others)
            station.let(*FIRST)
            replies = answers()
        assert outcomes(replies[:DRIVERS] + replies[-40:]) == FIRST + others
        assert all(each["took"] < 0.4 + SLACK for each in replies[-40:])
        assert not set(gone) & set(station.words)
        assert gate.call_driver("convoy_now", port=station.port) == {"drive": 0, "wait": 0}


@pytest.fixture(scope="module")
def leaving() -> Iterator[RedisDriverNginx]:
    with RedisDriverNginx("lua_check_client_abort on;") as running:
        yield running


def sent(port: int, body: Any) -> socket.socket:
    caller = socket.create_connection(("127.0.0.1", port))
    text = json.dumps(body).encode()
    caller.sendall(b"POST / HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    return caller


def test_clients_that_go_away(leaving: RedisDriverNginx) -> None:
    """Drivers and riders alike; those who stay are answered when the drivers' time is over."""
    with EchoServer(*FIRST) as station:

        def body(word: str, seconds: float) -> dict[str, Any]:
            return {"verb": "convoy", "port": station.port, **asks(word, seconds)}

        going = [sent(leaving.nginx.port, body(word, 0.7)) for word in FIRST]
        station.hears(*FIRST)
        going += [sent(leaving.nginx.port, body(f"g{i}", LONG)) for i in range(20)]
        until(lambda: None if leaving.call_driver("convoy_now", port=station.port)["wait"] == 20 else "not yet", 5)
        with ThreadPoolExecutor(1) as pool:
            bodies = [body(f"w{i}", LONG) for i in range(20)]
            began = time.monotonic()
            future = pool.submit(all_posted, leaving.nginx.port, bodies)
            until(
                lambda: None if leaving.call_driver("convoy_now", port=station.port)["wait"] == 40 else "not yet",
                5,
            )
            for caller in going:
                caller.close()
            assert [each["answer"] for each in future.result()] == [f"w{i}" for i in range(20)]
            assert time.monotonic() - began < 0.7 + SLACK
        assert set(station.words) == {*FIRST, *(f"w{i}" for i in range(20))}
        idle = {"drive": 0, "wait": 0}
        until(
            lambda: None if (now := leaving.call_driver("convoy_now", port=station.port)) == idle else str(now), 3
        )


# A reload.


def test_a_reload_under_load(redis_server: RedisServer) -> None:
    async def load(gate: RedisDriverNginx, link: Proxy) -> int:
        stop = asyncio.get_running_loop().time() + 1.5
        count = 0

        async def one_after_another(name: str) -> None:
            nonlocal count
            while asyncio.get_running_loop().time() < stop:
                word = f"{name} {count}"
                count += 1
                reply = await posted(gate.nginx.port, {"verb": "convoy", "port": link.port, **asks(word)})
                assert reply["answer"] == word, reply

        async def reloads() -> None:
            for _ in range(3):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(gate.nginx.reload)

        await asyncio.gather(reloads(), *(one_after_another(f"caller {i}") for i in range(30)))
        return count

    with RedisDriverNginx() as gate, Proxy(redis_server) as link:
        link.delay(10)
        assert asyncio.run(load(gate, link)) > 200
