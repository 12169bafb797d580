"""Limits an aiohttp server: per application, route and view.

    app = web.Application()
    rate_limits(app, engine="redis://localhost:6379/0")

    @routes.get("/items/{id}")
    @limit("5/s", key="address")
    async def items(request: web.Request) -> web.Response: ...

A limit decorates a handler, a View or a method of one. Functions (user, attributes, key, cost, exempt) receive
the web.Request, one for refunds the response. A handler reads the RequestRecord at request[RECORD].

The rulebook, the limits of the whole application and those of the route are one atomic decision, made inside of
all other middlewares: a user resolver sees the session, and a middleware for error pages or CORS sees the refusal.
The header fields are added when a response is prepared: to every response to a request that a limit decided, also
to the 404 of a path without a route and the 500 of an unhandled exception, in subapplications as well.

A WebSocket is decided when it connects, by the same limits as a GET request; a refused one gets the refusal as the
response to its handshake. Its messages are decided by `messages`: a queue slows the sender, others close (1008).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar, Unpack, cast

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.errors import InvalidRule, InvalidSetting
from headgate.extras import require
from headgate.http.headers import retry_after
from headgate.integrations.aiohttp_routes import ALL_METHODS, template_of
from headgate.integrations.application_settings import read_message_limits
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.request_limits import AsyncRequestLimits, LimitSettings
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unknown_settings import reject_unknown
from headgate.integrations.unreachable_limits import RouteInfo

require("headgate.integrations.aiohttp", "aiohttp", "aiohttp")

from aiohttp import WSCloseCode, WSMessage, WSMsgType, hdrs, web  # noqa: E402
from aiohttp.http import WS_CLOSED_MESSAGE  # noqa: E402
from aiohttp.payload import Payload  # noqa: E402

__all__ = ["exempt", "limit", "rate_limits", "RECORD"]

H = TypeVar("H", bound=Callable[..., Any])
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

RECORD = web.RequestKey("headgate", RequestRecord)

_LIMITS, _EXEMPT = "__headgate_limits__", "__headgate_exempt__"
_LISTS = {"ratelimit", "ratelimit-policy"}


class AiohttpLimit(CodeLimit):
    """A limit in code, which decorates handlers, Views and their methods. CodeLimit has the arguments."""

    def __call__(self, handler: H) -> H:
        if isinstance(handler, type) and issubclass(handler, web.View):
            setattr(handler, _LIMITS, (self, *vars(handler).get(_LIMITS, ())))
            return cast(H, handler)
        if not inspect.iscoroutinefunction(handler):
            raise InvalidRule(f"{self.location}: A limit decorates a coroutine or a View, not {handler!r}.")

        @wraps(handler)
        async def decide_then_call(*args: Any, **kwargs: Any) -> Any:
            refusal = await _decide_hidden(decide_then_call, args)
            return await handler(*args, **kwargs) if refusal is None else refusal

        setattr(decide_then_call, _LIMITS, (self, *getattr(handler, _LIMITS, ())))
        return cast(H, decide_then_call)


limit = AiohttpLimit


def exempt(handler: H) -> H:
    """Exempts a handler, a View or a method of one from all limits, also from those of the rulebook."""
    setattr(handler, _EXEMPT, True)
    return handler


def rate_limits(
    app: web.Application,
    rules: Rules | None = None,
    engine: str | AsyncEngine = "memory://",
    *,
    messages: Sequence[CodeLimit | str] = (),
    **settings: Unpack[LimitSettings],
) -> AsyncRequestLimits:
    """Limits an application. Call it once, before it starts; LimitSettings lists the settings.

    rules      a rulebook, decided for every request
    engine     where counts are kept: memory:// (this process), redis://host:port/db, or an engine
    messages   limits of the messages of WebSockets
    """
    if app.frozen or app.pre_frozen:
        raise InvalidSetting("rate_limits(app) comes too late: call it before the application starts.")
    if _INSTALLED in app:
        raise InvalidSetting("rate_limits(app) was called before: an application has one engine and one rulebook.")
    reject_unknown(settings, ("rules", "engine", "messages", *LimitSettings.__optional_keys__))
    message_limits = read_message_limits(messages)
    limits = AsyncRequestLimits(rules, engine, **settings)
    installed = app[_INSTALLED] = _AppLimits(limits, limits.bind("messages", message_limits))
    app.middlewares.insert(0, installed.record_request)
    app.middlewares.append(installed.decide_request)
    app.on_startup.append(installed.start)
    app.on_response_prepare.append(installed.add_fields)
    app.on_cleanup.append(installed.close)
    return limits


class _AiohttpRoute(NamedTuple):
    """The limits of a route as one method is decided."""

    template: str | None
    bound: tuple[BoundLimit, ...]
    exempt: bool


class _AppLimits:
    """The limits of one application: its middlewares and signals."""

    def __init__(self, limits: AsyncRequestLimits, messages: Sequence[BoundLimit]) -> None:
        self.limits = limits
        self.messages = messages

    async def start(self, app: web.Application) -> None:
        """Checks the limits against the routes."""
        if not app.middlewares.frozen:  # those that were added later come before it
            app.middlewares.remove(self.decide_request)
            app.middlewares.append(self.decide_request)
        self.limits.check_routes(find_routes(app))

    async def close(self, app: web.Application) -> None:
        """Closes the engine."""
        await self.limits.close()

    @web.middleware
    async def record_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Starts the record of a request, and finishes it."""
        limits = self.limits
        record = limits.begin(_parts(request))
        outer, request[RECORD] = request.get(RECORD), record
        request[_LIMITS_OF_APP] = limits
        request[_RECORDS] = [*request.get(_RECORDS, ()), (self, record)]
        if outer is not None:  # of an application that has this one as a subapplication
            record.exempt |= outer.exempt
        finish = partial(limits.finish, record)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            record.bytes_sent += _body_size(request, error)
            await finish(error.status, error)
            raise
        except BaseException as error:
            status = 504 if isinstance(error, asyncio.TimeoutError) else 500
            await finish(status, web.Response(status=status))
            raise
        if not record.unfinished or not isinstance(response, web.StreamResponse):
            await finish(getattr(response, "status", 500), response)  # a handler that returns no response fails
        elif response.prepared or _is_complete(response):
            record.bytes_sent += 0 if response.prepared else _body_size(request, response)
            await finish(response.status, response)
        else:
            _finish_when_sent(request, response, record, finish)
        return response

    @web.middleware
    async def decide_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Decides a request, and answers refusals."""
        record = request[RECORD]
        route = self._route_limits(request)
        record.parts.native = request  # which a middleware may have cloned
        record.parts.peer = request.remote or None
        record.parts.route, record.parts.params = route.template, request.match_info
        record.exempt |= route.exempt
        bound = (*self.limits.app_limits, *route.bound)
        record.decided = frozenset(each.limit for each in bound)
        if await self.limits.decide(record, bound) is not None:
            return _refusal(record)
        return await handler(request)

    def _route_limits(self, request: web.Request) -> _AiohttpRoute:
        """Returns the limits of the route of a request; cached, unless there is no route."""
        route = request.match_info.route
        cache_key = route, request.method
        cached = self.limits.bound_routes.get(cache_key)
        if cached is None:
            infos = [each for each in _route_infos(route) if not each.methods or request.method in each.methods]
            bound = [each for info in infos for each in self.limits.bind(info.name, info.limits)]
            unique = {each.rule.name: each for each in bound}  # what has one name counts once
            template = template_of(route.resource)
            marked = any(hasattr(each, _EXEMPT) for each in _handlers(route.handler, request.method))
            cached = _AiohttpRoute(template, tuple(unique.values()), marked)
            if route.resource is not None:  # else it is a route that was made for this request
                self.limits.bound_routes[cache_key] = cached
        return cast(_AiohttpRoute, cached)

    async def add_fields(self, request: web.Request, response: web.StreamResponse) -> None:
        """Adds the fields to a response that is about to be sent."""
        record = next((record for owner, record in request.get(_RECORDS, ()) if owner is self), None)
        if record is None:
            return
        for name, value in record.fields():
            if name.lower() in _LISTS or name not in response.headers:
                response.headers.add(name, value)
        if isinstance(response, web.WebSocketResponse):
            self.limits.end_calls(record, 101)  # it lasts as long as its client likes
            if self.messages and not record.exempt:
                _limit_messages(self.limits, self.messages, record, response)
        elif record.unfinished and not _is_complete(response):
            _count_bytes(response, record)


_INSTALLED = web.AppKey("headgate", _AppLimits)
_LIMITS_OF_APP = web.RequestKey("headgate_limits", AsyncRequestLimits)
_RECORDS = web.RequestKey("headgate_records", list[tuple[_AppLimits, RequestRecord]])


def _parts(request: web.Request) -> RequestParts:
    url = request.rel_url
    remote = request.remote or None
    return RequestParts(
        request.method, url.raw_path, url.raw_query_string, request.raw_headers, remote, request, None
    )


def _refusal(record: RequestRecord) -> web.Response:
    assert record.answer is not None
    status, headers, body = record.answer
    return web.Response(status=status, body=body, headers=headers)


async def _decide_hidden(handler: Callable[..., Any], args: Sequence[Any]) -> web.Response | None:
    """Decides the limits of a handler that are not decided yet: a decorator hides them from the route."""
    marked: tuple[AiohttpLimit, ...] = getattr(handler, _LIMITS)
    request = next((getattr(arg, "request", arg) for arg in reversed(args)), None)
    if not isinstance(request, web.Request):
        raise InvalidRule(f"{marked[0].location}: A limit decorates a handler, which receives a web.Request.")
    record = request.get(RECORD)
    if record is None:
        raise InvalidSetting(
            f"{marked[0].location}: The limit has no engine: write rate_limits(app) for this app."
        )
    undecided = [each for each in marked if each not in record.decided]
    if not undecided or record.exempt:
        return None
    limits = request[_LIMITS_OF_APP]
    record.decided = (*record.decided, *undecided)
    bound = limits.bind(f"{handler.__module__}.{handler.__qualname__}", undecided)
    return None if await limits.decide(record, bound, with_rules=False) is None else _refusal(record)


def _handlers(handler: Any, method: str) -> Iterator[Any]:
    """Yields a handler, and of a View the method that answers."""
    while isinstance(handler, partial):
        handler = handler.func
    yield handler
    if isinstance(handler, type):
        function = getattr(handler, method.lower(), None)
        if function is not None:
            yield function


def find_routes(app: web.Application) -> list[RouteInfo]:
    """Returns all routes of an application with their limits."""
    return [info for route in app.router.routes() for info in _route_infos(route)]


def installed_limits(app: web.Application) -> AsyncRequestLimits | None:
    """Returns the limits of an application; None if it has none."""
    installed = app.get(_INSTALLED)
    return None if installed is None else installed.limits


def _route_infos(route: web.AbstractRoute) -> Iterator[RouteInfo]:
    """Yields a route with the limits of its handler, and the methods of a View with theirs."""
    template = template_of(route.resource)
    if template is None:
        return
    # aiohttp adds a HEAD route to each for GET: both count together.
    methods = (
        ()
        if route.method == hdrs.METH_ANY
        else ("GET", "HEAD")
        if route.method in ("GET", "HEAD")
        else (route.method,)
    )
    handler, *_ = _handlers(route.handler, "")
    yield RouteInfo(template, methods, getattr(handler, _LIMITS, ()))
    for method in ALL_METHODS if isinstance(handler, type) else ():
        limits = getattr(getattr(handler, method.lower(), None), _LIMITS, ())
        if limits:
            yield RouteInfo(template, (method,), limits)


def _is_complete(response: web.StreamResponse) -> bool:
    """Returns whether a response has all of its body already: it is no stream, and no file."""
    return isinstance(response, web.Response) and isinstance(response.body, bytes | bytearray | None)


def _body_size(request: web.Request, response: web.StreamResponse) -> int:
    body = response.body if isinstance(response, web.Response) and request.method != "HEAD" else None
    return len(body) if isinstance(body, bytes | bytearray) else 0


def _count_bytes(response: web.StreamResponse, record: RequestRecord) -> None:
    """Counts what a handler writes into a stream."""
    write, write_eof = response.write, response.write_eof

    async def write_and_count(data: Any) -> None:
        await write(data)
        record.bytes_sent += len(data)

    async def write_eof_and_count(data: bytes = b"") -> None:
        await write_eof(data)
        record.bytes_sent += len(data)

    response.write = write_and_count  # type: ignore[method-assign]
    response.write_eof = write_eof_and_count  # type: ignore[method-assign]


def _finish_when_sent(
    request: web.Request,
    response: web.StreamResponse,
    record: RequestRecord,
    finish: Callable[..., Awaitable[None]],
) -> None:
    """Finishes a request when its response is sent: a file, or a body that is still to be produced."""
    prepare, write_eof = response.prepare, response.write_eof
    payload = response.body if isinstance(response, web.Response) else None

    async def prepare_or_finish(prepared_request: web.BaseRequest) -> Any:
        try:
            return await prepare(prepared_request)
        except BaseException:  # of a file the body is sent here
            await finish(response.status, response)
            raise

    async def write_eof_and_finish(data: bytes = b"") -> None:
        try:
            await write_eof(data)
        finally:
            if isinstance(response, web.FileResponse) and request.method != "HEAD" and response.status < 300:
                record.bytes_sent = response.content_length or 0  # the kernel may have sent it
            await finish(response.status, response)

    if isinstance(payload, Payload):
        write = payload.write
        counted: Any = lambda writer: write(cast(Any, _CountingWriter(writer, record)))  # noqa: E731
        payload.write = counted  # type: ignore[method-assign]
    response.prepare = prepare_or_finish  # type: ignore[method-assign, assignment]
    response.write_eof = write_eof_and_finish  # type: ignore[method-assign]


class _CountingWriter:
    """A writer of aiohttp, which counts the bytes of a body."""

    def __init__(self, writer: Any, record: RequestRecord) -> None:
        self._writer, self._record = writer, record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    async def write(self, chunk: Any, **options: Any) -> None:
        """Writes a part of the body."""
        await self._writer.write(chunk, **options)
        self._record.bytes_sent += len(chunk)


def _limit_messages(
    limits: AsyncRequestLimits,
    bound: Sequence[BoundLimit],
    record: RequestRecord,
    websocket: web.WebSocketResponse[Any],
) -> None:
    """Limits the messages that a WebSocket receives."""
    receive = websocket.receive

    async def receive_limited(*args: Any, **kwargs: Any) -> WSMessage:
        message = await receive(*args, **kwargs)
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return message
        decided = RequestRecord(record.parts, record.exempt)
        if await limits.decide(decided, bound, with_rules=False) is None:
            await limits.finish(decided, 101)
            return message
        wait = retry_after(decided.decision) if decided.decision is not None else None
        hint = "" if wait is None else f" Try again in {wait} s."
        await websocket.close(code=WSCloseCode.POLICY_VIOLATION, message=f"Too many messages.{hint}".encode())
        return WS_CLOSED_MESSAGE

    websocket.receive = receive_limited  # type: ignore[method-assign]
