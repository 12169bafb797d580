"""Opens connections as an ill-behaved client does."""

import asyncio
import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.fuzz.service_under_attack import SECONDS

QUIET = 0.05  # seconds after which no more is expected to come by itself
_length = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)


class RawReply(NamedTuple):
    status: int
    head: bytes
    body: bytes


class NoReply(Exception):
    """A connection that is neither answered nor closed."""


async def exchange(host: str, port: int, pieces: Sequence[bytes], *, pause: float = 0.0) -> bytes:
    """All that comes back for these bytes, sent one after the other, until the other side closes.

    Our side is closed when nothing more comes: from then on the other side has SECONDS to do the same."""
    reader, writer = await asyncio.open_connection(host, port)
    back = bytearray()
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        try:
            while part := await asyncio.wait_for(reader.read(65536), QUIET):
                back += part
            return bytes(back)
        except TimeoutError:
            writer.write_eof()
        async with asyncio.timeout(SECONDS):
            while part := await reader.read(65536):
                back += part
    except TimeoutError:
        raise NoReply(f"it holds a connection that has ended; so far it said {bytes(back[:200])!r}") from None
    except OSError:
        pass  # closed, and not kindly
    finally:
        writer.close()
    return bytes(back)


class ReopeningConnection:
    """A connection that is kept and opened anew when it was closed."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._writer: asyncio.StreamWriter | None = None

    async def send_request(self, data: bytes) -> RawReply | None:
        """The answer to one request; None if the connection was closed without one."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=2**20)
        try:
            async with asyncio.timeout(SECONDS):
                self._writer.write(data)
                return await self._reply()
        except TimeoutError:
            self.close()
            raise NoReply("neither answered nor closed") from None
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return None

    async def _reply(self) -> RawReply:
        head = await self._reader.readuntil(b"\r\n\r\n")
        match = _length.search(head)
        body = await self._reader.readexactly(int(match[1])) if match else b""
        if b"\r\nconnection: close" in head.lower():
            self.close()
        return RawReply(int(head.split(b" ", 2)[1]), head, body)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
