"""Threads that share the connections to a server: each gets its own reply, in time, and nothing stays open.

Key n is charged with n units beforehand, so whoever hears another's answer can tell.

The reason for its length: every story uses the same few threads and interrupts.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

import pytest

from headgate.engines.redis.errors import TimedOut
from headgate.engines.redis.pool_state import PoolUser, PoolWaiter
from headgate.engines.redis.protocol import command
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.engines.redis.sync_pool import POOL_SIZE, ConnectionPool
from headgate.errors import EngineUnavailable
from headgate.limiter import Limiter
from tests.servers import Proxy, RedisServer
from tests.servers.exhausted_threads import no_thread_can_start
from tests.servers.wait_until import until

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


def remaining_or_error(limiter: Limiter, n: int) -> int | str:
    """Returns the n that the reply for key n belongs to, worked out from what remains; or the error."""
    try:
        return 10_000 - limiter.peek(f"key {n}").remaining
    except EngineUnavailable as error:
        return str(error)


def free_entries(limiter: Limiter) -> int:
    """Returns how many entries of the pool are free, connected or not; all, when nobody asks."""
    (pool,) = pools(limiter)
    return sum(entry.user is None and entry.opening is None for entry in pool._state.entries)


def pools(limiter: Limiter) -> list[ConnectionPool]:
    assert isinstance(limiter.engine, RedisEngine)
    return list(limiter.engine._pools.values())


def test_the_totals_are_exact_and_the_connections_few(server: RedisServer) -> None:
    before = int(server.info("clients")["connected_clients"])
    with Limiter("400/day", server.url) as limiter:
        prepare(Limiter("10000/day", limiter.engine))
        unlimited = Limiter("10000/day", limiter.engine)

        def visit(n: int) -> tuple[int, bool]:
            passed = sum(limiter.take("shared").allowed for _ in range(20))
            return passed, all(remaining_or_error(unlimited, n) == n for _ in range(20))

        visits = crowd(CROWD, visit)
        assert sum(passed for passed, _ in visits) == 400
        assert all(mine for _, mine in visits)
        assert int(server.info("clients")["connected_clients"]) - before <= POOL_SIZE
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "one is being opened", 20)


def test_many_at_once_open_few(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link:
        link.delay(5)
        with Limiter("10000/day", link.url) as limiter:
            assert crowd(CROWD, lambda n: limiter.take("key").allowed) == [True] * CROWD
            assert link.opened <= POOL_SIZE
            assert limiter.peek("key").remaining == 10_000 - CROWD


def test_many_at_once_and_nobody_there() -> None:
    with (
        RedisServer() as server,
        Proxy(server) as link,
        Limiter("10000/day", f"{link.url}?deadline=20s") as limiter,
    ):
        link.refuse()
        answers = crowd(CROWD, lambda n: remaining_or_error(limiter, n))
        assert all("the connection failed" in str(answer) for answer in answers)
        # The first line that cannot be opened answers everybody; the other one may still be on its way.
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "a connection is lost", 20)
        link.heal()
        assert remaining_or_error(limiter, 0) == 0


def test_everybody_is_back_in_time_from_a_server_that_hangs(redis_server: RedisServer) -> None:
    with Limiter("10000/day", f"{redis_server.url}?deadline=200ms") as limiter:
        prepare(limiter)

        def visit(n: int) -> tuple[int | str, float]:
            began = time.monotonic()
            return remaining_or_error(limiter, n), time.monotonic() - began

        redis_server.pause()
        try:
            visits = crowd(CROWD, visit)
        finally:
            redis_server.resume()
        assert all("no answer within the timeout" in str(answer) for answer, _ in visits)
        assert max(took for _, took in visits) < 0.2 + MARGIN
    with Limiter("10000/day", redis_server.url) as patient:
        assert crowd(CROWD, lambda n: remaining_or_error(patient, n)) == list(range(CROWD))


def test_no_call_fails_before_its_deadline(redis_server: RedisServer) -> None:
    """An old one's time ends while a young one waits for the same round trip: the young one still hears."""
    with Limiter("10000/day", f"{redis_server.url}?deadline=1s") as limiter:
        prepare(limiter, 4)
        redis_server.pause()
        with ThreadPoolExecutor(4) as pool:
            lines = [pool.submit(remaining_or_error, limiter, 0) for _ in range(POOL_SIZE)]
            time.sleep(0.2)
            old = pool.submit(remaining_or_error, limiter, 1)
            time.sleep(0.6)
            young = pool.submit(remaining_or_error, limiter, 2)
            time.sleep(0.6)
            redis_server.resume()
            assert all("no answer within the timeout" in str(line.result()) for line in lines)
            assert "no answer within the timeout" in str(old.result())
            assert young.result() == 2


