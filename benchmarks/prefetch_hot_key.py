"""Measures decisions a second on one hot key with prefetching, and units admitted beyond the limit.

First the speed: one key of 100,000,000 a day, every call allowed; one thread, and 64 tasks on uvloop, client and
server on one core. Then the price: 4 processes that ask for far more than a limit gives, in waves, so that units
are held when a rush begins; every admission is written down with the instants before and after the call. What is
counted in a second began and ended in it, so nobody is accused for having been put to sleep between its answer and
its watch.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Barrier
from typing import Any, NamedTuple

import headgate
from benchmarks import headgate_subjects, other_limiters
from benchmarks.interleaved_runs import (
    SPEED,
    AsyncTake,
    Stretch,
    Subject,
    TaskCallers,
    ThreadCaller,
    best_peer,
    last_core,
    over_keys,
    print_table,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport, figure
from headgate.engines.layers.prefetch import guarantee, max_prefetch
from tests.servers import RedisServer

LIMIT, AMOUNT, SECONDS = "100000000/day", 100_000_000, 86_400
TASKS = 64
TIMED = 16  # one call in so many
OURS, PLAIN = "headgate, prefetch of 100 ms", "headgate"

PROCESSES = 4
SPAN_US = 1_000_000
WAVE_NS, CALM = 500_000_000, 0.004  # half a second of rush, then half a second of one call in 4 ms
EXCEEDED = ("2000/s", "2000/s fixed", "2000/s log", "100/s")


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    for case in ("one thread", f"{TASKS} tasks"):
        with pinned_server(core) as server:
            samples = run_interleaved(report, case, _subjects(case, server), rounds=20, seconds=0.2, core=core)
        print_table(report, f"one key, {case}", samples, OURS, passed="passed")
        best = best_peer(samples)
        report.target(f"{case}, over the best peer ({best})", ratio(samples, OURS, best, SPEED), at_least=50)
    with pinned_server(core) as server:
        _exceeded(report, server)


def _subjects(case: str, server: RedisServer) -> list[Subject]:
    url, pid = server.url, server.pid
    prefetched = f"{url}?prefetch=100ms"
    if case == "one thread":
        made: dict[str, tuple[Any, ...]] = {
            OURS: (headgate_subjects.take, LIMIT, prefetched),
            PLAIN: (headgate_subjects.take, LIMIT, url),
        }
        made |= other_limiters.sync_redis(url, AMOUNT, SECONDS)
        return [Subject(name, one_thread, (name, pid, *how)) for name, how in made.items()]
    made = {
        OURS: (async_take, prefetched),
        PLAIN: (async_take, url),
        **other_limiters.async_redis(url, AMOUNT, SECONDS),
    }
    return [Subject(name, many_tasks, (name, pid, *how)) for name, how in made.items()]


def one_thread(name: str, server_pid: int, make: Callable[..., Callable[[str], Any]], *args: Any) -> Stretch:
    return over_keys(ThreadCaller(make, *args, every=TIMED), [name], server_pid)


def many_tasks(name: str, server_pid: int, make: Callable[..., Awaitable[AsyncTake]], *args: Any) -> Stretch:
    return over_keys(TaskCallers(TASKS, make, *args, every=TIMED), [name], server_pid)


async def async_take(url: str) -> AsyncTake:
    return headgate.AsyncLimiter(LIMIT, url).take


class AdmittedCall(NamedTuple):
    """One call that passed: between these instants of the clock that all processes share."""

    before_us: int
    after_us: int
    mark: int  # of a fixed window: its end


def _exceeded(report: BenchmarkReport, server: RedisServer) -> None:
    seconds = 2.0 if report.quick else 6.0
    rows = []
    for text in EXCEEDED:
        limit = headgate.parse(text)
        admitted, requests, prefetched = _hammer(f"{server.url}?prefetch=100ms", text, seconds)
        alone, allowance = _limit_per_second(limit), PROCESSES * max_prefetch(limit)
        fullest = _fullest_window(admitted) if "fixed" in text else _fullest_second(admitted)
        if "fixed" in text:
            allowance = 0
        report.keep(
            limit=text,
            admitted=len(admitted),
            requests=requests,
            prefetched=prefetched,
            fullest=fullest,
            alone=alone,
        )
        numbers = (requests, len(admitted), prefetched / len(admitted), fullest, alone, alone + allowance)
        rows.append([text, *(figure(number) for number in numbers)])
        report.target(
            f"{text}: units more than the limit, in the fullest second", fullest - alone, at_most=allowance
        )
        report.say(guarantee(limit, nodes=PROCESSES))
    report.say(f"{PROCESSES} processes on one key for {seconds:g} s")
    columns = ["asked", "admitted", "of that prefetched", "in the fullest second", "the limit alone", "bound"]
    report.table(["", *columns], rows)


def _limit_per_second(limit: Any) -> int:
    """Returns the most that the limit itself admits in a second: a bucket's burst, and its rate for a second."""
    if isinstance(limit, headgate.TokenBucket):
        return limit.burst + limit.amount * SPAN_US // limit.period_us
    return int(limit.amount)


def _fullest_second(admitted: list[AdmittedCall]) -> int:
    """The most calls that began and ended within one second, wherever it begins (every 20 ms)."""
    first, last = admitted[0].before_us, max(each.after_us for each in admitted)
    starts = range(first, max(first + 1, last - SPAN_US), 20_000)
    return max(
        sum(start <= each.before_us and each.after_us <= start + SPAN_US for each in admitted) for start in starts
    )


def _fullest_window(admitted: list[AdmittedCall]) -> int:
    return max(Counter(each.mark for each in admitted).values())


def _hammer(url: str, text: str, seconds: float) -> tuple[list[AdmittedCall], int, int]:
    """Returns the admitted calls in order, the number of requests to Redis, and the units prefetched."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES, initializer=_set_barrier, initargs=(spawn.Barrier(PROCESSES),)) as pool:
        shifts = pool.map(_work, [(url, text, seconds)] * PROCESSES, chunksize=1)
    admitted = sorted(each for calls, _, _ in shifts for each in calls)
    return admitted, sum(requests for _, requests, _ in shifts), sum(prefetched for _, _, prefetched in shifts)


_together: list[Barrier] = []


def _set_barrier(together: Barrier) -> None:
    _together.append(together)


def _work(job: tuple[str, str, float]) -> tuple[list[AdmittedCall], int, int]:
    url, text, seconds = job
    limiter = headgate.Limiter(text, url)
    engine: Any = limiter.engine
    limiter.peek("hot")  # the connection is open before the race begins
    _together[0].wait(60)
    clock, requests = time.monotonic_ns, 0
    admitted: list[AdmittedCall] = []
    until = clock() + int(seconds * 1e9)
    while (before := clock()) < until:
        if before // WAVE_NS % 2:
            time.sleep(CALM)
            before = clock()
        decision = limiter.take("hot")
        requests += 1
        if decision.allowed:
            admitted.append(AdmittedCall(before // 1000, clock() // 1000, decision.outcome[-1]))
    prefetched = engine.prefetched
    limiter.close()
    return admitted, requests, prefetched
