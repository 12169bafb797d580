"""One open connection to a server: sends bytes, receives replies.

A request is one send and one recv: anything more would cost as much as the round trip itself. The timeout is the
kernel's (SO_RCVTIMEO) where possible: Python's own would poll before every call.

Requests of several callers are received in another way: poll waits, and recv is called only when there is
something to read. An exception that a signal handler raises during the wait loses nothing, and another thread can
read on; `bytes_lost` says when it cannot. Signal handlers run in the main thread only: others need not poll.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from math import ceil
from typing import Any

import hiredis

from headgate.engines.redis.errors import (
    ConnectFailed,
    ConnectionLost,
    RedisError,
    ServerError,
    TimedOut,
    parse_error_reply,
)
from headgate.engines.redis.server_address import ServerAddress

_CHUNK_BYTES = 4096  # a decision's reply is about 100 bytes, and recv allocates the whole size
_LARGE_CHUNK_BYTES = 16_384  # where many replies are read at once


class SyncConnection:
    """An open connection. After any exception but ServerError it must not be used again."""

    __slots__ = (
        *("_feed", "_gets", "_poll", "_recv", "_sendall", "_sock", "_tls"),
        *("bytes_lost", "closed", "due_at", "timeout", "used"),
    )

    def __init__(self, address: ServerAddress, connect_timeout: float, timeout: float) -> None:
        self.closed: bool = False
        self.used: bool = False
        self.bytes_lost: bool = False  # whether bytes may be lost between the socket and the next reader
        self.due_at: float = 0.0  # the deadline of the last request
        self.timeout: float = timeout
        try:
            self._sock = sock = address.connect(connect_timeout)
        except TimeoutError as error:
            raise ConnectFailed(f"{address.text} did not take the connection in time") from error
        except (OSError, ValueError) as error:  # ValueError: not a valid host name
            raise ConnectFailed(str(error)) from error
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        if self._tls is None:
            sock.settimeout(None)
        self._set_timeout(timeout)
        reader = hiredis.Reader(replyError=parse_error_reply)
        self._sendall, self._recv, self._feed, self._gets = sock.sendall, sock.recv, reader.feed, reader.gets
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll
        try:
            for packed in address.handshake_commands:
                self.exchange(packed, time.monotonic() + timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionLost):
                raise ConnectFailed(str(error)) from error
            raise

    def set_timeout(self, timeout: float) -> None:
        """Changes the timeout."""
        self.timeout = timeout
        self._set_timeout(timeout)
        self.due_at = 0.0  # forces a check of the connection before its next use

    def _set_timeout(self, seconds: float) -> None:
        """Sets how long the next piece of a reply may take."""
        seconds = max(0.001, seconds)
        if self._tls is not None:
            self._tls.settimeout(seconds)
        else:
            timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def exchange(self, packed: bytes, deadline_at: float) -> Any:
        """Sends a command and reads its reply; raises ServerError on an error reply."""
        try:
            self._sendall(packed)
            self._feed(self._recv(_CHUNK_BYTES))  # nothing, if the server has closed: the next piece says so
            reply = self._gets()
            if reply is False:
                reply = self._read_more(deadline_at)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except (OSError, hiredis.ProtocolError) as error:
            raise ConnectionLost(str(error)) from error
        if reply.__class__ is not list and isinstance(reply, ServerError):
            raise reply
        return reply

    def _read_more(self, deadline_at: float) -> Any:
        """Reads a reply in several pieces: the kernel's timeout is for each of them, the deadline for all."""
        reply = False
        while reply is False:
            if (remaining_s := deadline_at - time.monotonic()) <= 0:
                raise TimeoutError
            self._set_timeout(remaining_s)
            reply = self._next_piece()
        self._set_timeout(self.timeout)
        return reply

    def _next_piece(self) -> Any:
        chunk = self._recv(_CHUNK_BYTES)
        if not chunk:
            raise ConnectionLost("the server closed the connection")
        self._feed(chunk)
        return self._gets()

    def exchange_all(self, packed: bytes, count: int, deadline_at: float) -> list[Any]:
        """Sends several commands at once and reads their replies, error replies included.

        If the connection breaks, its error takes the place of each missing reply.
        """
        replies: list[Any] = []
        try:
            self.send(packed)
            while len(replies) < count:
                self.receive(replies, deadline_at)
        except (TimedOut, ConnectionLost) as error:
            self.close()
            replies += [error] * (count - len(replies))
        return replies

    def send(self, packed: bytes) -> None:
        """Sends commands whose replies are received later."""
        self.used = self.bytes_lost = True
        try:
            self._sendall(packed)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        self.bytes_lost = False

    def receive(self, replies: list[Any], deadline_at: float, at_once: bool = False) -> None:
        """Waits for data, and appends to `replies` those that are complete by then, maybe none.

        `at_once`: without poll, by the connection's own timeout.
        """
        try:
            if not at_once and not (self._tls is not None and self._tls.pending()):
                remaining_s = deadline_at - time.monotonic()
                if remaining_s <= 0 or not self._poll(ceil(remaining_s * 1000)):
                    raise TimedOut("no reply in time")
            self.bytes_lost = True
            try:
                chunk = self._recv(_LARGE_CHUNK_BYTES)
            except (BlockingIOError, TimeoutError):
                self.bytes_lost = False  # nothing was read
                raise
            if not chunk:
                raise ConnectionLost("the server closed the connection")
            self._feed(chunk)
            while (reply := self._gets()) is not False:
                replies.append(reply)
            self.bytes_lost = False
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except (OSError, hiredis.ProtocolError) as error:
            raise ConnectionLost(str(error)) from error

    @property
    def alive(self) -> bool:
        """Returns whether the server kept the connection open while it was idle. Nothing must be in flight."""
        if not self._poll(0):
            return True
        if self._tls is None:
            return False
        timeout = self._tls.gettimeout()
        self._tls.settimeout(0)  # TLS may send records of its own; only EOF means closed
        try:
            self._tls.recv(1)
            return False  # closed, or data that was not requested
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        finally:
            self._tls.settimeout(timeout)

    def close_reason(self) -> ConnectFailed:
        """Returns why the server closed the connection before any request."""
        try:
            return ConnectFailed(str(self._next_piece()))
        except (OSError, RedisError, hiredis.ProtocolError) as error:
            return ConnectFailed(str(error))

    def hang_up(self) -> None:
        """Ends the connection, also for another thread that may be reading from it."""
        try:  # noqa: SIM105 - not close(): the descriptor must not be reused while that thread reads
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def __del__(self) -> None:
        if hasattr(self, "_sock"):  # __init__ got as far as connecting
            self.close()
