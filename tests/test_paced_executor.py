"""Pools whose calls wait for their turn: order, cancellation, errors and shutdown, on a clock that moves."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

import pytest

from headgate import (
    AsyncLimiter,
    EngineUnavailable,
    InvalidCharge,
    Limiter,
    ManualClock,
    PacedExecutor,
    RateLimited,
)
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

START_US = ManualClock().now_us()


class GatedClock(ManualClock):
    """A clock on which a sleeper sleeps until the test opens its gate."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeping = threading.Event()
        self.gate = threading.Event()

    def sleep_us(self, duration_us: int) -> None:
        self.sleeping.set()
        assert self.gate.wait(30)
        super().sleep_us(duration_us)


def _pool(limiter: Limiter, cost: int = 1) -> PacedExecutor:
    return PacedExecutor(ThreadPoolExecutor(2), limiter, "api", cost)


def test_calls_run_at_the_rate_of_the_limit() -> None:
    clock = ManualClock()
    limiter = Limiter("2/s burst 2", clock=clock)
    with _pool(limiter) as pool:
        assert list(pool.map(pow, [2, 3, 4, 5], [2, 2, 2, 2])) == [4, 9, 16, 25]
    assert clock.now_us() - START_US == 1_000_000
    assert pool._dispatcher is None


def test_no_worker_waits_for_a_turn() -> None:
    """The pool has one worker: a call that needs no turn passes while a paced one sleeps."""
    clock, workers = GatedClock(), ThreadPoolExecutor(1)
    pool = PacedExecutor(workers, Limiter("1/hour", clock=clock), "api")
    first, second = pool.submit(abs, -1), pool.submit(abs, -2)
    assert first.result(30) == 1
    assert clock.sleeping.wait(30)
    assert workers.submit(abs, -3).result(30) == 3
    assert not second.running()
    clock.gate.set()
    assert second.result(30) == 2
    pool.shutdown()


def test_a_call_that_is_cancelled_before_its_turn_charges_nothing() -> None:
    clock = GatedClock()
    limiter = Limiter("2/hour", clock=clock)
    with _pool(limiter, cost=2) as pool:
        assert pool.submit(abs, -1).result(30) == 1
        sleeping, queued = pool.submit(abs, -2), pool.submit(abs, -3)
        assert clock.sleeping.wait(30)
        assert sleeping.cancel()
        assert queued.cancel()
        clock.gate.set()
        assert wait([sleeping, queued], 30).not_done == set()
    assert limiter.peek("api").remaining == 2, "what the sleeper charged was given back"


def test_errors_are_raised_at_the_caller() -> None:
    with _pool(Limiter("1/s burst 1", clock=ManualClock()), cost=2) as pool, pytest.raises(RateLimited):
        pool.submit(abs, -1).result(30)
    with _pool(Limiter("1/s", f"redis://127.0.0.1:{free_port()}/0")) as pool, pytest.raises(EngineUnavailable):
        pool.submit(abs, -1).result(30)
    with _pool(Limiter("9/s")) as pool:
        with pytest.raises(TypeError):
            pool.submit(abs, "text").result(30)  # type: ignore[arg-type]
        pool.executor.shutdown()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(abs, -1).result(30)


def test_a_call_that_its_pool_drops_ends() -> None:
    class DroppingExecutor(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            return future

    with PacedExecutor(DroppingExecutor(), Limiter("9/s"), "api") as pool, pytest.raises(CancelledError):
        pool.submit(abs, -1).result(30)


@pytest.mark.parametrize("waits", [True, False])
def test_shutdown_ends_the_calls_that_were_submitted(waits: bool) -> None:
    workers = ThreadPoolExecutor(2)
    pool = PacedExecutor(workers, Limiter("1/hour", clock=ManualClock()), "api")
    futures = [pool.submit(abs, -number) for number in range(5)]
    pool.shutdown(waits)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(abs, -1)
    assert [future.result(30) for future in futures] == [0, 1, 2, 3, 4]
    until(lambda: None if _is_shut_down(workers) else "the workers are not shut down", 30)


def _is_shut_down(workers: ThreadPoolExecutor) -> bool:
    try:
        workers.submit(abs, -1)
    except RuntimeError:
        return True
    return False


def test_shutdown_may_drop_the_calls_that_wait() -> None:
    clock = GatedClock()
    pool = _pool(Limiter("1/hour", clock=clock))
    futures = [pool.submit(abs, -number) for number in range(4)]
    assert clock.sleeping.wait(30)
    pool.shutdown(wait=False, cancel_futures=True)
    clock.gate.set()
    pool.shutdown()
    assert [future.cancelled() for future in futures] == [False, False, True, True]
    assert futures[1].result(30) == 1


def test_processes_are_paced_too() -> None:
    clock = ManualClock()
    processes = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with PacedExecutor(processes, Limiter("1/s burst 1", clock=clock), "api") as pool:
        assert list(pool.map(abs, [-1, -2])) == [1, 2]
    assert clock.now_us() - START_US == 1_000_000


async def test_a_loop_runs_blocking_calls_in_it() -> None:
    with _pool(Limiter("1/s burst 1", clock=ManualClock())) as pool:
        loop = asyncio.get_running_loop()
        assert await asyncio.gather(*(loop.run_in_executor(pool, abs, -each) for each in range(3))) == [0, 1, 2]


def test_a_mistake_is_an_error_at_once() -> None:
    workers, limiter = ThreadPoolExecutor(1), Limiter("1/s")
    for arguments, sentence in (
        ((7, limiter, "api"), "An executor is paced, such as ThreadPoolExecutor"),
        ((workers, AsyncLimiter("1/s"), "api"), "An executor is paced by a Limiter, not by an AsyncLimiter"),
        ((workers, "1/s", "api"), "An executor is paced by a Limiter, not by '1/s'"),
        ((workers, limiter, ""), "A key must not be empty"),
        ((workers, limiter, "api", 0), "A cost is at least 1"),
    ):
        wrong: Any = arguments
        with pytest.raises(InvalidCharge, match=sentence):
            PacedExecutor(*wrong)
