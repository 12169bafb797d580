"""The async shell: the same as the sync one, awaited, with idle connections kept for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from headgate.clock import Clock, SystemClock
from headgate.engine.port import AsyncMeter, Slot
from headgate.engine.redis import flows, wire
from headgate.engine.redis.address import Address
from headgate.engine.redis.trouble import Forgot, Late, Lost, Said, Trouble, unavailable
from headgate.engine.redis.wire import Question, Questions
from headgate.errors import InvalidCharge
from headgate.flow import arun
from headgate.model.decision import Facts, Receipt
from headgate.model.limit import Limit
from headgate.model.slots import Slots


class AsyncRedisEngine:
    """Decides inside Redis or Valkey, by one EVALSHA for each question."""

    def __init__(self, url: str, *, prefix: str = "hg", clock: Clock | None = None) -> None:
        self.prefix = prefix
        self.clock = clock or SystemClock()
        self._address = Address(url)
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, list[AbstractConnection]] = WeakKeyDictionary()

    def meter(self, limit: Limit, name: str) -> AsyncRedisMeter:
        return AsyncRedisMeter(self, limit, name)

    def slots(self, limit: Slots, name: str) -> AsyncRedisSlotMeter:
        return AsyncRedisSlotMeter(self, limit, name)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None
    ) -> list[Facts]:
        asked = [(_own(meter).questions, key, cost) for meter, key, cost in charges]
        return await arun(flows.decide_all(self.ask, asked, patience_us, self.clock.now_us()))

    async def ask(self, question: Question) -> Any:
        """One question, one reply. An idle connection that turns out dead is replaced, once."""
        idle = self._idle()
        while True:
            fresh = not idle
            connection = self._address.async_connection() if fresh else idle.pop()
            try:
                reply = await arun(flows.exchange(partial(_send, connection), question))
            except Said as trouble:
                idle.append(connection)
                raise unavailable(self._address.text, self.prefix, trouble) from trouble
            except Trouble as trouble:
                await connection.disconnect(nowait=True)
                if not fresh and isinstance(trouble, Lost):
                    await _drop(idle)
                    continue
                raise unavailable(self._address.text, self.prefix, trouble) from trouble
            except BaseException:
                await connection.disconnect(nowait=True)  # a reply may still be on its way
                raise
            idle.append(connection)
            return reply

    def _idle(self) -> list[AbstractConnection]:
        return self._loops.setdefault(asyncio.get_running_loop(), [])

    def shard(self, key: str) -> int:
        return 0

    async def close(self) -> None:
        await _drop(self._idle())


async def _drop(idle: list[AbstractConnection]) -> None:
    while idle:
        await idle.pop().disconnect(nowait=True)


async def _send(connection: AbstractConnection, packed: bytes) -> Any:
    try:
        await connection.connect()
        await connection.send_packed_command(packed, check_health=False)
        return await connection.read_response()
    except exceptions.ResponseError as error:
        raise (Forgot if isinstance(error, exceptions.NoScriptError) else Said)(str(error)) from error
    except exceptions.TimeoutError as error:
        raise Late(str(error)) from error
    except exceptions.RedisError as error:
        raise Lost(str(error)) from error


class AsyncRedisMeter:
    """The engine's hand on one limit."""

    def __init__(self, engine: AsyncRedisEngine, limit: Limit, name: str) -> None:
        self.limit = limit
        self.name = name
        self.questions = Questions(limit, name, engine.prefix)
        self._ask = engine.ask
        self._now_us = engine.clock.now_us

    async def decide(self, key: str, cost: int, patience_us: int | None = None) -> Facts:
        return await arun(flows.decide(self._ask, self.questions, key, cost, patience_us, self._now_us()))

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Facts:
        flow = flows.refund(self._ask, self.questions, key, units, receipt, cancel, self._now_us())
        return await arun(flow)

    async def retune(self, key: str) -> None:
        if self.questions.retunes:
            await self._ask(self.questions.retune(key))

    async def reset(self, key: str) -> None:
        await self._ask(self.questions.reset(key))


class AsyncRedisSlotMeter:
    """The engine's hand on the slots of one limit."""

    def __init__(self, engine: AsyncRedisEngine, limit: Slots, name: str) -> None:
        self.limit = limit
        self.name = name
        self.questions = Questions(limit, name, engine.prefix)
        self._ask = engine.ask

    async def free(self, key: str) -> Facts:
        return wire.facts(await self._ask(self.questions.slots("peek", key)))

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return wire.slot(await self._ask(self.questions.acquire(key, ticket, wait)))

    async def renew(self, key: str, fence: int) -> int | None:
        return wire.renewed(await self._ask(self.questions.slots("renew", key, fence)))

    async def release(self, key: str, fence: int) -> bool:
        return bool(await self._ask(self.questions.slots("release", key, fence)))

    async def leave(self, key: str, ticket: int) -> None:
        await self._ask(self.questions.slots("leave", key, ticket))

    async def reset(self, key: str) -> None:
        await self._ask(self.questions.slots("reset", key))


def _own(meter: AsyncMeter) -> AsyncRedisMeter:
    if not isinstance(meter, AsyncRedisMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
