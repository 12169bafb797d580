"""Reads on from connections that fell silent, to give back what their late replies bring.

A channel gives up a connection that says nothing, and sends new questions on another one. But a server that was
only paused still answers what it was asked, and may grant a slot or a place to a caller who has left. So the old
connection lingers until its last reply has come. It carries no new question, and nobody else gets its replies.

The threads' pool does the same, by the same bounds (sync_pool.py).

LAW: a slot, place or ticket that comes within LINGER_S after its connection was given up is given back. Of more
than MAX_LINGERING connections to a server the oldest are closed: what they would have brought ends by its ttl.
"""

from __future__ import annotations

import asyncio

from headgate.engines.redis import protocol
from headgate.engines.redis.async_connection import AsyncConnection
from headgate.engines.redis.errors import RedisError

LINGER_S = 30.0  # that late replies are awaited for callers who left, once their connection was given up
MAX_LINGERING = 16  # connections to one server on which late replies are awaited at once

_PING = protocol.command("PING")


class SilentConnections:
    """The connections of one channel that are read for late replies only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[AsyncConnection, asyncio.Future[None]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, connection: AsyncConnection) -> None:
        """Read on until the last reply has come, for LINGER_S at most."""
        end = self._ends[connection] = self._loop.create_future()
        timer = self._loop.call_later(LINGER_S, connection.connection_lost, None)

        def ended(trouble: RedisError | None = None) -> None:
            timer.cancel()
            self._ends.pop(connection, None)
            if not end.done():
                end.set_result(None)

        connection.on_lost(ended)
        # Replies come in the order of the questions: this one comes after all that bring something.
        connection.write(_PING, [lambda _: connection.connection_lost(None)])
        while len(self._ends) > MAX_LINGERING:
            next(iter(self._ends)).connection_lost(None)

    async def wait(self, seconds: float) -> None:
        """Wait until all late replies have come, but no longer than that."""
        if self._ends:
            await asyncio.wait(tuple(self._ends.values()), timeout=seconds)

    def close(self) -> None:
        for connection in tuple(self._ends):
            connection.connection_lost(None)