@pytest.mark.parametrize("threads", [1, 8])
def test_a_reply_byte_by_byte_has_no_more_time_than_another(threads: int, redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=150ms") as limiter:
        prepare(limiter, 8)
        link.trickle(500, "replies")
        began = time.monotonic()
        answers = crowd(threads, lambda n: remaining_or_error(limiter, n))
        assert time.monotonic() - began < 5
        assert all("no answer within the timeout" in str(answer) for answer in answers)
        link.heal()
        assert crowd(threads, lambda n: remaining_or_error(limiter, n)) == list(range(threads))


def test_replies_byte_by_byte_are_whole(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=5s") as limiter:
        prepare(limiter, 8)
        link.trickle(0.2, "replies")
        assert crowd(8, lambda n: remaining_or_error(limiter, n)) == list(range(8))


def test_replies_cut_in_the_middle(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", f"{link.url}?deadline=5s") as limiter:
        prepare(limiter, 8)
        link.trickle(3, "replies")
        with ThreadPoolExecutor(8) as pool:
            cut = [pool.submit(remaining_or_error, limiter, n) for n in range(8)]
            time.sleep(0.1)
            link.cut()
            link.heal()
            for n, answer in enumerate(cut):
                assert answer.result() == n or "the connection failed" in str(answer.result())
        assert crowd(8, lambda n: remaining_or_error(limiter, n)) == list(range(8))


@pytest.mark.parametrize("threads", [1, 8])
def test_a_request_that_lost_its_reply_is_not_sent_again(threads: int, redis_server: RedisServer) -> None:
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
            # Some may have waited for a connection all the time, or were sent together by a script that this
            # server has not seen yet, and its NOSCRIPT was lost. Nobody was charged twice, and the first was.
            charged = [10_000 - outside.peek(f"key {n}").remaining for n in range(threads)]
            assert set(charged) <= {0, 1}
            assert sum(charged) >= 1


def test_a_connection_that_died_while_idle_is_replaced(redis_server: RedisServer) -> None:
    with Proxy(redis_server) as link, Limiter("10000/day", link.url) as limiter:
        assert crowd(8, lambda n: limiter.take("key").allowed) == [True] * 8
        for _ in range(10):
            link.cut()
            time.sleep(0.02)  # a connection that was used a moment ago is trusted
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
                answers.add(remaining_or_error(limiter, n))
            return answers

        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(visit, n) for n in range(8)]
            with interrupting(0.007):
                while interrupted < 60:
                    try:
                        for _ in range(50):
                            assert remaining_or_error(limiter, 8) == 8
                    except KeyboardInterrupt:
                        interrupted += 1
            began = time.monotonic()
            done.set()
            for n, answers in enumerate(others):
                for answer in answers.result() - {n}:
                    assert "interrupted" in str(answer)
            assert time.monotonic() - began < MARGIN  # nobody waited for an answer that never came
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "a connection is lost", 5)
        assert crowd(9, lambda n: remaining_or_error(limiter, n)) == list(range(9))


@pytest.mark.slow
def test_bursts_of_calls_under_signals() -> None:
    """Twenty thousand; `make soak` runs a million."""
    words = [sys.executable, "-m", "tests.engines.redis.signal_soak", "20000"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr + ran.stdout


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A signal handler raises in the main thread, as Celery does at its soft time limit."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    was = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


@pytest.fixture
def pool(redis_server: RedisServer) -> Iterator[ConnectionPool]:
    """With both connections open."""
    made = ConnectionPool(ServerAddress.parse(redis_server.url), 20)
    crowd(POOL_SIZE, lambda n: made.execute_queued(command("PING"), time.monotonic() + 20))
    until(lambda: None if made.idle else "nothing is open", 20)
    yield made
    made.close()


def test_other_threads_get_their_replies_if_the_sending_thread_is_interrupted(
    redis_server: RedisServer, pool: ConnectionPool
) -> None:
    """The main thread has the most time left, so it asks for all."""
    redis_server.pause()
    with ThreadPoolExecutor(8) as threads:
        try:
            deadline_at = time.monotonic() + 20
            with pool._lock:  # they are in the queue before anybody can ask
                others = [
                    threads.submit(pool.execute_queued, command("ECHO", str(n)), deadline_at) for n in range(8)
                ]
            until(lambda: None if len(pool._state.waiting) + open_requests(pool) >= 8 else "not all have come", 20)
            with interrupted_after(0.3):
                pool.execute_queued(command("ECHO", "main"), deadline_at + 20)
        finally:
            redis_server.resume()
        assert [each.result() for each in others] == [str(n).encode() for n in range(8)]


def open_requests(pool: ConnectionPool) -> int:
    """Returns how many are open_requests for, at least: somebody uses each connection."""
    return 8 if all(entry.user for entry in pool._state.entries) else 0


def test_a_reply_for_a_caller_that_was_interrupted(redis_server: RedisServer, pool: ConnectionPool) -> None:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    redis_server.pause()
    try:
        with interrupted_after(0.2):
            pool.execute_queued(command("INCR", "n"), time.monotonic() + 20, on_late_reply=replies.put)
        assert replies.empty()
    finally:
        redis_server.resume()
    assert replies.get(timeout=20) == 1
    assert pool.execute(command("INCR", "n"), time.monotonic() + 20) == 2
    assert replies.empty()


def test_a_reply_for_a_caller_whose_deadline_is_over(redis_server: RedisServer, pool: ConnectionPool) -> None:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    redis_server.pause()
    try:
        with pytest.raises(TimedOut):
            pool.execute_queued(command("INCR", "n"), time.monotonic() + 0.1, on_late_reply=replies.put)
    finally:
        redis_server.resume()
    assert replies.get(timeout=20) == 1
    assert pool.execute_queued(command("INCR", "n"), time.monotonic() + 20, on_late_reply=replies.put) == 2
    assert replies.empty()


def test_a_reply_for_a_caller_whose_request_another_sent(redis_server: RedisServer, pool: ConnectionPool) -> None:
    """Its own deadline is over before that of the one who asks."""
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    redis_server.pause()
    with ThreadPoolExecutor(4) as threads:
        try:
            with pool._lock:
                patient = [
                    threads.submit(pool.execute_queued, command("PING"), time.monotonic() + 20) for _ in range(3)
                ]
                time.sleep(0.1)
                hurried = threads.submit(
                    pool.execute_queued, command("INCR", "n"), time.monotonic() + 0.5, 1, replies.put
                )
            assert isinstance(hurried.exception(), TimedOut)
        finally:
            redis_server.resume()
        assert [each.result() for each in patient] == [b"PONG"] * 3
    # Whether somebody had open_requests for it by then is not sure; if so, the reply is there.
    charged = int(pool.execute(command("GET", "n"), time.monotonic() + 20) or 0)
    assert [replies.get(timeout=20) for _ in range(charged)] == [1] * charged


def test_threads_that_cannot_be_started(redis_server: RedisServer) -> None:
    """The process has as many as it may have: callers are told, and once there are fewer all is well."""
    with Limiter("10000/day", f"{redis_server.url}?deadline=20s") as limiter:
        with no_thread_can_start():
            for _ in range(2 * POOL_SIZE):
                with pytest.raises(EngineUnavailable, match="no thread could be started to connect"):
                    limiter.take("key")
        assert limiter.take("key").remaining == 10_000 - 1
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "one is being opened", 20)


def test_a_connection_that_was_never_released_is_replaced(redis_server: RedisServer) -> None:
    """A connection serves others a second after its user's deadline, however that user ended."""
    with Limiter("10000/day", f"{redis_server.url}?deadline=100ms") as limiter:
        prepare(limiter, 8)
        (pool,) = pools(limiter)
        for entry in pool._state.entries:
            entry.user, entry.until = PoolUser(), time.monotonic() + 0.1
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="no answer within the timeout"):
            limiter.take("key")
        until(lambda: None if remaining_or_error(limiter, 0) == 0 else "both connections are lost", 20)
        assert time.monotonic() - began > 1
    with Limiter("10000/day", RedisEngine(redis_server.url, deadline=20)) as patient:
        assert crowd(8, lambda n: remaining_or_error(patient, n)) == list(range(8))


