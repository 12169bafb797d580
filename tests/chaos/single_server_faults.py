"""Faults of a single server, and of the connection to it: break it, hold it, mend it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from headgate.engines.redis.keys import LAYOUT
from tests.chaos.run_load import ChaosLoad
from tests.servers import DrivenClock, Proxy, RedisServer

HOUR_US = 3_600_000_000
LAYOUTS = LAYOUT - 1, LAYOUT  # of the keys, in an upgrade


def kill(load: ChaosLoad) -> None:
    """It is killed, and comes back empty."""
    with RedisServer() as server, load.on(server.url):
        load.disturb()
        server.kill()
        load.hold()
        server.start()
        load.back()


def pause(load: ChaosLoad) -> None:
    """It hangs: the kernel still takes connections and questions for it."""
    with RedisServer() as server, load.on(server.url):
        load.disturb()
        server.pause()
        load.hold()
        server.resume()
        load.back()


def slow_link(load: ChaosLoad) -> None:
    """Every byte takes 200 ms: all is decided, and too late."""
    with RedisServer() as server, Proxy(server) as link, load.on(link.url):
        load.disturb()
        link.delay(200)
        load.hold()
        link.heal()
        load.back()


def silent_link(load: ChaosLoad) -> None:
    """Connections are taken and nothing comes through; when it ends, they are all reset."""
    with RedisServer() as server, Proxy(server) as link, load.on(link.url):
        load.disturb()
        link.swallow()
        load.hold()
        link.heal()
        link.cut()  # bytes were lost within them, which no real connection would survive
        load.back()


def far_away(load: ChaosLoad) -> None:
    """It is 18 ms away, and cannot be reached for a while: settling accounts takes several of these."""
    with RedisServer() as server, Proxy(server) as link:
        link.delay(9)
        with load.on(link.url):
            load.disturb()
            link.refuse()
            link.cut()
            load.hold()
            link.heal()
            link.delay(9)
            load.back()


def script_flush(load: ChaosLoad) -> None:
    """Scripts are forgotten a hundred times a second."""
    with RedisServer() as server, load.on(server.url):
        until = time.monotonic() + load.broken
        while time.monotonic() < until:
            server.call("SCRIPT", "FLUSH", "SYNC")
            time.sleep(0.01)
        load.back()


def clock_forward(load: ChaosLoad) -> None:
    """The server's clock steps an hour ahead: to the server, that hour has passed."""
    _clock_step(load, HOUR_US)


def clock_back(load: ChaosLoad) -> None:
    """It steps an hour back: nothing is minted, and nobody is locked out."""
    _clock_step(load, -HOUR_US)


def _clock_step(load: ChaosLoad, step_us: int) -> None:
    with _turned_clock() as (clock, offset_us), RedisServer(driven=clock) as server, load.on(server.url):
        load.disturb()
        offset_us[0] = step_us
        load.back()
    late = [call for seen in load.seen for call in seen.calls if call.start > load.back_at + 1 and call.allowed]
    seconds = load.ended - load.back_at - 1
    load.notes.append(f"admitted {len(late) / seconds:.0f} a second, from a second after the step on")


@contextmanager
def _turned_clock() -> Iterator[tuple[DrivenClock, list[int]]]:
    """A clock that goes, and the offset by which it is turned."""
    offset_us, end = [0], threading.Event()
    with DrivenClock(time.time_ns() // 1000) as clock:

        def turn() -> None:
            while not end.wait(0.0005):
                clock.set_us(time.time_ns() // 1000 + offset_us[0])

        turning = threading.Thread(target=turn)
        turning.start()
        try:
            yield clock, offset_us
        finally:
            end.set()
            turning.join()


def out_of_memory(load: ChaosLoad) -> None:
    """maxmemory is reached, and nothing may be evicted: what would write is refused."""
    with RedisServer(args=["--maxmemory-policy", "noeviction"]) as server, load.on(server.url):
        load.disturb()
        server.call("CONFIG", "SET", "maxmemory", 1)
        load.hold()
        server.call("CONFIG", "SET", "maxmemory", 0)
        load.back()


def read_only(load: ChaosLoad) -> None:
    """It becomes a replica, and is promoted late."""
    with RedisServer() as other, RedisServer() as server, load.on(server.url):
        load.disturb()
        server.call("REPLICAOF", "127.0.0.1", other.port)
        load.hold()
        server.call("REPLICAOF", "NO", "ONE")
        load.back()


def connection_limit(load: ChaosLoad) -> None:
    """All connections are ended, and no new ones are taken."""
    with RedisServer() as server, load.on(server.url), closing(socket.socket(socket.AF_UNIX)) as only:
        only.connect(server.unix_path)
        load.disturb()
        _say(only, b"CONFIG SET maxclients 1")
        _say(only, b"CLIENT KILL TYPE normal SKIPME yes")
        load.hold()
        _say(only, b"CONFIG SET maxclients 1000")
        load.back()


def _say(line: socket.socket, words: bytes) -> None:
    line.sendall(words + b"\r\n")
    reply = line.recv(1000)
    if reply.startswith(b"-"):
        raise RuntimeError(f"the server answered {reply!r} to {words!r}")


def upgrade(load: ChaosLoad) -> None:
    """Half of the processes write another version of the keys. Each version counts by itself."""
    load.workers = 4
    with RedisServer() as server, load.on(server.url, layouts=LAYOUTS):
        load.hold()
        load.back()
        versions = [server.call("EXISTS", f"hg{layout}:members") for layout in LAYOUTS]
        load.notes.append("two versions side by side: each admits its limit, and both together up to twice")
    if versions != [1, 1]:
        raise RuntimeError("there were not two versions of the keys")
