"""The program behind Proxy: forwards bytes between callers and a server, with faults on command.

    python faulty_proxy_process.py PORT SERVER_PORT

Orders come as lines of JSON on its input, each is answered by a line with the counts, and when the input ends, so
does the program. It is a process of its own, with one loop, so that no busy test holds it up.

Each direction (requests, replies) has its own weather: a delay for every byte, a pause between one byte and the
next, or all is swallowed. Laws:
  - bytes on their way keep the delay they set out with, and never overtake each other;
  - a request that has set out arrives, even if its caller has gone meanwhile;
  - an end is heard after the last byte before it, and the server's end is not heard while replies are swallowed;
  - a server that cannot be reached takes the connection and ends it.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

READ = 65_536
MOST_KEPT = 1 << 20
NO_LINGER = struct.pack("ii", 1, 0)  # closing then sends RST


class LinkConditions:
    """The faults of one direction, on all connections."""

    delay_s = 0.0
    pause_s = 0.0
    swallows = False


class LinkDirection:
    """One direction of one connection: bytes from `source`, each due at `target` later."""

    def __init__(self, source: socket.socket, target: socket.socket, weather: LinkConditions) -> None:
        self.source, self.target, self.weather = source, target, weather
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.buffered_bytes = 0
        self.resting_until_s = 0.0
        self.blocked = False
        self.ended = False
        self.end_arrived = False

    def take(self) -> None:
        """Read what is there. Nothing, or an error, is the end, and travels like a byte."""
        try:
            data = self.source.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.ended = not data
        if not self.weather.swallows:
            due_s = time.monotonic() + self.weather.delay_s
            last_s = self.waiting[-1][0] if self.waiting else 0.0
            self.waiting.append((max(due_s, last_s), data))
            self.buffered_bytes += len(data)

    def due_s(self) -> float | None:
        """Returns when the next byte may be written; None while there is none, or no room for it."""
        if self.blocked or not self.waiting:
            return None
        return max(self.waiting[0][0], self.resting_until_s if self.weather.pause_s else 0.0)

    def deliver(self) -> None:
        """Write all that is due. Bytes for a closed connection are dropped: reading reports the error."""
        while (due_s := self.due_s()) is not None and due_s <= time.monotonic():
            set_out_s, data = self.waiting.popleft()
            self.end_arrived = not data
            try:
                sent = self.target.send(data[:1] if self.weather.pause_s else data) if data else 0
            except BlockingIOError:
                sent, self.blocked = 0, True
            except OSError:
                sent = len(data)
            self.buffered_bytes -= sent
            self.resting_until_s = time.monotonic() + self.weather.pause_s
            if sent < len(data):
                self.waiting.appendleft((set_out_s, data[sent:]))


class LinkConnection:
    """One caller's connection, and the one to the server that was opened for it."""

    def __init__(
        self, caller: socket.socket, server: socket.socket, requests: LinkConditions, replies: LinkConditions
    ) -> None:
        self.ends = (caller, server)
        self.requests, self.replies = (
            LinkDirection(caller, server, requests),
            LinkDirection(server, caller, replies),
        )
        self.ways = (self.requests, self.replies)
        for end in self.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def attend(self, end: socket.socket, events: int) -> None:
        """Do what can be done at one end."""
        for way in self.ways:
            if events & selectors.EVENT_WRITE and way.target is end:
                way.blocked = False
            if events & selectors.EVENT_READ and way.source is end:
                way.take()

    def deliver(self) -> bool:
        """Write all that is due; False when there is nobody left to carry for."""
        for way in self.ways:
            way.deliver()
        caller_gone = self.requests.ended and not self.requests.waiting
        return not (caller_gone or self.replies.end_arrived)

    def wanted(self, end: socket.socket) -> int:
        """The events to wait for at one end."""
        read = any(way.source is end and not way.ended and way.buffered_bytes < MOST_KEPT for way in self.ways)
        write = any(way.target is end and way.blocked for way in self.ways)
        return (selectors.EVENT_READ if read else 0) | (selectors.EVENT_WRITE if write else 0)


class FaultyLink:
    """The listener, the links, and the loop over them."""

    def __init__(self, port: int, server_port: int) -> None:
        self.port, self.server_port = port, server_port
        self.weather = {"requests": LinkConditions(), "replies": LinkConditions()}
        self.links: set[LinkConnection] = set()
        self.stirring: set[LinkConnection] = set()  # those where something happened, or will at a certain time
        self.opened = 0
        self.selector = selectors.DefaultSelector()
        self.listener: socket.socket | None = None
        self.listen()

    def run(self, orders: int) -> None:
        """Serve until the file of orders ends."""
        self.selector.register(orders, selectors.EVENT_READ)
        begun = b""
        while True:
            for key, events in self.selector.select(self.idle_s()):
                if key.fd == orders:
                    if not (read := os.read(orders, READ)):
                        return
                    *lines, begun = (begun + read).split(b"\n")
                    for line in lines:
                        self.obey(json.loads(line))
                elif key.fileobj is self.listener:
                    self.accept()
                elif isinstance(key.fileobj, socket.socket) and key.data in self.links:
                    key.data.attend(key.fileobj, events)
                    self.stirring.add(key.data)
            for link in list(self.stirring):
                self.deliver(link)

    def idle_s(self) -> float | None:
        dues = [due_s for link in self.stirring for way in link.ways if (due_s := way.due_s()) is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def obey(self, order: dict[str, Any]) -> None:
        match order.pop("do"):
            case "weather":
                vars(self.weather[order.pop("way")]).update(order)
            case "listen":
                self.listen()
            case "refuse":
                self.refuse()
            case "cut":
                for link in list(self.links):
                    self.close(link, abruptly=True)
        counts = json.dumps({"open": sum(not link.requests.ended for link in self.links), "opened": self.opened})
        sys.stdout.write(f"{counts}\n")
        sys.stdout.flush()

    def listen(self) -> None:
        if self.listener is None:
            self.listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
            self.listener.setblocking(False)
            self.selector.register(self.listener, selectors.EVENT_READ)

    def refuse(self) -> None:
        if self.listener is not None:
            self.selector.unregister(self.listener)
            self.listener.close()
            self.listener = None

    def accept(self) -> None:
        assert self.listener is not None
        try:
            caller, _ = self.listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # the caller changed its mind
        server = socket.socket()
        link = LinkConnection(caller, server, self.weather["requests"], self.weather["replies"])
        # Whether the server takes it shows at the first reading: there, a refusal is an error.
        server.connect_ex(("127.0.0.1", self.server_port))
        self.links.add(link)
        self.opened += 1
        self.watch(link)

    def deliver(self, link: LinkConnection) -> None:
        if not link.deliver():
            self.close(link)
            return
        self.watch(link)
        if not any(way.waiting for way in link.ways):
            self.stirring.discard(link)

    def watch(self, link: LinkConnection) -> None:
        for end in link.ends:
            key, wanted = self.selector.get_map().get(end), link.wanted(end)
            if key is None and wanted:
                self.selector.register(end, wanted, link)
            elif key is not None and not wanted:
                self.selector.unregister(end)
            elif key is not None and key.events != wanted:
                self.selector.modify(end, wanted, link)

    def close(self, link: LinkConnection, *, abruptly: bool = False) -> None:
        self.links.discard(link)
        self.stirring.discard(link)
        for end in link.ends:
            if end in self.selector.get_map():
                self.selector.unregister(end)
            if abruptly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            end.close()


if __name__ == "__main__":
    FaultyLink(int(sys.argv[1]), int(sys.argv[2])).run(sys.stdin.fileno())
