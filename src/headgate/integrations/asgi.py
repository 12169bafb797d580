"""Limits any ASGI application: Starlette, Litestar, Quart, or one without a framework.

    app = RateLimitMiddleware(app, rules="rules.yaml", engine="redis://localhost:6379/0")

It wraps the whole application, so that every response to a request that a limit decided has the header fields,
also the 500 of an exception that nobody handles. Functions (user, attributes, key, cost, exempt) receive the ASGI
scope. An application reads the RequestRecord at scope["state"]["headgate"], which is request.state.headgate in
Starlette.

WebSockets are decided when they connect, by the same limits as a GET request; a refused one gets the refusal as
the response to its handshake, where the server can send one, or is closed with 1008. Their messages are decided by
the limits `messages`: a queue ("10/s queue 100") slows the sender down, any other limit closes with 1008.

It is made of two, which a framework's file may put into different places:
    RecordMiddleware     outermost: starts the record, adds the fields, finishes requests; closes the engine
    DecisionMiddleware   decides the rulebook and the limits of the whole application, and answers refusals
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple, Unpack
from urllib.parse import quote

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.errors import InvalidRule
from headgate.http.headers import retry_after
from headgate.integrations.application_settings import read_message_limits
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.request_limits import AsyncRequestLimits, LimitSettings
from headgate.integrations.request_parts import EMPTY, RequestParts
from headgate.integrations.request_plan_cache import EncodedFields
from headgate.integrations.request_record import RequestRecord, encode_name
from headgate.integrations.unknown_settings import reject_unknown
from headgate.integrations.unreachable_limits import RouteInfo, check_middleware_limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
FindRoute = Callable[[Scope], tuple[str | None, Mapping[str, Any]]]

limit = CodeLimit

POLICY_VIOLATION = 1008
_STATE, _SCOPE_KEY = "headgate", "headgate"
_EXTENSION = "websocket.http.response"
_STARTS = ("http.response.start", "websocket.accept", f"{_EXTENSION}.start")


class ResponseStart(NamedTuple):
    """The start of a response, as functions that decide about refunds receive it."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]


class RecordMiddleware:
    """Starts the record of each request and adds the fields to its response; closes the engine with the app."""

    decides = False  # whether it decides, too: in one coroutine less than with a DecisionMiddleware inside

    def __init__(
        self,
        app: App,
        limits: AsyncRequestLimits,
        native: Callable[[Scope], Any] | None = None,
        routes: Callable[[], Sequence[RouteInfo]] | None = None,
    ) -> None:
        self.app: App = app
        self.limits: AsyncRequestLimits = limits
        self.native: Callable[[Scope], Any] | None = native
        self.routes: Callable[[], Sequence[RouteInfo]] | None = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            await (self._lifespan if kind == "lifespan" else self.app)(scope, receive, send)
            return
        limits = self.limits
        if self.routes is not None:
            limits.mount_params = frozenset(scope.get("path_params", ()))
            self._check_routes()
        record = limits.begin(_parts(scope, scope if self.native is None else self.native(scope)))
        scope[_SCOPE_KEY] = limits, record
        scope["state"] = {**(scope.get("state") or EMPTY), _STATE: record}
        start: Message = {}

        def send_with_fields(message: Message) -> Awaitable[None]:  # itself no coroutine: one frame less
            nonlocal start
            if message["type"] == "http.response.body":
                return _send_body(limits, record, start, message, send)
            if message["type"] in _STARTS:
                start = message
                if record.calls and message["type"] == "websocket.accept":
                    limits.end_calls(record, 101)  # it lasts as long as its client likes
                if record.decisions:
                    headers = message.get("headers") or ()
                    message = {**message, "headers": [*headers, *_new_fields(record, headers)]}
            return send(message)

        try:
            undecided = limits.decide_at_once(record, limits.app_limits) if self.decides else None
            if undecided is not None and await undecided is not None:
                await send_refusal(record, scope, receive, send_with_fields)
            else:
                await self.app(scope, receive, send_with_fields)
        finally:
            if record.unfinished:
                await _finish(limits, record, start)
            record.parts.native = None  # it has the scope, which has the record: without it, no garbage is left

    def _check_routes(self) -> None:
        if self.routes is not None:
            self.limits.check_routes(self.routes())
            self.routes = None

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_routes()
        except InvalidRule as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise  # a test client waits for that

        async def send_and_close(message: Message) -> None:
            if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.limits.close()
            await send(message)

        await self.app(scope, receive, send_and_close)


class RateLimitMiddleware(RecordMiddleware):
    """Limits an ASGI application by a rulebook, by limits in code, or both; LimitSettings lists the settings."""

    decides = True

    def __init__(
        self,
        app: App,
        rules: Rules | None = None,
        engine: str | AsyncEngine = "memory://",
        *,
        messages: Sequence[CodeLimit | str] = (),
        **settings: Unpack[LimitSettings],
    ) -> None:
        reject_unknown(settings, ("rules", "engine", "messages", *LimitSettings.__optional_keys__))
        limits = AsyncRequestLimits(rules, engine, **settings)
        # The path parameters of a mount or a route come with its requests.
        check_middleware_limits(limits.app_limits, limits.how_to_supply, params=None)
        bound_messages = limits.bind("messages", read_message_limits(messages))
        super().__init__(MessageMiddleware(app, limits, bound_messages) if bound_messages else app, limits)

    def _check_routes(self) -> None:
        # What has a lifespan is no mount.
        check_middleware_limits(self.limits.app_limits, self.limits.how_to_supply, params=())


