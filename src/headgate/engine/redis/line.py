"""One open line to the server: bytes out, one reply in.

redis-py connects, authenticates and wraps in TLS; after that a question is one send and one recv, because its
reading costs as much as the round trip itself. The timeout is the kernel's (SO_RCVTIMEO) where it can be: Python's
own would poll before every call.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Any, cast

import hiredis
from redis import exceptions
from redis.connection import ConnectionInterface

from headgate.engine.redis.trouble import Late, Lost, said

_CHUNK = 65536


class Line:
    """An open connection. Whatever it raises but Said, it is of no more use."""

    __slots__ = ("_connection", "_gets", "_reader", "_recv", "_sendall")

    def __init__(self, connection: ConnectionInterface, timeout: float) -> None:
        self._connection = connection
        try:
            connection.connect()
        except exceptions.TimeoutError as error:
            raise Late(str(error)) from error
        except exceptions.ResponseError as error:
            raise said(str(error)) from error
        except exceptions.RedisError as error:
            raise Lost(str(error)) from error
        sock = cast(Any, connection)._sock
        if not isinstance(sock, ssl.SSLSocket):
            limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1_000_000))
            sock.settimeout(None)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._reader = hiredis.Reader(replyError=said)
        self._sendall, self._recv, self._gets = sock.sendall, sock.recv, self._reader.gets

    def exchange(self, packed: bytes) -> Any:
        """Send a command and read its reply; an error reply is raised as Said."""
        try:
            self._sendall(packed)
            while True:
                chunk = self._recv(_CHUNK)
                if not chunk:
                    raise Lost("the server closed the connection")
                self._reader.feed(chunk)
                reply = self._gets()
                if reply is not False:
                    break
        except (BlockingIOError, TimeoutError) as error:
            raise Late("no reply in time") from error
        except OSError as error:
            raise Lost(str(error)) from error
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self._connection.disconnect()
