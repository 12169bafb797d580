"""Closes connections that send nothing, before they keep everybody else out.

granian waits without a limit for a connection's first bytes (until it knows which HTTP is spoken), and for the
next request of HTTP/2; grpc waits likewise. So as many connections as a server accepts, each silent after its
first byte, would keep everybody out. A connection is silent if for a while nothing was received on it and nothing
sent, and no request of it is under way. Which ones are closed depends on how many are open:

    more than half of what the server accepts    those silent for IDLE_S
    all of it                                    those silent for FULL_IDLE_S, a quarter at a time, longest first

The kernel knows how long they are silent; where it cannot be asked (only Linux tells, and only of TCP), they stay.

Laws (tests/service/test_faults.py): silent clients keep nobody out for longer than a few seconds, whatever they
sent before; a client whose request is under way is never cut off.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import unpack_from

IDLE_S = 10.0
FULL_IDLE_S = 1.0
_LOOK_S = 0.5  # how often it is looked whether the server is full
_AGAIN_S = 0.1  # in which clients that waited to be accepted are
_FILES = "/proc/self/fd"
_LAST_SENT, _LAST_RECEIVED, _SIZE = 44, 52, 56  # where tcp_info has milliseconds

Peer = tuple[str, str]  # host and port, as granian has them


class UnderWay:
    """Which clients have requests under way, and how many."""

    def __init__(self) -> None:
        self._calls: dict[Peer, int] = {}

    def begin(self, peer: Peer) -> None:
        self._calls[peer] = self._calls.get(peer, 0) + 1

    def end(self, peer: Peer) -> None:
        left = self._calls[peer] - 1
        if left:
            self._calls[peer] = left
        else:
            del self._calls[peer]

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._calls


def peer_of(text: str) -> Peer:
    """The peer that grpc calls ipv4:127.0.0.1:1234 or ipv6:%5B::1%5D:1234; of a unix socket, none."""
    host, _, port = text.partition(":")[2].rpartition(":")
    return host.removeprefix("%5B").removesuffix("%5D"), port


async def let_go(port: int | None, most: int, under_way: UnderWay) -> None:
    """Close silent connections of a server that accepts so many at this port, for as long as this runs."""
    if port is None or sys.platform != "linux":
        return
    loop = asyncio.get_running_loop()
    next_look = loop.time() + IDLE_S / 2
    while True:
        is_open = len(os.listdir(_FILES))
        ended = 0
        if is_open >= most or (is_open > most // 2 and loop.time() >= next_look):
            next_look = loop.time() + IDLE_S / 2
            ended = await asyncio.to_thread(_end_silent, port, most, under_way)
        await asyncio.sleep(_AGAIN_S if ended else _LOOK_S)


def _end_silent(port: int, most: int, under_way: UnderWay) -> int:
    """How many were closed."""
    found = []  # milliseconds of silence, and the descriptor
    for name in os.listdir(_FILES):
        with suppress(OSError), _connection(int(name), port) as line:
            found.append((_silent_ms(line, under_way), int(name)))
    if len(found) <= most // 2:
        return 0
    full = len(found) >= most
    longest = (FULL_IDLE_S if full else IDLE_S) * 1000
    silent = sorted((each for each in found if each[0] >= longest), reverse=True)
    ended = 0
    for before_ms, number in silent[: max(1, most // 4)] if full else silent:
        # The descriptor may be another connection's by now, and a request may have come: it is looked at again.
        with suppress(OSError), _connection(number, port) as line:
            if _silent_ms(line, under_way) >= before_ms:
                line.shutdown(socket.SHUT_RDWR)
                ended += 1
    return ended


@contextmanager
def _connection(number: int, port: int) -> Iterator[socket.socket]:
    """A connection that was accepted at this port; OSError if the descriptor is anything else."""
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError("not a socket")
    # A second hand on it, so that it is this one to the end, whoever closes the first.
    with socket.socket(fileno=os.dup(number)) as line:
        tcp = line.family in (socket.AF_INET, socket.AF_INET6) and line.type == socket.SOCK_STREAM
        if not tcp or line.getsockname()[1] != port:
            raise OSError("not a connection of this server")
        line.getpeername()  # OSError: it listens
        yield line


def _silent_ms(line: socket.socket, under_way: UnderWay) -> int:
    """For how long nothing came or went; 0 while a request is under way."""
    host, port = line.getpeername()[:2]
    if (host.removeprefix("::ffff:").partition("%")[0], str(port)) in under_way:
        return 0
    told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    return int(min(unpack_from("I", told, _LAST_SENT)[0], unpack_from("I", told, _LAST_RECEIVED)[0]))