def test_a_signal_handler_that_asks_while_the_pool_is_locked(redis_server: RedisServer) -> None:
    with Limiter("10000/day", f"{redis_server.url}?deadline=20s") as limiter:
        limiter.take("key")
        (pool,) = pools(limiter)
        with pool._lock:
            assert limiter.take("key")


def test_a_caller_that_waits_does_not_spin(pool: ConnectionPool) -> None:
    """Another one asks for it, and a connection is left: it has nothing to ask there."""
    deadline_at = time.monotonic() + 20
    another = PoolWaiter(deadline_at)
    for entry in pool._state.entries:
        entry.user, entry.until = another, deadline_at
    another.entry = pool._state.entries[0]
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(pool.execute_queued, command("PING"), deadline_at)
        until(lambda: None if pool._state.waiting else "it does not wait", 20)
        batch: list[Any] = []
        with pool._lock:
            pool._state.take_batch(another, batch)
            pool._state.entries[1].user = None
        began = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - began < 0.15
        batch[0].deliver(b"for you", pool._lock)
        assert waits.result() == b"for you"
    pool._state.entries[0].user = None


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
def test_a_server_of_another_protocol_fails_the_connection(login: str, another_protocol: int) -> None:
    with Limiter("1/s", f"redis://{login}127.0.0.1:{another_protocol}?deadline=500ms") as limiter:
        for _ in range(POOL_SIZE + 1):
            with pytest.raises(EngineUnavailable, match=r"the connection failed .*rotocol"):
                limiter.take("key")
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "one is being opened", 20)


