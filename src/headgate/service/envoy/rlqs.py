"""Envoy's Rate Limit Quota Service, version 3: Envoy decides by itself, and is told how much of a limit it has.

An Envoy opens one stream. It reports each bucket when it is first hit, and from then on all of them every few
seconds; each report is answered with an assignment for each bucket: a token bucket, and how long it is valid. How
a limit is divided is told in algorithms/quota_grants.py; the ledger lies in the engine, so all workers, and all
services on one Redis, divide together.

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

A bucket without a grant. A new bucket is answered at once, also where nothing is free: DENY_ALL, or as much of
the limit as its rule's `initial_share` says. The others are granted less at their next reports, what they had runs
out, and the first grant is pushed as soon as there is room: within a report and ttl + grace, 15 s. A stream that
came back is not a new Envoy: it may still use the grant which is in its way, so it is told nothing for as long as
that can be valid, and DENY_ALL after that. Envoy tells them apart: its first report of a new bucket says that no
time has elapsed since the one before.

What Envoy 1.40 does is seen, not read: it knows whole seconds only, ignores requests_per_time_unit and
reporting_interval (it reports every 5 s), and carries a bucket's fill over as a fraction.

Laws (tests/service/envoy/test_rlqs.py, test_two_envoys.py): assignments of all streams never add up to more than
the limit (and the initial shares of those who wait for their first grant, where a rule gives any); the first
report of a new bucket is answered; a bucket that was idle for IDLE reports is abandoned; what cannot be read ends
the stream with a sentence; an engine that is silent tells nothing, and what was told runs out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headgate.algorithms.decision import ALLOWED, MARK
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.quota_grants import Assignment, spans, told
from headgate.algorithms.quota_units import WHOLE, division
from headgate.algorithms.slots import Slots
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge, InvalidRule
from headgate.service.envoy.messages import RateLimitQuotaResponse, RateLimitQuotaUsageReports
from headgate.service.envoy.request import Entry, attributes_of
from headgate.service.idle_connections import ActiveRequests, parse_grpc_peer

SERVICE = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
METHOD = "StreamRateLimitQuotas"
PATH = f"/{SERVICE}/{METHOD}"
HOLDER_HEADER = "headgate-holder"
HOLDERS_METER = "~holders"
MAX_IDLE_REPORTS = 120  # reports without a request, after which a bucket is let go: ten minutes of Envoy's
MAX_BUCKETS = 10_000  # of one stream
RETRY_S = 1.0  # between two looks for room, for buckets that wait for their first grant
_ALLOW, _DENY = 0, 1
_log = logging.getLogger("headgate.service")

Bucket = tuple[tuple[str, str], ...]


class QuotaService:
    """Divides limits among Envoys, by a limiter's rules and its engine."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        interval: float = 5.0,
        now: Callable[[], float] = time.monotonic,
        under_way: ActiveRequests | None = None,
    ) -> None:
        self.limiter = limiter
        self.now = now
        self._under_way = under_way or ActiveRequests()
        self.ttl_us: int
        self.grace_us: int
        self.ttl_us, self.grace_us = spans(round(interval * SECOND))
        # By then all others were granted less, and what they had has run out.
        self.join_s: float = interval + (self.ttl_us + self.grace_us) / SECOND
        self._ledgers: dict[tuple[Limit, str], Any] = {}
        self._told: set[str] = set()  # rules that cannot be divided, and of which that was logged

    async def stream(self, reports: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """The method of the service."""
        peer = parse_grpc_peer(context.peer())
        self._under_way.begin(peer)
        stream = QuotaStream(self, dict(context.invocation_metadata() or ()).get(HOLDER_HEADER, ""))
        source = aiter(reports)
        coming = asyncio.ensure_future(anext(source))
        try:
            while True:
                await asyncio.wait([coming], timeout=RETRY_S if stream.waits else None)
                response = None
                try:
                    if coming.done():
                        response = await stream.answer(RateLimitQuotaUsageReports.FromString(coming.result()))
                        coming = asyncio.ensure_future(anext(source))
                    else:
                        response = await stream.retry()
                except StopAsyncIteration:
                    return
                except DecodeError:
                    sentence = "These bytes are no RateLimitQuotaUsageReports."
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
                except InvalidCharge as error:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                if response is not None and response.bucket_action:
                    yield response
        finally:
            coming.cancel()
            self._under_way.end(peer)
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


class QuotaStream:
    """One Envoy, as long as it stays."""

    def __init__(self, quotas: QuotaService, name: str) -> None:
        self._quotas = quotas
        self._name = name[:200]
        self._holder = secrets.token_hex(8)
        self._fence: int | None = None
        self._domain: str | None = None
        self._buckets: dict[Bucket, _Seen] = {}
        self._waiting: set[Bucket] = set()  # for their first grant

    @property
    def waits(self) -> bool:
        """Whether a bucket waits for its first grant."""
        return bool(self._waiting)

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
            seen = self._seen(bucket, used, new=not usage.time_elapsed.ToNanoseconds())
            if seen.idle >= MAX_IDLE_REPORTS:
                del self._buckets[bucket]
                await self._let_go(seen)
                action = response.bucket_action.add()
                action.bucket_id.CopyFrom(usage.bucket_id)
                action.abandon_action.SetInParent()
            else:
                await self._act(response, bucket, used if seen.within_us else None)
        return response

    async def retry(self) -> Any:
        """First grants for buckets that wait for one, as far as there is room by now."""
        response = RateLimitQuotaResponse()
        for bucket in sorted(self._waiting):
            seen = self._buckets.get(bucket)
            if seen is None or self._quotas.now() - seen.since >= self._quotas.join_s:
                self._waiting.discard(bucket)  # its next report is answered as any
            else:
                await self._act(response, bucket, None, pushed=True)
        return response

    async def _act(self, response: Any, bucket: Bucket, wanted: int | None, *, pushed: bool = False) -> None:
        """Add the bucket's action to the response, if there is one: of those that are pushed, grants only."""
        seen = self._buckets[bucket]
        action = response.bucket_action.add()
        action.bucket_id.bucket.update(bucket)
        answered = await self._assign(action.quota_assignment_action, seen, wanted)
        if seen.granted:
            self._waiting.discard(bucket)
        elif not pushed and self._quotas.now() - seen.since < self._quotas.join_s:
            self._waiting.add(bucket)
        if not answered or (pushed and not seen.granted):
            del response.bucket_action[-1]

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

    def _seen(self, bucket: Bucket, used: int, *, new: bool) -> _Seen:
        now = self._quotas.now()
        seen = self._buckets.get(bucket)
        if seen is None:
            if len(self._buckets) >= MAX_BUCKETS:
                raise InvalidCharge(f"A stream has at most {MAX_BUCKETS} buckets.")
            attributes = attributes_of(self._domain or "", [Entry(*pair) for pair in bucket])
            seen = self._buckets[bucket] = _Seen(now, attributes, f"{self._holder}:{_digest(bucket)}", new)
            return seen
        seen.within_us = round((now - seen.at) * SECOND)
        seen.at = now
        seen.idle = 0 if used else seen.idle + 1
        return seen

    async def _assign(self, action: Any, seen: _Seen, wanted: int | None) -> bool:
        """Whether there is something to tell of this bucket."""
        quotas = self._quotas
        action.assignment_time_to_live.FromMicroseconds(quotas.ttl_us)
        strategy = action.rate_limit_strategy
        counts, denied = quotas.limiter.counts(seen.attributes)
        if denied or not counts:
            strategy.blanket_rule = _DENY if denied else _ALLOW
            seen.granted = True
            return True
        parts: list[Assignment] = []
        granted = True
        try:
            for rule, meter, key in counts:
                ledger = quotas.ledger(rule, meter.limit, meter.name)
                if ledger is None:
                    seen.granted = True  # nothing will ever be
                    return False
                seen.held.add((ledger, key))
                part = await ledger.assign(key, seen.holder, wanted, seen.within_us)
                if part is None or not (part.units and part.burst):
                    granted = False
                    part = self._initial(rule, meter.limit, seen)
                parts.append(part)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("no assignment for an Envoy: %s", error)
            return False
        seen.granted = seen.granted or granted
        return self._tell(strategy, parts, seen)

    def _initial(self, rule: str, limit: Limit, seen: _Seen) -> Assignment:
        """What a bucket has of a limit of which nothing is free: as much as the rule says, while it waits for its
        first grant."""
        written = self._quotas.limiter.rulebook.rule(rule)
        joins = seen.new and not seen.granted and seen.at - seen.since < self._quotas.join_s
        share = written.initial_share if joins and written is not None else 0
        part = told(division(limit), WHOLE * share // 10_000, self._quotas.ttl_us)
        assert part is not None
        return part

    def _tell(self, strategy: Any, parts: list[Assignment], seen: _Seen) -> bool:
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
        if not seen.new and not seen.granted and seen.at - seen.since < self._quotas.ttl_us / SECOND:
            return False  # it may still use a grant of the stream before
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
        return quotas.limiter.engine.slots(Slots(1, ttl), HOLDERS_METER)


class _Seen:
    """What is known of a bucket: when it was first reported and last, how long it was idle."""

    __slots__ = ("at", "attributes", "granted", "held", "holder", "idle", "new", "since", "told", "within_us")

    def __init__(self, now: float, attributes: dict[str, str], holder: str, new: bool) -> None:
        self.new = new  # to its Envoy, too
        self.granted = False  # it had a grant on this stream
        self.attributes = attributes
        self.holder = holder
        self.held: set[tuple[Any, str]] = set()  # ledgers and keys of which it may have a part
        self.since = self.at = now
        self.within_us = 0  # since the report before; 0: there was none
        self.idle = 0
        self.told: tuple[int, int, int] | None = None  # units, burst, period


def _digest(bucket: Bucket) -> str:
    return sha256(repr(bucket).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def handler(quotas: QuotaService) -> grpc.GenericRpcHandler:
    """For a grpc.aio server's add_generic_rpc_handlers."""
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method(quotas)})


def method(quotas: QuotaService) -> Any:
    """What grpc calls."""
    behaviour: Any = quotas.stream
    return grpc.stream_stream_rpc_method_handler(behaviour, None, lambda response: response.SerializeToString())
