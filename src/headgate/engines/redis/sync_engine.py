"""The sync engine: a pool of connections to every server, and the verbs of the port.

The common case is direct: find the server that owns the key, take a connection, send a request, read the reply.
All else (a script to be loaded, a cluster that has changed) is a flow, and takes no longer than the deadline
either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from threading import Lock
from typing import Any, Generic, TypeVar

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import with_deadline
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.membership import MEMBER_TTL_US
from headgate.engines.port import Meter, Slot
from headgate.engines.redis import protocol, redirects
from headgate.engines.redis.errors import NoScript, RedisError, not_charged
from headgate.engines.redis.overrides import OverrideRequestBuilder, OverrideScan, RedisOverrides
from headgate.engines.redis.protocol import RedisRequest
from headgate.engines.redis.quota_ledger import RedisLedger
from headgate.engines.redis.round_trip_metrics import take_measurements
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.server_engine import NO_JOINT_METER, ServerEngine, ServerMeter
from headgate.engines.redis.sync_late_replies import SyncLateReplies
from headgate.engines.redis.sync_pool import ConnectionPool
from headgate.engines.url_options import DEFAULT_DEADLINE_S
from headgate.errors import CorruptState, EngineUnavailable
from headgate.flow import run

K = TypeVar("K")  # a key, or several
C = TypeVar("C")  # the cost, or the cost of each
R = TypeVar("R")  # the outcome, or the outcome of each

UNDO_TIMEOUT_S = 5.0  # the least time for giving back what came too late


class RedisEngine(ServerEngine):
    """Decides inside Redis or Valkey, by one EVALSHA for each request."""

    def __init__(
        self, url: str, *, prefix: str = "hg", clock: Clock | None = None, deadline: float = DEFAULT_DEADLINE_S
    ) -> None:
        super().__init__(url, prefix=prefix, clock=clock, deadline=deadline)
        self._pools: dict[ServerAddress, ConnectionPool] = {}
        only_pool = None if self.topology.can_fail_over else self.topology.node(b"")
        self.only_pool: ConnectionPool | None = None if only_pool is None else self.pool(only_pool)
        self._discovery_lock = Lock()
        self._threads: ThreadPoolExecutor | None = None  # for requests to several servers
        self._late_replies = SyncLateReplies(self._execute_in_background)
        on_fork(self.reset_after_fork)

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> RedisMeter:
        return RedisMeter(self, limit, name, options)

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> RedisSlotMeter:
        return RedisSlotMeter(self, limit, name, options)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        if patience_us is None and commit:
            meters, keys, costs = zip(*charges, strict=True)
            joint = self.joint_meters.get(meters) or self.bind_jointly(meters, RedisMeter, RedisTakes)
            if joint is not NO_JOINT_METER:
                outcomes: list[Outcome] = joint.decide(keys, costs)
                return outcomes
        try:
            return run(self.decide_flow(charges, RedisMeter, patience_us, commit))
        except RedisError as error:
            raise self.failure(error) from error

    def execute(self, request: RedisRequest, deadline: float | None = None) -> Any:
        """Sends a request and returns the reply, within `deadline` seconds, at most the engine's own.

        A place, slot or ticket is given back if its reply comes when the caller has left.
        """
        seconds = self.deadline if deadline is None else min(deadline, self.deadline)
        deadline_at, is_shorter = time.monotonic() + seconds, seconds < self.deadline
        pool = self.only_pool if self.only_pool is not None else self._pool_of(request.tag)
        load_first = False
        if pool is not None:
            try:
                if request.needs_reply:
                    return self._execute_and_undo_late(pool, request, deadline_at)
                return (pool.execute_queued if is_shorter else pool.execute)(request.packed, deadline_at)
            except RedisError as error:
                if not not_charged(error):
                    self.topology.suspect(pool.address)
                    raise self.failure(error) from error
                # Load it before the next attempt: with slow replies there is no time for a third one.
                load_first = isinstance(error, NoScript)
        return self.execute_with_redirects(request, deadline_at, load_first)

    def _execute_and_undo_late(
        self, pool: ConnectionPool, request: RedisRequest, deadline_at: float, asking: bool = False
    ) -> Any:
        """Sends a request whose reply is undone if the caller has left when it comes."""
        packed = _ASKING + request.packed if asking else request.packed
        on_late_reply = partial(self._late_replies.undo, request) if request.needs_reply else None
        reply = pool.execute_queued(packed, deadline_at, 1 + asking, on_late_reply)
        self._late_replies.note(request, reply)
        return reply

    def execute_with_redirects(self, request: RedisRequest, deadline_at: float, load_first: bool) -> Any:
        """Sends a request, loads its script and follows redirections as needed."""

        def send(address: ServerAddress, sent: RedisRequest, asking: bool) -> Any:
            return self._execute_and_undo_late(self.pool(address), sent, deadline_at, asking)

        try:
            discover = partial(self._discover, request.tag, deadline_at)
            flow = redirects.send_with_redirects(
                self.topology, discover, send, time.sleep, request, deadline_at, load_first
            )
            return run(flow)
        except RedisError as error:
            raise self.failure(error) from error

    def _execute_in_background(self, request: RedisRequest) -> Any:
        """Sends a request that no caller waits for: it may take longer than the engine's deadline."""
        return self.execute_with_redirects(request, time.monotonic() + max(self.deadline, UNDO_TIMEOUT_S), False)

    def _discover(self, tag: bytes, deadline_at: float) -> None:
        """Discovers the servers; one thread does it, the others wait for the result."""
        if self._discovery_lock.acquire(timeout=max(0.0, deadline_at - time.monotonic())):
            try:
                if self.topology.node(tag) is None:
                    run(
                        self.topology.discover(
                            lambda at, packed: self.pool(at).execute_queued(packed, _halfway_to(deadline_at))
                        )
                    )
            finally:
                self._discovery_lock.release()

    def discover(self) -> None:
        """Finds the servers that own keys, unless they are known; raises RedisError if none can tell."""
        self._discover(b"", time.monotonic() + self.deadline)

    def execute_everywhere(self, request: RedisRequest) -> None:
        """Sends one request to every server."""
        try:
            self._discover(b"", time.monotonic() + self.deadline)
            for address in self.topology.servers:
                self.pool(address).execute(request.packed, time.monotonic() + self.deadline)
        except RedisError as error:
            raise self.failure(error) from error

    def overrides(self, rule: str) -> RedisOverrides:
        builder = OverrideRequestBuilder(rule, self.prefix)

        def open_scan() -> OverrideScan:
            try:
                self._discover(b"", time.monotonic() + self.deadline)
            except RedisError as error:
                raise self.failure(error) from error
            return OverrideScan(builder, self.topology, self._execute_at, self.execute_all)

        return RedisOverrides(builder, self.execute, open_scan, self.failure)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> RedisLedger:
        return RedisLedger(self.execute, self.reported_grants(name), self.prefix, limit, name, ttl_us, grace_us)

    def _execute_at(self, address: ServerAddress, request: RedisRequest) -> Any:
        return self.pool(address).execute_queued(request.packed, time.monotonic() + self.deadline)

    def execute_all(self, requests: Sequence[RedisRequest], deadlines: Sequence[float | None] = ()) -> list[Any]:
        """Sends several requests at once, to several servers; an error takes the place of a reply."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(16, "headgate-asks")
        return list(self._threads.map(self._reply_or_error, requests, deadlines or repeat(None)))

    def _reply_or_error(self, request: RedisRequest, deadline: float | None) -> Any:
        try:
            return self.execute(request, deadline)
        except (CorruptState, EngineUnavailable) as error:
            return error.__cause__

    def _pool_of(self, tag: bytes) -> ConnectionPool | None:
        address = self.topology.node(tag)
        return None if address is None else self.pool(address)

    def pool(self, address: ServerAddress) -> ConnectionPool:
        """Returns the connections to one server."""
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools.setdefault(address, ConnectionPool(address, self.deadline))
        return pool

    def heartbeat(self, member_id: str) -> tuple[int, int]:
        """Sends a heartbeat; returns how many processes share the limits, and how many of them rank before this
        one."""
        count, rank = self.execute(protocol.membership_request(self.prefix, "heartbeat", member_id, MEMBER_TTL_US))
        return count, rank

    def leave(self, member_id: str) -> None:
        """Reports that this process shares the limits no more."""
        self.execute(protocol.membership_request(self.prefix, "leave", member_id))

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields the recent round trips to all servers."""
        return take_measurements(pool.round_trips for pool in tuple(self._pools.values()))

    def set_deadline(self, seconds: float) -> None:
        """Changes the engine's own deadline."""
        self.deadline = seconds
        for pool in tuple(self._pools.values()):
            pool.deadline = seconds

    def close(self) -> None:
        """Closes all connections, after what is to be given back."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        pools, until = tuple(self._pools.values()), time.monotonic() + self.deadline
        for pool in pools:
            pool.await_late_replies(until)
        self._late_replies.wait(until)
        for pool in pools:
            pool.close()

    def reset_after_fork(self) -> None:
        """Drops all connections in a forked child: they are the parent's."""
        self._discovery_lock, self._threads = Lock(), None
        self._late_replies.reset_after_fork()
        for pool in self._pools.values():
            pool.reset_after_fork()


