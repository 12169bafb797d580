"""One connection of an event loop: questions out, replies in, in the same order.

Whoever hears a reply is the one who asked, because each question on its way keeps its place until its reply has
come, whether anybody still waits for it or not.
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

from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, RedisError, ServerError, said
from headgate.engines.redis.server_address import ServerAddress

Hear = Callable[[Any], None]

IDLE = 0.01  # seconds of silence after which a connection is looked at before it is trusted


class AsyncConnection(asyncio.Protocol):
    """`lost` is told once, when the connection has ended; before that every question gets its reply."""

    def __init__(self, lost: Callable[[RedisError], None]) -> None:
        self._lost: Callable[[RedisError], None] | None = lost
        self._hears: deque[Hear] = deque()
        self._reader = hiredis.Reader(replyError=said)
        self.heard_at: float = monotonic()  # when the server last said anything

    async def open(self, loop: asyncio.AbstractEventLoop, address: ServerAddress) -> None:
        """Connect and be let in; raises Trouble."""
        try:
            if address.path is not None:
                await loop.create_unix_connection(lambda: self, address.path)
            else:
                await loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be a host's
            where = f"{address.path}: " if address.path is not None else ""
            raise ConnectFailed(f"{where}{getattr(error, 'strerror', None) or error}") from error
        try:
            for words in address.greeting:
                reply = loop.create_future()
                self.write(words, [partial(_tell, reply)])
                answer = await reply
                if isinstance(answer, RedisError):
                    raise answer if isinstance(answer, ServerError) else ConnectFailed(str(answer))
            if self._lost is None:
                raise ConnectFailed("the server closed the connection")
        except BaseException:
            self._lost = None
            self.abort()
            raise

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._poll = poll.poll

    @property
    def doubtful(self) -> bool:
        """Whether the server has said something that nobody asked, unheard so far: probably its farewell."""
        return not self._hears and monotonic() - self.heard_at > IDLE and bool(self._poll(0))

    def write(self, packed: bytes, hears: Sequence[Hear]) -> None:
        """Send questions; each of `hears` is called with one reply, an error among them, in that order."""
        self._hears.extend(hears)
        self._transport.write(packed)

    def write_one(self, packed: bytes, hear: Hear) -> None:
        """The same for one question, by the shortest way."""
        self._hears.append(hear)
        self._transport.write(packed)

    def data_received(self, data: bytes) -> None:
        self.heard_at = monotonic()
        reader, hears = self._reader, self._hears
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                hears.popleft()(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self.connection_lost(OSError(f"the server does not speak Redis' protocol: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.abort()
        if self._lost is not None:
            lost, self._lost = self._lost, None
            trouble = ConnectionLost(str(error) if error else "the server closed the connection")
            for hear in self._hears:
                hear(trouble)
            self._hears.clear()
            lost(trouble)

    def on_lost(self, lost: Callable[[RedisError], None]) -> None:
        """From now on somebody else is told of its end."""
        self._lost = lost

    def abort(self) -> None:
        """End it; nobody is told."""
        self._transport.abort()


def _tell(reply: asyncio.Future[Any], answer: Any) -> None:
    if not reply.done():
        reply.set_result(answer)
