"""Threads that share the lines to a server: each hears its own answer, in time, and nothing is left open.

Key n is charged with n units beforehand, so whoever hears another's answer can tell.
"""

import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import pytest

from headgate.engine.redis.address import Address
from headgate.engine.redis.blocking import RedisEngine
from headgate.engine.redis.lines import LINES, Lines
from headgate.engine.redis.wire import command
from headgate.errors import EngineUnavailable
from headgate.limiter import Limiter
from tests.servers import Proxy, RedisServer
from tests.servers.waiting import until

T = TypeVar("T")
CROWD = 32
MARGIN = 1.5  # seconds that a busy machine may add


def crowd(count: int, visit: Callable[[int], T]) -> list[T]:
    """So many threads, let go at once."""
    barrier = threading.Barrier(count)

    def visitor(n: int) -> T:
        barrier.wait()
        return visit(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(visitor, range(count)))


def prepare(limiter: Limiter, count: int = CROWD) -> None:
    for n in range(count):
        limiter.take(f"key {n}", n)


def heard(limiter: Limiter, n: int) -> int | str:
    """What remains for key n, told as the n it belongs to; or the error."""
    try:
        return 10_000 - limiter.peek(f"key {n}").remaining
    except EngineUnavailable as error:
        return str(error)


def idle_lines(limiter: Limiter) -> int:
    """How many places for lines there are, open or not; all, when nobody asks."""
    assert isinstance(limiter.engine, RedisEngine)
    (lines,) = limiter.engine._lines.values()
    return len(lines._idle)


def test_the_totals_are_exact_and_the_lines_few(server: RedisServer) -> None:
    before = int(server.info("clients")["connected_clients"])
    with Limiter("400/day", server.url) as limiter:
        prepare(Limiter("10000/day", limiter.engine))
        own = Limiter("10000/day", limiter.engine)

        def visit(n: int) -> tuple[int, bool]:
            passed = sum(limiter.take("shared").allowed for _ in range(20))
            return passed, all(heard(own, n) == n for _ in range(20))

        visits = crowd(CROWD, visit)
        assert sum(passed for passed, _ in visits) == 400
        assert all(mine for _, mine in visits)
        assert int(server.info("clients")["connected_clients"]) - before <= LINES
        assert idle_lines(limiter) == LINES


