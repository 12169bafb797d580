"""PacedExecutor: a pool of threads or processes whose calls wait for their turn before they take a worker.

    with PacedExecutor(ThreadPoolExecutor(8), limiter, "api") as pool:
        pages = list(pool.map(fetch, urls))

Calls wait in a queue of their own, in the order in which they were submitted. One thread waits for the turn of the
first and hands it to the pool; workers work, and never sleep on a limit. That thread exists while calls wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from inspect import iscoroutinefunction
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.validation import check_cost, check_key, describe

if TYPE_CHECKING:
    from headgate.limiter import Limiter

P = ParamSpec("P")
R = TypeVar("R")


class PacedExecutor(Executor):
    """Submits calls to an executor when a limit lets each pass. It shuts the executor down with itself.

    A call whose turn can never come (its cost is more than the limit) fails with RateLimited. A call that is
    cancelled before its turn charges nothing.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> clock = ManualClock()
    >>> limiter = Limiter("1/s burst 1", clock=clock)
    >>> with PacedExecutor(ThreadPoolExecutor(2), limiter, "api") as pool:
    ...     list(pool.map(abs, [-1, -2, -3]))
    [1, 2, 3]
    >>> (clock.now_us() - ManualClock().now_us()) / 1_000_000
    2.0
    """

    def __init__(self, executor: Executor, limiter: Limiter, key: str, cost: int = 1) -> None:
        if not isinstance(executor, Executor):
            raise InvalidCharge(f"An executor is paced, such as ThreadPoolExecutor(8); not {describe(executor)}.")
        if not callable(getattr(limiter, "wait", None)) or iscoroutinefunction(limiter.wait):
            raise InvalidCharge(f"An executor is paced by a Limiter, not by {describe(limiter)}.")
        self.executor: Executor = executor
        self.limiter: Limiter = limiter
        self.key: str = check_key(key)
        self.cost: int = check_cost(cost, spends=True)
        self._lock = Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Future[Any]]]] = deque()
        self._dispatcher: Thread | None = None
        self._is_shut_down = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Queues a call, and returns its future at once.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with PacedExecutor(ThreadPoolExecutor(2), Limiter("10/s"), "api") as pool:
        ...     pool.submit(pow, 2, 3).result()
        8
        """
        future: Future[R] = Future()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append((future, lambda: self.executor.submit(fn, *args, **kwargs)))
            if self._dispatcher is None:
                self._dispatcher = Thread(target=self._dispatch, name="headgate-paced-executor")
                self._dispatcher.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends when all calls have ended, or at once without `wait`; `cancel_futures` drops those that wait.

        >>> from concurrent.futures import ThreadPoolExecutor
        >>> PacedExecutor(ThreadPoolExecutor(2), Limiter("10/s"), "api").shutdown()
        """
        with self._lock:
            self._is_shut_down = True
            dispatcher = self._dispatcher
            if cancel_futures:
                for future, _ in self._waiting:
                    future.cancel()
        if dispatcher is not None and not wait:
            return  # it shuts the executor down after the last call
        if dispatcher is not None:
            dispatcher.join()
        self.executor.shutdown(wait)

    def _dispatch(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._dispatcher = None
                    break
                future, submit = self._waiting.popleft()
            self._start(future, submit)
        if self._is_shut_down:
            self.executor.shutdown(wait=False)

    def _start(self, future: Future[Any], submit: Callable[[], Future[Any]]) -> None:
        """Waits for the turn of a call, and hands it to the executor; the future gets whatever goes wrong."""
        if future.cancelled():
            future.set_running_or_notify_cancel()
            return
        decision = None
        try:
            decision = self.limiter.wait(self.key, self.cost).or_raise()
        except BaseException as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return
        if not future.set_running_or_notify_cancel():
            with suppress(EngineUnavailable):  # nobody is left to hear of it, and the charge expires
                self.limiter.refund(decision)
            return
        try:
            submit().add_done_callback(lambda ended: _copy_result(ended, future))
        except BaseException as error:
            future.set_exception(error)


def _copy_result(ended: Future[Any], future: Future[Any]) -> None:
    error = CancelledError() if ended.cancelled() else ended.exception()
    if error is None:
        future.set_result(ended.result())
    else:
        future.set_exception(error)
