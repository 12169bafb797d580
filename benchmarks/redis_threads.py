"""Measures the decisions a second that 32 threads of one process make through Redis.

Client and server on one core. 10,000 keys take turns in a server that holds 100,000 others; every call is allowed.
redis-py's pools hold more connections than there are threads. pyrate-limiter is asked to block, since otherwise it
refuses whenever another thread is inside.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks import headgate_subjects, minimal_limiters, other_limiters
from benchmarks.interleaved_runs import (
    SPEED,
    Stretch,
    Subject,
    best_peer,
    keys_of_subject,
    last_core,
    measure_calls,
    median,
    print_table,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport
from tests.servers import RedisServer

THREADS = 32
KEYS, OTHERS = 10_000, 100_000
FILL = f"for i = 1, {OTHERS} do redis.call('SET', 'other:' .. i, i, 'EX', 86400) end"
AMOUNT, SECONDS = 100, 60
UNIT_US, BURST_US = 600_000, 60_000_000

OURS = "headgate"


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    with pinned_server(core) as server:
        server.call("EVAL", FILL, 0)
        samples = run_interleaved(report, "threads", _subjects(server), rounds=20, seconds=0.3, core=core)
    print_table(report, f"{THREADS} threads, {OTHERS:,} keys, all allowed", samples, OURS, passed="passed")
    best = best_peer(samples)
    report.target(f"over the best peer ({best})", ratio(samples, OURS, best, SPEED), at_least=3)
    value = median(samples, best, "client_cpu_us") / median(samples, OURS, "client_cpu_us")
    report.target("the same by client CPU", value, at_least=3)


def _subjects(server: RedisServer) -> list[Subject]:
    url = server.url
    made: dict[str, tuple[Any, ...]] = {OURS: (headgate_subjects.take, f"{AMOUNT}/minute", url)}
    made |= other_limiters.sync_redis(url, AMOUNT, SECONDS, blocking=True)
    made["redis-py, evalsha"] = (
        other_limiters.redis_py,
        url,
        minimal_limiters.MINIMAL_GCRA,
        UNIT_US,
        BURST_US,
        False,
    )
    return [Subject(name, by_threads, (name, server.pid, *how)) for name, how in made.items()]


def by_threads(name: str, server_pid: int, make: Callable[..., Callable[[str], Any]], *args: Any) -> Stretch:
    take, turn = make(*args), itertools.cycle(keys_of_subject(name, KEYS))

    def call_from_threads(wanted: Sequence[str], spent: list[int]) -> int:
        keys = iter(wanted)  # next() of a list's iterator is atomic
        threads = [_CallingThread(take, keys) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
            spent += thread.spent
        return sum(thread.passed for thread in threads)

    call_from_threads(list(itertools.islice(turn, KEYS)), [])

    def stretch(calls: int) -> dict[str, float]:
        wanted = list(itertools.islice(turn, calls))
        return measure_calls(server_pid, calls, lambda spent: call_from_threads(wanted, spent))

    return stretch


class _CallingThread(threading.Thread):
    def __init__(self, take: Callable[[str], Any], keys: Iterator[str]) -> None:
        super().__init__()
        self._take, self._keys = take, keys
        self.spent: list[int] = []
        self.passed = 0

    def run(self) -> None:
        take, clock, note = self._take, time.perf_counter_ns, self.spent.append
        for key in self._keys:
            before = clock()
            if take(key):
                self.passed += 1
            note(clock() - before)
