"""The async shell: a channel to every server for every event loop, and the verbs of the port.

With a single server takes go straight into its channel, where those that come together share a round trip. Where
servers change places (a cluster, sentinels) a question may have to be asked again elsewhere: that is the same flow
as in the sync shell.

A caller may be cancelled while its question is on the way: abandoned.py tells what becomes of the answer.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import deadline_of, within
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.membership import TTL_US
from headgate.engines.port import AsyncMeter, Slot
from headgate.engines.quota_ledger import Told
from headgate.engines.redis import cross_slot, keys, protocol, redirects
from headgate.engines.redis.async_batcher import AsyncBatcher
from headgate.engines.redis.async_late_replies import AsyncLateReplies
from headgate.engines.redis.errors import RedisError, TimedOut, failure, not_charged
from headgate.engines.redis.overrides import AsyncRedisOverrides, OverrideRequestBuilder, OverrideScan
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.quota_ledger import AsyncRedisLedger
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_engine import DEADLINE, RULE
from headgate.engines.redis.topology import Topology, topology
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.flow import arun

_PING = RedisRequest(protocol.command("PING"), None)
_inherited: list[object] = []  # in a forked child, what would wake the parent's loop if it were let go


class AsyncRedisEngine:
    """Decides inside Redis or Valkey; calls that come together share a round trip."""

    def __init__(
        self, url: str, *, prefix: str = "hg", clock: Clock | None = None, deadline: float = DEADLINE
    ) -> None:
        self.prefix = prefix
        self.clock: Clock = clock or SystemClock()
        self.deadline: float = deadline
        self.topology: Topology = topology(url)
        self._told: dict[str, Told] = {}
        self.only: ServerAddress | None = None if self.topology.can_fail_over else self.topology.node(b"")
        self.forget()
        on_fork(self.forget)

    def forget(self) -> None:
        """In a forked child: those loops and channels are the parent's."""
        if ends := self.__dict__.get("_ends"):
            _inherited.append(ends)
        self._loops: dict[AbstractEventLoop, dict[ServerAddress, AsyncBatcher]] = {}
        self._ends: dict[AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._searches: dict[AbstractEventLoop, asyncio.Task[None]] = {}
        self.abandoned: AsyncLateReplies = AsyncLateReplies(self.ask, self.ask_all)

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> AsyncRedisMeter:
        return AsyncRedisMeter(self, limit, name, terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> AsyncRedisSlotMeter:
        return AsyncRedisSlotMeter(self, limit, name, terms)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        asked = [(_own(meter).questions, key, cost) for meter, key, cost in charges]
        now_us, deadline = self.clock.now_us(), deadline_of([meter for meter, _, _ in charges])
        ask = within(self.ask, deadline)
        if self.topology.any_keys_together:
            return await arun(redirects.decide_all(ask, asked, patience_us, now_us, commit))
        flow = cross_slot.decide_by_slot(ask, self.ask_all, asked, patience_us, now_us, commit, deadline)
        try:
            return await arun(flow)
        except RedisError as trouble:
            raise self._failure(trouble) from trouble

    def ask(self, question: RedisRequest, deadline: float | None = None) -> Awaitable[Any]:
        """One question, one reply; in so many seconds, at most the engine's own deadline."""
        if self.only is None:
            return self.ask_around(question, deadline)
        if question.needs_reply:
            return self._ask_of(self.only, question, False, deadline)
        return self.channel(self.only).ask(question, False, deadline)

    async def _ask_of(
        self, address: ServerAddress, question: RedisRequest, for_now: bool = False, deadline: float | None = None
    ) -> Any:
        """One question, asked of that server."""
        seat = self.channel(address).ask(question, for_now, deadline)
        try:
            return await seat
        except asyncio.CancelledError:
            if question.needs_reply and _answered(seat):  # in the very turn in which the answer has come
                self.abandoned.left(question, seat.result())
            raise

    async def ask_around(self, question: RedisRequest, deadline: float | None = None) -> Any:
        """One question, asked of whoever answers for its key, within the deadline."""
        address = self.topology.node(question.tag)
        by = time.monotonic() + (self.deadline if deadline is None else min(deadline, self.deadline))
        if address is not None:
            try:
                return await self._ask_of(address, question, False, deadline)
            except EngineUnavailable as error:
                if not self.ask_again(error, address):
                    raise
        try:
            async with asyncio.timeout(by - time.monotonic()):
                return await arun(
                    redirects.send_with_redirects(
                        self.topology, self._discover, self._send, asyncio.sleep, question, by
                    )
                )
        except TimeoutError:
            late = TimedOut("no reply in time")
            raise self._failure(late) from late
        except RedisError as trouble:
            raise self._failure(trouble) from trouble

    def ask_again(self, error: EngineUnavailable, address: ServerAddress) -> bool:
        """Whether the question was surely not charged, and may be asked elsewhere."""
        trouble = error.__cause__
        again = isinstance(trouble, RedisError) and not_charged(trouble)
        if not again:
            self.topology.suspect(address)
        return again

    async def _discover(self) -> None:
        """One looks, the others wait for what is found."""
        loop = get_running_loop()
        search = self._searches.get(loop)
        if search is None:
            search = self._searches[loop] = loop.create_task(arun(self.topology.discover(self._ask_at)))
            search.add_done_callback(lambda search: self._found(loop, search))
        await asyncio.shield(search)

    def _found(self, loop: AbstractEventLoop, search: asyncio.Task[None]) -> None:
        self._searches.pop(loop, None)
        if not search.cancelled():
            search.exception()  # who waited has heard it

    async def _ask_at(self, address: ServerAddress, words: bytes) -> Any:
        try:
            # One that does not answer leaves half of the time for the others.
            async with asyncio.timeout(self.deadline / 2):
                return await self._send(address, RedisRequest(words, None), False)
        except TimeoutError:
            raise TimedOut("no reply in time") from None

    async def _send(self, address: ServerAddress, question: RedisRequest, for_now: bool) -> Any:
        try:
            return await self._ask_of(address, question, for_now)
        except EngineUnavailable as error:
            if isinstance(error.__cause__, RedisError):
                raise error.__cause__ from None
            raise

    def overrides(self, rule: str) -> AsyncRedisOverrides:
        questions = OverrideRequestBuilder(rule, self.prefix)

        async def listing() -> OverrideScan:
            try:
                if self.topology.node(b"") is None:
                    await self._discover()
            except RedisError as trouble:
                raise self._failure(trouble) from trouble
            return OverrideScan(questions, self.topology, self._ask_master, self.ask_all)

        return AsyncRedisOverrides(questions, self.ask, listing, self._failure)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncRedisLedger:
        known = self._told.setdefault(name, Told())
        return AsyncRedisLedger(self.ask, known, self.prefix, limit, name, ttl_us, grace_us)

    async def _ask_master(self, address: ServerAddress, question: RedisRequest) -> Any:
        return await self._send(address, question, False)

    async def ask_all(
        self, questions: Sequence[RedisRequest], deadlines: Sequence[float | None] = ()
    ) -> list[Any]:
        """Several questions at once, of several servers; trouble stands in the place of a reply. All of them are
        asked, also if the caller leaves."""
        asked = asyncio.gather(*map(self._tried, questions, deadlines or repeat(None)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            self.abandoned.all_left(questions, asked)
            raise

    async def _tried(self, question: RedisRequest, deadline: float | None) -> Any:
        try:
            return await self.ask(question, deadline)
        except (CorruptState, EngineUnavailable) as error:
            return error.__cause__

    def channel(self, address: ServerAddress) -> AsyncBatcher:
        """The way to that server from the running loop."""
        loop = get_running_loop()
        channels = self._loops.get(loop)
        if channels is None:
            channels = self._enter(loop)
        channel = channels.get(address)
        if channel is None:
            channel = channels[address] = AsyncBatcher(
                loop, address, self.deadline, self._failure, self.abandoned.left
            )
        return channel

    def _enter(self, loop: AbstractEventLoop) -> dict[ServerAddress, AsyncBatcher]:
        """The channels of a loop that is new here."""
        for ended in [each for each in tuple(self._loops) if each.is_closed()]:
            for kept in (self._loops, self._ends, self._searches):
                kept.pop(ended, None)
        channels = self._loops[loop] = {}
        end = self._ends[loop] = _until_the_loop_ends(channels)
        with suppress(StopIteration):
            end.__anext__().send(None)
        return channels

    async def beat(self, member_id: str) -> tuple[int, int]:
        """Say that this process shares the limits: how many do, and how many of them come before it."""
        count, rank = await self.ask(protocol.member(self.prefix, "beat", member_id, TTL_US))
        return count, rank

    async def leave(self, member_id: str) -> None:
        """Say that it does no more."""
        await self.ask(protocol.member(self.prefix, "leave", member_id))

    def shard(self, key: str) -> Hashable:
        return 0 if self.topology.any_keys_together else self.topology.owner(keys.escaped(key))

    def laws(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield "engine", f"{self.topology.text}: {RULE}; no call waits longer than {self.deadline:g} s"

    def _failure(self, trouble: RedisError) -> EngineUnavailable | CorruptState:
        return failure(
            self.topology.text, self.prefix, trouble, self.topology.other_url, self.topology.without_tls
        )

    def set_deadline(self, seconds: float) -> None:
        """Another deadline of the engine's own from now on."""
        self.deadline = seconds
        for channels in tuple(self._loops.values()):
            for channel in tuple(channels.values()):
                channel.set_deadline(seconds)

    async def close(self) -> None:
        """Close what leads to the servers from this loop, after what is to be given back. Whoever asks again opens
        it again."""
        channels = tuple(self._loops.get(get_running_loop(), {}).values())
        # Replies come in the order of the questions: this one comes after those that nobody else waits for.
        pings = [each.ask(_PING) for each in channels if each.awaits_for_others]
        late = [each.lingering.wait(self.deadline) for each in channels if each.lingering]
        await asyncio.gather(*pings, *late, return_exceptions=True)
        await self.abandoned.settled()
        for channel in channels:
            channel.close()
        await asyncio.sleep(0)  # transports say goodbye in the next turn of the loop


class AsyncRedisMeter:
    """The engine's hand on one limit."""

    def __init__(
        self, engine: AsyncRedisEngine, limit: Limit, name: str, terms: ChargeOptions | None = None
    ) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self.questions: RequestBuilder = RequestBuilder(limit, name, engine.prefix, terms)
        self._engine = engine
        self._deadline = deadline_of([self])
        self._ask = within(engine.ask, self._deadline)
        self._now_us = engine.clock.now_us
        self._joins = (
            engine.topology.any_keys_together and not self.questions.calendar and not self.questions.has_rule_state
        )
        self._here: tuple[AbstractEventLoop | None, Callable[[str, int], Awaitable[Outcome]]] = None, self._take

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Awaitable[Outcome]:
        if patience_us is None and self._joins:
            loop, take = self._here
            if loop is get_running_loop():
                return take(key, cost)
            return self._take(key, cost)
        return arun(redirects.decide(self._ask, self.questions, key, cost, patience_us, self._now_us()))

    def _take(self, key: str, cost: int) -> Awaitable[Outcome]:
        only = self._engine.only
        if only is None:
            return self._take_of_the_master(key, cost)
        self._here = get_running_loop(), self._engine.channel(only).taker(self.questions, self._deadline)
        return self._here[1](key, cost)

    async def _take_of_the_master(self, key: str, cost: int) -> Outcome:
        engine = self._engine
        master = engine.topology.node(b"")
        if master is not None:
            try:
                facts: Outcome = await engine.channel(master).taker(self.questions, self._deadline)(key, cost)
                return facts
            except EngineUnavailable as error:
                if not engine.ask_again(error, master):
                    raise
        return protocol.facts(await engine.ask_around(self.questions.decide(key, cost, None, 0), self._deadline))

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        ask = within(self._engine.abandoned.ask_noting, self._deadline) if cancel else self._ask
        flow = redirects.refund(ask, self.questions, key, units, receipt, cancel, self._now_us())
        return await arun(flow)

    async def retune(self, key: str) -> None:
        if self.questions.can_retune:
            await self._ask(self.questions.retune(key))

    async def reset(self, key: str) -> None:
        await self._ask(self.questions.reset(key))


class AsyncRedisSlotMeter:
    """The engine's hand on the slots of one limit."""

    def __init__(
        self, engine: AsyncRedisEngine, limit: Slots, name: str, terms: ChargeOptions | None = None
    ) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self.questions: RequestBuilder = RequestBuilder(limit, name, engine.prefix)
        self._ask = within(engine.ask, deadline_of([self]))

    async def free(self, key: str) -> Outcome:
        return protocol.facts(await self._ask(self.questions.slots("peek", key)))

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return protocol.slot(await self._ask(self.questions.acquire(key, ticket, wait)))

    async def renew(self, key: str, fence: int) -> int | None:
        return protocol.parse_renewal(await self._ask(self.questions.slots("renew", key, fence)))

    async def release(self, key: str, fence: int) -> bool:
        return bool(await self._ask(self.questions.slots("release", key, fence)))

    async def leave(self, key: str, ticket: int) -> None:
        await self._ask(self.questions.slots("leave", key, ticket))

    async def reset(self, key: str) -> None:
        await self._ask(self.questions.slots("reset", key))


async def _until_the_loop_ends(channels: dict[ServerAddress, AsyncBatcher]) -> AsyncGenerator[None, None]:
    """Before asyncio.run closes its loop it ends all async generators: so nothing is left open there."""
    try:
        yield
    finally:
        for channel in channels.values():
            channel.close()


def _answered(seat: asyncio.Future[Any]) -> bool:
    return seat.done() and not seat.cancelled() and seat.exception() is None


def _own(meter: AsyncMeter) -> AsyncRedisMeter:
    if not isinstance(meter, AsyncRedisMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
