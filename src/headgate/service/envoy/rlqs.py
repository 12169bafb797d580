"""Envoy's Rate Limit Quota Service, version 3: Envoy decides by itself, and is told how much of a limit it has.

An Envoy opens one stream. It reports each bucket when it is first hit, and from then on all of them every few
seconds; each report is answered with an assignment for each bucket: a token bucket, and how long it is valid. How
a limit is divided is told in model/assignment.py; the ledger lies in the engine, so all workers, and all services
on one Redis, divide together.

    a bucket's id        is what an RLS descriptor's entries are: attributes, beside `domain`
    several rules        each divides its own limit; the bucket is the smallest rate and the smallest burst of all
    no rule, unlimited   ALLOW_ALL
    shadows, candidates  do not refuse, so nothing is told of them
    a rule that denies   (its key is missing) DENY_ALL
    slots                cannot be divided: nothing is told, and Envoy does what no_assignment_behavior says
    overrides, lockouts  belong to calls that are asked about; they are not looked at here

Who a holder is. Each bucket of an Envoy, for two buckets may count under one key. Envoy says nothing about itself,
so it is its stream, and one that breaks is another when it comes back: what it had stays counted until it has run
out. An Envoy that names itself (initial_metadata of the
filter's grpc_service: headgate-holder) is the same holder again. Nobody else can be it meanwhile: the name is a
slot, held as long as the stream.

Whoever is new and gets no part yet is told nothing, for as long as parts live: it may be an old acquaintance that
still uses the part which is in its way. After that it is told DENY_ALL.

What Envoy 1.40 does is seen, not read: it knows whole seconds only, ignores requests_per_time_unit and
reporting_interval (it reports every 5 s), and carries a bucket's fill over as a fraction.

Laws (tests/service/envoy/test_rlqs.py): assignments of all streams never add up to more than the limit; a bucket
that was idle for IDLE reports is abandoned; what cannot be read ends the stream with a sentence; an engine that is
silent tells nothing, and what was told runs out.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge, InvalidRule
from headgate.model.assignment import Assignment, spans
from headgate.model.decision import ALLOWED, MARK
from headgate.model.limit import SECOND, Limit
from headgate.model.slots import Slots
from headgate.ruled.limiter import AsyncRuledLimiter
from headgate.service.envoy.asked import Entry, attributes_of
from headgate.service.envoy.messages import RateLimitQuotaResponse, RateLimitQuotaUsageReports

SERVICE = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
METHOD = "StreamRateLimitQuotas"
PATH = f"/{SERVICE}/{METHOD}"
NAME = "headgate-holder"
HOLDERS = "~holders"
IDLE = 120  # reports without a request, after which a bucket is let go: ten minutes of Envoy's
BUCKETS = 10_000  # of one stream
_ALLOW, _DENY = 0, 1
_log = logging.getLogger("headgate.service")

Bucket = tuple[tuple[str, str], ...]


class Quotas:
    """Divides limits among Envoys, by a limiter's rules and its engine."""

    def __init__(
        self, limiter: AsyncRuledLimiter, interval: float = 5.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limiter = limiter
        self.now = now
        self.ttl_us, self.grace_us = spans(round(interval * SECOND))
        self._ledgers: dict[tuple[Limit, str], Any] = {}
        self._told: set[str] = set()  # rules that cannot be divided, and of which that was logged

    async def stream(self, reports: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """The method of the service."""
        stream = Stream(self, dict(context.invocation_metadata() or ()).get(NAME, ""))
        try:
            async for data in reports:
                try:
                    response = await stream.answer(RateLimitQuotaUsageReports.FromString(data))
                except DecodeError:
                    sentence = "These bytes are no RateLimitQuotaUsageReports."
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
                except InvalidCharge as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                else:
                    if response.bucket_action:
                        yield response
        finally:
            await stream.end()

    def ledger(self, rule: str, limit: Limit, name: str) -> Any:
        """The hand on a limit that is divided; None if it cannot be."""
        known = self._ledgers.get((limit, name))
        if known is None:
            try:
                known = self.limiter.engine.assignments(limit, name, self.ttl_us, self.grace_us)
            except InvalidRule as error:
                if rule not in self._told:
                    self._told.add(rule)
                    _log.error('rule "%s" cannot be divided among Envoys, so nothing is assigned: %s', rule, error)
                return None
            self._ledgers[limit, name] = known
        return known


class Stream:
    """One Envoy, as long as it stays."""

    def __init__(self, quotas: Quotas, name: str) -> None:
        self._quotas = quotas
        self._name = name[:200]
        self._holder = secrets.token_hex(8)
        self._fence: int | None = None
        self._domain: str | None = None
        self._buckets: dict[Bucket, _Seen] = {}

    async def answer(self, report: Any) -> Any:
        """What a report is answered: an action for each of its buckets."""
        if self._domain is None:
            self._domain = report.domain
            if not self._domain:
                raise InvalidCharge("The first report names the domain.")
        response = RateLimitQuotaResponse()
        try:
            await self._stay()
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("no assignment for an Envoy: %s", error)
            return response
        for usage in report.bucket_quota_usages:
            bucket: Bucket = tuple(sorted(usage.bucket_id.bucket.items()))
            if not bucket:
                raise InvalidCharge("A bucket has an id: at least one key and value.")
            used = usage.num_requests_allowed + usage.num_requests_denied
            seen = self._seen(bucket, used)
            action = response.bucket_action.add()
            action.bucket_id.CopyFrom(usage.bucket_id)
            if seen.idle >= IDLE:
                del self._buckets[bucket]
                await self._let_go(seen)
                action.abandon_action.SetInParent()
            elif not await self._assign(action.quota_assignment_action, seen, used):
                del response.bucket_action[-1]
        return response

    async def end(self) -> None:
        """It is gone: what it had runs out, and nothing more is wanted for it."""
        try:
            for seen in self._buckets.values():
                await self._leave(seen)
            if self._fence is not None:
                await self._slot().release(self._name, self._fence)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("an Envoy left, and the engine could not be told: %s", error)

    async def _let_go(self, seen: _Seen) -> None:
        try:
            await self._leave(seen)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("a bucket was let go, and the engine could not be told: %s", error)

    async def _leave(self, seen: _Seen) -> None:
        for ledger, key in seen.held:
            await ledger.leave(key, seen.holder)

    def _seen(self, bucket: Bucket, used: int) -> _Seen:
        now = self._quotas.now()
        seen = self._buckets.get(bucket)
        if seen is None:
            if len(self._buckets) >= BUCKETS:
                raise InvalidCharge(f"A stream has at most {BUCKETS} buckets.")
            attributes = attributes_of(self._domain or "", [Entry(*pair) for pair in bucket])
            seen = self._buckets[bucket] = _Seen(now, attributes, f"{self._holder}:{_digest(bucket)}")
            return seen
        seen.within_us = round((now - seen.at) * SECOND)
        seen.at = now
        seen.idle = 0 if used else seen.idle + 1
        return seen

    async def _assign(self, action: Any, seen: _Seen, used: int) -> bool:
        """Whether there is something to tell of this bucket."""
        quotas = self._quotas
        action.assignment_time_to_live.FromMicroseconds(quotas.ttl_us)
        counts, denied = quotas.limiter.counts(seen.attributes)
        if denied:
            action.rate_limit_strategy.blanket_rule = _DENY
            return True
        parts: list[Assignment] = []
        try:
            for rule, meter, key in counts:
                ledger = quotas.ledger(rule, meter.limit, meter.name)
                if ledger is None:
                    return False
                seen.held.add((ledger, key))
                wanted = used if seen.within_us else None
                part = await ledger.assign(key, seen.holder, wanted, seen.within_us)
                if part is None:
                    return False
                parts.append(part)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("no assignment for an Envoy: %s", error)
            return False
        return self._tell(action.rate_limit_strategy, parts, seen)

    def _tell(self, strategy: Any, parts: list[Assignment], seen: _Seen) -> bool:
        if not parts:
            strategy.blanket_rule = _ALLOW
            return True
        slowest = min(parts, key=lambda part: part.units / part.period_us)
        burst = min(part.burst for part in parts)
        if slowest.units and burst:
            units, period_us = slowest.units, slowest.period_us
            if units > 1 and seen.told and seen.told[:2] == (units, burst) and seen.told[2] != period_us:
                units -= 1  # Envoy does not see that the interval alone has changed
            seen.told = units, burst, period_us
            strategy.token_bucket.max_tokens = burst
            strategy.token_bucket.tokens_per_fill.value = units
            strategy.token_bucket.fill_interval.FromMicroseconds(period_us)
            return True
        live = (self._quotas.ttl_us + self._quotas.grace_us) / SECOND
        if not seen.told and seen.at - seen.since < live:
            return False
        strategy.blanket_rule = _DENY
        return True

    async def _stay(self) -> None:
        """Keep the name that it gave itself, if nobody else has it."""
        if not self._name:
            return
        if self._fence is None:
            if self._buckets:
                return  # it was somebody else's when the stream began
            facts, _ = await self._slot().acquire(self._name)
            if facts[ALLOWED]:
                self._fence, self._holder = facts[MARK], f"={self._name}"
        elif await self._slot().renew(self._name, self._fence) is None:
            raise InvalidCharge(f'"{self._name}" is another stream by now.')

    def _slot(self) -> Any:
        quotas = self._quotas
        ttl = (quotas.ttl_us + quotas.grace_us) / SECOND
        return quotas.limiter.engine.slots(Slots(1, ttl), HOLDERS)


class _Seen:
    """What is known of a bucket: when it was first reported and last, how long it was idle."""

    __slots__ = ("at", "attributes", "held", "holder", "idle", "since", "told", "within_us")

    def __init__(self, now: float, attributes: dict[str, str], holder: str) -> None:
        self.attributes = attributes
        self.holder = holder
        self.held: set[tuple[Any, str]] = set()  # ledgers and keys of which it may have a part
        self.since = self.at = now
        self.within_us = 0  # since the report before; 0: there was none
        self.idle = 0
        self.told: tuple[int, int, int] | None = None  # units, burst, period


def _digest(bucket: Bucket) -> str:
    return sha256(repr(bucket).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def handler(quotas: Quotas) -> grpc.GenericRpcHandler:
    """For a grpc.aio server's add_generic_rpc_handlers."""
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method(quotas)})


def method(quotas: Quotas) -> Any:
    """What grpc calls."""
    behaviour: Any = quotas.stream
    return grpc.stream_stream_rpc_method_handler(behaviour, None, lambda response: response.SerializeToString())
