"""Sends commands to a Redis over its Unix socket, without a client library."""

import socket
from typing import BinaryIO

Reply = bytes | int | None | list["Reply"]


class ErrorReply(Exception):
    """The server answered with an error; its words are the message."""


def send_commands(unix_path: str, *commands: tuple[str | bytes | int, ...], timeout: float = 10) -> list[Reply]:
    """Send commands over one connection; one reply for each. The first error raises."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(unix_path)
        connection.sendall(b"".join(_encode(words) for words in commands))
        with connection.makefile("rb") as stream:
            return [_read(stream) for _ in commands]


def _encode(words: tuple[str | bytes | int, ...]) -> bytes:
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"*%d\r\n" % len(raw), *(b"$%d\r\n%s\r\n" % (len(word), word) for word in raw)])


def _read(stream: BinaryIO) -> Reply:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    mark, rest = line[:1], line[1:-2]
    match mark:
        case b"+":
            return rest
        case b"-":
            raise ErrorReply(rest.decode())
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
        case b"*":
            return None if rest == b"-1" else [_read(stream) for _ in range(int(rest))]
        case _:
            raise ConnectionError(f"not a reply this reader knows: {line!r}")
