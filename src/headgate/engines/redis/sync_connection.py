"""One open connection to a server: bytes out, replies in.

A question is one send and one recv: anything more would cost as much as the round trip itself. The timeout is the
kernel's (SO_RCVTIMEO) where it can be: Python's own would poll before every call.

Questions of several callers are received in another way: poll waits, and recv is called only when there is
something to read. An exception that a signal handler raises during the wait loses nothing, and another thread can
read on; `torn` says when it cannot. Signal handlers run in the main thread only: others need not poll.
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

from headgate.engines.redis.errors import ConnectFailed, ConnectionLost, RedisError, ServerError, TimedOut, said
from headgate.engines.redis.server_address import ServerAddress

_CHUNK = 4096  # a decision's reply is about 100 bytes, and recv makes room for all that it may get
_LARGE_CHUNK = 16_384  # the same where many are read at once


class SyncConnection:
    """An open connection. Whatever it raises but Said, it is of no more use."""

    __slots__ = (
        *("_feed", "_gets", "_poll", "_recv", "_sendall", "_sock", "_tls"),
        *("closed", "due_at", "timeout", "torn", "used"),
    )

    def __init__(self, address: ServerAddress, connect_timeout: float, timeout: float) -> None:
        self.closed: bool = False
        self.used: bool = False
        self.torn: bool = False  # whether bytes may have been lost between the socket and whoever reads next
        self.due_at: float = 0.0  # when the last reply was due
        self.timeout: float = timeout
        try:
            self._sock = sock = address.connect(connect_timeout)
        except TimeoutError as error:
            raise ConnectFailed(f"{address.text} did not take the connection in time") from error
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be a host's
            raise ConnectFailed(str(error)) from error
        self._tls = sock if isinstance(sock, ssl.SSLSocket) else None
        if self._tls is None:
            sock.settimeout(None)
        self._set_timeout(timeout)
        reader = hiredis.Reader(replyError=said)
        self._sendall, self._recv, self._feed, self._gets = sock.sendall, sock.recv, reader.feed, reader.gets
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        self._poll = poll.poll
        try:
            for words in address.greeting:
                self.exchange(words, time.monotonic() + timeout)
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionLost):
                raise ConnectFailed(str(error)) from error
            raise

    def set_timeout(self, timeout: float) -> None:
        """Another timeout from now on."""
        self.timeout = timeout
        self._set_timeout(timeout)
        self.due_at = 0.0  # it was due by the old one: look at the connection before it is trusted

    def _set_timeout(self, seconds: float) -> None:
        """How long the next piece of a reply may take."""
        seconds = max(0.001, seconds)
        if self._tls is not None:
            self._tls.settimeout(seconds)
        else:
            limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def exchange(self, packed: bytes, deadline_at: float) -> Any:
        """Send a command and read its reply; an error reply is raised as Said."""
        try:
            self._sendall(packed)
            reply = self._gets()
            if reply is False:
                reply = self._next_piece()
                if reply is False:
                    reply = self._read_on(deadline_at)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except (OSError, hiredis.ProtocolError) as error:
            raise ConnectionLost(str(error)) from error
        if reply.__class__ is not list and isinstance(reply, ServerError):
            raise reply
        return reply

    def _read_on(self, deadline_at: float) -> Any:
        """A reply in several pieces: the kernel's timeout is for each of them, and the deadline for all."""
        reply = False
        while reply is False:
            if (left := deadline_at - time.monotonic()) <= 0:
                raise TimeoutError
            self._set_timeout(left)
            reply = self._next_piece()
        self._set_timeout(self.timeout)
        return reply

    def _next_piece(self) -> Any:
        chunk = self._recv(_CHUNK)
        if not chunk:
            raise ConnectionLost("the server closed the connection")
        self._feed(chunk)
        return self._gets()

    def exchange_all(self, packed: bytes, count: int, deadline_at: float) -> list[Any]:
        """Send several commands at once and read their replies; an error reply is among them. If the connection
        breaks, its trouble takes the place of each reply that is missing."""
        replies: list[Any] = []
        try:
            self.send(packed)
            while len(replies) < count:
                self.receive(replies, deadline_at)
        except (TimedOut, ConnectionLost) as trouble:
            self.close()
            replies += [trouble] * (count - len(replies))
        return replies

    def send(self, packed: bytes) -> None:
        """Send commands whose replies are received later."""
        self.used = self.torn = True
        try:
            self._sendall(packed)
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        self.torn = False

    def receive(self, replies: list[Any], deadline_at: float, at_once: bool = False) -> None:
        """Wait for what comes next, and append to `replies` those that are whole by then, maybe none. `at_once`:
        without poll, by the connection's own timeout."""
        try:
            if not at_once and not (self._tls is not None and self._tls.pending()):
                left = deadline_at - time.monotonic()
                if left <= 0 or not self._poll(ceil(left * 1000)):
                    raise TimedOut("no reply in time")
            self.torn = True
            try:
                chunk = self._recv(_LARGE_CHUNK)
            except (BlockingIOError, TimeoutError):
                self.torn = False  # nothing was read
                raise
            if not chunk:
                raise ConnectionLost("the server closed the connection")
            self._feed(chunk)
            while (reply := self._gets()) is not False:
                replies.append(reply)
            self.torn = False
        except (BlockingIOError, TimeoutError) as error:
            raise TimedOut("no reply in time") from error
        except (OSError, hiredis.ProtocolError) as error:
            raise ConnectionLost(str(error)) from error

    @property
    def alive(self) -> bool:
        """Whether the server has not hung up while nobody was looking. Nothing must be in flight."""
        if not self._poll(0):
            return True
        if self._tls is None:
            return False
        timeout = self._tls.gettimeout()
        self._tls.settimeout(0)  # TLS itself may have something to say; only the end is the end
        try:
            self._tls.recv(1)
            return False  # it ended, or said what nobody asked
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        finally:
            self._tls.settimeout(timeout)

    def farewell(self) -> ConnectFailed:
        """Why the server hung up before it was asked anything."""
        try:
            return ConnectFailed(str(self._next_piece()))
        except (OSError, RedisError, hiredis.ProtocolError) as error:
            return ConnectFailed(str(error))

    def hang_up(self) -> None:
        """End the connection, also for another thread that may be reading from it."""
        try:  # noqa: SIM105 - the socket's number must stay its own until that thread lets go of it
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it has ended already

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def __del__(self) -> None:
        if hasattr(self, "_sock"):  # it was opened
            self.close()
