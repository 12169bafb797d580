"""Calls with one request and one response, without a task of their own.

Most are decided without waiting, or wait for one reply of Redis. A task would cost as much as all the rest of
such a call; so the handler's coroutine is driven here, and what it waits for continues it. It is a task to
asyncio all the same, by the functions that asyncio documents for that: asyncio.timeout and asyncio.current_task
work. Gain: a call
on memory takes 10.6 us of CPU time, and 13.1 us in a task.

Laws (tests/service/grpc_server/test_calls.py): every call has one status, whatever its handler does; a
call that its client cancels, or whose deadline is over, is cancelled in the handler, as a task would be; the
handler is never entered again after it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine
from typing import Any

from headgate.service.grpc_server.flow_control import MESSAGE_PREFIX_BYTES
from headgate.service.grpc_server.header_blocks import OK_TRAILERS, RESPONSE_HEAD, trailers
from headgate.service.grpc_server.messages import message_size, prefix
from headgate.service.grpc_server.methods import CallFailed, Reply, StatusCode
from headgate.service.grpc_server.streams import Http2Stream

STOPS = "This service stops."
_log = logging.getLogger("headgate.service")


class UnaryCall(Http2Stream):
    """A unary call. To asyncio it is the task that runs the handler."""

    __slots__ = ("_buffer", "_cancels", "_coroutine", "_must_cancel", "_timer", "_waits_for")
    runs = False  # its request must be whole first

    _buffer: bytearray | None
    _coroutine: Coroutine[Any, Any, bytes | Reply] | None
    _timer: Any
    _waits_for: Any

    def __init__(self, connection: Any, stream_id: int, head: Any) -> None:
        super().__init__(connection, stream_id, head)
        self._buffer = self._coroutine = self._waits_for = self._timer = None
        self._must_cancel, self._cancels = False, 0

    # What the connection calls.

    def receive(self, payload: bytes, ended: bool) -> None:
        size = len(payload) - MESSAGE_PREFIX_BYTES
        if (
            ended
            and self._buffer is None
            and 0 <= size <= self.connection.context.max_message_bytes
            and payload[0] == 0
            and int.from_bytes(payload[1:5], "big") == size
        ):
            self._start(payload[5:])
        elif self.is_open:
            try:
                self._receive_part(payload, ended)
            except CallFailed as failure:
                self._end(failure.code, failure.message)

    def _receive_part(self, payload: bytes, ended: bool) -> None:
        connection = self.connection
        if self._buffer is None:
            self._buffer = bytearray()
        self._buffer += payload
        if not connection.hold(len(payload)):
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "Too much is sent at once on this connection.")
        size = 0
        if len(self._buffer) >= MESSAGE_PREFIX_BYTES:
            size = message_size(self._buffer, 0, connection.context.max_message_bytes)
            if len(self._buffer) > size + MESSAGE_PREFIX_BYTES:
                raise CallFailed(StatusCode.UNIMPLEMENTED, "This method takes one message, and more were sent.")
        if not ended:
            connection.credit(self, len(payload))
        elif not self._buffer:
            raise CallFailed(StatusCode.UNIMPLEMENTED, "This method takes one message, and none was sent.")
        elif len(self._buffer) != size + MESSAGE_PREFIX_BYTES:
            raise CallFailed(StatusCode.INTERNAL, "The message ended too early.")
        else:
            message = bytes(self._buffer[MESSAGE_PREFIX_BYTES:])
            self._release_buffer()
            self._start(message)

    def was_reset(self) -> None:
        self._release_buffer()
        if self._coroutine is not None:
            self.cancel()

    def time_out(self) -> None:
        self._end(StatusCode.DEADLINE_EXCEEDED, "The request did not arrive in time.")

    def cut_off(self) -> None:
        if self.trailers is None:
            self._end(StatusCode.UNAVAILABLE, STOPS)

    # The handler.

    def _start(self, message: bytes) -> None:
        method = self.head.method
        assert method is not None
        if method.at_once is not None:
            try:
                reply = method.at_once(message)
            except Exception as error:
                self._answer(*_failure(error))
                return
            if reply is not None:
                if not self.connection.respond(self, reply):
                    self._answer(StatusCode.OK, "", (), reply)
                return
        assert method.unary is not None
        self._coroutine = method.unary(message)
        self._step(None)

    def _step(self, error: BaseException | None) -> None:
        """Runs the handler until it waits or ends."""
        coroutine, loop = self._coroutine, self.connection.context.loop
        assert coroutine is not None
        code, message = StatusCode.OK, ""
        reply: bytes | Reply = b""
        task: Any = self
        _enter_task(loop, task)
        try:
            awaited = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            reply = stop.value
        except asyncio.CancelledError:
            code, message = StatusCode.CANCELLED, "The call was cancelled."
        except Exception as error:
            code, message = _failure(error)
        else:
            self._wait(awaited)
            return
        finally:
            _leave_task(loop, task)
        self._coroutine = None
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_open:
            return
        if code or not isinstance(reply, bytes):
            metadata: tuple[tuple[str, str], ...] = ()
            if isinstance(reply, Reply):
                reply, metadata = reply
            self._answer(code, message, metadata, reply)
        elif not self.connection.respond(self, reply):
            self._answer(code, message, (), reply)

    def _wait(self, awaited: Any) -> None:
        if self._timer is None and self.head.timeout_s is not None and self.is_open:
            self._timer = self.connection.context.loop.call_later(self.head.timeout_s, self._deadline_over)
        if awaited is None:
            self.connection.context.loop.call_soon(self._continue, None)
            return
        awaited._asyncio_future_blocking = False
        self._waits_for = awaited
        awaited.add_done_callback(self._continue)
        if self._must_cancel and awaited.cancel():
            self._must_cancel = False

    def _continue(self, _: object) -> None:
        self._waits_for = None
        error = asyncio.CancelledError() if self._must_cancel else None
        self._must_cancel = False
        self._step(error)
        self.connection.flush_soon()

    def _deadline_over(self) -> None:
        self._end(StatusCode.DEADLINE_EXCEEDED, "The call's deadline is over.")
        self.connection.flush_soon()

    # What asyncio calls, as of a task.

    def cancel(self, msg: object = None) -> bool:
        self._cancels += 1
        if self._waits_for is None or not self._waits_for.cancel():
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        return self._cancels

    def uncancel(self) -> int:
        self._cancels = max(0, self._cancels - 1)
        if not self._cancels:
            self._must_cancel = False
        return self._cancels

    # The response.

    def _answer(
        self, code: StatusCode, message: str, metadata: tuple[tuple[str, str], ...] = (), reply: bytes = b""
    ) -> None:
        if code:
            self.finish(RESPONSE_HEAD + trailers(code, message, metadata))
            return
        self.connection.send_head(self, RESPONSE_HEAD)
        self.send_data(prefix(reply) + reply)
        self.finish(trailers(code, message, metadata) if metadata else OK_TRAILERS)

    def _end(self, code: StatusCode, message: str) -> None:
        """Ends the call without waiting for its handler."""
        self._release_buffer()
        if self.is_open and self.trailers is None:
            self._answer(code, message)
        if self._coroutine is not None:
            self.cancel()

    def _release_buffer(self) -> None:
        if self._buffer is not None:
            self.connection.hold(-len(self._buffer))
            self._buffer = None


def _failure(error: Exception) -> tuple[StatusCode, str]:
    """Returns the status of a call whose handler has failed; logs a defect."""
    if isinstance(error, CallFailed):
        return error.code, error.message
    _log.error("A gRPC call could not be answered.", exc_info=error)
    return StatusCode.INTERNAL, "This is a defect of the service. Its log says more."
