"""Limits the requests in flight of a whole application to what it can work on, by an AdaptiveLimiter.

    app = AdaptiveMiddleware(app, limiter)                        # any ASGI application
    app.add_middleware(AdaptiveMiddleware, limiter=limiter)       # FastAPI, Starlette
    app.wsgi_app = AdaptiveWSGIMiddleware(app.wsgi_app, limiter)  # Flask
    application = AdaptiveWSGIMiddleware(get_wsgi_application(), limiter)    # Django, in wsgi.py

A request is in flight from its arrival until its response is complete. Its outcome moves the limit:

    dropped     a status of `drop_statuses` (503 and 504 unless given), or an exception of the limiter's drops
    ignored     any other status from 500 on, any other exception, a client that went away
    success     every other response

A refused request gets 503 with Retry-After, in the form that its client accepts (http/refusal_body.py), and the
application does not see it. `priority` and `user` are functions of the ASGI scope or the WSGI environ; `exempt`
returns whether a request, such as a health check, is never refused and says nothing. WebSockets are not limited:
they last as long as their clients like.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, MutableMapping
from typing import Any

from headgate.adaptive.call_in_flight import AdaptiveCall
from headgate.adaptive.guard import AdaptiveGuard
from headgate.adaptive.limiter import AdaptiveLimiter
from headgate.errors import InvalidSetting, RateLimited
from headgate.http.headers import retry_after
from headgate.http.refusal_body import RefusalResponse, configured_response
from headgate.rules.rule import OVERLOAD_REFUSAL

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DROP_STATUSES = frozenset({503, 504})
_SERVER_ERROR = 500


class _Settings:
    """Checks the arguments of both middlewares."""

    def __init__(
        self,
        app: Any,
        limiter: AdaptiveLimiter | None,
        priority: Callable[[Any], str | None] | None,
        user: Callable[[Any], Hashable] | None,
        exempt: Callable[[Any], bool] | None,
        drop_statuses: Collection[int],
    ) -> None:
        if not callable(app):
            raise InvalidSetting(f"The first argument is the application to limit; not {app!r}.")
        if limiter is not None and not isinstance(limiter, AdaptiveLimiter):
            raise InvalidSetting(f"limiter is an AdaptiveLimiter; not {limiter!r}.")
        for name, function in (("priority", priority), ("user", user), ("exempt", exempt)):
            if function is not None and not callable(function):
                raise InvalidSetting(f"{name} is a function of the request; not {function!r}.")
        statuses: frozenset[int] = frozenset()
        try:
            statuses = frozenset(drop_statuses)
            valid = all(type(status) is int and 100 <= status <= 599 for status in statuses)
        except TypeError:
            valid = False
        if not valid:
            raise InvalidSetting(
                f"drop_statuses is a collection of statuses, such as {{503, 504}}; not {drop_statuses!r}."
            )
        self.app = app
        self.limiter: AdaptiveLimiter = AdaptiveLimiter() if limiter is None else limiter
        self._priority, self._user, self._exempt = priority, user, exempt
        self._drop_statuses = statuses

    def guard(self, request: Any) -> AdaptiveGuard | None:
        """Returns the guard of a request; None if it is exempt."""
        if self._exempt is not None and self._exempt(request):
            return None
        priority = None if self._priority is None else self._priority(request)
        return self.limiter.guard(priority, None if self._user is None else self._user(request))

    def report(self, call: AdaptiveCall, status: int) -> None:
        """Ends a call whose status says that it was dropped, or says nothing."""
        if status in self._drop_statuses:
            call.drop()
        elif status >= _SERVER_ERROR:
            call.ignore()


class AdaptiveMiddleware(_Settings):
    """Limits an ASGI application: Starlette, FastAPI, Litestar, Quart, Django."""

    def __init__(
        self,
        app: App,
        limiter: AdaptiveLimiter | None = None,
        *,
        priority: Callable[[Scope], str | None] | None = None,
        user: Callable[[Scope], Hashable] | None = None,
        exempt: Callable[[Scope], bool] | None = None,
        drop_statuses: Collection[int] = DROP_STATUSES,
    ) -> None:
        super().__init__(app, limiter, priority, user, exempt, drop_statuses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard = self.guard(scope) if scope["type"] == "http" else None
        if guard is None:
            await self.app(scope, receive, send)
            return
        try:
            call = await guard.__aenter__()
        except RateLimited as refused:
            await _send_refusal(refused, scope, send)
            return
        status = left = 0

        async def receive_and_watch() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left += message["type"] == "http.disconnect"
            return message

        async def send_and_watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body") and not left:
                self.report(call, status)
                call.success()  # what the application does after its response is not waited for

        try:
            await self.app(scope, receive_and_watch, send_and_watch)
        except BaseException as error:
            await guard.__aexit__(type(error), error, error.__traceback__)
            raise
        call.ignore()  # unless its response was complete: the client is gone
        await guard.__aexit__(None, None, None)


class AdaptiveWSGIMiddleware(_Settings):
    """Limits a WSGI application: Flask, Django, Bottle, Pyramid, Falcon."""

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        limiter: AdaptiveLimiter | None = None,
        *,
        priority: Callable[[dict[str, Any]], str | None] | None = None,
        user: Callable[[dict[str, Any]], Hashable] | None = None,
        exempt: Callable[[dict[str, Any]], bool] | None = None,
        drop_statuses: Collection[int] = DROP_STATUSES,
    ) -> None:
        super().__init__(app, limiter, priority, user, exempt, drop_statuses)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        guard = self.guard(environ)
        if guard is None:
            return self.app(environ, start_response)  # type: ignore[no-any-return]
        try:
            call = guard.__enter__()
        except RateLimited as refused:
            response = _refusal_response(refused, environ.get("HTTP_ACCEPT"))
            start_response("503 Service Unavailable", response.headers)
            return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else response.body]
        guarded = _GuardedResponse(self, guard, call)

        def start_and_watch(status: str, headers: Any, exc_info: Any = None) -> Any:
            guarded.status = int(status[:3])
            return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

        try:
            guarded.body = self.app(environ, start_and_watch)
        except BaseException as error:
            guard.__exit__(type(error), error, error.__traceback__)
            raise
        return guarded


class _GuardedResponse:
    """The body of a response. Its request is in flight until the last part, or until the server closes it."""

    def __init__(self, settings: _Settings, guard: AdaptiveGuard, call: AdaptiveCall) -> None:
        self.status: int = 200
        self.body: Iterable[bytes] = ()
        self._settings, self._guard, self._call = settings, guard, call
        self._open = True

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.body
        except Exception as error:
            self._end(error)
            raise
        self._settings.report(self._call, self.status)
        self._end(None)

    def close(self) -> None:
        try:
            close = getattr(self.body, "close", None)
            if close is not None:
                close()
        finally:
            self._call.ignore()  # unless the response was complete: the client is gone
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._open:
            self._open = False
            self._guard.__exit__(None if error is None else type(error), error, None)


async def _send_refusal(refused: RateLimited, scope: Scope, send: Send) -> None:
    accept = b", ".join(value for name, value in scope.get("headers", ()) if name == b"accept")
    response = _refusal_response(refused, accept.decode("latin-1"))
    headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope.get("method") == "HEAD" else response.body})


def _refusal_response(refused: RateLimited, accept: str | None) -> RefusalResponse:
    wait = retry_after(refused.decision) or 1
    response = configured_response(OVERLOAD_REFUSAL, (), accept, wait, overloaded=True)
    fields = [("Retry-After", str(wait)), ("Content-Length", str(len(response.body)))]
    return response._replace(headers=[*response.headers, *fields])