def test_many_at_once_open_few(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        link.delay(5)
        with Limiter("10000/day", link.url) as limiter:
            assert crowd(CROWD, lambda n: limiter.take("key").allowed) == [True] * CROWD
            assert link.opened <= LINES
            assert limiter.peek("key").remaining == 10_000 - CROWD


def test_many_at_once_and_nobody_there() -> None:
    with (
        RedisServer() as server,
        Proxy(server) as link,
        Limiter("10000/day", f"{link.url}?deadline=20s") as limiter,
    ):
        link.refuse()
        answers = crowd(CROWD, lambda n: heard(limiter, n))
        assert all("the connection failed" in str(answer) for answer in answers)
        # The first line that cannot be opened answers everybody; the other one may still be on its way.
        until(lambda: None if idle_lines(limiter) == LINES else "a line is lost", 20)
        link.heal()
        assert heard(limiter, 0) == 0


def test_everybody_is_back_in_time_from_a_server_that_hangs(redis_server: RedisServer) -> None:
    with Limiter("10000/day", f"{redis_server.url}?deadline=200ms") as limiter:
        prepare(limiter)

        def visit(n: int) -> tuple[int | str, float]:
            began = time.monotonic()
            return heard(limiter, n), time.monotonic() - began

        redis_server.pause()
        try:
            visits = crowd(CROWD, visit)
        finally:
            redis_server.resume()
        assert all("no answer within the timeout" in str(answer) for answer, _ in visits)
        assert max(took for _, took in visits) < 0.2 + MARGIN
    with Limiter("10000/day", redis_server.url) as patient:
        assert crowd(CROWD, lambda n: heard(patient, n)) == list(range(CROWD))


def test_nobody_is_given_up_before_its_time(redis_server: RedisServer) -> None:
    """An old one's time ends while a young one waits for the same round trip: the young one still hears."""
    with Limiter("10000/day", f"{redis_server.url}?deadline=1s") as limiter:
        prepare(limiter, 4)
        redis_server.pause()
        with ThreadPoolExecutor(4) as pool:
            lines = [pool.submit(heard, limiter, 0) for _ in range(LINES)]
            time.sleep(0.2)
            old = pool.submit(heard, limiter, 1)
            time.sleep(0.6)
            young = pool.submit(heard, limiter, 2)
            time.sleep(0.6)
            redis_server.resume()
            assert all("no answer within the timeout" in str(line.result()) for line in lines)
            assert "no answer within the timeout" in str(old.result())
            assert young.result() == 2


@pytest.mark.parametrize("threads", [1, 8])
def test_a_reply_byte_by_byte_has_no_more_time_than_another(threads: int, redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=150ms") as limiter:
        prepare(limiter, 8)
        link.trickle(30, "replies")
        began = time.monotonic()
        answers = crowd(threads, lambda n: heard(limiter, n))
        assert time.monotonic() - began < 0.15 + 0.8
        assert all("no answer within the timeout" in str(answer) for answer in answers)
        link.heal()
        assert crowd(threads, lambda n: heard(limiter, n)) == list(range(threads))


def test_replies_byte_by_byte_are_whole(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=5s") as limiter:
        prepare(limiter, 8)
        link.trickle(0.2, "replies")
        assert crowd(8, lambda n: heard(limiter, n)) == list(range(8))


def test_replies_cut_in_the_middle(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=5s") as limiter:
        prepare(limiter, 8)
        link.trickle(3, "replies")
        with ThreadPoolExecutor(8) as pool:
            cut = [pool.submit(heard, limiter, n) for n in range(8)]
            time.sleep(0.1)
            link.cut()
            link.heal()
            for n, answer in enumerate(cut):
                assert answer.result() == n or "the connection failed" in str(answer.result())
        assert crowd(8, lambda n: heard(limiter, n)) == list(range(8))


@pytest.mark.parametrize("threads", [1, 8])
def test_an_answer_that_was_lost_is_not_asked_for_again(threads: int, redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=300ms") as limiter:
        limiter.peek("key")
        link.swallow("replies")

        def visit(n: int) -> bool:
            with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
                limiter.take(f"key {n}")
            return True

        assert all(crowd(threads, visit))
        link.cut()
        time.sleep(0.05)
        with Limiter("10000/day", redis_server.url) as outside:
            # Some may have waited for a line the whole time; nobody was charged twice, and the first one was.
            charged = [10_000 - outside.peek(f"key {n}").remaining for n in range(threads)]
            assert set(charged) <= {0, 1}
            assert sum(charged) >= min(threads, LINES)


def test_a_line_that_died_while_idle_is_replaced(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", link.url) as limiter:
        assert crowd(8, lambda n: limiter.take("key").allowed) == [True] * 8
        for _ in range(10):
            link.cut()
            time.sleep(0.02)  # a line that was used a moment ago is trusted
            assert limiter.take("key")
            assert crowd(4, lambda n: limiter.take("key").allowed) == [True] * 4
        assert limiter.peek("key").remaining == 10_000 - 8 - 10 * 5


@contextmanager
def interrupting(every: float) -> Iterator[None]:
    """Somebody presses Ctrl-C again and again; the main thread hears it."""
    done = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        while not done.wait(every):
            signal.pthread_kill(main, signal.SIGINT)

    def interrupt(*_: object) -> None:
        if not done.is_set():
            raise KeyboardInterrupt

    was = signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=press)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGINT, was)


def test_a_thread_that_is_interrupted_takes_nobody_with_it(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=5s") as limiter:
        prepare(limiter, 9)
        link.delay(2)
        done = threading.Event()
        interrupted = 0

        def visit(n: int) -> set[int | str]:
            answers: set[int | str] = set()
            while not done.is_set():
                answers.add(heard(limiter, n))
            return answers

        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(visit, n) for n in range(8)]
            with interrupting(0.007):
                while interrupted < 60:
                    try:
                        for _ in range(50):
                            assert heard(limiter, 8) == 8
                    except KeyboardInterrupt:
                        interrupted += 1
            began = time.monotonic()
            done.set()
            for n, answers in enumerate(others):
                for answer in answers.result() - {n}:
                    assert "interrupted" in str(answer)
            assert time.monotonic() - began < MARGIN  # nobody waited for an answer that never came
        until(lambda: None if idle_lines(limiter) == LINES else "a line is lost", 5)
        assert crowd(9, lambda n: heard(limiter, n)) == list(range(9))


def test_whoever_waits_does_not_spin(redis_server: RedisServer) -> None:
    """Another one is asking for it, and there is a line left: it has nothing to ask there."""

    class Taken(deque[Any]):
        def append(self, waiting: Any) -> None:
            threading.Timer(0.3, self.answer, [waiting]).start()

        def answer(self, waiting: Any) -> None:
            waiting.reply = b"for you"
            waiting.ring()

    address = Address.read(redis_server.url)
    lines = Lines(address, 5)
    by = time.monotonic() + 5
    lines.ask(command("PING"), by)
    lines._queue = Taken()
    began = time.process_time()
    assert lines.ask_in_turn(command("PING"), by) == b"for you"
    assert time.process_time() - began < 0.15
    lines.close()


@pytest.fixture
def another_protocol() -> Iterator[int]:
    """Somebody who answers, but not as Redis does."""
    done = threading.Event()

    def serve(listener: socket.socket) -> None:
        listener.settimeout(0.05)
        while not done.is_set():
            with suppress(TimeoutError):
                caller, _ = listener.accept()
                caller.recv(10_000)
                caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                caller.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener])
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        thread.join()


@pytest.mark.parametrize("login", ["", ":secret@"])
def test_somebody_who_does_not_speak_redis(login: str, another_protocol: int) -> None:
    with Limiter("1/s", f"redis://{login}127.0.0.1:{another_protocol}?deadline=500ms") as limiter:
        for _ in range(LINES + 1):
            with pytest.raises(EngineUnavailable, match=r"the connection failed .*rotocol"):
                limiter.take("key")
        assert idle_lines(limiter) == LINES


def test_a_name_that_cannot_be_a_hosts() -> None:
    with Limiter("1/s", "redis://a..b:6379?deadline=500ms") as limiter:
        for _ in range(LINES + 1):
            with pytest.raises(EngineUnavailable, match="the connection failed"):
                limiter.take("key")


def test_a_server_with_no_room_says_so() -> None:
    """And is not stormed with new connections."""
    with RedisServer(config=["maxclients 1"]) as server, Proxy(server) as link, ExitStack() as stack:
        guest = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        guest.sendall(b"PING\r\n")
        guest.recv(100)
        limiter = stack.enter_context(Limiter("1/s", f"{link.url}?deadline=500ms"))
        with pytest.raises(EngineUnavailable, match="max number of clients"):
            limiter.take("key")
        assert link.opened < 10


def test_closed_while_others_ask(redis_server: RedisServer) -> None:
    """An engine that is closed opens again for whoever asks; nobody hears another's answer, or an error."""
    with Limiter("10000/day", redis_server.url) as limiter:
        prepare(limiter, 8)
        done = threading.Event()

        def close() -> None:
            while not done.is_set():
                limiter.close()

        closer = threading.Thread(target=close)
        closer.start()
        try:
            answers = crowd(8, lambda n: {heard(limiter, n) for _ in range(60)})
        finally:
            done.set()
            closer.join()
        assert answers == [{n} for n in range(8)]
        until(lambda: None if idle_lines(limiter) == LINES else "a line is lost", 5)


def test_nothing_is_left_behind_by_failures() -> None:
    """Two hundred times the link is cut or refused: threads and files stay as few as they were."""
    with RedisServer() as server, Proxy(server) as link, Limiter("10000/day", link.url) as limiter:
        sizes = {}
        for cycle in range(1, 201):
            heard(limiter, 0)
            link.cut()
            if cycle % 10 == 0:
                crowd(4, lambda n: heard(limiter, n))
                link.refuse()
                link.cut()
                heard(limiter, 0)
                link.heal()
            if cycle in (50, 200):
                assert isinstance(heard(limiter, 0), int)
                time.sleep(0.05)
                sizes[cycle] = (len(os.listdir("/proc/self/fd")), threading.active_count())
                assert link.open <= LINES
                until(lambda: None if idle_lines(limiter) == LINES else "a line is lost", 5)
        assert all(after <= before + 1 for before, after in zip(sizes[50], sizes[200], strict=True)), sizes
