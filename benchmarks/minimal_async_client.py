"""The least that a decision of one among many tasks can cost: one connection, the protocol spoken by hand.

`pipelined` sends a script call for each decision and writes once in each turn of the event loop. `micro_batch`
makes one script call of up to 64 decisions, and lets the rest gather while 4 such calls are on their way. Neither
knows a timeout, a cancelled task, a lost connection, a script that the server forgot, another cost or another
limit, and a key that is asked twice in one call is counted once. All that a program would want is on top of this.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, cast

from benchmarks.minimal_limiters import MINIMAL_GCRA

GCRA_OF_MANY = (Path(__file__).parent / "gcra_batch.lua").read_text()
TOGETHER = 64
ON_THEIR_WAY = 4

AsyncTake = Callable[[str], Awaitable[Any]]


class PipelinedConnection(asyncio.Protocol):
    """Bytes out; for each reply that comes in, the oldest of `hears` is called."""

    def __init__(self) -> None:
        import hiredis

        self.hears: deque[Callable[[Any], None]] = deque()
        self._reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast(asyncio.Transport, transport).write

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        gets, next_one = self._reader.gets, self.hears.popleft
        while (reply := gets()) is not False:
            next_one()(reply)


async def _wire(port: int, script: str) -> tuple[PipelinedConnection, bytes]:
    """A connection, and the hash of the script, which the server knows now."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(PipelinedConnection, "127.0.0.1", port)
    loaded, text = loop.create_future(), script.encode()
    wire.hears.append(loaded.set_result)
    wire.write(b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%d\r\n%b\r\n" % (len(text), text))
    sha = await loaded
    assert sha == sha1(text).hexdigest().encode()
    return wire, sha


def _bulks(*numbers: int) -> bytes:
    return b"".join(b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in numbers)


async def pipelined(port: int, unit_us: int, burst_us: int) -> AsyncTake:
    wire, sha = await _wire(port, MINIMAL_GCRA)
    loop, unsent = asyncio.get_running_loop(), list[bytes]()
    around = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n$%%d\r\n%%b\r\n%b" % (sha, _bulks(unit_us, burst_us))

    def flush() -> None:
        wire.write(b"".join(unsent))
        unsent.clear()

    async def take(key: str) -> bool:
        answer, name = loop.create_future(), key.encode()
        wire.hears.append(answer.set_result)
        if not unsent:
            loop.call_soon(flush)
        unsent.append(around % (len(name), name))
        return bool((await answer)[0])

    return take


async def micro_batch(port: int, unit_us: int, burst_us: int) -> AsyncTake:
    wire, sha = await _wire(port, GCRA_OF_MANY)
    loop = asyncio.get_running_loop()
    waiting: list[tuple[bytes, asyncio.Future[bool]]] = []
    on_their_way, scheduled = 0, False
    start, end = b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % sha, _bulks(unit_us, burst_us)

    def flush() -> None:
        nonlocal on_their_way, scheduled
        scheduled = False
        while waiting and on_their_way < ON_THEIR_WAY:
            batch = waiting[:TOGETHER]
            del waiting[:TOGETHER]
            keys = b"".join([b"$%d\r\n%b\r\n" % (len(key), key) for key, _ in batch])
            on_their_way += 1
            wire.hears.append(partial(on_reply, batch))
            wire.write(b"*%d\r\n%b%b%b%b" % (len(batch) + 5, start, _bulks(len(batch)), keys, end))

    def on_reply(batch: list[tuple[bytes, asyncio.Future[bool]]], reply: list[int]) -> None:
        nonlocal on_their_way
        on_their_way -= 1
        for (_, answer), left_us in zip(batch, reply, strict=True):
            answer.set_result(left_us >= 0)
        if waiting and not scheduled:
            flush()

    def take(key: str) -> asyncio.Future[bool]:
        nonlocal scheduled
        answer = loop.create_future()
        waiting.append((key.encode(), answer))
        if not scheduled:
            scheduled = True
            loop.call_soon(flush)
        return answer

    return take
