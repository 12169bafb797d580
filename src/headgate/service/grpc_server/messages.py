"""gRPC's message framing: a byte that says whether it is compressed, four of length, the message.

Laws (tests/service/grpc_server/test_calls.py): messages come out whole and in order, however their bytes
were cut; one that is compressed or too long is refused by its first five bytes, before the rest is there.
"""

from __future__ import annotations

from headgate.service.grpc_server.methods import CallFailed, StatusCode

PREFIX_BYTES = 5


def prefix(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big")


class MessageReader:
    """Puts messages together."""

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    def __len__(self) -> int:
        """Returns how many bytes wait for the rest of their message."""
        return len(self._buffer)

    def read(self, payload: bytes) -> list[bytes]:
        """Returns the messages that are whole by now; raises CallFailed if one is refused."""
        buffer = self._buffer
        buffer += payload
        messages = []
        position = 0
        while len(buffer) - position >= PREFIX_BYTES:
            size = message_size(buffer, position, self._max_bytes)
            end = position + PREFIX_BYTES + size
            if end > len(buffer):
                break
            messages.append(bytes(buffer[position + PREFIX_BYTES : end]))
            position = end
        del buffer[:position]
        return messages


def message_size(data: bytes | bytearray, position: int, max_bytes: int) -> int:
    """Returns the size of the message whose prefix is here; raises CallFailed if it is refused."""
    if data[position]:
        raise CallFailed(StatusCode.INTERNAL, "A message is compressed, and grpc-encoding names no compression.")
    size = int.from_bytes(data[position + 1 : position + PREFIX_BYTES], "big")
    if size > max_bytes:
        raise CallFailed(
            StatusCode.RESOURCE_EXHAUSTED, f"A message has at most {max_bytes} bytes here, not {size}."
        )
    return size
