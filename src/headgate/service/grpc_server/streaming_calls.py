"""Calls with several requests or responses, each in a task.

If a client sends faster than the handler reads, its stream's window slows it down: the window grows again only
when the queue is empty. If a handler sends faster than its client reads, the handler waits.

Laws (tests/service/grpc_server/test_calls.py): messages arrive in order; the queue is bounded by the
stream's window; the handler is closed when its client has gone, and its `finally` runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from headgate.service.grpc_server.header_blocks import OK_TRAILERS, RESPONSE_HEAD, trailers
from headgate.service.grpc_server.messages import MessageReader, prefix
from headgate.service.grpc_server.methods import CallFailed, StatusCode
from headgate.service.grpc_server.streams import Http2Stream
from headgate.service.grpc_server.unary_calls import STOPS

MESSAGE_TIMEOUT_S = 10.0  # until one that has begun is whole
_log = logging.getLogger("headgate.service")


class StreamingCall(Http2Stream):
    """A streaming call."""

    __slots__ = (
        "_arrived",
        "_deferred",
        "_has_head",
        "_held",
        "_incomplete_since",
        "_queue",
        "_reader",
        "_sent",
        "_task",
        "_timer",
    )

    def __init__(self, connection: Any, stream_id: int, head: Any) -> None:
        super().__init__(connection, stream_id, head)
        self._reader = MessageReader(connection.context.max_message_bytes)
        self._queue: deque[bytes] = deque()
        # Two events: a handler may send while a task of its own waits for the next message.
        self._arrived, self._sent = asyncio.Event(), asyncio.Event()
        self._deferred = 0  # bytes that are credited when the queue is empty
        self._held = 0
        self._incomplete_since: float | None = None  # as of the last tick: of a message
        self._has_head = False
        self._task: asyncio.Task[None] | None = None
        self._timer: Any = None

    # What the connection calls.

    def opened(self) -> None:
        loop = self.connection.context.loop
        self._task = loop.create_task(self._run())
        if self.head.timeout_s is not None:
            self._timer = loop.call_later(self.head.timeout_s, self._deadline_over)

    def receive(self, payload: bytes, ended: bool) -> None:
        if not self.is_open or self.trailers is not None:
            return
        self._deferred += len(payload)
        self._held += len(payload)
        try:
            if not self.connection.hold(len(payload)):
                raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "Too much is sent at once on this connection.")
            messages = self._reader.read(payload)
            if messages:
                self._incomplete_since = None
                self._queue.extend(messages)
            if ended and len(self._reader):
                raise CallFailed(StatusCode.INTERNAL, "The last message ended too early.")
        except CallFailed as failure:
            self._end(failure.code, failure.message)
            return
        if not self._queue:
            self._credit()
        self._arrived.set()

    def was_reset(self) -> None:
        self._release()
        if self._task is not None:
            self._task.cancel()

    def time_out(self) -> None:
        """A stream may be silent for as long as its connection answers pings, but not within a message."""
        now = self.connection.now
        if self._queue or not len(self._reader):
            self._incomplete_since = None
        elif self._incomplete_since is None:
            self._incomplete_since = now
        elif now - self._incomplete_since > MESSAGE_TIMEOUT_S:
            self._end(StatusCode.DEADLINE_EXCEEDED, "The message did not arrive in time.")

    def cut_off(self) -> None:
        self._end(StatusCode.UNAVAILABLE, STOPS)

    # The handler.

    async def _run(self) -> None:
        method = self.head.method
        assert method is not None
        assert method.streaming is not None
        code, message = StatusCode.OK, ""
        try:
            replies: Any = method.streaming(self._messages(), self.head.metadata)
            async with aclosing(replies):
                async for reply in replies:
                    await self._send(reply)
        except CallFailed as failure:
            code, message = failure.code, failure.message
        except asyncio.CancelledError:
            code, message = StatusCode.CANCELLED, "The call was cancelled."
        except Exception:
            _log.exception("A gRPC call could not be answered.")
            code, message = StatusCode.INTERNAL, "This is a defect of the service. Its log says more."
        self._task = None
        self._end(code, message)
        self.connection.flush_soon()

    async def _messages(self) -> AsyncIterator[bytes]:
        while True:
            if self._queue:
                message = self._queue.popleft()
                if not self._queue:
                    self._credit()
                    self.connection.flush_soon()
                yield message
            elif self.ended:
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def _send(self, message: bytes) -> None:
        if not self._has_head:
            self._has_head = True
            self.connection.send_head(self, RESPONSE_HEAD)
        self.send_data(prefix(message) + message)
        self.connection.flush_soon()
        while self.unsent and self.is_open:
            self._sent.clear()
            await self._sent.wait()

    def data_sent(self) -> None:
        self._sent.set()

    # The end.

    def _deadline_over(self) -> None:
        self._end(StatusCode.DEADLINE_EXCEEDED, "The call's deadline is over.")
        self.connection.flush_soon()

    def _end(self, code: StatusCode, message: str) -> None:
        self._release()
        if self.is_open and self.trailers is None:
            block = trailers(code, message) if code else OK_TRAILERS
            self.finish(block if self._has_head else RESPONSE_HEAD + block)
        if self._task is not None:
            self._task.cancel()

    def _credit(self) -> None:
        size, self._deferred = self._deferred, 0
        self.connection.hold(len(self._reader) - self._held)
        self._held = len(self._reader)
        self.connection.credit(self, size)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        self.connection.hold(-self._held)
        self._held = 0
