"""The least that each job can cost, written by hand: no checks, no other algorithm, no eviction, no reconnecting.

A floor is not a product. It is there so that "fast" has something to be measured by.
"""

import socket
import threading
import time
from collections.abc import Callable
from hashlib import sha1
from pathlib import Path
from typing import Any

MINIMAL_GCRA = (Path(__file__).parent / "gcra.lua").read_text()
FOUR_GCRA = (Path(__file__).parent / "gcra_all_or_none.lua").read_text()
MINIMAL_SHA = sha1(MINIMAL_GCRA.encode()).hexdigest()

Take = Callable[[str], Any]


def unlocked(amount: int, period: float) -> Take:
    """GCRA in a dict, and nothing that makes it right under threads."""
    unit, burst, monotonic, dry_at = period / amount, period, time.monotonic, dict[str, float]()

    def take(key: str) -> bool:
        now = monotonic()
        dry = dry_at.get(key, now)
        after = (dry if dry > now else now) + unit - now
        if after > burst:
            return False
        dry_at[key] = now + after
        return True

    return take


def locked(amount: int, period: float) -> Take:
    """GCRA in a dict, with a lock: yes or no."""
    unit, burst, monotonic, dry_at, lock = (
        period / amount,
        period,
        time.monotonic,
        dict[str, float](),
        threading.Lock(),
    )

    def take(key: str) -> bool:
        now = monotonic()
        with lock:
            dry = dry_at.get(key, now)
            after = (dry if dry > now else now) + unit - now
            if after > burst:
                return False
            dry_at[key] = now + after
        return True

    return take


def locked_with_details(amount: int, period: float) -> Take:
    """GCRA in a dict, with a lock and a cost: allowed, remaining, retry_after, reset_after."""
    unit, burst, monotonic, dry_at, lock = (
        period / amount,
        period,
        time.monotonic,
        dict[str, float](),
        threading.Lock(),
    )

    def take(key: str, cost: int = 1) -> tuple[bool, int, float, float]:
        now = monotonic()
        with lock:
            dry = dry_at.get(key, now)
            if dry < now:
                dry = now
            after = dry + unit * cost - now
            if after > burst:
                return False, int((burst - dry + now) / unit), after - burst, dry - now
            dry_at[key] = now + after
        return True, int((burst - after) / unit), 0.0, after

    return take


def raw_socket(port: int, unit_us: int, burst_us: int) -> Take:
    """One socket, one EVALSHA packed by hand, hiredis to read the reply."""
    import hiredis

    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()
    send, receive, feed, gets = connection.sendall, connection.recv, reader.feed, reader.gets
    script = MINIMAL_GCRA.encode()
    send(b"*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n$%d\r\n%b\r\n" % (len(script), script))
    receive(4096)
    start = b"*6\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n$" % MINIMAL_SHA.encode()
    unit, burst = b"%d" % unit_us, b"%d" % burst_us
    end = b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(unit), unit, len(burst), burst)

    def take(key: str) -> Any:
        name = key.encode()
        send(b"%b%d\r\n%b%b" % (start, len(name), name, end))
        feed(receive(4096))
        return gets()

    return take
