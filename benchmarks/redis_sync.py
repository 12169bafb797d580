"""Measures the decisions a second that one thread makes through one connection to Redis.

Client and server share one core, so that what is measured is work and not the waking of cores. 5,000 keys take
turns in a server that holds 100,000 others; every call is allowed. And one key that is refused nearly always.
redis-py stands for writing it by hand: the minimal script, called with evalsha.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks import headgate_subjects as benchmarks_subjects
from benchmarks import minimal_limiters, other_limiters
from benchmarks.interleaved_runs import Samples, Stretch, Subject, last_core, median, ratio, run_interleaved
from benchmarks.redis_process import pinned_server, server_cpu_us
from benchmarks.report import BenchmarkReport, figure
from tests.servers import RedisServer

ALLOWED, REFUSED = "100,000 keys, allowed", "1 key, refused"
AMOUNT, SECONDS = 100, 60
UNIT_US, BURST_US = 600_000, 60_000_000

OURS = "headgate token bucket"
FLOOR = "floor: raw socket, minimal GCRA"
LIMITS = {
    OURS: "100/minute",
    "headgate leaky bucket": "100/minute queue 100 nodelay",
    "headgate fixed window": "100/minute fixed",
    "headgate sliding window": "100/minute sliding",
    "headgate sliding log": "100/minute log",
    "headgate smooth": "1000/s smooth",
}
SPEED = "per_second"


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    with pinned_server(core) as server:
        server.call("EVAL", "for i = 1, 100000 do redis.call('SET', 'other:' .. i, i, 'EX', 86400) end", 0)
        _case(report, ALLOWED, server, core)
        _case(report, REFUSED, server, core)


def _case(report: BenchmarkReport, case: str, server: RedisServer, core: int) -> None:
    subjects = _subjects(case, server)
    samples = run_interleaved(report, case, subjects, rounds=40, seconds=0.05, core=core)
    report.say(case)
    rows = [[name, *_cells(samples, name)] for name in samples]
    report.table(["", "decisions/s", "of ours", "p50 us", "p99 us", "client CPU us", "server CPU us"], rows)
    theirs = [name for name in samples if name.startswith(("limits", "throttled", "pyrate"))]
    best = max(theirs, key=lambda name: median(samples, name, SPEED))
    if case == ALLOWED:
        value = ratio(samples, OURS, best, SPEED)
        report.target(f"token bucket over the best peer ({best})", value, at_least=1.6)
        value = 1 / ratio(samples, OURS, best, "p50_us")
        report.target(f"the same by median latency ({best})", value, at_least=1.6)
        value = ratio(samples, OURS, FLOOR, SPEED)
        report.target("token bucket over the raw floor", value, at_least=0.65)
        value = 1 / ratio(samples, OURS, FLOOR, "p50_us")
        report.target("the same by median latency", value, at_least=0.65)


def _cells(samples: Samples, name: str) -> list[str]:
    columns = ("p50_us", "p99_us", "client_cpu_us", "server_cpu_us")
    return [
        figure(median(samples, name, SPEED)),
        figure(ratio(samples, name, OURS, SPEED)),
        *(figure(median(samples, name, column)) for column in columns),
    ]


def _subjects(case: str, server: RedisServer) -> list[Subject]:
    url, port = server.url, server.port
    made: dict[str, tuple[Any, ...]] = {
        name: (benchmarks_subjects.take, text, url) for name, text in LIMITS.items()
    }
    made |= {
        f"limits {name}": (other_limiters.limits, name, AMOUNT, SECONDS, url) for name in other_limiters.LIMITS
    }
    made |= {
        f"throttled-py {name}": (other_limiters.throttled, name, AMOUNT, SECONDS, url)
        for name in other_limiters.THROTTLED
    }
    made |= {
        f"pyrate-limiter {name}": (other_limiters.pyrate_redis, name, AMOUNT, SECONDS, url)
        for name in other_limiters.PYRATE_REDIS
    }
    script = minimal_limiters.MINIMAL_GCRA
    made["redis-py, evalsha"] = (other_limiters.redis_py, url, script, UNIT_US, BURST_US, False)
    made["redis-py, evalsha, single connection"] = (other_limiters.redis_py, url, script, UNIT_US, BURST_US, True)
    made[FLOOR] = (minimal_limiters.raw_socket, port, UNIT_US, BURST_US)
    keys = 1 if case == REFUSED else 5_000
    return [Subject(name, over_keys, (keys, name, server.pid, *how)) for name, how in made.items()]


def over_keys(
    count: int, name: str, server_pid: int, make: Callable[..., Callable[[str], Any]], *args: Any
) -> Stretch:
    take = make(*args)
    # Each subject has keys of its own: the peers share a server, not their counts.
    owner = name.replace(" ", "-")
    keys = [f"{owner}:{number}" for number in random.Random(1).sample(range(100_000), count)]
    for key in keys if count > 1 else keys * 150:
        take(key)
    turn = itertools.cycle(keys)

    def stretch(calls: int) -> dict[str, float]:
        wanted = list(itertools.islice(turn, calls))
        clock, spent = time.perf_counter_ns, []
        server_us, cpu, started = server_cpu_us(server_pid), time.process_time(), clock()
        for key in wanted:
            before = clock()
            take(key)
            spent.append(clock() - before)
        took_ns, cpu, server_us = (
            clock() - started,
            time.process_time() - cpu,
            server_cpu_us(server_pid) - server_us,
        )
        spent.sort()
        return {
            "count": calls,
            "per_second": calls / took_ns * 1e9,
            "p50_us": spent[calls // 2] / 1000,
            "p99_us": spent[calls * 99 // 100] / 1000,
            "client_cpu_us": cpu / calls * 1e6,
            "server_cpu_us": server_us / calls,
        }

    return stretch
