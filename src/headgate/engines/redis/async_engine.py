"""The async engine: a batcher to every server for every event loop, and the verbs of the port.

With a single server takes go straight into its batcher, where those that come together share a round trip. Where
servers may change (a cluster, sentinels) a request may have to be sent again elsewhere: by the same flow as in the
sync engine.

A caller may be cancelled while its request is in flight: async_late_replies.py says what becomes of the reply.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import Any, Generic, TypeVar

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import with_deadline
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.membership import MEMBER_TTL_US
from headgate.engines.port import AsyncMeter, Slot
from headgate.engines.redis import protocol, redirects
from headgate.engines.redis.async_batcher import AsyncBatcher
from headgate.engines.redis.async_late_replies import AsyncLateReplies
from headgate.engines.redis.errors import RedisError, TimedOut, not_charged
from headgate.engines.redis.overrides import AsyncRedisOverrides, OverrideRequestBuilder, OverrideScan
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.quota_ledger import AsyncRedisLedger
from headgate.engines.redis.round_trip_metrics import take_measurements
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.server_engine import NO_JOINT_METER, ServerEngine, ServerMeter
from headgate.engines.url_options import DEFAULT_DEADLINE_S
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import arun

K = TypeVar("K")  # a key, or several
C = TypeVar("C")  # the cost, or the cost of each
R = TypeVar("R")  # the outcome, or the outcome of each

_PING = RedisRequest(protocol.command("PING"), None)
_inherited_hooks: list[object] = []  # in a forked child: collecting them would wake the parent's loop


class AsyncRedisEngine(ServerEngine):
    """Decides inside Redis or Valkey; calls that come together share a round trip."""

    def __init__(
        self, url: str, *, prefix: str = "hg", clock: Clock | None = None, deadline: float = DEFAULT_DEADLINE_S
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock, deadline=deadline)
        self.only_server: ServerAddress | None = None if self.topology.can_fail_over else self.topology.node(b"")
        self.reset_after_fork()
        on_fork(self.reset_after_fork)

    def reset_after_fork(self) -> None:
        """Drops all loops and batchers in a forked child: they are the parent's."""
        if hooks := self.__dict__.get("_loop_end_hooks"):
            _inherited_hooks.append(hooks)
        self._loops: dict[AbstractEventLoop, dict[ServerAddress, AsyncBatcher]] = {}
        self._loop_end_hooks: dict[AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._discoveries: dict[AbstractEventLoop, asyncio.Task[None]] = {}
        self.late_replies: AsyncLateReplies = AsyncLateReplies(self.execute, self.execute_all)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> AsyncRedisMeter:
        return AsyncRedisMeter(self, limit, name, options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> AsyncRedisSlotMeter:
        return AsyncRedisSlotMeter(self, limit, name, options)

    async def decide_all(
        self, charges: Sequence[tuple[AsyncMeter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        if patience_us is None and commit and (take := self.bind_takes(charges)) is not None:
            return await take()
        try:
            return await arun(self.decide_flow(charges, AsyncRedisMeter, patience_us, commit))
        except RedisError as error:
            raise self.failure(error) from error

    def bind_takes(
        self, charges: Sequence[tuple[AsyncMeter, str, int]]
    ) -> Callable[[], Awaitable[list[Outcome]]] | None:
        """Returns a function that takes several charges jointly; None if they need take_all."""
        meters, keys, costs = zip(*charges, strict=True)
        joint = self.joint_meters.get(meters) or self.bind_jointly(meters, AsyncRedisMeter, AsyncRedisTakes)
        return None if joint is NO_JOINT_METER else partial(joint.decide, keys, costs)

    def execute(self, request: RedisRequest, deadline: float | None = None) -> Awaitable[Any]:
        """Sends a request and returns the reply, within `deadline` seconds, at most the engine's own."""
        if self.only_server is None:
            return self.execute_with_redirects(request, deadline)
        if request.needs_reply:
            return self._execute_at_server(self.only_server, request, False, deadline)
        return self.batcher(self.only_server).execute(request, False, deadline)

    async def _execute_at_server(
        self, address: ServerAddress, request: RedisRequest, asking: bool = False, deadline: float | None = None
    ) -> Any:
        """Sends a request to one server."""
        future = self.batcher(address).execute(request, asking, deadline)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled in the very turn of the loop in which the reply came.
            if request.needs_reply and _has_reply(future):
                self.late_replies.undo(request, future.result())
            raise

    async def execute_with_redirects(self, request: RedisRequest, deadline: float | None = None) -> Any:
        """Sends a request to the owner of its key, and follows redirections, within the deadline."""
        address = self.topology.node(request.tag)
        deadline_at = time.monotonic() + (self.deadline if deadline is None else min(deadline, self.deadline))
        if address is not None:
            try:
                return await self._execute_at_server(address, request, False, deadline)
            except EngineUnavailable as error:
                if not self.may_send_again(error, address):
                    raise
        try:
            async with asyncio.timeout(deadline_at - time.monotonic()):
                flow = redirects.send_with_redirects(
                    self.topology, self._discover, self._send, asyncio.sleep, request, deadline_at
                )
                return await arun(flow)
        except TimeoutError:
            timed_out = TimedOut("no reply in time")
            raise self.failure(timed_out) from timed_out
        except RedisError as error:
            raise self.failure(error) from error

    def may_send_again(self, error: EngineUnavailable, address: ServerAddress) -> bool:
        """Returns whether the request was surely not charged, and may be sent again."""
        cause = error.__cause__
        uncharged = isinstance(cause, RedisError) and not_charged(cause)
        if not uncharged:
            self.topology.suspect(address)
        return uncharged

    async def _discover(self) -> None:
        """Discovers the servers; one task does it, the others wait for the result."""
        loop = get_running_loop()
        discovery = self._discoveries.get(loop)
        if discovery is None:
            discovery = self._discoveries[loop] = loop.create_task(
                arun(self.topology.discover(self._discovery_execute))
            )
            discovery.add_done_callback(lambda discovery: self._discovery_done(loop, discovery))
        await asyncio.shield(discovery)

    def _discovery_done(self, loop: AbstractEventLoop, discovery: asyncio.Task[None]) -> None:
        self._discoveries.pop(loop, None)
        if not discovery.cancelled():
            discovery.exception()  # retrieve it: the callers that wait got it

    async def _discovery_execute(self, address: ServerAddress, packed: bytes) -> Any:
        try:
            # A server that does not reply leaves half of the time for the others.
            async with asyncio.timeout(self.deadline / 2):
                return await self._send(address, RedisRequest(packed, None), False)
        except TimeoutError:
            raise TimedOut("no reply in time") from None

    async def _send(self, address: ServerAddress, request: RedisRequest, asking: bool) -> Any:
        try:
            return await self._execute_at_server(address, request, asking)
        except EngineUnavailable as error:
            if isinstance(error.__cause__, RedisError):
                raise error.__cause__ from None
            raise

    def overrides(self, rule: str) -> AsyncRedisOverrides:
        builder = OverrideRequestBuilder(rule, self.prefix)

        async def open_scan() -> OverrideScan:
            try:
                if self.topology.node(b"") is None:
                    await self._discover()
            except RedisError as error:
                raise self.failure(error) from error
            return OverrideScan(builder, self.topology, self._execute_at_master, self.execute_all)

        return AsyncRedisOverrides(builder, self.execute, open_scan, self.failure)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> AsyncRedisLedger:
        return AsyncRedisLedger(
            self.execute, self.reported_grants(name), self.prefix, limit, name, ttl_us, grace_us
        )

    async def _execute_at_master(self, address: ServerAddress, request: RedisRequest) -> Any:
        return await self._send(address, request, False)

    async def execute_all(
        self, requests: Sequence[RedisRequest], deadlines: Sequence[float | None] = ()
    ) -> list[Any]:
        """Sends several requests at once, to several servers; an error takes the place of a reply.

        All of them are sent, also if the caller leaves.
        """
        replies = asyncio.gather(*map(self._reply_or_error, requests, deadlines or repeat(None)))
        try:
            return await asyncio.shield(replies)
        except asyncio.CancelledError:
            self.late_replies.undo_all(requests, replies)
            raise

    async def _reply_or_error(self, request: RedisRequest, deadline: float | None) -> Any:
        try:
            return await self.execute(request, deadline)
        except (CorruptState, EngineUnavailable) as error:
            return error.__cause__

    def batcher(self, address: ServerAddress) -> AsyncBatcher:
        """Returns the batcher to that server on the running loop."""
        loop = get_running_loop()
        batchers = self._loops.get(loop)
        if batchers is None:
            batchers = self._new_batchers(loop)
        batcher = batchers.get(address)
        if batcher is None:
            batcher = batchers[address] = AsyncBatcher(
                loop, address, self.deadline, self.failure, self.late_replies.undo
            )
        return batcher

    def _new_batchers(self, loop: AbstractEventLoop) -> dict[ServerAddress, AsyncBatcher]:
        """Registers a loop that has no batchers yet."""
        for closed_loop in [each for each in tuple(self._loops) if each.is_closed()]:
            for by_loop in (self._loops, self._loop_end_hooks, self._discoveries):
                by_loop.pop(closed_loop, None)
        batchers = self._loops[loop] = {}
        hook = self._loop_end_hooks[loop] = _close_at_loop_end(batchers)
        with suppress(StopIteration):
            hook.__anext__().send(None)
        return batchers

    async def heartbeat(self, member_id: str) -> tuple[int, int]:
        """Sends a heartbeat; returns how many processes share the limits, and how many of them rank before this
        one."""
        count, rank = await self.execute(
            protocol.membership_request(self.prefix, "heartbeat", member_id, MEMBER_TTL_US)
        )
        return count, rank

    async def leave(self, member_id: str) -> None:
        """Reports that this process shares the limits no more."""
        await self.execute(protocol.membership_request(self.prefix, "leave", member_id))

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields the recent round trips to all servers."""
        return take_measurements(
            batcher.round_trips for batchers in tuple(self._loops.values()) for batcher in tuple(batchers.values())
        )

    def set_deadline(self, seconds: float) -> None:
        """Changes the engine's own deadline."""
        self.deadline = seconds
        for batchers in tuple(self._loops.values()):
            for batcher in tuple(batchers.values()):
                batcher.set_deadline(seconds)

    async def close(self) -> None:
        """Closes all connections of this loop, after what is to be given back. A later request opens new ones."""
        batchers = tuple(self._loops.get(get_running_loop(), {}).values())
        # Replies come in the order of the requests: this one comes after those that must be undone.
        pings = [each.execute(_PING) for each in batchers if each.has_late_replies]
        late_replies = [
            each.silent_connections.wait(self.deadline) for each in batchers if each.silent_connections
        ]
        await asyncio.gather(*pings, *late_replies, return_exceptions=True)
        await self.late_replies.wait_until_done()
        for batcher in batchers:
            batcher.close()
        await asyncio.sleep(0)  # transports close in the next turn of the loop


class AsyncRedisTakes(Generic[K, C, R]):
    """Takes by one builder: that of a meter, or of several meters jointly, where keys and costs are tuples."""

    def __init__(self, engine: AsyncRedisEngine, builder: Any, deadline: float | None) -> None:
        self.builder: Any = builder
        self._engine, self._deadline = engine, deadline
        self._execute, self._now_us = with_deadline(engine.execute, deadline), engine.clock.now_us
        self._can_batch = engine.topology.any_keys_together and not builder.calendar and not builder.has_rule_state
        self._bound_take: tuple[AbstractEventLoop | None, Callable[[K, C], Awaitable[R]]] = None, self._take

    def decide(self, key: K, cost: C, patience_us: int | None = None) -> Awaitable[R]:
        if patience_us is None and self._can_batch:
            loop, take = self._bound_take
            if loop is get_running_loop():
                return take(key, cost)
            return self._take(key, cost)
        return arun(redirects.decide(self._execute, self.builder, key, cost, patience_us, self._now_us()))

    def _take(self, key: K, cost: C) -> Awaitable[R]:
        only_server = self._engine.only_server
        if only_server is None:
            return self._take_from_master(key, cost)
        self._bound_take = (
            get_running_loop(),
            self._engine.batcher(only_server).bind_take(self.builder, self._deadline),
        )
        return self._bound_take[1](key, cost)

    async def _take_from_master(self, key: K, cost: C) -> R:
        engine = self._engine
        master = engine.topology.node(b"")
        if master is not None:
            try:
                outcome: R = await engine.batcher(master).bind_take(self.builder, self._deadline)(key, cost)
                return outcome
            except EngineUnavailable as error:
                if not engine.may_send_again(error, master):
                    raise
        request = self.builder.decide(key, cost, None, 0)
        parsed: R = self.builder.parse(await engine.execute_with_redirects(request, self._deadline))
        return parsed


class AsyncRedisMeter(AsyncRedisTakes[str, int, Outcome], ServerMeter):
    """One limit, bound to the engine."""

    def __init__(
        self, engine: AsyncRedisEngine, limit: Limit, name: str, options: ChargeOptions | None = None
    ) -> None:
        ServerMeter.__init__(self, engine, limit, name, options)
        AsyncRedisTakes.__init__(self, engine, self.builder, self._deadline)

    async def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        execute = (
            with_deadline(self._engine.late_replies.execute_and_note, self._deadline) if cancel else self._execute
        )
        flow = redirects.refund(execute, self.builder, key, units, receipt, cancel, self._now_us())
        return await arun(flow)

    async def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        return await arun(redirects.surcharge(self._execute, self.builder, key, units, receipt, self._now_us()))

    async def retune(self, key: str) -> None:
        if self.builder.can_retune:
            await self._execute(self.builder.retune(key))

    async def pause(self, key: str, duration_us: int) -> int:
        paused_us: int = await self._execute(self.builder.pause(key, duration_us))
        return paused_us

    async def reset(self, key: str) -> None:
        await self._execute(self.builder.reset(key))


class AsyncRedisSlotMeter(ServerMeter):
    """The slots of one limit, bound to the engine."""

    async def free(self, key: str) -> Outcome:
        return protocol.parse_slot_outcome(await self._execute(self.builder.slots("peek", key)))

    async def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return protocol.parse_slot(await self._execute(self.builder.acquire(key, ticket, wait)))

    async def renew(self, key: str, fence: int) -> int | None:
        return protocol.parse_renewal(await self._execute(self.builder.slots("renew", key, fence)))

    async def release(self, key: str, fence: int) -> bool:
        return bool(await self._execute(self.builder.slots("release", key, fence)))

    async def leave(self, key: str, ticket: int) -> None:
        await self._execute(self.builder.slots("leave", key, ticket))

    async def pause(self, key: str, duration_us: int) -> int:
        paused_us: int = await self._execute(self.builder.pause(key, duration_us))
        return paused_us

    async def reset(self, key: str) -> None:
        await self._execute(self.builder.slots("reset", key))


async def _close_at_loop_end(batchers: dict[ServerAddress, AsyncBatcher]) -> AsyncGenerator[None, None]:
    """Closes the batchers when the loop ends: asyncio.run ends all async generators before it closes the loop."""
    try:
        yield
    finally:
        for batcher in batchers.values():
            batcher.close()


def _has_reply(future: asyncio.Future[Any]) -> bool:
    """Returns whether the future has a result."""
    return future.done() and not future.cancelled() and future.exception() is None
