"""Guards: a limit around a block or a function, which passes or raises RateLimited.

    with limiter.guard("report"): ...                          @limiter.guard(lambda user: user.id)
    async with async_limiter.guard("report", timeout=2): ...   def send(user): ...

With a timeout the caller waits for its turn, at most that long. Slots are held for as long as the block lasts, and
renewed meanwhile; `decision.lost` is true if that failed, and leaving the block then raises LeaseLost.

A generator is guarded from its first value until it ends or is closed. A Limiter does not guard coroutine
functions: it would block their loop, and release its slot before they run. AsyncLimiter does.

A bare @limiter.guard has no key: it takes the function for one that forms the key. That raises InvalidCharge at
once where the function cannot do so (it is awaited, or a generator), otherwise when it is called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from headgate import limiter_flows
from headgate.algorithms.decision import Decision
from headgate.errors import InvalidCharge
from headgate.flow import arun, run
from headgate.lease import AsyncLease, Lease
from headgate.validation import check_key

if TYPE_CHECKING:
    from headgate.limiter import AsyncLimiter, Limiter

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I", bound=AsyncIterator[Any])  # noqa: E741
L = TypeVar("L", bound="Limiter | AsyncLimiter")
H = TypeVar("H", Lease, AsyncLease)

C = TypeVar("C", bound=Callable[..., Any])

Key = str | Callable[..., str]


NO_KEY = (
    'A guard needs a key: write @limiter.guard("key"), or @limiter.guard(lambda user: user) '
    "to form it from the function's arguments."
)


def _check_key(key: object) -> None:
    """Raises InvalidCharge unless this is a key, or a function that can return one."""
    if not callable(key):
        check_key(key)
    elif _is_any(key, iscoroutinefunction, isasyncgenfunction, isgeneratorfunction):
        raise InvalidCharge(NO_KEY)


def _decorator(decorate: C) -> C:
    """Makes __call__ raise InvalidCharge for anything but one function: a guard without a key is called like
    that."""

    @wraps(decorate)
    def decorate_checked(self: object, *args: object, **kwargs: object) -> Any:
        functions = (*args, *kwargs.values())
        if len(functions) != 1 or not callable(functions[0]) or not kwargs.keys() <= {"function"}:
            raise InvalidCharge(NO_KEY)
        return decorate(self, functions[0])

    return cast(C, decorate_checked)


class _GuardBase(Generic[L, H]):
    """The limiter, key, cost and timeout of a guard, and the slots that its blocks hold."""

    def __init__(self, limiter: L, key: Key, cost: int, timeout: float) -> None:
        self.limiter = limiter
        if key.__class__ is not str or not key:
            _check_key(key)
        self.key = key
        self.cost = cost
        self.timeout = timeout
        self._leases: list[H] = []  # of the blocks that are running, the innermost last

    def _fixed_key(self) -> str:
        if callable(self.key):
            raise InvalidCharge("A key that is a function needs a call to look at: use guard as a decorator.")
        return self.key

    def _key_of(self, *args: object, **kwargs: object) -> str:
        return self.key(*args, **kwargs) if callable(self.key) else self.key


class Guard(_GuardBase["Limiter", Lease]):
    """Guards a block, or each call of a function."""

    def __enter__(self) -> Decision:
        key = self._fixed_key()
        if self.limiter.holds_slots:
            lease = self.limiter.acquire(key, self.timeout)
            self._leases.append(lease.__enter__())
            return lease.decision
        if self.timeout:
            return self.limiter.wait(key, self.cost, self.timeout).or_raise()
        decision = self.limiter.take(key, self.cost).or_raise()
        run(limiter_flows.serve(decision, self.limiter.clock.sleep_us))
        return decision

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leases:
            self._leases.pop().__exit__(kind, error, trace)

    @_decorator
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if _is_any(function, iscoroutinefunction, isasyncgenfunction):
            raise InvalidCharge(
                f"{_name(function)} is awaited, and a Limiter's guard would end before it runs: use AsyncLimiter."
            )

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            with Guard(self.limiter, self._key_of(*args, **kwargs), self.cost, self.timeout):
                return function(*args, **kwargs)

        @wraps(function)
        def guarded_generator(*args: P.args, **kwargs: P.kwargs) -> Any:
            with Guard(self.limiter, self._key_of(*args, **kwargs), self.cost, self.timeout):
                generator: Any = function(*args, **kwargs)
                return (yield from generator)

        return guarded_generator if _is_any(function, isgeneratorfunction) else guarded


class AsyncGuard(_GuardBase["AsyncLimiter", AsyncLease]):
    """Guards an async block, or each call of a coroutine function or async generator."""

    async def __aenter__(self) -> Decision:
        key = self._fixed_key()
        if self.limiter.holds_slots:
            lease = await self.limiter.acquire(key, self.timeout)
            self._leases.append(await lease.__aenter__())
            return lease.decision
        if self.timeout:
            return (await self.limiter.wait(key, self.cost, self.timeout)).or_raise()
        decision = (await self.limiter.take(key, self.cost)).or_raise()
        await arun(limiter_flows.serve(decision, self.limiter.clock.asleep_us))
        return decision

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._leases:
            await self._leases.pop().__aexit__(kind, error, trace)

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, I]) -> Callable[P, I]: ...

    @_decorator
    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        if _is_any(function, isgeneratorfunction):
            raise InvalidCharge(f"{_name(function)} is a sync generator: use Limiter, or make it async.")

        @wraps(function)
        async def guarded(*args: P.args, **kwargs: P.kwargs) -> Any:
            async with AsyncGuard(self.limiter, self._key_of(*args, **kwargs), self.cost, self.timeout):
                return await function(*args, **kwargs)

        @wraps(function)
        async def guarded_generator(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Any]:
            async with AsyncGuard(self.limiter, self._key_of(*args, **kwargs), self.cost, self.timeout):
                generator: Any = function(*args, **kwargs)
                step = generator.__anext__()
                try:
                    while True:
                        value = await step
                        try:
                            step = generator.asend((yield value))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = generator.athrow(error)
                except StopAsyncIteration:
                    pass
                finally:
                    await generator.aclose()

        return guarded_generator if _is_any(function, isasyncgenfunction) else guarded


def _is_any(function: Any, *kinds: Callable[[Any], bool]) -> bool:
    """Returns whether this is a function of one of these kinds, or an object that is called like one."""
    return any(kind(function) or kind(getattr(function, "__call__", None)) for kind in kinds)  # noqa: B004


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__