def test_a_name_that_cannot_be_a_hosts() -> None:
    with Limiter("1/s", "redis://a..b:6379?deadline=500ms") as limiter:
        for _ in range(POOL_SIZE + 1):
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


def test_closed_while_others_send_requests(redis_server: RedisServer) -> None:
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
            answers = crowd(8, lambda n: {remaining_or_error(limiter, n) for _ in range(60)})
        finally:
            done.set()
            closer.join()
        assert answers == [{n} for n in range(8)]
        until(lambda: None if free_entries(limiter) == POOL_SIZE else "a connection is lost", 5)


def test_nothing_is_left_behind_by_failures() -> None:
    """Two hundred times the link is cut or refused: threads and files stay as few as they were."""
    with RedisServer() as server, Proxy(server) as link, Limiter("10000/day", link.url) as limiter:
        sizes = {}
        for cycle in range(1, 201):
            remaining_or_error(limiter, 0)
            link.cut()
            if cycle % 10 == 0:
                crowd(4, lambda n: remaining_or_error(limiter, n))
                link.refuse()
                link.cut()
                remaining_or_error(limiter, 0)
                link.heal()
            if cycle in (50, 200):
                assert isinstance(remaining_or_error(limiter, 0), int)
                time.sleep(0.05)
                sizes[cycle] = (len(os.listdir("/proc/self/fd")), threading.active_count())
                assert link.open <= POOL_SIZE
                until(lambda: None if free_entries(limiter) == POOL_SIZE else "a connection is lost", 5)
        assert all(after <= before + 1 for before, after in zip(sizes[50], sizes[200], strict=True)), sizes


class SoftTimeLimit(Exception):
    """The exception that Celery's signal handler raises."""


@contextmanager
def interrupted_when_a_thread_starts() -> Iterator[None]:
    """A signal handler raises as soon as a new thread was made: Python runs handlers there, between two steps."""

    def interrupt(_: object, event: str, function: object) -> None:
        if event == "c_return" and getattr(function, "__name__", "").startswith("start_"):
            sys.setprofile(None)
            raise SoftTimeLimit

    sys.setprofile(interrupt)
    try:
        with pytest.raises(SoftTimeLimit):
            yield
    finally:
        sys.setprofile(None)


def test_a_caller_that_is_interrupted_while_a_thread_starts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread does its work all the same. (It died of a KeyError in Python's own threading module.)"""
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with Limiter("10000/day", f"{redis_server.url}?deadline=20s") as limiter:
        with interrupted_when_a_thread_starts():
            limiter.take("key")
        (pool,) = pools(limiter)
        until(lambda: None if pool.idle == 1 else "nothing was opened", 20)
        assert limiter.take("key").remaining == 10_000 - 1
    assert unraisable == []


def test_a_caller_that_is_interrupted_while_another_thread_begins_to_read_on(
    redis_server: RedisServer, pool: ConnectionPool
) -> None:
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    redis_server.pause()
    try:
        with interrupted_when_a_thread_starts():
            pool.execute_queued(command("INCR", "n"), time.monotonic() + 0.1, on_late_reply=replies.put)
    finally:
        redis_server.resume()
    assert replies.get(timeout=20) == 1
