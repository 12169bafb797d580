"""Envoy's Rate Limit Service, version 3: one request, all its descriptors, one decision.

What a request means is in asked.py and across.py, what is answered in told.py; here the limiter is asked between
the two. All descriptors are decided together: they all pass and are charged, or none is, in one question to the
engine. (The reference service charges the others, and whoever is refused as well.)

    a peek that finds nothing left    refuses the call, and so nobody is charged
    negative hits                     give back after the others were decided, so that who has to ask again
                                      because nobody answered gives back once
    no decision                       where a rule has no fallback and its engine is silent: UNAVAILABLE, and Envoy
                                      does what its failure mode says. Never an OK that nobody decided
    what cannot be asked              INVALID_ARGUMENT with a sentence: no domain and no descriptors, as in the
                                      reference service (it says UNKNOWN), too much of anything, or bytes that are
                                      no request
    slots                             Envoy cannot give them back: they end by their ttl
    several quotas                    (quota_mode) are each charged by itself, before the others are decided; if
                                      those refuse, the quotas are given back. If none has room, nobody else is
                                      charged

POST /json is the same question for who has no gRPC: 200, 429; 400 for what cannot be asked, 503 for no decision.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Protocol

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from headgate.enforcement.call_plan import CompiledRulebook
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.service.envoy import response as envoy_response
from headgate.service.envoy.cross_descriptor import LIMITED, QUOTA, UNLIMITED, CrossDescriptor
from headgate.service.envoy.fast_response import CachedRequest, encode_passes
from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.request import DescriptorCheck, parse_descriptors
from headgate.service.request_cache import MAX_CACHED_REQUEST_BYTES, RequestCache

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
PATH = f"/{SERVICE}/{METHOD}"
_SHOWN = 300  # letters of an error that are told back

Decisions = Sequence[RuleDecision]


class ResponseInputs(NamedTuple):
    """All that there is to tell: what told.response takes."""

    wording: envoy_response.ResponseFormat
    asked: Sequence[DescriptorCheck]
    answers: envoy_response.OptionalDecisions
    unlimited: Sequence[bool] = ()
    spared: Collection[int] = ()


class Context(Protocol):
    """What is needed of a call's context."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class RateLimits:
    """Answers Envoy's questions by a limiter."""

    def __init__(self, limiter: AsyncRuleLimiter, *, fields: bool = True, names: bool = True) -> None:
        self.limiter = limiter
        self._fields, self._names = fields, names
        self._known: RequestCache[CachedRequest] = RequestCache()
        self._follow(limiter.ruling)

    def _follow(self, ruling: CompiledRulebook) -> None:
        """What follows from the rulebook alone."""
        self._ruling = ruling
        self._across = CrossDescriptor(ruling.book)
        self._wording = envoy_response.response_format(ruling, self._fields, self._names)

    async def should_rate_limit(self, data: bytes, context: Context) -> bytes:
        """The method of the service: of a RateLimitRequest a RateLimitResponse, both in bytes; or an error with a
        sentence."""
        limiter = self.limiter
        known = self._known.get(data, limiter.ruling)
        try:
            if known is not None:
                answers = await limiter.answered(known.together)
                if written := known.plain(answers):
                    return written
                found = ResponseInputs(known.wording, known.asked, known.together.decisions(answers))
            else:
                found = await self._found(_read(data), data)
        except InvalidCharge as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except EngineUnavailable as error:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except CorruptState as error:
            return await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return encode_passes(*found[:3]) or envoy_response.make_response(*found).SerializeToString()

    async def answer(self, request: Any) -> Any:
        """The answer to a RateLimitRequest; InvalidCharge or EngineUnavailable if there is none."""
        return envoy_response.make_response(*await self._found(request))

    async def answer_json(self, body: bytes) -> tuple[int, bytes]:
        """A status and a body of application/json for the reference service's POST /json."""
        try:
            request = json_format.Parse(body, RateLimitRequest())
        except (json_format.ParseError, ValueError, RecursionError) as error:
            # Its words repeat what was sent, however much that is.
            return 400, _sentence(f"This is no RateLimitRequest in JSON: {str(error)[:_SHOWN]}")
        try:
            response = await self.answer(request)
        except InvalidCharge as error:
            return 400, _sentence(str(error))
        except EngineUnavailable as error:
            return 503, _sentence(str(error))
        except CorruptState as error:
            return 500, _sentence(str(error))
        status = 200 if response.overall_code == envoy_response.OK else 429
        return status, json_format.MessageToJson(response, indent=None).encode()

    async def _found(self, request: Any, data: bytes = b"") -> ResponseInputs:
        """All that there is to tell. `data`: the words of the request, to know it by."""
        asked = parse_descriptors(request)
        if self.limiter.ruling is not self._ruling:
            self._follow(self.limiter.ruling)
        wording, across = self._wording, self._across
        if not across.needed:
            return ResponseInputs(wording, asked, await self._decided(asked, data))
        kinds = across.sort(asked)
        quotas = [place for place, kind in enumerate(kinds) if kind == QUOTA]
        limited = [place for place, kind in enumerate(kinds) if kind == LIMITED]
        rest = [asked[place] for place in limited]
        if quotas:
            own, decided = await self._with_quotas([asked[place] for place in quotas], rest)
        else:
            own, decided = (), await self._decided(rest)
        answers: list[RuleDecision | None] = [None] * len(asked)
        for place, decision in zip((*quotas, *limited), (*own, *decided), strict=True):
            answers[place] = decision
        spared = quotas if any(decision.allowed for decision in own) else ()
        return ResponseInputs(wording, asked, answers, [kind == UNLIMITED for kind in kinds], spared)

    async def _with_quotas(
        self, quotas: list[DescriptorCheck], rest: list[DescriptorCheck]
    ) -> tuple[Decisions, Decisions]:
        """Decisions on quotas of which one is enough, each charged by itself, and on what else is asked."""
        each = await asyncio.gather(*(self._decided([quota]) for quota in quotas), return_exceptions=True)
        own = [found[0] for found in each if not isinstance(found, BaseException)]
        room = [decision for decision in own if decision.allowed]
        try:
            for found in each:
                if isinstance(found, BaseException):
                    raise found
            decided = await self._decided(rest, commit=bool(room))
        except BaseException:
            await self._give_back(room)
            raise
        if not all(decision.allowed for decision in decided):
            await self._give_back(room)
        return own, decided

    async def _give_back(self, decisions: Decisions) -> None:
        for decision in decisions:
            with suppress(EngineUnavailable):  # then it stays charged until its window ends
                await self.limiter.refund(decision)

    async def _decided(self, asked: list[DescriptorCheck], data: bytes = b"", commit: bool = True) -> Decisions:
        limiter = self.limiter
        taking = [question.ask for question in asked if not question.back]
        again = 0 < len(data) <= MAX_CACHED_REQUEST_BYTES and self._known.again(data)
        if len(taking) == len(asked) == 1 and asked[0].hits and not asked[0].override and not again and commit:
            return (await limiter.check(asked[0].ask.attributes, asked[0].hits),)  # the same, and quicker
        together = limiter.together(taking)
        ours = together.call.ruling is self._ruling  # another thread may replace it
        if again and ours and len(taking) == len(asked) and together.call.straight:
            self._known.keep(data, together.call.ruling, CachedRequest(self._wording, asked, together))
        decide = limiter.decided_together if commit else limiter.peeked_together
        taken = iter(await decide(together) if taking else ())
        return [
            await limiter.give_back(question.ask, question.hits) if question.back else next(taken)
            for question in asked
        ]


def _read(data: bytes) -> Any:
    # Here, not by grpc, which would answer INTERNAL and log a trace for whatever anybody sends.
    try:
        return RateLimitRequest.FromString(data)
    except DecodeError:
        raise InvalidCharge("These bytes are no RateLimitRequest.") from None


def handler(limits: RateLimits) -> grpc.GenericRpcHandler:
    """For a grpc.aio server's add_generic_rpc_handlers."""
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method(limits)})


def method(limits: RateLimits) -> Any:
    """What grpc calls."""
    return grpc.unary_unary_rpc_method_handler(limits.should_rate_limit)


def _sentence(words: str) -> bytes:
    return json.dumps({"error": words}).encode()
