"""Measures how much of a flood Redis sees if refusals are remembered, and how many calls a second are answered.

Every key may pass 10 times a minute and is asked 1,000 times in a few seconds: 1 % passes, 99 % is refused. New
keys in every stretch, asked in turns. What Redis saw is counted by Redis: calls of EVALSHA in INFO commandstats,
where one call may carry the questions of many tasks, and beside it the decisions that were asked of it at all.
Client and server on one core; one thread, and 64 tasks on uvloop.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import headgate
from benchmarks import headgate_subjects as benchmarks_subjects
from benchmarks import other_limiters
from benchmarks.interleaved_runs import (
    SPEED,
    AsyncTake,
    Samples,
    Stretch,
    Subject,
    TaskCallers,
    ThreadCaller,
    best_peer,
    last_core,
    measure_calls,
    print_table,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport
from tests.servers.raw_redis_client import send_commands

LIMIT, AMOUNT, SECONDS = "10/minute", 10, 60
CALLS_PER_KEY = 1_000  # times for each key
TASKS = 64
TIMED = 16  # one call in so many

OURS, PLAIN = "headgate, denial cache", "headgate"


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    for case in ("one thread", f"{TASKS} tasks"):
        with pinned_server(core) as server:
            subjects = _subjects(case, server.url, server.pid, server.unix_path)
            samples = run_interleaved(report, case, subjects, rounds=10, seconds=0.5, core=core)
        print_table(report, case, samples, OURS, passed="passed", seen_by_Redis="seen")
        _targets(report, case, samples)


def _targets(report: BenchmarkReport, case: str, samples: Samples) -> None:
    seen = [sample["seen"] for sample in samples[OURS]]
    report.target(f"{case}: share of the calls that Redis sees, in the worst round", max(seen), at_most=0.02)
    redis_shares = [sample["asked"] for sample in samples[OURS]]
    report.target(f"{case}: share of the decisions that are asked of Redis", max(redis_shares), at_most=0.02)
    best = best_peer(samples)
    report.say(f"{case}: {ratio(samples, OURS, best, SPEED):.0f} times the best peer ({best}).")


def _subjects(case: str, url: str, pid: int, path: str) -> list[Subject]:
    if case == "one thread":
        made: dict[str, tuple[Any, ...]] = {
            OURS: (benchmarks_subjects.take, LIMIT, f"{url}?denial_cache=on"),
            PLAIN: (benchmarks_subjects.take, LIMIT, url),
            **other_limiters.sync_redis(url, AMOUNT, SECONDS),
        }
        return [Subject(name, one_thread, (name, pid, path, *how)) for name, how in made.items()]
    made = {
        OURS: (async_take, f"{url}?denial_cache=on"),
        PLAIN: (async_take, url),
        **other_limiters.async_redis(url, AMOUNT, SECONDS),
    }
    return [Subject(name, many_tasks, (name, pid, path, *how)) for name, how in made.items()]


async def async_take(url: str) -> AsyncTake:
    return headgate.AsyncLimiter(LIMIT, url).take


def one_thread(
    name: str, server_pid: int, path: str, make: Callable[..., Callable[[str], Any]], *args: Any
) -> Stretch:
    return _waves(ThreadCaller(make, *args, every=TIMED), name, server_pid, path)


def many_tasks(
    name: str, server_pid: int, path: str, make: Callable[..., Awaitable[AsyncTake]], *args: Any
) -> Stretch:
    return _waves(TaskCallers(TASKS, make, *args, every=TIMED), name, server_pid, path)


def _waves(subject: ThreadCaller | TaskCallers, name: str, server_pid: int, path: str) -> Stretch:
    number = 0
    subject.run_calls([f"{name}: a connection is open now: {task}" for task in range(4 * TASKS)], [])

    def stretch(calls: int) -> dict[str, float]:
        nonlocal number
        number += 1
        keys = [f"{name}:{number}:{place}" for place in range(max(1, calls // CALLS_PER_KEY))] * CALLS_PER_KEY
        before = _commandstats(path)
        sample = measure_calls(server_pid, len(keys), lambda spent: subject.run_calls(keys, spent))
        seen = {name: (count - before[name]) / len(keys) for name, count in _commandstats(path).items()}
        # A plain INCRBY is all that one peer sends; those in scripts are counted as well.
        return {**sample, "seen": max(seen["evalsha"], seen["incrby"]), "asked": seen["looked up"]}

    return stretch


def _commandstats(path: str) -> dict[str, int]:
    """Returns how often Redis has run each command, and how many keys it has looked up: for ours one in each
    decision.
    """
    commands, keyspace = send_commands(path, ("INFO", "commandstats"), ("INFO", "stats"))
    assert isinstance(commands, bytes)
    assert isinstance(keyspace, bytes)
    lines = [line.partition(":") for line in (commands + keyspace).decode().splitlines()]
    counts = {name: value.removeprefix("calls=").partition(",")[0] for name, _, value in lines}
    evalsha, incrby = (int(counts.get(f"cmdstat_{name}", 0)) for name in ("evalsha", "incrby"))
    return {
        "evalsha": evalsha,
        "incrby": incrby,
        "looked up": int(counts["keyspace_hits"]) + int(counts["keyspace_misses"]),
    }
