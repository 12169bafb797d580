"""Limits an MCP server over HTTP, of any package: an ASGI middleware that reads JSON-RPC.

    app = MCPRateLimitMiddleware(mcp.streamable_http_app(), limits=[limit("10/minute", key=["tool", "address"])])

Each call in a request counts. A JSON-RPC batch passes as a whole, or charges nothing. The response to a refused
request has a JSON-RPC error for each of its calls: its code is -32029, its data has `retryAfter` in seconds. The
HTTP status is 200, because all clients read that; `status` sets another one. The header fields are on every
response to a call. mcp_calls lists the attributes; functions (user, attributes, key, cost,
exempt) receive an MCPCall, whose `request` is the ASGI scope. Requests that are no calls pass unchanged.

The middleware runs before the server's authentication. So `user` must read the token itself, unless you add the
middleware inside: FastMCP's http_app(middleware=[Middleware(MCPRateLimitMiddleware, ...)]). `session` is what the
client sends. A server with sessions verifies it. A stateless server does not, so a client may invent a session for
each call. So do not limit by session alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Unpack
from urllib.parse import parse_qs

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.errors import InvalidSetting
from headgate.integrations.asgi import App, Message, Receive, RecordMiddleware, Scope, Send
from headgate.integrations.mcp_calls import (
    MCPCall,
    MCPLimit,
    MCPLimits,
    current_record,
    handling,
    refusal_error,
)
from headgate.integrations.request_limits import LimitSettings
from headgate.integrations.request_parts import RequestParts
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unknown_settings import reject_unknown

__all__ = ["current_record", "limit", "MCPCall", "MCPRateLimitMiddleware"]

limit = MCPLimit

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_BATCH_CALLS = 1000
PARSE_ERROR, INVALID_REQUEST = -32700, -32600
_CALLS = "headgate.mcp_calls"
_SESSION_VERSIONS = (b"2024-", b"2025-")  # revisions of the protocol that have sessions


class MCPRateLimitMiddleware:
    """Limits the calls of a server by a rulebook, by limits in code, or both; LimitSettings lists the settings.

    status           the HTTP status of a refusal: 200, or 429
    max_body_bytes   the size above which a request is refused unread
    """

    def __init__(
        self,
        app: App,
        rules: Rules | None = None,
        engine: str | AsyncEngine = "memory://",
        *,
        status: int = 200,
        max_body_bytes: int = MAX_BODY_BYTES,
        **settings: Unpack[LimitSettings],
    ) -> None:
        reject_unknown(settings, ("rules", "engine", "status", "max_body_bytes", *LimitSettings.__optional_keys__))
        if status not in (200, 429):
            raise InvalidSetting(f"status= is 200 or 429, not {status!r}.")
        self.app: App = app
        self.status: int = status
        if type(max_body_bytes) is not int or max_body_bytes < 1:
            raise InvalidSetting(f"max_body_bytes= is a whole number of at least 1, not {max_body_bytes!r}.")
        self.max_body_bytes: int = max_body_bytes
        self.limits: _CallLimits = _CallLimits(rules, engine, **settings)
        self._limited = RecordMiddleware(self._decide, self.limits, lambda scope: scope[_CALLS])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._limited(scope, receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            return
        if len(body) > self.max_body_bytes:
            await _send_json(send, 413, _error(None, INVALID_REQUEST, "The request is too large."))
            return
        receive = _replay(body, receive)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            # A server that reads JSON otherwise must not find calls here that were not counted.
            if _is_json(scope):
                await _send_json(send, 400, _error(None, PARSE_ERROR, "Parse error"))
                return
            document = None
        calls = _find_calls(document, scope)
        if len(calls) > MAX_BATCH_CALLS:
            message = f"A batch has at most {MAX_BATCH_CALLS} calls."
            await _send_json(send, 400, _error(None, INVALID_REQUEST, message))
        elif calls:
            await self._limited({**scope, _CALLS: calls, "headgate.mcp_document": document}, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Returns the body of a request, or a longer part of it than is allowed; None if the client has gone."""
        chunks: list[bytes] = []
        size = 0
        while size <= self.max_body_bytes:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if not message.get("more_body", False):
                break
        return b"".join(chunks)

    async def _decide(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Decides the calls of a request, and answers refusals."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        record: RequestRecord = scope["headgate"][1]
        if await self.limits.decide(record, self.limits.app_limits) is None:
            with handling(record):
                await self.app(scope, receive, send)
            return
        document = scope["headgate.mcp_document"]
        answer = _refusal(document, record)
        assert record.answer is not None
        status = 202 if answer is None else 503 if self.status == 429 and record.decision is None else self.status
        fields = record.answer.headers if record.decision is None else ()
        await _send_json(send, status, answer, [pair for pair in fields if pair[0] == "Retry-After"])


class _CallLimits(MCPLimits):
    """The limits of calls that were found in a request."""

    def begin(self, parts: RequestParts) -> RequestRecord:
        """Starts the record of a request that has calls, or of one of them."""
        return self.begin_calls(parts.native) if isinstance(parts.native, list) else super().begin(parts)


def _find_calls(document: Any, scope: Scope) -> list[MCPCall]:
    """Returns the calls of a JSON-RPC message or batch: whatever has a method, also if it asks for no answer."""
    messages = document if isinstance(document, list) else [document]
    session = _session(scope)
    client = scope.get("client")
    calls = []
    for message in messages:
        method = message.get("method") if isinstance(message, dict) else None
        if isinstance(method, str) and not method.startswith("notifications/"):
            params = message.get("params")
            calls.append(
                MCPCall(
                    method,
                    params if isinstance(params, dict) else {},
                    session,
                    scope,
                    scope["headers"],
                    client[0] if client else None,
                )
            )
    return calls


def _session(scope: Scope) -> str | None:
    """Returns the session that the client names, in a field, or in the query with SSE."""
    fields = dict(scope["headers"])
    version = fields.get(b"mcp-protocol-version")
    if version is not None and not version.startswith(_SESSION_VERSIONS):
        return None
    session = fields.get(b"mcp-session-id")
    if session is None:
        query = parse_qs(scope.get("query_string", b"")).get(b"session_id")
        session = query[0] if query else None
    return None if session is None else session.decode("latin-1")


def _is_json(scope: Scope) -> bool:
    content_type = dict(scope["headers"]).get(b"content-type", b"")
    return b"json" in content_type.lower()


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a function that receives the body again, and then what follows."""
    sent = False

    async def receive_again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _refusal(document: Any, record: RequestRecord) -> Any:
    """Returns the answer to a refused message or batch; None if it asks for none."""
    error = refusal_error(record)
    if isinstance(document, dict):
        return _error(document["id"], *error) if "id" in document else None
    answers = [
        _error(message["id"], *error)
        for message in document
        if isinstance(message, dict) and "method" in message and "id" in message
    ]
    return answers or None


def _error(request_id: Any, code: int, message: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


async def _send_json(send: Send, status: int, answer: Any, fields: Sequence[tuple[str, str]] = ()) -> None:
    body = b"" if answer is None else json.dumps(answer).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append((b"content-type", b"application/json"))
    headers += [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
