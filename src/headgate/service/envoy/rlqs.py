"""Envoy's Rate Limit Quota Service, version 3: Envoy decides by itself, within the share of a limit it is granted.

An Envoy opens one stream. It reports each bucket when it is first hit, and from then on all of them every few
seconds; each report is answered with a grant for each bucket: a token bucket, and how long it is valid.
algorithms/quota_grants.py divides a limit; the ledger is in the engine, so all workers, and all services on one
Redis, divide together.

    a bucket's id        is like the entries of an RLS descriptor: attributes, beside `domain`
    several rules        each divides its own limit; the bucket is the smallest rate and the smallest burst of all
    no rule, unlimited   ALLOW_ALL
    shadows, candidates  do not refuse, so nothing is sent for them
    a rule that denies   (its key is missing) DENY_ALL
    slots                cannot be divided: nothing is sent, and Envoy does what no_assignment_behavior says
    overrides, lockouts  belong to calls that are checked one by one; they are not used here

Holders. Each bucket of an Envoy is a holder, for two buckets may count under one key. Envoy does not identify
itself, so its stream does, and a stream that breaks is another holder when it comes back: its grant stays counted
until it has expired. An Envoy that names itself (initial_metadata of the filter's grpc_service: headgate-holder)
is the same holder again. No other Envoy can be it meanwhile: the name is a slot, held as long as the stream.

A bucket without a grant. A new bucket is answered at once, also where nothing is free: DENY_ALL, or as much of the
limit as its rule's `initial_share` says. The others are granted less at their next reports, their old grants
expire, and the first grant is pushed as soon as units are free: within a report and ttl + grace, 15 s. A stream
that came back is not a new Envoy: it may still use the old grant that is in its way, so nothing is sent to it for
as long as that can be valid, and DENY_ALL after that. Envoy's reports differ: its first report of a new bucket
says that no time has elapsed since the one before.

The behaviour of Envoy 1.40 was observed, not read: it uses whole seconds only, ignores requests_per_time_unit and
reporting_interval (it reports every 5 s), and carries a bucket's fill over as a fraction.

Laws (tests/service/envoy/test_rlqs.py, test_two_envoys.py): grants of all streams never add up to more than the
limit (and the initial shares of buckets that wait for their first grant, where a rule gives any); the first report
of a new bucket is answered; a bucket that was idle for MAX_IDLE_REPORTS reports is abandoned; a report that cannot
be parsed ends the stream with a sentence; while an engine is down nothing is sent, and grants expire.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from typing import Any

from google.protobuf.message import DecodeError

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.decision import ALLOWED, MARK
from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, quota_units
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.quota_grants import QuotaGrant, grant_in_units, ttl_and_grace
from headgate.algorithms.slots import Slots
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge, InvalidRule
from headgate.service.envoy.messages import RateLimitQuotaResponse, RateLimitQuotaUsageReports
from headgate.service.envoy.request import Entry, attributes_of
from headgate.service.grpc_server.methods import CallFailed, Metadata, Method, StatusCode

SERVICE = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
METHOD = "StreamRateLimitQuotas"
PATH = f"/{SERVICE}/{METHOD}"
HOLDER_HEADER = "headgate-holder"
HOLDERS_METER = "~holders"
MAX_IDLE_REPORTS = 120  # without a request, then a bucket is abandoned: ten minutes of Envoy's
MAX_BUCKETS = 10_000  # of one stream
RETRY_S = 1.0  # between two attempts to give waiting buckets their first grant
_ALLOW_ALL, _DENY_ALL = 0, 1
_log = logging.getLogger("headgate.service")

Bucket = tuple[tuple[str, str], ...]


class QuotaService:
    """Divides limits among Envoys, by a limiter's rules and its engine."""

    def __init__(
        self,
        limiter: AsyncRuleLimiter,
        interval: float = 5.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limiter = limiter
        self.now = now
        self.ttl_us: int
        self.grace_us: int
        self.ttl_us, self.grace_us = ttl_and_grace(round(interval * SECOND))
        # By then all others were granted less, and their old grants have expired.
        self.join_timeout_s: float = interval + (self.ttl_us + self.grace_us) / SECOND
        self._ledgers: dict[tuple[Limit, str], Any] = {}
        self._logged_rules: set[str] = set()  # rules that cannot be divided or learn nothing, already logged

    async def stream(self, reports: AsyncIterator[bytes], metadata: Metadata) -> AsyncIterator[bytes]:
        """Handles the service's method."""
        stream = QuotaStream(self, metadata.get(HOLDER_HEADER, ""))
        iterator = aiter(reports)
        next_report = asyncio.ensure_future(anext(iterator))
        try:
            while True:
                await asyncio.wait([next_report], timeout=RETRY_S if stream.is_waiting else None)
                try:
                    if next_report.done():
                        response = await stream.answer(RateLimitQuotaUsageReports.FromString(next_report.result()))
                        next_report = asyncio.ensure_future(anext(iterator))
                    else:
                        response = await stream.retry()
                except StopAsyncIteration:
                    return
                except DecodeError as error:
                    sentence = "These bytes are no RateLimitQuotaUsageReports."
                    raise CallFailed(StatusCode.INVALID_ARGUMENT, sentence) from error
                except InvalidCharge as error:
                    raise CallFailed(StatusCode.INVALID_ARGUMENT, str(error)) from error
                if response.bucket_action:
                    yield response.SerializeToString()
        finally:
            next_report.cancel()
            await stream.end()

    def can_count(self, rule: str, limit: Limit) -> bool:
        """Returns whether Envoys report what a rule counts; not how calls end, which adaptive rules learn from."""
        if isinstance(limit, AdaptiveLimit) and rule not in self._logged_rules:
            self._logged_rules.add(rule)
            _log.error(
                'the adaptive rule "%s" stands still for quotas: Envoys report how many requests they let pass, '
                "not how long those took, so it limits none of them. Enforce it in the application.",
                rule,
            )
        return not isinstance(limit, AdaptiveLimit)

    def ledger(self, rule: str, limit: Limit, name: str) -> Any:
        """Returns the ledger of a limit that is divided; None if it cannot be."""
        ledger = self._ledgers.get((limit, name))
        if ledger is None:
            try:
                ledger = self.limiter.engine.quota_ledger(limit, name, self.ttl_us, self.grace_us)
            except InvalidRule as error:
                if rule not in self._logged_rules:
                    self._logged_rules.add(rule)
                    _log.error('rule "%s" cannot be divided among Envoys, so nothing is granted: %s', rule, error)
                return None
            self._ledgers[limit, name] = ledger
        return ledger


class QuotaStream:
    """The stream of one Envoy."""

    def __init__(self, service: QuotaService, name: str) -> None:
        self._service = service
        self._name = name[:200]
        self._holder = secrets.token_hex(8)
        self._holder_fence: int | None = None
        self._domain: str | None = None
        self._buckets: dict[Bucket, _BucketState] = {}
        self._waiting_buckets: set[Bucket] = set()  # for their first grant

    @property
    def is_waiting(self) -> bool:
        """Returns whether a bucket waits for its first grant."""
        return bool(self._waiting_buckets)

    async def answer(self, report: Any) -> Any:
        """Returns the response to a report: an action for each of its buckets."""
        if self._domain is None:
            self._domain = report.domain
            if not self._domain:
                raise InvalidCharge("The first report names the domain.")
        response = RateLimitQuotaResponse()
        try:
            await self._keep_holder_name()
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("no grant for an Envoy: %s", error)
            return response
        for usage in report.bucket_quota_usages:
            bucket: Bucket = tuple(sorted(usage.bucket_id.bucket.items()))
            if not bucket:
                raise InvalidCharge("A bucket has an id: at least one key and value.")
            used = usage.num_requests_allowed + usage.num_requests_denied
            state = self._bucket_state(bucket, used, new=not usage.time_elapsed.ToNanoseconds())
            if state.idle_reports >= MAX_IDLE_REPORTS:
                del self._buckets[bucket]
                await self._abandon(state)
                action = response.bucket_action.add()
                action.bucket_id.CopyFrom(usage.bucket_id)
                action.abandon_action.SetInParent()
            else:
                await self._add_action(response, bucket, used if state.report_interval_us else None)
        return response

    async def retry(self) -> Any:
        """Returns first grants for buckets that wait for one, as far as units are free by now."""
        response = RateLimitQuotaResponse()
        for bucket in sorted(self._waiting_buckets):
            state = self._buckets.get(bucket)
            if state is None or self._service.now() - state.first_reported_at >= self._service.join_timeout_s:
                self._waiting_buckets.discard(bucket)  # its next report is answered like any other
            else:
                await self._add_action(response, bucket, None, pushed=True)
        return response

    async def _add_action(self, response: Any, bucket: Bucket, used: int | None, *, pushed: bool = False) -> None:
        """Adds the bucket's action to the response, if there is one; `pushed`: only a grant."""
        state = self._buckets[bucket]
        action = response.bucket_action.add()
        action.bucket_id.bucket.update(bucket)
        has_action = await self._assign(action.quota_assignment_action, state, used)
        if state.had_grant:
            self._waiting_buckets.discard(bucket)
        elif not pushed and self._service.now() - state.first_reported_at < self._service.join_timeout_s:
            self._waiting_buckets.add(bucket)
        if not has_action or (pushed and not state.had_grant):
            del response.bucket_action[-1]

    async def end(self) -> None:
        """Ends the stream: its grants expire, and its demand is removed."""
        try:
            for state in self._buckets.values():
                await self._leave_ledgers(state)
            if self._holder_fence is not None:
                await self._holder_slot().release(self._name, self._holder_fence)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("an Envoy disconnected, but the engine could not be updated: %s", error)

    async def _abandon(self, state: _BucketState) -> None:
        try:
            await self._leave_ledgers(state)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("a bucket was abandoned, but the engine could not be updated: %s", error)

    async def _leave_ledgers(self, state: _BucketState) -> None:
        for ledger, key in state.ledgers:
            await ledger.leave(key, state.holder)

    def _bucket_state(self, bucket: Bucket, used: int, *, new: bool) -> _BucketState:
        now = self._service.now()
        state = self._buckets.get(bucket)
        if state is None:
            if len(self._buckets) >= MAX_BUCKETS:
                raise InvalidCharge(f"A stream has at most {MAX_BUCKETS} buckets.")
            attributes = attributes_of(self._domain or "", [Entry(*pair) for pair in bucket])
            state = self._buckets[bucket] = _BucketState(now, attributes, f"{self._holder}:{_digest(bucket)}", new)
            return state
        state.report_interval_us = round((now - state.reported_at) * SECOND)
        state.reported_at = now
        state.idle_reports = 0 if used else state.idle_reports + 1
        return state

    async def _assign(self, action: Any, state: _BucketState, used: int | None) -> bool:
        """Fills in the bucket's grant; returns whether there is one to send."""
        service = self._service
        action.assignment_time_to_live.FromMicroseconds(service.ttl_us)
        strategy = action.rate_limit_strategy
        counts, denied = service.limiter.counters_of(state.attributes)
        counts = [each for each in counts if service.can_count(each[0], each[1].limit)]
        if denied or not counts:
            strategy.blanket_rule = _DENY_ALL if denied else _ALLOW_ALL
            state.had_grant = True
            return True
        grants: list[QuotaGrant] = []
        all_granted = True
        try:
            for rule, meter, key in counts:
                ledger = service.ledger(rule, meter.limit, meter.name)
                if ledger is None:
                    state.had_grant = True  # it never waits for one
                    return False
                state.ledgers.add((ledger, key))
                grant = await ledger.grant(key, state.holder, used, state.report_interval_us)
                if grant is None or not (grant.units and grant.burst):
                    all_granted = False
                    grant = self._initial_grant(rule, meter.limit, state)
                grants.append(grant)
        except (CorruptState, EngineUnavailable) as error:
            _log.warning("no grant for an Envoy: %s", error)
            return False
        state.had_grant = state.had_grant or all_granted
        return self._set_strategy(strategy, grants, state)

    def _initial_grant(self, rule: str, limit: Limit, state: _BucketState) -> QuotaGrant:
        """Returns the rule's initial share while a bucket waits for its first grant, otherwise an empty grant."""
        rule_options = self._service.limiter.rulebook.rule(rule)
        is_joining = (
            state.is_new
            and not state.had_grant
            and state.reported_at - state.first_reported_at < self._service.join_timeout_s
        )
        share = rule_options.initial_share if is_joining and rule_options is not None else 0
        grant = grant_in_units(quota_units(limit), ALL_GRANT_UNITS * share // 10_000, self._service.ttl_us)
        assert grant is not None
        return grant

    def _set_strategy(self, strategy: Any, grants: list[QuotaGrant], state: _BucketState) -> bool:
        slowest = min(grants, key=lambda grant: grant.units / grant.period_us)
        burst = min(grant.burst for grant in grants)
        if slowest.units and burst:
            units, period_us = slowest.units, slowest.period_us
            if (
                units > 1
                and state.last_grant
                and state.last_grant[:2] == (units, burst)
                and state.last_grant[2] != period_us
            ):
                units -= 1  # Envoy does not see that the interval alone has changed
            state.last_grant = units, burst, period_us
            strategy.token_bucket.max_tokens = burst
            strategy.token_bucket.tokens_per_fill.value = units
            strategy.token_bucket.fill_interval.FromMicroseconds(period_us)
            return True
        if (
            not state.is_new
            and not state.had_grant
            and state.reported_at - state.first_reported_at < self._service.ttl_us / SECOND
        ):
            return False  # it may still use a grant of the stream before
        strategy.blanket_rule = _DENY_ALL
        return True

    async def _keep_holder_name(self) -> None:
        """Keeps the name that the Envoy gave itself, if no other stream has it."""
        if not self._name:
            return
        if self._holder_fence is None:
            if self._buckets:
                return  # another stream had it when this one began
            outcome, _ = await self._holder_slot().acquire(self._name)
            if outcome[ALLOWED]:
                self._holder_fence, self._holder = outcome[MARK], f"={self._name}"
        elif await self._holder_slot().renew(self._name, self._holder_fence) is None:
            raise InvalidCharge(f'"{self._name}" is another stream by now.')

    def _holder_slot(self) -> Any:
        service = self._service
        ttl = (service.ttl_us + service.grace_us) / SECOND
        return service.limiter.engine.slots(Slots(1, ttl), HOLDERS_METER)


class _BucketState:
    """The state of a bucket: its first and last report, and how long it was idle."""

    __slots__ = (
        "attributes",
        "first_reported_at",
        "had_grant",
        "holder",
        "idle_reports",
        "is_new",
        "last_grant",
        "ledgers",
        "report_interval_us",
        "reported_at",
    )

    def __init__(self, reported_at: float, attributes: dict[str, str], holder: str, is_new: bool) -> None:
        self.is_new = is_new  # to its Envoy, too
        self.had_grant = False  # it had a grant on this stream
        self.attributes = attributes
        self.holder = holder
        self.ledgers: set[tuple[Any, str]] = set()  # and keys in which it may hold a share
        self.first_reported_at = self.reported_at = reported_at
        self.report_interval_us = 0  # 0: this is the first report
        self.idle_reports = 0
        self.last_grant: tuple[int, int, int] | None = None  # units, burst, period


def _digest(bucket: Bucket) -> str:
    return sha256(repr(bucket).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def methods(service: QuotaService) -> dict[str, Method]:
    """Returns the service's methods by their full names."""
    return {PATH: Method(streaming=service.stream)}
