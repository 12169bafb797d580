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

POST /json is the same question for who has no gRPC: 200, 429; 400 for what cannot be asked, 503 for no decision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from headgate.errors import EngineUnavailable, InvalidCharge
from headgate.ruled.decision import RuledDecision
from headgate.ruled.limiter import AsyncRuledLimiter
from headgate.rules.rule import Headers
from headgate.service.envoy import told
from headgate.service.envoy.across import LIMITED, UNLIMITED, Across
from headgate.service.envoy.asked import Question, questions
from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.plain import Known, plain
from headgate.service.known import LONG, Memory

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = "ShouldRateLimit"
PATH = f"/{SERVICE}/{METHOD}"
_SHOWN = 300  # letters of an error that are told back

Found = tuple[Headers, Sequence[Question], told.Answers, Sequence[bool]]  # all that there is to tell


class Context(Protocol):
    """What is needed of a call's context."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class RateLimits:
    """Answers Envoy's questions by a limiter."""

    def __init__(self, limiter: AsyncRuledLimiter) -> None:
        self.limiter = limiter
        self._across = Across(limiter.rulebook)
        self._known: Memory[Known] = Memory()

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
                found: Found = limiter.rulebook.headers, known.asked, known.together.decisions(answers), ()
            else:
                found = await self._found(_read(data), data)
        except InvalidCharge as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except EngineUnavailable as error:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return plain(*found[:3]) or told.response(*found).SerializeToString()

    async def answer(self, request: Any) -> Any:
        """The answer to a RateLimitRequest; InvalidCharge or EngineUnavailable if there is none."""
        return told.response(*await self._found(request))

    async def _found(self, request: Any, data: bytes = b"") -> Found:
        """All that there is to tell. `data`: the words of the request, to know it by."""
        asked, limiter = questions(request), self.limiter
        book = limiter.rulebook
        if book is not self._across.book:
            self._across = Across(book)
        if not self._across.needed:
            return book.headers, asked, await self._decided(asked, data), ()
        kinds = self._across.sort(asked)
        decided = iter(await self._decided([q for q, kind in zip(asked, kinds, strict=True) if kind == LIMITED]))
        answers = [next(decided) if kind == LIMITED else None for kind in kinds]
        return book.headers, asked, answers, [kind == UNLIMITED for kind in kinds]

    async def _decided(self, asked: list[Question], data: bytes = b"") -> Sequence[RuledDecision]:
        limiter = self.limiter
        taking = [question.ask for question in asked if not question.back]
        again = 0 < len(data) <= LONG and self._known.again(data)
        if len(taking) == len(asked) == 1 and asked[0].hits and not asked[0].override and not again:
            return (await limiter.check(asked[0].ask.attributes, asked[0].hits),)  # the same, and quicker
        together = limiter.together(taking)
        if again and len(taking) == len(asked) and together.call.straight:
            ruling = together.call.ruling
            self._known.keep(data, ruling, Known(ruling.book.headers, asked, together))
        taken = iter(await limiter.decided_together(together) if taking else ())
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


async def answer_json(body: bytes, limits: RateLimits) -> tuple[int, bytes]:
    """A status and a body of application/json for the reference service's POST /json."""
    try:
        request = json_format.Parse(body, RateLimitRequest())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        # Its words repeat what was sent, however much that is.
        return 400, _sentence(f"This is no RateLimitRequest in JSON: {str(error)[:_SHOWN]}")
    try:
        response = await limits.answer(request)
    except InvalidCharge as error:
        return 400, _sentence(str(error))
    except EngineUnavailable as error:
        return 503, _sentence(str(error))
    status = 200 if response.overall_code == told.OK else 429
    return status, json_format.MessageToJson(response, indent=None).encode()


def _sentence(words: str) -> bytes:
    return json.dumps({"error": words}).encode()
