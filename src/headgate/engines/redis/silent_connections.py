"""Keeps reading connections that fell silent, to undo what their late replies grant.

A batcher gives up a connection that sends nothing, and sends new requests on another one. But a server that was
only paused still answers earlier requests, and may grant a slot or a place to a caller who has left. So the old
connection stays open until its last reply has come. It carries no new request, and no other caller gets its
replies.

The threads' pool does the same, by the same bounds (sync_pool.py).

LAW: a slot, place or ticket that comes within LINGER_S after its connection was given up is given back. Of more
than MAX_LINGERING connections to a server the oldest are closed: what their late replies grant expires by its ttl.
"""

from __future__ import annotations

import asyncio

from headgate.engines.redis import protocol
from headgate.engines.redis.async_connection import AsyncConnection
from headgate.engines.redis.errors import RedisError

LINGER_S = 30.0  # how long late replies are read for callers who left, once their connection was given up
MAX_LINGERING = 16  # connections to one server that are read for late replies at once

_PING = protocol.command("PING")


class SilentConnections:
    """The connections of one batcher that are read for late replies only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closed: dict[AsyncConnection, asyncio.Future[None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._closed)

    def add(self, connection: AsyncConnection) -> None:
        """Reads on until the last reply has come, for LINGER_S at most."""
        closed = self._closed[connection] = self._loop.create_future()
        timer = self._loop.call_later(LINGER_S, connection.connection_lost, None)

        def on_closed(error: RedisError | None = None) -> None:
            timer.cancel()
            self._closed.pop(connection, None)
            if not closed.done():
                closed.set_result(None)

        connection.set_on_lost(on_closed)
        # Replies come in the order of the requests: this one comes after all that may grant something.
        connection.write(_PING, [lambda _: connection.connection_lost(None)])
        while len(self._closed) > MAX_LINGERING:
            next(iter(self._closed)).connection_lost(None)

    async def wait(self, seconds: float) -> None:
        """Waits until all late replies have come, at most `seconds`."""
        if self._closed:
            await asyncio.wait(tuple(self._closed.values()), timeout=seconds)

    def close(self) -> None:
        for connection in tuple(self._closed):
            connection.connection_lost(None)
