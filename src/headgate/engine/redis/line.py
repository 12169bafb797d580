"""One open line to the server: bytes out, replies in.

A question is one send and one recv: anything more would cost as much as the round trip itself. The timeout is the
kernel's (SO_RCVTIMEO) where it can be: Python's own would poll before every call.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from typing import Any

import hiredis

from headgate.engine.redis.address import Address
from headgate.engine.redis.trouble import Late, Lost, Said, Trouble, Unreached, said

_CHUNK = 4096  # a decision's reply is about 100 bytes, and recv makes room for all that it may get


class Line:
    """An open connection. Whatever it raises but Said, it is of no more use."""

    __slots__ = ("_feed", "_gets", "_poll", "_recv", "_sendall", "_sock", "by", "closed", "timeout", "used")

    def __init__(self, address: Address, opening: float, timeout: float) -> None:
        self.closed = self.used = False
        self.by = 0.0  # when the last reply was due
        self.timeout = timeout
        try:
            self._sock = sock = address.connect(opening)
        except TimeoutError as error:
            raise Unreached(f"{address.text} did not take the connection in time") from error
        except (OSError, ValueError) as error:  # ValueError: a name that cannot be a host's
            raise Unreached(str(error)) from error
        if not isinstance(sock, ssl.SSLSocket):
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
            if isinstance(error, Lost):
                raise Unreached(str(error)) from error
            raise

    def retime(self, timeout: float) -> None:
        """Another timeout from now on."""
        self.timeout = timeout
        self._set_timeout(timeout)
        self.by = 0.0  # it was due by the old one: look at the line before it is trusted

    def _set_timeout(self, seconds: float) -> None:
        """How long the next piece of a reply may take."""
        seconds = max(0.001, seconds)
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock.settimeout(seconds)
        else:
            limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def exchange(self, packed: bytes, by: float) -> Any:
        """Send a command and read its reply; an error reply is raised as Said."""
        try:
            self._sendall(packed)
            reply = self._read(by)
        except (BlockingIOError, TimeoutError) as error:
            raise Late("no reply in time") from error
        except (OSError, hiredis.ProtocolError) as error:
            raise Lost(str(error)) from error
        if reply.__class__ is not list and isinstance(reply, Said):
            raise reply
        return reply

    def exchange_all(self, packed: bytes, count: int, by: float) -> list[Any]:
        """Send several commands at once and read their replies; an error reply is among them, and a line that
        broke in between leaves its trouble in place of each reply that is missing."""
        replies: list[Any] = []
        trouble: Trouble
        self.used = True
        hurried = by - time.monotonic() < 0.9 * self.timeout
        try:
            if hurried:
                self._set_timeout(by - time.monotonic())
            self._sendall(packed)
            while len(replies) < count:
                replies.append(self._read(by))
            if hurried:
                self._set_timeout(self.timeout)
            return replies
        except (BlockingIOError, TimeoutError):
            trouble = Late("no reply in time")
        except (OSError, Lost, hiredis.ProtocolError) as error:
            trouble = Lost(str(error))
        self.close()
        return replies + [trouble] * (count - len(replies))

    def _read(self, by: float) -> Any:
        reply = self._gets()
        if reply is False:
            reply = self._next_piece()
            if reply is False:
                reply = self._read_on(by)
        return reply

    def _read_on(self, by: float) -> Any:
        """A reply in several pieces: the kernel's timeout is for each of them, and `by` for all."""
        reply = False
        while reply is False:
            if (left := by - time.monotonic()) <= 0:
                raise TimeoutError
            self._set_timeout(left)
            reply = self._next_piece()
        self._set_timeout(self.timeout)
        return reply

    def _next_piece(self) -> Any:
        chunk = self._recv(_CHUNK)
        if not chunk:
            raise Lost("the server closed the connection")
        self._feed(chunk)
        return self._gets()

    @property
    def alive(self) -> bool:
        """Whether the server has not hung up while nobody was looking. Nothing must be in flight."""
        if not self._poll(0):
            return True
        sock = self._sock
        if not isinstance(sock, ssl.SSLSocket):
            return False
        timeout = sock.gettimeout()
        sock.settimeout(0)  # TLS itself may have something to say; only the end is the end
        try:
            sock.recv(1)
            return False  # it ended, or said what nobody asked
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False
        finally:
            sock.settimeout(timeout)

    def farewell(self) -> Unreached:
        """Why the server hung up before it was asked anything."""
        try:
            return Unreached(str(self._next_piece()))
        except (OSError, Lost, hiredis.ProtocolError) as error:
            return Unreached(str(error))

    def close(self) -> None:
        self.closed = True
        self._sock.close()

    def __del__(self) -> None:
        if hasattr(self, "_sock"):  # it was opened
            self.close()
