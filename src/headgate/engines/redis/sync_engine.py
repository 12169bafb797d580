"""The sync shell: a pool of connections to every server, and the verbs of the port.

The common way is straight: who answers for the key, a connection, a question, a reply. Everything else (a script
to be loaded, a cluster that has moved) is a flow, and takes no longer than the deadline either.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import repeat
from threading import Lock
from typing import Any

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import deadline_of, within
from headgate.engines.fork_reset import on_fork
from headgate.engines.layers.fallback.membership import TTL_US
from headgate.engines.port import Meter, Slot
from headgate.engines.quota_ledger import Told
from headgate.engines.redis import cross_slot, keys, protocol, redirects
from headgate.engines.redis.errors import NoScript, RedisError, failure, not_charged
from headgate.engines.redis.overrides import OverrideRequestBuilder, OverrideScan, RedisOverrides
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.quota_ledger import RedisLedger
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.sync_late_replies import SyncLateReplies
from headgate.engines.redis.sync_pool import ConnectionPool
from headgate.engines.redis.topology import Topology, topology
from headgate.engines.url_options import PATIENT
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.flow import run

GIVE_BACK_S = 5.0  # that giving back what came too late may take at least
DEADLINE = PATIENT  # seconds that a question may take, unless another number is given
RULE = "decided there, by one script and the server's clock, the same for every process"


class RedisEngine:
    """Decides inside Redis or Valkey, by one EVALSHA for each question."""

    def __init__(
        self, url: str, *, prefix: str = "hg", clock: Clock | None = None, deadline: float = DEADLINE
    ) -> None:
        self.prefix = prefix
        self.clock: Clock = clock or SystemClock()
        self.deadline: float = deadline
        self.topology: Topology = topology(url)
        self._told: dict[str, Told] = {}
        self._pools: dict[ServerAddress, ConnectionPool] = {}
        only = None if self.topology.can_fail_over else self.topology.node(b"")
        self.only: ConnectionPool | None = None if only is None else self.pool(only)
        self._looking = Lock()
        self._crew: ThreadPoolExecutor | None = None  # for questions that go to several servers
        self._abandoned = SyncLateReplies(self._ask_patiently)
        on_fork(self.forget)

    def meter(self, limit: Limit, name: str, terms: ChargeOptions | None = None) -> RedisMeter:
        return RedisMeter(self, limit, name, terms)

    def slots(self, limit: Slots, name: str, terms: ChargeOptions | None = None) -> RedisSlotMeter:
        return RedisSlotMeter(self, limit, name, terms)

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        asked = [(_own(meter).questions, key, cost) for meter, key, cost in charges]
        now_us, deadline = self.clock.now_us(), deadline_of(meter for meter, _, _ in charges)
        ask = within(self.ask, deadline)
        if self.topology.any_keys_together:
            return run(redirects.decide_all(ask, asked, patience_us, now_us, commit))
        flow = cross_slot.decide_by_slot(ask, self.ask_all, asked, patience_us, now_us, commit, deadline)
        try:
            return run(flow)
        except RedisError as trouble:
            raise self._failure(trouble) from trouble

    def take(
        self, only: ConnectionPool, questions: RequestBuilder, key: str, cost: int, deadline: float | None = None
    ) -> Outcome:
        """A take of a limit that is not a calendar's, of the only server there is."""
        seconds = self.deadline if deadline is None else min(deadline, self.deadline)
        by, hurried = time.monotonic() + seconds, seconds < self.deadline
        try:
            facts: Outcome = (only.take_in_turn if hurried else only.take)(questions, key, cost, by)
            return facts
        except RedisError as trouble:
            if not not_charged(trouble):
                raise self._failure(trouble) from trouble
            forgot = isinstance(trouble, NoScript)
        return protocol.facts(self._ask_around(questions.decide(key, cost, None, 0), by, forgot))

    def ask(self, question: RedisRequest, deadline: float | None = None) -> Any:
        """One question, one reply; in so many seconds, at most the engine's own deadline.

        A place, slot or ticket is given back if its reply comes when the caller has left.
        """
        seconds = self.deadline if deadline is None else min(deadline, self.deadline)
        by, hurried = time.monotonic() + seconds, seconds < self.deadline
        pool = self.only if self.only is not None else self._pool_of(question.tag)
        forgot = False
        if pool is not None:
            try:
                if question.needs_reply:
                    return self._ask_for_sure(pool, question, by)
                return (pool.ask_in_turn if hurried else pool.ask)(question.packed, by)
            except RedisError as trouble:
                if not not_charged(trouble):
                    self.topology.suspect(pool.address)
                    raise self._failure(trouble) from trouble
                # Asked a second time before it is loaded, a script would never be, where a reply takes long.
                forgot = isinstance(trouble, NoScript)
        return self._ask_around(question, by, forgot)

    def _ask_for_sure(self, pool: ConnectionPool, question: RedisRequest, by: float, for_now: bool = False) -> Any:
        """One question whose reply is heard, also if the caller has left."""
        packed = _ASKING + question.packed if for_now else question.packed
        hook = partial(self._abandoned.left, question) if question.needs_reply else None
        reply = pool.ask_in_turn(packed, by, 1 + for_now, hook)
        self._abandoned.note(question, reply)
        return reply

    def _ask_around(self, question: RedisRequest, by: float, forgot: bool) -> Any:
        """The long way: scripts to be loaded, servers that have changed places."""

        def send(address: ServerAddress, sent: RedisRequest, for_now: bool) -> Any:
            return self._ask_for_sure(self.pool(address), sent, by, for_now)

        try:
            discover = partial(self._discover, question.tag, by)
            return run(
                redirects.send_with_redirects(self.topology, discover, send, time.sleep, question, by, forgot)
            )
        except RedisError as trouble:
            raise self._failure(trouble) from trouble

    def _ask_patiently(self, question: RedisRequest) -> Any:
        """One question for which nobody waits: a slow server may take longer than the engine's deadline."""
        return self._ask_around(question, time.monotonic() + max(self.deadline, GIVE_BACK_S), False)

    def _discover(self, tag: bytes, by: float) -> None:
        """One looks, the others wait for what is found."""
        if self._looking.acquire(timeout=max(0.0, by - time.monotonic())):
            try:
                if self.topology.node(tag) is None:
                    run(self.topology.discover(lambda at, words: self.pool(at).ask_in_turn(words, _halfway(by))))
            finally:
                self._looking.release()

    def ask_everywhere(self, question: RedisRequest) -> None:
        """The same question of every server there is."""
        try:
            self._discover(b"", time.monotonic() + self.deadline)
            for address in self.topology.servers:
                self.pool(address).ask(question.packed, time.monotonic() + self.deadline)
        except RedisError as trouble:
            raise self._failure(trouble) from trouble

    def overrides(self, rule: str) -> RedisOverrides:
        questions = OverrideRequestBuilder(rule, self.prefix)

        def listing() -> OverrideScan:
            try:
                self._discover(b"", time.monotonic() + self.deadline)
            except RedisError as trouble:
                raise self._failure(trouble) from trouble
            return OverrideScan(questions, self.topology, self._ask_at, self.ask_all)

        return RedisOverrides(questions, self.ask, listing, self._failure)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> RedisLedger:
        known = self._told.setdefault(name, Told())
        return RedisLedger(self.ask, known, self.prefix, limit, name, ttl_us, grace_us)

    def _ask_at(self, address: ServerAddress, question: RedisRequest) -> Any:
        return self.pool(address).ask_in_turn(question.packed, time.monotonic() + self.deadline)

    def ask_all(self, questions: Sequence[RedisRequest], deadlines: Sequence[float | None] = ()) -> list[Any]:
        """Several questions at once, of several servers; trouble stands in the place of a reply."""
        if self._crew is None:
            self._crew = ThreadPoolExecutor(16, "headgate-asks")
        return list(self._crew.map(self._tried, questions, deadlines or repeat(None)))

    def _tried(self, question: RedisRequest, deadline: float | None) -> Any:
        try:
            return self.ask(question, deadline)
        except (CorruptState, EngineUnavailable) as error:
            return error.__cause__

    def _pool_of(self, tag: bytes) -> ConnectionPool | None:
        address = self.topology.node(tag)
        return None if address is None else self.pool(address)

    def pool(self, address: ServerAddress) -> ConnectionPool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools.setdefault(address, ConnectionPool(address, self.deadline))
        return pool

    def beat(self, member_id: str) -> tuple[int, int]:
        """Say that this process shares the limits: how many do, and how many of them come before it."""
        count, rank = self.ask(protocol.member(self.prefix, "beat", member_id, TTL_US))
        return count, rank

    def leave(self, member_id: str) -> None:
        """Say that it does no more."""
        self.ask(protocol.member(self.prefix, "leave", member_id))

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
        for pool in tuple(self._pools.values()):
            pool.deadline = seconds

    def close(self) -> None:
        """Close what leads to the servers, after what is to be given back."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.shutdown()
        pools, until = tuple(self._pools.values()), time.monotonic() + self.deadline
        for pool in pools:
            pool.await_late_replies(until)
        self._abandoned.wait(until)
        for pool in pools:
            pool.close()

    def forget(self) -> None:
        """In a forked child: those connections are the parent's."""
        self._looking, self._crew = Lock(), None
        self._abandoned.start_afresh()
        for pool in self._pools.values():
            pool.start_afresh()


