"""One connection of an event loop: sends requests, receives replies in the same order.

Each request in flight keeps its callback in the queue until its reply has come, whether a caller still waits for
it or not. So no caller gets the reply of another.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, cast

import hiredis

from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, RedisError, ServerError, parse_error_reply
from headgate.engines.redis.server_address import ServerAddress

OnReply = Callable[[Any], None]

TRUSTED_S = 0.01  # a connection that received a reply within this time is not checked before it is used again


class AsyncConnection(asyncio.Protocol):
    """An open connection. `on_lost` is called once, when it has ended; every request gets its reply before."""

    def __init__(self, on_lost: Callable[[RedisError], None]) -> None:
        self._on_lost: Callable[[RedisError], None] | None = on_lost
        self._callbacks: deque[OnReply] = deque()
        self._reader = hiredis.Reader(replyError=parse_error_reply)
        self.last_reply_at: float = monotonic()  # when data last came

    async def open(self, loop: asyncio.AbstractEventLoop, address: ServerAddress) -> None:
        """Connects and logs in; raises RedisError."""
        try:
            if address.path is not None:
                await loop.create_unix_connection(lambda: self, address.path)
            else:
                await loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            where = f"{address.path}: " if address.path is not None else ""
            raise ConnectFailed(f"{where}{getattr(error, 'strerror', None) or error}") from error
        try:
            for packed in address.handshake_commands:
                reply = loop.create_future()
                self.write(packed, [partial(_set_reply, reply)])
                result = await reply
                if isinstance(result, RedisError):
                    raise result if isinstance(result, ServerError) else ConnectFailed(str(result))
            if self._on_lost is None:
                raise ConnectFailed("the server closed the connection")
        except BaseException:
            self._on_lost = None
            self.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._poll = poll.poll

    @property
    def has_unread_data(self) -> bool:
        """Returns whether an idle connection has data that was not requested: probably that it was closed."""
        return not self._callbacks and monotonic() - self.last_reply_at > TRUSTED_S and bool(self._poll(0))

    def write(self, packed: bytes, callbacks: Sequence[OnReply]) -> None:
        """Sends requests; each of `callbacks` is called with one reply, maybe an error, in that order."""
        self._callbacks.extend(callbacks)
        self._transport.write(packed)

    def write_one(self, packed: bytes, callback: OnReply) -> None:
        """Sends one request; the fastest way."""
        self._callbacks.append(callback)
        self._transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self.last_reply_at = monotonic()
        reader, callbacks = self._reader, self._callbacks
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                callbacks.popleft()(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.connection_lost(OSError(f"the server does not speak Redis' protocol: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.abort()
        if self._on_lost is not None:
            on_lost, self._on_lost = self._on_lost, None
            failure = ConnectionLost(str(error) if error else "the server closed the connection")
            for callback in self._callbacks:
                callback(failure)
            self._callbacks.clear()
            on_lost(failure)

    def set_on_lost(self, on_lost: Callable[[RedisError], None]) -> None:
        """Replaces the function that is called when the connection has ended."""
        self._on_lost = on_lost

    def abort(self) -> None:
        """Closes the connection without calling anybody."""
        self._transport.abort()


def _set_reply(reply: asyncio.Future[Any], result: Any) -> None:
    if not reply.done():
        reply.set_result(result)
