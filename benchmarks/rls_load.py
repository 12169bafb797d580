"""Sends rate limit requests of 10,000 random keys to a gRPC server: python -m benchmarks.rls_load ADDRESS SECONDS

h2load sends one body again and again, and a client of gRPC in Python would be slower than what it is to measure.
So messages are made beforehand, and replies are not decoded: only frames that end a stream are counted.
4 connections with 24 streams each. Prints how many calls succeeded, and how many of them a second.
"""

import random
import selectors
import socket
import struct
import sys
import time

from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.rls import PATH

KEYS = 10_000
CONNECTIONS, STREAMS = 4, 24
_FRAME = struct.Struct(">HBBBI")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_SETTINGS_OF_CLIENT = struct.pack(">HIHI", 1, 0, 4, 2**31 - 1)  # no header table, any window


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 8, len(payload) & 255, kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field that enters no table; no text here has more than 126 bytes."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def bodies() -> list[bytes]:
    made = []
    for number in random.Random(1).sample(range(10 * KEYS), KEYS):
        request = RateLimitRequest(domain="bench")
        entry = request.descriptors.add().entries.add()
        entry.key, entry.value = "d0", f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        body = request.SerializeToString()
        made.append(b"\0" + struct.pack(">I", len(body)) + body)
    return made


class Connection:
    """One connection: sends a request for each that was answered."""

    def __init__(self, address: str, messages: list[bytes]) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fields = {":method": "POST", ":scheme": "http", ":path": PATH, ":authority": "bench"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        self._head = b"".join(_literal(name, value) for name, value in fields.items())
        self._messages = messages
        self._stream, self._unread = 1, b""
        self.ended = self.failed = 0
        window = struct.pack(">I", 2**31 - 1 - 65535)
        hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(_SETTINGS, 0, 0, _SETTINGS_OF_CLIENT)
        self.socket.sendall(hello + frame(8, 0, 0, window))

    def send(self, count: int) -> None:
        frames = []
        for message in random.choices(self._messages, k=count):
            frames += (frame(_HEADERS, 4, self._stream, self._head), frame(_DATA, 1, self._stream, message))
            self._stream += 2
        self.socket.sendall(b"".join(frames))

    def receive(self) -> int:
        """Reads what has come; returns how many calls ended."""
        data = self._unread + self.socket.recv(1 << 20)
        position, ended = 0, 0
        while len(data) - position >= 9:
            high, low, kind, flags, _ = _FRAME.unpack_from(data, position)
            end = position + 9 + (high << 8 | low)
            if end > len(data):
                break
            if kind == _HEADERS and flags & 1:
                ended += 1
            elif kind in (_RST_STREAM, _GOAWAY):
                self.failed += 1
            elif kind in (_SETTINGS, _PING) and not flags & 1:
                payload = data[position + 9 : end] if kind == _PING else b""
                self.socket.sendall(frame(kind, 1, 0, payload))
            position = end
        self._unread = data[position:]
        self.ended += ended
        return ended


def main(address: str, seconds: float) -> None:
    messages = bodies()
    connections = [Connection(address, messages) for _ in range(CONNECTIONS)]
    selector = selectors.DefaultSelector()
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(STREAMS)
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for key, _ in selector.select(1):
            if ended := key.data.receive():
                key.data.send(ended)
    took = time.perf_counter() - started
    count = sum(connection.ended for connection in connections)
    failed = sum(connection.failed for connection in connections)
    print(f"{count} succeeded, {failed} failed, {count / took:.1f} per second")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