_ASKING = protocol.command("ASKING")


def _halfway_to(deadline_at: float) -> float:
    """Returns half of the remaining time, so that a server that does not reply leaves time for the others."""
    return (time.monotonic() + deadline_at) / 2


class RedisTakes(Generic[K, C, R]):
    """Takes by one builder: that of a meter, or of several meters jointly, where keys and costs are tuples."""

    def __init__(self, engine: RedisEngine, builder: Any, deadline: float | None) -> None:
        self.builder: Any = builder
        self._engine, self._deadline = engine, deadline
        self._execute, self._now_us = with_deadline(engine.execute, deadline), engine.clock.now_us
        self._only_pool = None if builder.calendar or builder.has_rule_state else engine.only_pool

    def decide(self, key: K, cost: C, patience_us: int | None = None) -> R:
        builder, pool, engine = self.builder, self._only_pool, self._engine
        if patience_us is not None or pool is None:
            decided: R = run(redirects.decide(self._execute, builder, key, cost, patience_us, self._now_us()))
            return decided
        seconds = engine.deadline if self._deadline is None else min(self._deadline, engine.deadline)
        deadline_at = time.monotonic() + seconds
        try:
            execute = pool.execute if seconds == engine.deadline else pool.execute_queued
            outcome: R = execute((builder, key, cost), deadline_at)
            return outcome
        except RedisError as error:
            if not not_charged(error):
                raise engine.failure(error) from error
            load_first = isinstance(error, NoScript)
        request = builder.decide(key, cost, None, 0)
        parsed: R = builder.parse(engine.execute_with_redirects(request, deadline_at, load_first))
        return parsed


