"""Guards of an adaptive limiter: around blocks, functions and coroutine functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.errors import InvalidCharge

if TYPE_CHECKING:
    from collections.abc import Hashable

    from headgate.adaptive.call_in_flight import AdaptiveCall
    from headgate.adaptive.limiter import AdaptiveLimiter

F = TypeVar("F", bound=Callable[..., Any])


class QueuedCall:
    """A call of a thread that waits in the queue; the limiter sets `entered`, under its lock, at its turn."""

    def __init__(self) -> None:
        self.entered: int = 0
        self._waiting = Lock()
        self._waiting.acquire()

    def wake(self) -> None:
        self._waiting.release()

    def wait(self, timeout: float) -> None:
        """Waits for its turn, at most so many seconds."""
        self._waiting.acquire(timeout=timeout)


class AsyncQueuedCall(QueuedCall):
    """A call of a task that waits in the queue."""

    def __init__(self) -> None:
        self.entered: int = 0
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Event()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._turn.set)

    async def wait_async(self, timeout: float | None) -> None:
        """Waits for its turn, at most so many seconds; with None as long as it takes."""
        try:
            async with asyncio.timeout(timeout):
                await self._turn.wait()
        except TimeoutError:
            pass


class AdaptiveGuard:
    """Guards a block, or each call of a function. Entering gives the call, to drop or ignore it."""

    __slots__ = ("_calls", "_limiter", "_priority", "_user")

    def __init__(self, limiter: AdaptiveLimiter, priority: str | None, user: Hashable) -> None:
        self._limiter = limiter
        self._priority = priority
        self._user = user
        self._calls: list[AdaptiveCall] = []  # of the blocks that are running, the innermost last

    def __enter__(self) -> AdaptiveCall:
        limiter = self._limiter
        call = limiter._enter(self._priority, self._user, QueuedCall)
        if isinstance(call, QueuedCall):
            try:
                call.wait(limiter._queue)
            except BaseException:
                limiter._abandon(call)
                raise
            call = limiter._admitted(call)
        self._calls.append(call)
        return call  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._calls.pop()
        if kind is None:
            call.success()
        elif issubclass(kind, self._limiter.drops):
            call.drop()
        else:
            call.ignore()

    async def __aenter__(self) -> AdaptiveCall:
        limiter = self._limiter
        call = limiter._enter(self._priority, self._user, AsyncQueuedCall)
        if isinstance(call, AsyncQueuedCall):
            try:
                await call.wait_async(limiter._queue)
            except BaseException:
                limiter._abandon(call)
                raise
            call = limiter._admitted(call)
        self._calls.append(call)
        return call  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise InvalidCharge("A guard decorates a function: write @limiter.guard() above it.")
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            raise InvalidCharge(
                f"{function.__qualname__} is a generator: its caller decides how long it takes. "
                "Guard the work inside it."
            )
        limiter, priority, user = self._limiter, self._priority, self._user

        @wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            with AdaptiveGuard(limiter, priority, user):
                return function(*args, **kwargs)

        @wraps(function)
        async def guarded_coroutine(*args: Any, **kwargs: Any) -> Any:
            async with AdaptiveGuard(limiter, priority, user):
                return await function(*args, **kwargs)

        return guarded_coroutine if iscoroutinefunction(function) else guarded  # type: ignore[return-value]
