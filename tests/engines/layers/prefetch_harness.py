"""Harness of prefetch tests: a prefetching limiter on a manual clock, and processes that call one key."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

from headgate.algorithms.decision import Decision, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.prefetch import PrefetchEngine
from headgate.engines.memory.engine import MemoryEngine, MemoryMeter
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limiter import Limiter

PROCESSES = 4
COLD = "1000/365d fixed"


class RecordingEngine(MemoryEngine):
    """An embedded engine that remembers what it was asked, and may be out of reach for refunds."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock)
        self.costs: list[int] = []
        self.returned: list[int] = []
        self.reachable = True
        self.meanwhile: Callable[[], object] | None = None  # happens while a lease is on its way

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> MemoryMeter:
        meter = super().meter(limit, name, options)
        decide, refund = meter.decide, meter.refund

        def noted_decide(key: str, cost: int, patience_us: int | None = None) -> Outcome:
            self.costs.append(cost)
            outcome = decide(key, cost, patience_us)
            if cost > 1 and self.meanwhile is not None:
                happen, self.meanwhile = self.meanwhile, None
                happen()
            return outcome

        def noted_refund(key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
            if not self.reachable:
                raise EngineUnavailable("nobody is there")
            self.returned.append(units)
            return refund(key, units, receipt, cancel)

        meter.decide = noted_decide
        meter.refund = noted_refund  # type: ignore[method-assign]
        return meter


class PrefetchHarness:
    """One process with a prefetching engine over a RecordingEngine, on a clock of its own."""

    def __init__(self, text: str = "1000/day fixed", **options: Any) -> None:
        self.clock = ManualClock()
        self.warehouse = RecordingEngine(self.clock)
        self.engine = PrefetchEngine(self.warehouse, clock=self.clock, **options)
        self.limiter = Limiter(text, self.engine, clock=self.clock, name="n")
        self.plain = Limiter(text, self.warehouse, clock=self.clock, name="n")

    def takes(self, times: int, key: str = "k", cost: int = 1) -> list[Decision]:
        return [self.limiter.take(key, cost) for _ in range(times)]

    def counted(self, key: str = "k") -> int:
        """Units that the inner engine has charged."""
        return 1000 - self.plain.peek(key).remaining


class PrefetchReport(NamedTuple):
    """The results of one process."""

    admitted_us: list[int]  # by the monotonic clock, which all processes share; the instant after the answer
    prefetched: int
    lost: int
    cold_admitted: int
    cold_remaining: int  # as Redis counts it, before anything was given back on close


class PrefetchProcesses:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def work(self, url: str, text: str, seconds: float) -> list[PrefetchReport]:
        return self._pool.map(_work, [(url, text, seconds)] * PROCESSES, chunksize=1)


@contextmanager
def start_processes() -> Iterator[PrefetchProcesses]:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES, initializer=_remember, initargs=(spawn.Barrier(PROCESSES),)) as pool:
        yield PrefetchProcesses(pool)


_together: list[Barrier] = []


def _remember(together: Barrier) -> None:
    _together.append(together)


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _work(job: tuple[str, str, float]) -> PrefetchReport:
    url, text, seconds = job
    engine = PrefetchEngine(RedisEngine(url))
    hot, cold = Limiter(text, engine), Limiter(COLD, engine)
    hot.peek("one key")  # the connection is open before the race begins
    _together[0].wait(60)
    admitted: list[int] = []
    cold_admitted, cold_due_us, until_us = 0, 0, _now_us() + round(seconds * 1_000_000)
    while (now_us := _now_us()) < until_us:
        if hot.take("one key").allowed:
            admitted.append(_now_us())
        if now_us >= cold_due_us:  # twice in a hold time
            cold_due_us = now_us + 60_000
            cold_admitted += cold.take("another").allowed
    _together[0].wait(60)
    with Limiter(COLD, url) as plain:
        cold_remaining = plain.peek("another").remaining
    _together[0].wait(60)
    engine.close()
    return PrefetchReport(admitted, engine.prefetched, engine.lost_units, cold_admitted, cold_remaining)
