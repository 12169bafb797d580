"""Harness of the contract tests: every engine, sync and async, on a clock that the test sets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar, cast

from headgate.clock import Clock, ManualClock
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import AsyncEngine, Engine
from headgate.engines.redis.async_engine import AsyncRedisEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.guard import AsyncGuard
from headgate.lease import AsyncLease
from headgate.limiter import AsyncLimiter, Limiter
from headgate.reservation import AsyncReservation
from headgate.validation import LimitLike
from tests.servers import BASE_US, DrivenClock, RedisServer

T = TypeVar("T")

PATIENCE_S = 20.0  # for an answer on a busy machine: a deadline is nobody's concern here

NAMES = ("memory", "memory awaited", "redis", "redis awaited", "valkey", "valkey awaited")


class SettableClock(Clock, Protocol):
    def set_us(self, now_us: int) -> None: ...


class ServerClock:
    """A server's driven clock, as a limiter sees one: sleeping turns it."""

    def __init__(self, driven: DrivenClock) -> None:
        self.now_us, self.set_us = driven.now_us, driven.set_us

    def sleep_us(self, duration_us: int) -> None:
        self.set_us(self.now_us() + duration_us)

    async def asleep_us(self, duration_us: int) -> None:
        self.sleep_us(duration_us)
        await asyncio.sleep(0)


class EngineHarness:
    """An engine, its clock, and what it keeps. Limiters of the awaited kind are spoken to like the others."""

    def __init__(self, name: str, server: RedisServer | None) -> None:
        self.name = name
        self.server = server
        self.awaited = name.endswith("awaited")
        self.clock: SettableClock = ManualClock(BASE_US) if server is None else ServerClock(server.clock)
        self.loop = asyncio.new_event_loop()
        self._local = MemoryEngine(self.clock)
        self.async_engine: AsyncEngine = AsyncMemoryEngine(self._local)
        self.engine: Engine = self._local
        if server is not None:
            self.async_engine = AsyncRedisEngine(server.unix_url, clock=self.clock, deadline=PATIENCE_S)
            self.engine = RedisEngine(server.unix_url, clock=self.clock, deadline=PATIENCE_S)

    def limiter(self, limit: LimitLike, name: str | None = None, pausable: bool = False) -> Limiter:
        if self.awaited:
            return cast(Limiter, BlockingProxy(self.async_limiter(limit, name, pausable), self.loop))
        return Limiter(limit, self.engine, clock=self.clock, name=name, pausable=pausable)

    def async_limiter(self, limit: LimitLike, name: str | None = None, pausable: bool = False) -> AsyncLimiter:
        return AsyncLimiter(limit, self.async_engine, clock=self.clock, name=name, pausable=pausable)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def seconds(self) -> float:
        """The time, since the test began."""
        return (self.clock.now_us() - BASE_US) / 1_000_000

    def advance_us(self, by_us: int) -> None:
        self.clock.set_us(self.clock.now_us() + by_us)

    def advance(self, seconds: float) -> None:
        self.advance_us(round(seconds * 1_000_000))

    def stored(self) -> dict[object, object]:
        """Returns everything the engine stores, so that two moments can be compared."""
        if self.server is None:
            tables: dict[object, object] = {
                (name, pace, key): repr(state)
                for name, family in self._local._families.items()
                for pace, table in family.items()
                for key, state in table.states.items()
                if state is not None
            }
            slots: dict[object, object] = {
                (name, key): (sorted(table_state.expires_us.items()), list(table_state.queue))
                for name, table in self._local._slots.items()
                for key, table_state in table._keys.items()
            }
            pauses: dict[object, object] = {
                (name, key): state
                for name, paused in self._local._pauses.items()
                for key, state in paused.table.states.items()
                if state is not None
            }
            return {**tables, **slots, **pauses}
        keys = cast(list[bytes], self.server.call("KEYS", "*"))
        return {key: (self.server.call("DUMP", key), self.server.call("PEXPIRETIME", key)) for key in keys}

    def close(self) -> None:
        self.engine.close()
        self.run(self.async_engine.close())
        self.loop.close()


class BlockingProxy:
    """Something of the awaited kind, spoken to as if it answered at once."""

    def __init__(self, thing: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._thing, self._loop = thing, loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return value

        def call(*args: object, **kwargs: object) -> object:
            things = (each._thing if isinstance(each, BlockingProxy) else each for each in args)
            return self._answer(value(*things, **kwargs))

        return call

    def _answer(self, answer: Any) -> Any:
        if inspect.isawaitable(answer):
            answer = self._loop.run_until_complete(cast(Coroutine[Any, Any, Any], answer))
        wraps = isinstance(answer, AsyncLease | AsyncReservation | AsyncGuard)
        return BlockingProxy(answer, self._loop) if wraps else answer

    def __bool__(self) -> bool:
        return bool(self._thing)

    def __enter__(self) -> Any:
        return self._answer(self._thing.__aenter__())

    def __exit__(self, *error: object) -> None:
        self._answer(self._thing.__aexit__(*error))
