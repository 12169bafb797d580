"""A load on a server, by several processes, around a story:

    with RedisServer() as server, load.on(server.url):
        load.disturb(); server.kill()
        load.hold()
        server.start(); load.back()

Entering it starts the processes and lets them run in peace for a while; leaving it lets them settle, stops them
and gathers what they saw. `disturb` marks an instant at which counts may be lost or clocks be wrong: whatever
window it falls into is one in which an outage begins. `back` marks the instant from which all should be well
again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from headgate.engines.redis.keys import LAYOUT
from headgate.limiter import Limiter
from tests.chaos.call_record import ADMITTED, LEDGER, LEDGER_KEYS, LIMITS, ProcessRecord, key_of
from tests.chaos.caller_process import CallerPlan, run_caller_process

PATIENCE = 60.0


@dataclass
class ChaosLoad:
    """The processes that call, and the results of their calls."""

    fallback: str | None = "local"
    threads: bool = False
    workers: int = 3
    warm: float = 2.0  # seconds in peace: more than a beat, so that all know how many they are
    broken: float = 3.0  # seconds that a fault lasts, unless the fault knows better
    settle: float = 3.5  # seconds after it
    seen: list[ProcessRecord] = field(default_factory=list)
    disturbed_us: list[int] = field(default_factory=list)
    back_at: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    forgotten: tuple[int, int] | None = None  # units that a failover re-admits, of all that were admitted
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def on(self, url: str, *, ledger: bool = False, layouts: tuple[int, ...] = (LAYOUT,)) -> Iterator[None]:
        """The load runs while the block does."""
        spawn = multiprocessing.get_context("spawn")
        callers = 15 if self.threads else 30
        part = CallerPlan(
            url, self.fallback, self.threads, callers, callers * self.workers / (2 * ADMITTED), ledger
        )
        crew: list[tuple[SpawnProcess, Connection]] = []
        try:
            for number in range(self.workers):
                ours, theirs = spawn.Pipe()
                mine = part._replace(seed=number, layout=layouts[number % len(layouts)])
                process = spawn.Process(target=run_caller_process, args=(theirs, mine), daemon=True)
                process.start()
                crew.append((process, ours))
            for _, wire in crew:
                _receive(wire)
            self.began = time.monotonic()
            time.sleep(self.warm)
            yield
            time.sleep(self.settle)
            self.ended = time.monotonic()
            for _, wire in crew:
                wire.send("stop")
            self.seen = [_receive(wire) for _, wire in crew]
            if ledger:
                self.forgotten = self._forgotten(url)
        finally:
            for process, wire in crew:
                process.join(5 if self.seen else 0)
                process.kill()
                process.join()
                wire.close()

    def disturb(self) -> None:
        """Note that counts may be lost from now on."""
        self.disturbed_us.append(time.time_ns() // 1000)

    def hold(self) -> None:
        """Leave it broken."""
        time.sleep(self.broken)

    def back(self) -> None:
        """From now on all should be well."""
        self.disturb()
        self.back_at = time.monotonic()

    def _forgotten(self, url: str) -> tuple[int, int]:
        """Returns how many admitted calls no count has, and how many calls were admitted."""
        admitted = [0] * LEDGER_KEYS
        for seen in self.seen:
            for call in seen.calls:
                if call.limit == LEDGER and call.allowed and not call.degraded:
                    admitted[call.key] += 1
        with Limiter(LIMITS[LEDGER], url) as limiter:
            left = [limiter.peek(key_of(LEDGER, key)).remaining for key in range(LEDGER_KEYS)]
            whole = limiter.peek("never asked for").remaining
        lost = sum(max(0, taken - (whole - now)) for taken, now in zip(admitted, left, strict=True))
        return lost, sum(admitted)


def _receive(wire: Connection) -> ProcessRecord:
    if not wire.poll(PATIENCE):
        raise TimeoutError(f"a process of the load said nothing for {PATIENCE:g} s")
    record: ProcessRecord = wire.recv()
    return record