_ASKING = protocol.command("ASKING")


def _halfway(by: float) -> float:
    """One that does not answer leaves half of the time for the others."""
    return (time.monotonic() + by) / 2


class RedisMeter:
    """The engine's hand on one limit."""

    def __init__(self, engine: RedisEngine, limit: Limit, name: str, terms: ChargeOptions | None = None) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self.questions: RequestBuilder = RequestBuilder(limit, name, engine.prefix, terms)
        self._ask = within(engine.ask, deadline_of([self]))
        self._take = within(engine.take, deadline_of([self]))
        self._now_us = engine.clock.now_us
        self._only = None if self.questions.calendar or self.questions.has_rule_state else engine.only

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        if patience_us is None and self._only is not None:
            return self._take(self._only, self.questions, key, cost)
        return run(redirects.decide(self._ask, self.questions, key, cost, patience_us, self._now_us()))

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        return run(redirects.refund(self._ask, self.questions, key, units, receipt, cancel, self._now_us()))

    def retune(self, key: str) -> None:
        if self.questions.can_retune:
            self._ask(self.questions.retune(key))

    def reset(self, key: str) -> None:
        self._ask(self.questions.reset(key))


class RedisSlotMeter:
    """The engine's hand on the slots of one limit."""

    def __init__(self, engine: RedisEngine, limit: Slots, name: str, terms: ChargeOptions | None = None) -> None:
        self.limit = limit
        self.name = name
        self.terms = terms
        self.questions: RequestBuilder = RequestBuilder(limit, name, engine.prefix)
        self._ask = within(engine.ask, deadline_of([self]))

    def free(self, key: str) -> Outcome:
        return protocol.facts(self._ask(self.questions.slots("peek", key)))

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> Slot:
        return protocol.slot(self._ask(self.questions.acquire(key, ticket, wait)))

    def renew(self, key: str, fence: int) -> int | None:
        return protocol.parse_renewal(self._ask(self.questions.slots("renew", key, fence)))

    def release(self, key: str, fence: int) -> bool:
        return bool(self._ask(self.questions.slots("release", key, fence)))

    def leave(self, key: str, ticket: int) -> None:
        self._ask(self.questions.slots("leave", key, ticket))

    def reset(self, key: str) -> None:
        self._ask(self.questions.slots("reset", key))


def _own(meter: Meter) -> RedisMeter:
    if not isinstance(meter, RedisMeter):
        raise InvalidCharge("A charge of another engine cannot be decided here.")
    return meter