class RedisMeter(RedisTakes[str, int, Outcome], ServerMeter):
    """One limit, bound to the engine."""

    def __init__(self, engine: RedisEngine, limit: Limit, name: str, options: ChargeOptions | None = None) -> None:
        ServerMeter.__init__(self, engine, limit, name, options)
        RedisTakes.__init__(self, engine, self.builder, self._deadline)

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(redirects.refund(self._execute, self.builder, key, units, receipt, cancel, self._now_us()))

    def surcharge(self, key: str, units: int, receipt: Receipt) -> Outcome:
        return run(redirects.surcharge(self._execute, self.builder, key, units, receipt, self._now_us()))

    def retune(self, key: str) -> None:
        if self.builder.can_retune:
            self._execute(self.builder.retune(key))

    def pause(self, key: str, duration_us: int) -> int:
        paused_us: int = self._execute(self.builder.pause(key, duration_us))
        return paused_us

    def reset(self, key: str) -> None:
        self._execute(self.builder.reset(key))


class RedisSlotMeter(ServerMeter):
    """The slots of one limit, bound to the engine."""

    def free(self, key: str) -> Outcome:
        return protocol.parse_slot_outcome(self._execute(self.builder.slots("peek", key)))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return protocol.parse_slot(self._execute(self.builder.acquire(key, ticket, wait)))

    def renew(self, key: str, fence: int) -> int | None:
        return protocol.parse_renewal(self._execute(self.builder.slots("renew", key, fence)))

    def release(self, key: str, fence: int) -> bool:
        return bool(self._execute(self.builder.slots("release", key, fence)))

    def leave(self, key: str, ticket: int) -> None:
        self._execute(self.builder.slots("leave", key, ticket))

    def pause(self, key: str, duration_us: int) -> int:
        paused_us: int = self._execute(self.builder.pause(key, duration_us))
        return paused_us

    def reset(self, key: str) -> None:
        self._execute(self.builder.slots("reset", key))