class DecisionMiddleware:
    """Decides the rulebook and the limits of the whole application; needs a RecordMiddleware around it."""

    def __init__(
        self,
        app: App,
        limits: AsyncRequestLimits,
        *,
        messages: Sequence[BoundLimit] = (),
        find_route: FindRoute | None = None,
    ) -> None:
        self.app: App = MessageMiddleware(app, limits, messages) if messages else app
        self.limits: AsyncRequestLimits = limits
        self.find_route: FindRoute | None = find_route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, record = scope.get(_SCOPE_KEY) or (None, None)
        limits = self.limits
        if record is not None:
            if self.find_route is not None and limits.decides_by_route:
                record.parts.route, record.parts.params = self.find_route(scope)
            if await limits.decide(record, limits.app_limits) is not None:
                await send_refusal(record, scope, receive, send)
                return
        await self.app(scope, receive, send)


class MessageMiddleware:
    """Decides the messages of WebSockets; needs a RecordMiddleware around it."""

    def __init__(self, app: App, limits: AsyncRequestLimits, messages: Sequence[BoundLimit]) -> None:
        self.app: App = app
        self.limits: AsyncRequestLimits = limits
        self.messages: Sequence[BoundLimit] = messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and _SCOPE_KEY in scope:
            receive, send = _limit_messages(self.limits, self.messages, scope[_SCOPE_KEY][1], receive, send)
        await self.app(scope, receive, send)


async def _send_body(
    limits: AsyncRequestLimits, record: RequestRecord, start: Message, message: Message, send: Send
) -> None:
    """Sends a part of the body and counts it; with the last one, ends what ends with the response.

    The application may go on for long, with background tasks or in a middleware. So refunds are made and slots
    released before the last byte, after which the client may send its next request.
    """
    ends = not message.get("more_body")
    try:
        if ends and record.returns_units:
            status, response = _response_of(start)
            await _shielded(limits.return_units(record, status, response))
    finally:
        await send(message)
        record.bytes_sent += len(message.get("body", b""))
        if ends and record.calls:
            limits.end_calls(record, start.get("status", 500))  # background tasks are no part of it


async def _finish(limits: AsyncRequestLimits, record: RequestRecord, start: Message) -> None:
    """Refunds, settles and releases what is left of that."""
    status, response = _response_of(start)
    await _shielded(limits.finish(record, status, response))


def _response_of(start: Message) -> tuple[int, ResponseStart]:
    status = start.get("status", 101 if start else 500)
    return status, ResponseStart(status, start.get("headers") or ())


async def _shielded(change: Coroutine[Any, Any, None]) -> None:
    """Awaits a change of counts, which goes on if the request is cancelled meanwhile."""
    task = asyncio.ensure_future(change)
    _changes.add(task)  # the loop has no strong reference to a task
    task.add_done_callback(_changes.discard)
    await asyncio.shield(task)


_changes: set[asyncio.Future[None]] = set()


async def send_refusal(record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
    """Sends the response of a refused request; the fields are added on its way out."""
    assert record.answer is not None
    status, headers, body = record.answer
    head = [(encode_name(name), value.encode("latin-1", "replace")) for name, value in headers]
    head.append((b"content-length", str(len(body)).encode()))
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()  # the connect that is refused
        if _EXTENSION not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": "Too many requests."})
            return
        kind = _EXTENSION
    await send({"type": f"{kind}.start", "status": status, "headers": head})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})


def _limit_messages(
    limits: AsyncRequestLimits, bound: Sequence[BoundLimit], record: RequestRecord, receive: Receive, send: Send
) -> tuple[Receive, Send]:
    """Returns functions that receive and send messages of a WebSocket within its limits."""
    closed = False

    async def receive_limited() -> Message:
        nonlocal closed
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        decided = RequestRecord(record.parts, record.exempt)
        if await limits.decide(decided, bound, with_rules=False) is None:
            await limits.finish(decided, 101)
            return message
        await limits.finish(decided, 101)
        wait = retry_after(decided.decision) if decided.decision is not None else None
        hint = "" if wait is None else f" Try again in {wait} s."
        closed = True
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": f"Too many messages.{hint}"})
        return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}

    async def send_unless_closed(message: Message) -> None:
        if not closed:
            await send(message)

    return receive_limited, send_unless_closed


def _parts(scope: Scope, native: Any) -> RequestParts:
    path = scope.get("raw_path")
    if path is None:
        path = quote(scope["path"], safe="/%:@!$&'()*+,;=~-._", errors="surrogatepass").encode()
    elif b"?" in path:
        path = path.partition(b"?")[0]
    client = scope.get("client")
    return RequestParts(
        scope.get("method", "GET"),
        path,
        scope.get("query_string", b""),
        scope["headers"],
        client[0] if client else None,
        native,
        None,
        scope.get("path_params", EMPTY),  # of the mounts that lead to the application
        scope.get("root_path", ""),
    )


def _new_fields(record: RequestRecord, present: Iterable[tuple[bytes, bytes]]) -> EncodedFields:
    """Returns the fields of a response. Lists may be repeated; of other fields, the application's own stays."""
    encoded = record.encoded_fields()
    if not encoded or encoded[0][0] == b"ratelimit-policy":
        return encoded
    names = {name.lower() for name, _ in present}
    return [pair for pair in encoded if pair[0] not in names]
