"""Holds the record and the limits of one request, from the middleware to the view and back.

A request is decided by sync or by async limits from its start to its end, whichever code began it: a charge is
given back where it was made. Code of the other kind calls them through asgiref, so it never blocks an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import RateLimited
from headgate.http import refusal_body
from headgate.http.headers import retry_after
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.django.http_requests import http_request, in_event_loop, request_parts, route_template
from headgate.integrations.django.project_limits import ApplicationLimits, application_limits
from headgate.integrations.django.streams import finish_with_stream
from headgate.integrations.django.view_marks import handler_method, is_exempt, limits_of_view
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unreachable_limits import route_name
from headgate.rules.rule import Refusal

if TYPE_CHECKING:
    from headgate.integrations.django.view_limit import ViewLimit

RECORD, _STATE = "headgate", "_headgate_state"
_LIST_FIELDS = ("RateLimit-Policy", "RateLimit")
_OF_CONTENT = ("content-", "etag", "last-modified", "expires", "cache-control", "location")

_finishing: set[asyncio.Task[None]] = set()  # a loop holds tasks weakly


class RequestState:
    """The record of a request, and the limits that decide it; `decided`: whether the project's were."""

    def __init__(self, request: HttpRequest, app: ApplicationLimits) -> None:
        self.request: HttpRequest = request
        self.app: ApplicationLimits = app
        self.decided: bool = False
        self._awaited = isinstance(request, ASGIRequest) and in_event_loop()
        self._limits: RequestLimits | AsyncRequestLimits = app.asynchronous if self._awaited else app.sync
        self.record: RequestRecord = self._limits.begin(request_parts(request))
        if not app.enabled:
            self.record.exempt = True
        vars(request).update({RECORD: self.record, _STATE: self})

    @classmethod
    def begun(cls, request: Any) -> bool:
        """Returns whether a request has a state already: by the middleware, or an outer limit."""
        return _STATE in vars(http_request(request))

    @classmethod
    def of(cls, request: Any) -> RequestState:
        """Returns the state of a request, begun if need be. Functions receive the request as the caller has it."""
        django_request = http_request(request)
        state = vars(django_request).get(_STATE) or cls(django_request, application_limits())
        state.record.parts.native = request
        return cast(RequestState, state)

    def decide(
        self, limits: Sequence[BoundLimit], *, with_rules: bool, record: RequestRecord | None = None
    ) -> bool:
        """Decides a stage; returns whether the request may go on."""
        record = record or self.record
        if self._awaited:
            return async_to_sync(self.adecide)(limits, with_rules=with_rules, record=record)
        return self.app.sync.decide(record, limits, with_rules=with_rules) is None

    async def adecide(
        self, limits: Sequence[BoundLimit], *, with_rules: bool, record: RequestRecord | None = None
    ) -> bool:
        """Does the same in async code."""
        record = record or self.record
        if self._awaited:
            return await self.app.asynchronous.decide(record, limits, with_rules=with_rules) is None
        return await sync_to_async(self.app.sync.decide)(record, limits, with_rules=with_rules) is None

    def limits_of_request(self, view: Any = None) -> Sequence[BoundLimit]:
        """Returns the limits of the project, and those that the view carries; the rulebook goes with them."""
        self.decided = True
        if view is None:
            return self._limits.app_limits
        if is_exempt(view):
            self.record.exempt = True
            return ()
        self._note_route()
        return [*self._limits.app_limits, *self._undecided(self._limits_of(view, None), block=True)]

    def decide_view(self, limit: ViewLimit, view: Callable[..., Any]) -> HttpResponseBase | None:
        """Decides the limits of a view that are not decided yet; returns the response of a refusal."""
        blocking, others = self._stages(limit, view)
        if blocking and not self.decide(blocking, with_rules=False):
            return self.refusal()
        if others:
            self._join(record := self._separate_record(), self.decide(others, with_rules=False, record=record))
        return None

    async def adecide_view(self, limit: ViewLimit, view: Callable[..., Any]) -> HttpResponseBase | None:
        """Does the same in async code."""
        blocking, others = self._stages(limit, view)
        if blocking and not await self.adecide(blocking, with_rules=False):
            return await self.arefusal()
        if others:
            record = self._separate_record()
            self._join(record, await self.adecide(others, with_rules=False, record=record))
        return None

    def check(self, limit: ViewLimit) -> RequestRecord:
        """Decides one limit by itself; its charge stays, whatever happens to the request."""
        record = self._separate_record()
        self.decide(self._limits_of_check(limit), with_rules=False, record=record)
        self._join(record, True)
        return record

    async def acheck(self, limit: ViewLimit) -> RequestRecord:
        """Does the same in async code."""
        record = self._separate_record()
        await self.adecide(self._limits_of_check(limit), with_rules=False, record=record)
        self._join(record, True)
        return record

    def refusal(self) -> HttpResponseBase:
        """Returns the response of a refused request, without the fields: the project's own, if it has one."""
        if self.app.refusal is not None:
            return cast(HttpResponseBase, self.app.refusal(self.request, self.record))
        assert self.record.answer is not None
        status, headers, body = self.record.answer
        return HttpResponse(body, status=status, headers=dict(headers))

    async def arefusal(self) -> HttpResponseBase:
        """Does the same in async code."""
        if self.app.refusal is not None:
            return cast(HttpResponseBase, await self.app.refusal(self.request, self.record))
        return self.refusal()

    def late_refusal(self, response: HttpResponseBase, refusal: HttpResponseBase) -> HttpResponseBase:
        """Returns the refusal of a request that was answered already; it keeps what is not about the content."""
        for name, value in response.headers.items():
            if not name.lower().startswith(_OF_CONTENT) and name not in refusal.headers:
                refusal.headers[name] = value
        refusal.cookies.update(response.cookies)
        return refusal

    def answer_exception(self, error: RateLimited) -> HttpResponseBase:
        """Returns the response to a RateLimited that the view did not catch."""
        decision, accept = error.decision, self.record.parts.header("accept")
        refusal = getattr(decision, "refusal", None) or Refusal()
        names = refusal_body.violated_rules(decision) if isinstance(decision, RuleDecision) else []
        self.record.answer = refusal_body.configured_response(refusal, names, accept, retry_after(decision))
        if decision not in self.record.decisions:
            self.record.decisions.append(cast(RuleDecision, decision))
        return self.refusal()

    def complete(self, response: HttpResponseBase) -> HttpResponseBase:
        """Adds the fields to a response; refunds, settles and releases, with its last byte if it is a stream."""
        if self._finishes_later(response):
            return response
        self.finish(response.status_code, response)
        return response

    async def acomplete(self, response: HttpResponseBase) -> HttpResponseBase:
        """Does the same in async code."""
        if self._finishes_later(response):
            return response
        await self.afinish(response.status_code, response)
        return response

    def finish(self, status: int, response: HttpResponseBase | None = None) -> None:
        """Refunds, settles and releases, if there is anything to."""
        if not self.record.unfinished:
            return
        if not self._awaited:
            self.app.sync.finish(self.record, status, response)
        elif in_event_loop():  # a test client closes its responses there
            task = asyncio.get_running_loop().create_task(self.afinish(status, response))
            _finishing.add(task)
            task.add_done_callback(_finishing.discard)
        else:
            async_to_sync(self.app.asynchronous.finish)(self.record, status, response)

    async def afinish(self, status: int, response: HttpResponseBase | None = None) -> None:
        """Does the same in async code."""
        if not self.record.unfinished:
            return
        if self._awaited:
            await self.app.asynchronous.finish(self.record, status, response)
        else:
            await sync_to_async(self.app.sync.finish)(self.record, status, response)

    def _finishes_later(self, response: HttpResponseBase) -> bool:
        self._add_fields(response)
        record = self.record
        if not response.streaming:
            record.bytes_sent += len(getattr(response, "content", b""))
            return False
        if not (record.unfinished or record.decisions):
            return False
        finish = partial(self.finish, response.status_code, response)
        if record.changes_counts or record.estimates:  # a file that the server could send by itself is read here
            afinish = partial(self.afinish, response.status_code, response)
            finish_with_stream(cast(StreamingHttpResponse, response), record, finish, afinish)
        close = response.close

        def close_and_finish() -> None:
            try:
                close()
            finally:
                finish()

        response.close = close_and_finish  # type: ignore[method-assign]
        return True

    def _add_fields(self, response: HttpResponseBase) -> None:
        """Adds the fields. Lists are joined; of other fields, the view's own stays."""
        for name, value in self.record.fields():
            if name == "Retry-After" and 200 <= response.status_code < 300:
                continue  # the view knows that the limit is exceeded, and answers all the same
            if name not in response.headers:
                response.headers[name] = value
            elif name in _LIST_FIELDS:
                response.headers[name] = f"{response.headers[name]}, {value}"

    def _stages(
        self, limit: ViewLimit, view: Callable[..., Any]
    ) -> tuple[Sequence[BoundLimit], Sequence[BoundLimit]]:
        """Returns the limits of this view that are not decided yet: those that block, and the others."""
        self._note_route()
        match = self.request.resolver_match
        carried = match is not None and limit in limits_of_view(match.func)
        bound = self._limits_of(match.func, None) if carried and match else self._limits_of(view, limit)
        return self._undecided(bound, block=True), self._undecided(bound, block=False)

    def _limits_of(self, view: Callable[..., Any], limit: ViewLimit | None) -> Sequence[BoundLimit]:
        """Names the limits that a view carries, with the one that is not visible outside of it."""
        name = self._template or f"{view.__module__}.{getattr(view, '__qualname__', type(view).__qualname__)}"
        limits = limits_of_view(view)
        if limit is not None:
            method = handler_method(view)
            name = route_name([method], name) if method else f"{name} {getattr(view, '__name__', '')}".strip()
            limits = (limit, *limits)
        return self._limits.bind(name, limits) if limits else ()

    def _limits_of_check(self, limit: ViewLimit) -> Sequence[BoundLimit]:
        self._note_route()
        return self._limits.bind(f"{self._template or 'request'} check", (limit,))

    def bind_throttle(self, limit: CodeLimit) -> BoundLimit:
        """Names the limit of a throttle of REST framework: by its view and text, if it has no name."""
        self._note_route()
        return self._limits.bind(f"{self._template or 'request'} {limit.text}", (limit,))[0]

    def _undecided(self, bound: Sequence[BoundLimit], *, block: bool) -> Sequence[BoundLimit]:
        chosen = [
            each
            for each in bound
            if cast("ViewLimit", each.limit).block is block and each.limit not in self.record.decided
        ]
        self.record.decided = [*self.record.decided, *(each.limit for each in chosen)]
        return chosen

    @property
    def _template(self) -> str | None:
        """The first route of the view: all its routes are counted together."""
        match = self.request.resolver_match
        if match is None:
            return None
        return self.app.templates.get(id(match.func)) or route_template(match.route or "")

    def _note_route(self) -> None:
        match, parts = self.request.resolver_match, self.record.parts
        if match is not None:
            parts.route, parts.params = route_template(match.route or ""), match.kwargs

    def _separate_record(self) -> RequestRecord:
        """Returns a record of its own: if it is refused, what the request was charged before stays."""
        record = self._limits.begin(self.record.parts)
        record.exempt = self.record.exempt
        record.user, record.attributes = self.record.user, self.record.attributes
        return record

    def _join(self, record: RequestRecord, allowed: bool) -> None:
        """Adds what a separate record decided, for the fields and for the end of the request."""
        self.record.form = self.record.form or record.form
        self.record.decisions += record.decisions
        self.record.refunds += record.refunds
        self.record.rule_names = record.rule_names
        self.record.states_cost |= record.states_cost
        self.record.estimates += record.estimates
        self.record.costs_after += record.costs_after
        self.record.holdings += record.holdings
        if not allowed:
            self.record.answer = record.answer
