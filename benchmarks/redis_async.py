"""Measures the decisions a second that 64 and 512 tasks of one process make through Redis.

uvloop, client and server on one core, so that what is measured is work and not the waking of cores. 10,000 keys
take turns in a server that holds 100,000 others; every call is allowed. redis.asyncio and valkey-glide stand for
writing it by hand: the minimal script, called by the client that most have and by the one that is written in Rust.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import headgate
from benchmarks import minimal_async_client, minimal_limiters, other_limiters
from benchmarks.interleaved_runs import (
    SPEED,
    AsyncTake,
    Samples,
    Stretch,
    Subject,
    TaskCallers,
    best_peer,
    keys_of_subject,
    last_core,
    median,
    over_keys,
    print_table,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport
from tests.servers import RedisServer

KEYS, OTHERS = 10_000, 100_000
FILL = f"for i = 1, {OTHERS} do redis.call('SET', 'other:' .. i, i, 'EX', 86400) end"
AMOUNT, SECONDS = 100, 60
UNIT_US, BURST_US = 600_000, 60_000_000

OURS = "headgate"
GLIDE = "valkey-glide, script"
BATCHED = "floor: 64 in a script call"


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    for tasks in (512, 64):
        with pinned_server(core) as server:
            server.call("EVAL", FILL, 0)
            samples = run_interleaved(
                report, f"{tasks} tasks", _subjects(tasks, server), rounds=16, seconds=0.4, core=core
            )
        print_table(report, f"{tasks} tasks, {OTHERS:,} keys, all allowed", samples, OURS, passed="passed")
        _targets(report, tasks, samples)


def _targets(report: BenchmarkReport, tasks: int, samples: Samples) -> None:
    best = best_peer(samples)
    least = 10 if tasks == 512 else 6
    report.target(f"{tasks} tasks, over the best peer ({best})", ratio(samples, OURS, best, SPEED), at_least=least)
    if tasks == 512:
        report.target(f"{tasks} tasks, over valkey-glide", ratio(samples, OURS, GLIDE, SPEED), at_least=3)
        value = ratio(samples, OURS, BATCHED, SPEED)
        report.target(f"{tasks} tasks, over the micro-batch floor", value, at_least=0.6)
    calm = best_peer(samples, "p99_us", least=True)
    value = median(samples, OURS, "p99_us") / median(samples, calm, "p99_us")
    report.target(f"{tasks} tasks, p99 latency of the best peer's ({calm})", value, at_most=1)


def _subjects(tasks: int, server: RedisServer) -> list[Subject]:
    url, port = server.url, server.port
    made: dict[str, tuple[Any, ...]] = {OURS: (ours, f"{AMOUNT}/minute", url)}
    made |= other_limiters.async_redis(url, AMOUNT, SECONDS)
    made["redis.asyncio, evalsha"] = (
        other_limiters.async_redis_py,
        url,
        minimal_limiters.MINIMAL_GCRA,
        UNIT_US,
        BURST_US,
    )
    made[GLIDE] = (other_limiters.valkey_glide, port, minimal_limiters.MINIMAL_GCRA, UNIT_US, BURST_US)
    made["floor: a script call each, pipelined"] = (minimal_async_client.pipelined, port, UNIT_US, BURST_US)
    made[BATCHED] = (minimal_async_client.micro_batch, port, UNIT_US, BURST_US)
    return [Subject(name, many_tasks, (tasks, name, server.pid, *how)) for name, how in made.items()]


def many_tasks(
    tasks: int, name: str, server_pid: int, make: Callable[..., Awaitable[AsyncTake]], *args: Any
) -> Stretch:
    return over_keys(TaskCallers(tasks, make, *args), keys_of_subject(name, KEYS), server_pid)


async def ours(limit: str, engine: str) -> AsyncTake:
    return headgate.AsyncLimiter(limit, engine).take
