"""Closes connections that send nothing, before they keep other clients out.

granian waits without a limit for a connection's first bytes (until it knows the HTTP version), and for the next
request of HTTP/2. So as many connections as a server accepts, each silent after its first
byte, would keep all other clients out. A connection is idle if for a while nothing was received on it and nothing
sent, and it has no active request. Which ones are closed depends on how many are open:

    more than half of what the server accepts    those idle for IDLE_S
    all of it                                    those idle for FULL_IDLE_S, a quarter at a time, longest first

The kernel reports how long they are idle; where it does not (only Linux does, and only for TCP), they stay open.

Laws (tests/service/test_faults_under_load.py): idle clients keep other clients out for no longer than a few
seconds, whatever they sent before; a client with an active request is never disconnected.
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
_POLL_S = 0.5  # between two checks whether the server is full
_FULL_POLL_S = 0.1  # after some were closed: in this time the server accepts waiting clients
_FD_DIR = "/proc/self/fd"
_LAST_SENT_OFFSET, _LAST_RECEIVED_OFFSET, _TCP_INFO_BYTES = 44, 52, 56  # of milliseconds in struct tcp_info

Peer = tuple[str, str]  # host and port, in granian's form


class ActiveRequests:
    """Counts the active requests of each client."""

    def __init__(self) -> None:
        self._counts: dict[Peer, int] = {}

    def begin(self, peer: Peer) -> None:
        self._counts[peer] = self._counts.get(peer, 0) + 1

    def end(self, peer: Peer) -> None:
        remaining = self._counts[peer] - 1
        if remaining:
            self._counts[peer] = remaining
        else:
            del self._counts[peer]

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._counts


async def close_idle_connections(port: int | None, max_connections: int, active: ActiveRequests) -> None:
    """Closes idle connections of the server at this port, for as long as this runs."""
    if port is None or sys.platform != "linux":
        return
    loop = asyncio.get_running_loop()
    next_check_at = loop.time() + IDLE_S / 2
    while True:
        open_files = len(os.listdir(_FD_DIR))
        closed = 0
        if open_files >= max_connections or (open_files > max_connections // 2 and loop.time() >= next_check_at):
            next_check_at = loop.time() + IDLE_S / 2
            closed = await asyncio.to_thread(_close_idle, port, max_connections, active)
        await asyncio.sleep(_FULL_POLL_S if closed else _POLL_S)


def _close_idle(port: int, max_connections: int, active: ActiveRequests) -> int:
    """Closes idle connections, and returns how many."""
    connections = []  # idle milliseconds, and the descriptor
    for name in os.listdir(_FD_DIR):
        with suppress(OSError), _open_connection(int(name), port) as connection:
            connections.append((_idle_ms(connection, active), int(name)))
    if len(connections) <= max_connections // 2:
        return 0
    full = len(connections) >= max_connections
    max_idle_ms = (FULL_IDLE_S if full else IDLE_S) * 1000
    idle = sorted((entry for entry in connections if entry[0] >= max_idle_ms), reverse=True)
    closed = 0
    for idle_ms, descriptor in idle[: max(1, max_connections // 4)] if full else idle:
        # The descriptor may be another connection's by now, or a request may have come: check again.
        with suppress(OSError), _open_connection(descriptor, port) as connection:
            if _idle_ms(connection, active) >= idle_ms:
                connection.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed


@contextmanager
def _open_connection(descriptor: int, port: int) -> Iterator[socket.socket]:
    """Opens a connection that was accepted at this port; OSError if the descriptor is anything else."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        raise OSError("not a socket")
    # A duplicate descriptor stays this connection, even if the server closes its own.
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
        if not tcp or connection.getsockname()[1] != port:
            raise OSError("not a connection of this server")
        connection.getpeername()  # OSError: it listens
        yield connection


def _idle_ms(connection: socket.socket, active: ActiveRequests) -> int:
    """Returns for how long nothing was sent or received; 0 while a request is active."""
    host, port = connection.getpeername()[:2]
    if (host.removeprefix("::ffff:").partition("%")[0], str(port)) in active:
        return 0
    tcp_info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    return int(
        min(unpack_from("I", tcp_info, _LAST_SENT_OFFSET)[0], unpack_from("I", tcp_info, _LAST_RECEIVED_OFFSET)[0])
    )
