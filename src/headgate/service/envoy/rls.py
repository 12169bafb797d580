"""Envoy's Rate Limit Service, version 3: one request, all its descriptors, one decision.

request.py and cross_descriptor_options.py parse a request, response.py writes the response; the limiter decides
here, in between. All descriptors are decided together: they all pass and are charged, or none is, in one request
to the engine. (The reference service charges the others, and those that are refused as well.)

    a peek that finds nothing left    refuses the call, and so nothing is charged
    negative hits                     give back after the others were decided: an Envoy that retries because no
                                      engine answered gives back once
    no decision                       where a rule has no fallback and its engine is down: UNAVAILABLE, and Envoy
                                      does what its failure mode says. Never an OK without a decision
    invalid requests                  INVALID_ARGUMENT with a sentence: no domain and no descriptors, as in the
                                      reference service (it returns UNKNOWN), too much of anything, or bytes that
                                      are no request
    slots                             Envoy cannot give them back: they end by their ttl
    several quotas                    (quota_mode) are each charged by itself, before the others are decided; if
                                      those refuse, the quotas are given back. If none has units left, nothing
                                      else is charged

POST /json is the same for clients without gRPC: 200, 429; 400 for an invalid request, 503 for no decision.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from headgate.enforcement import adaptive_rules
from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.observer import ObservedDecision
from headgate.service.envoy import response as envoy_response
from headgate.service.envoy.cached_request import CachedRequest
from headgate.service.envoy.cross_descriptor_options import LIMITED, QUOTA, UNLIMITED, CrossDescriptor
from headgate.service.envoy.fast_response import encode_passes
from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.request import DescriptorCheck, parse_descriptors
from headgate.service.grpc_server.methods import CallFailed, Method, StatusCode
from headgate.service.request_cache import MAX_CACHED_REQUEST_BYTES, RequestCache
from headgate.telemetry.fast_pass_reports import pass_reports

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
PATH = f"/{SERVICE}/{METHOD}"
_MAX_SHOWN_CHARS = 300  # of an error message

Decisions = Sequence[RuleDecision]


class ResponseInputs(NamedTuple):
    """The arguments of response.make_response."""

    response_format: envoy_response.ResponseFormat
    checks: Sequence[DescriptorCheck]
    decisions: envoy_response.OptionalDecisions
    unlimited: Sequence[bool] = ()
    spared_quotas: Collection[int] = ()


class RateLimits:
    """Answers Envoy's rate limit requests with a limiter."""

    def __init__(self, limiter: AsyncRuleLimiter, *, with_headers: bool = True, with_names: bool = True) -> None:
        self.limiter = limiter
        self._with_headers, self._with_names = with_headers, with_names
        self._request_cache: RequestCache[CachedRequest] = RequestCache()
        self._count_passes = pass_reports(limiter.observers)
        self._follow(limiter.compiled_rulebook)

    def _follow(self, rulebook: CompiledRulebook) -> None:
        """Sets what follows from the rulebook alone."""
        self._rulebook = rulebook
        self._cross_descriptor = CrossDescriptor(rulebook.book)
        self._response_format = envoy_response.response_format(rulebook, self._with_headers, self._with_names)

    async def should_rate_limit(self, data: bytes) -> bytes:
        """Handles the service's method: decodes a RateLimitRequest, returns an encoded RateLimitResponse."""
        cached = self._request_cache.get(data, self.limiter.compiled_rulebook)
        try:
            if cached is not None:
                if (observers := self.limiter.observers) is None:
                    return cached.answer(None, await cached.decide())
                with ObservedDecision(observers) as observed:
                    return cached.answer(observed, await cached.decide())
            inputs = await self._decide_request(_decode_request(data), data)
        except InvalidCharge as error:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, str(error)) from error
        except EngineUnavailable as error:
            raise CallFailed(StatusCode.UNAVAILABLE, str(error)) from error
        except CorruptState as error:
            raise CallFailed(StatusCode.FAILED_PRECONDITION, str(error)) from error
        return encode_passes(*inputs[:3]) or envoy_response.make_response(*inputs).SerializeToString()

    def answer_at_once(self, data: bytes) -> bytes | None:
        """Returns the response to a request that is cached, if its engine never waits; None otherwise."""
        cached = self._request_cache.get(data, self.limiter.compiled_rulebook)
        return None if cached is None else cached.answer_at_once(self.limiter.observers)

    async def answer(self, request: Any) -> Any:
        """Returns the response to a RateLimitRequest; raises InvalidCharge or EngineUnavailable."""
        return envoy_response.make_response(*await self._decide_request(request))

    async def answer_json(self, body: bytes) -> tuple[int, bytes]:
        """Returns a status and a JSON body for the reference service's POST /json."""
        try:
            request = json_format.Parse(body, RateLimitRequest())
        except (json_format.ParseError, ValueError, RecursionError) as error:
            # The message repeats what was sent, however long that is.
            return 400, _error_json(f"This is no RateLimitRequest in JSON: {str(error)[:_MAX_SHOWN_CHARS]}")
        try:
            response = await self.answer(request)
        except InvalidCharge as error:
            return 400, _error_json(str(error))
        except EngineUnavailable as error:
            return 503, _error_json(str(error))
        except CorruptState as error:
            return 500, _error_json(str(error))
        status = 200 if response.overall_code == envoy_response.OK else 429
        return status, json_format.MessageToJson(response, indent=None).encode()

    async def _decide_request(self, request: Any, data: bytes = b"") -> ResponseInputs:
        """Decides a request. `data`: its bytes, as its key in the cache."""
        checks = parse_descriptors(request)
        if self.limiter.compiled_rulebook is not self._rulebook:
            self._follow(self.limiter.compiled_rulebook)
        response_format, cross = self._response_format, self._cross_descriptor
        if not cross.needed:
            return ResponseInputs(response_format, checks, await self._decide(checks, data))
        kinds = cross.sort(checks)
        quotas = [index for index, kind in enumerate(kinds) if kind == QUOTA]
        limited = [index for index, kind in enumerate(kinds) if kind == LIMITED]
        limited_checks = [checks[index] for index in limited]
        if quotas:
            quota_decisions, limit_decisions = await self._with_quotas(
                [checks[index] for index in quotas], limited_checks
            )
        else:
            quota_decisions, limit_decisions = (), await self._decide(limited_checks)
        decisions: list[RuleDecision | None] = [None] * len(checks)
        for index, decision in zip((*quotas, *limited), (*quota_decisions, *limit_decisions), strict=True):
            decisions[index] = decision
        spared = quotas if any(decision.allowed for decision in quota_decisions) else ()
        return ResponseInputs(response_format, checks, decisions, [kind == UNLIMITED for kind in kinds], spared)

    async def _with_quotas(
        self, quotas: list[DescriptorCheck], rest: list[DescriptorCheck]
    ) -> tuple[Decisions, Decisions]:
        """Decides quotas of which one is enough, each charged by itself, and the other checks."""
        results = await asyncio.gather(*(self._decide([quota]) for quota in quotas), return_exceptions=True)
        quota_decisions = [result[0] for result in results if not isinstance(result, BaseException)]
        allowed = [decision for decision in quota_decisions if decision.allowed]
        try:
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            rest_decisions = await self._decide(rest, commit=bool(allowed))
        except BaseException:
            await self._refund_all(allowed)
            raise
        if not all(decision.allowed for decision in rest_decisions):
            await self._refund_all(allowed)
        return quota_decisions, rest_decisions

    async def _refund_all(self, decisions: Decisions) -> None:
        for decision in decisions:
            with suppress(EngineUnavailable):  # it stays charged until its window ends
                await self.limiter.refund(decision)

    async def _decide(self, checks: list[DescriptorCheck], data: bytes = b"", commit: bool = True) -> Decisions:
        limiter = self.limiter
        calls = [check.call for check in checks if not check.is_refund]
        is_repeat = 0 < len(data) <= MAX_CACHED_REQUEST_BYTES and self._request_cache.is_repeat(data)
        together = limiter.plan_batch(calls)
        is_current = (
            together.joint_plan.compiled_rulebook is self._rulebook
        )  # another thread may replace the rulebook
        if is_repeat and is_current and len(calls) == len(checks) and together.joint_plan.is_single_request:
            cached = CachedRequest(limiter.engine, self._response_format, checks, together, self._count_passes)
            self._request_cache.store(data, together.joint_plan.compiled_rulebook, cached)
        decide = limiter.decide_batch if commit else limiter.peek_batch
        decided = await decide(together) if calls else ()
        for decision in decided:
            adaptive_rules.abandon(decision)  # Envoy does not report how the call ends
        decisions = iter(decided)
        return [
            await limiter.give_back(check.call, check.hits) if check.is_refund else next(decisions)
            for check in checks
        ]


def _decode_request(data: bytes) -> Any:
    try:
        return RateLimitRequest.FromString(data)
    except DecodeError:
        raise InvalidCharge("These bytes are no RateLimitRequest.") from None


def methods(rate_limits: RateLimits) -> dict[str, Method]:
    """Returns the service's methods by their full names."""
    never_waits = isinstance(rate_limits.limiter.engine, AsyncMemoryEngine)
    at_once = rate_limits.answer_at_once if never_waits else None
    return {PATH: Method(unary=rate_limits.should_rate_limit, at_once=at_once)}


def _error_json(text: str) -> bytes:
    return json.dumps({"error": text}).encode()
