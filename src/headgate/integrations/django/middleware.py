"""The middleware: decides requests where their view is known, and adds the header fields to their responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from headgate.errors import HeadgateError, RateLimited
from headgate.integrations.django.project_limits import application_limits
from headgate.integrations.django.request_state import RequestState
from headgate.integrations.django.throttle_mistakes import throttle_mistakes

CLIENT_CLOSED_REQUEST = 499


class HeadgateMiddleware:
    """Limits a project. Write it first in MIDDLEWARE: middleware before it answers without limits and fields."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.awaited: bool = iscoroutinefunction(get_response)
        self.process_view: Callable[..., Any] = self._decide_view
        if self.awaited:
            markcoroutinefunction(self)
            self.process_view = self._adecide_view
        application = application_limits()
        try:
            application.sync.check_routes(application.routes())
        except HeadgateError as error:
            raise ImproperlyConfigured(str(error)) from error
        if mistakes := throttle_mistakes():
            raise ImproperlyConfigured("\n".join(mistakes))

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.awaited:
            return self._acall(request)
        state = RequestState.of(request)
        try:
            response: HttpResponseBase = self.get_response(request)
        except BaseException:
            state.finish(500)
            raise
        if not state.decided and not state.decide(state.limits_of_request(), with_rules=True):
            response = state.late_refusal(response, state.refusal())
        return state.complete(response)

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        state = RequestState.of(request)
        try:
            response: HttpResponseBase = await self.get_response(request)
        except BaseException as error:
            await state.afinish(500 if isinstance(error, Exception) else CLIENT_CLOSED_REQUEST)
            raise
        if not state.decided and not await state.adecide(state.limits_of_request(), with_rules=True):
            response = state.late_refusal(response, await state.arefusal())
        return await state.acomplete(response)

    def _decide_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> HttpResponseBase | None:
        state = RequestState.of(request)
        return None if state.decide(state.limits_of_request(view), with_rules=True) else state.refusal()

    async def _adecide_view(
        self, request: HttpRequest, view: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> HttpResponseBase | None:
        state = RequestState.of(request)
        if await state.adecide(state.limits_of_request(view), with_rules=True):
            return None
        return await state.arefusal()

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponseBase | None:
        """Answers a RateLimited that a view did not catch; Django handles all other exceptions."""
        if not isinstance(exception, RateLimited):
            return None
        return RequestState.of(request).answer_exception(exception)
