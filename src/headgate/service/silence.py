"""Who connects and says nothing is let go, before there are too many of them.

granian waits for the first byte of a connection for as long as it takes: only then it knows which HTTP is spoken,
and its timeouts begin. So whoever opens as many connections as we accept, and says nothing, would keep everybody
else out. While more than half of them are open, those on which not one byte has come for ten seconds are ended.
The kernel knows who they are; where it cannot be asked (only Linux tells), they stay.

Law (tests/service/test_faults.py): silent clients keep nobody out for longer than twice those seconds.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from contextlib import suppress
from struct import unpack_from

SECONDS = 10.0
_AGAIN = 0.1  # seconds, in which those who waited to be accepted are
_FILES = "/proc/self/fd"
_LAST_HEARD, _RECEIVED, _SIZE = 52, 128, 136  # where tcp_info has milliseconds, and bytes


async def let_go(listening: socket.socket, most: int, seconds: float = SECONDS) -> None:
    """End silent connections that were accepted here, for as long as this runs."""
    if listening.family == socket.AF_UNIX or sys.platform != "linux":
        return
    port = listening.getsockname()[1]
    while True:
        await asyncio.sleep(seconds / 2)
        while len(os.listdir(_FILES)) > most // 2:
            if not await asyncio.to_thread(_end_silent, port, round(seconds * 1000)):
                break
            await asyncio.sleep(_AGAIN)


def _end_silent(port: int, longest_ms: int) -> int:
    """How many of them were there."""
    ended = 0
    for name in os.listdir(_FILES):
        with suppress(OSError):  # it has ended meanwhile
            number = int(name)
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                # A second hand on it, so that it is this one to the end, whoever closes the first.
                with socket.socket(fileno=os.dup(number)) as line:
                    if _silent(line, port, longest_ms):
                        line.shutdown(socket.SHUT_RDWR)
                        ended += 1
    return ended


def _silent(line: socket.socket, port: int, longest_ms: int) -> bool:
    if line.family not in (socket.AF_INET, socket.AF_INET6) or line.type != socket.SOCK_STREAM:
        return False
    line.getpeername()  # OSError: it listens
    if line.getsockname()[1] != port:
        return False
    told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    (waited_ms,), (received,) = unpack_from("I", told, _LAST_HEARD), unpack_from("Q", told, _RECEIVED)
    return bool(received == 0 and waited_ms >= longest_ms)
