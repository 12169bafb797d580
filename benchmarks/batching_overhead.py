"""Measures what batching costs a lone call: one task, or one thread, makes one call at a time.

Beside it the bare call: the same bytes for the same script, written into the same kind of connection, and one
future awaited. What lies between them is all that a Limiter does around a round trip. Client and server on one
core; 1,000 keys, all allowed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import headgate
from benchmarks import headgate_subjects as benchmarks_subjects
from benchmarks import other_limiters
from benchmarks.interleaved_runs import (
    AsyncTake,
    Stretch,
    Subject,
    TaskCallers,
    ThreadCaller,
    keys_of_subject,
    last_core,
    over_keys,
    print_table,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport

LIMIT = "1000000/day"
KEYS = 1_000
LOOPS = {"uvloop": True, "asyncio": False}
OURS, BARE, PEER = "headgate", "bare EVALSHA, the same script", "limits fixed"


def answer(report: BenchmarkReport) -> None:
    core = last_core()
    with pinned_server(core) as server:
        url, pid = server.url, server.pid
        awaited: dict[str, tuple[Any, ...]] = {
            OURS: (async_take, url),
            BARE: (async_bare, url),
            PEER: (other_limiters.async_limits, "fixed", 10**6, 86_400, url),
        }
        for loop, fast in LOOPS.items():
            subjects = [Subject(name, one_task, (name, fast, pid, *how)) for name, how in awaited.items()]
            _case(report, f"one task, {loop}", subjects, core)
        made: dict[str, tuple[Any, ...]] = {
            OURS: (benchmarks_subjects.take, LIMIT, url),
            BARE: (bare, url),
            PEER: (other_limiters.limits, "fixed", 10**6, 86_400, url),
        }
        subjects = [Subject(name, one_thread, (name, pid, *how)) for name, how in made.items()]
        _case(report, "one thread", subjects, core)


def _case(report: BenchmarkReport, case: str, subjects: list[Subject], core: int) -> None:
    samples = run_interleaved(report, case, subjects, rounds=25, seconds=0.1, core=core)
    print_table(report, case, samples, OURS)
    report.target(f"{case}: p50 of the bare call's", ratio(samples, OURS, BARE, "p50_us"), at_most=1.15)


def one_task(
    name: str, fast: bool, server_pid: int, make: Callable[..., Awaitable[AsyncTake]], *args: Any
) -> Stretch:
    return over_keys(TaskCallers(1, make, *args, fast=fast), keys_of_subject(name, KEYS), server_pid)


def one_thread(name: str, server_pid: int, make: Callable[..., Callable[[str], Any]], *args: Any) -> Stretch:
    return over_keys(ThreadCaller(make, *args), keys_of_subject(name, KEYS), server_pid)


async def async_take(url: str) -> AsyncTake:
    return headgate.AsyncLimiter(LIMIT, url).take


async def async_bare(url: str) -> AsyncTake:
    """The connection itself, with nothing around it."""
    from headgate.engines.redis.async_connection import AsyncConnection

    await headgate.AsyncLimiter(LIMIT, url).take("the server knows the script now")
    loop, (address, questions) = asyncio.get_running_loop(), _way(url)
    connection = AsyncConnection(_must_not_end)
    await connection.open(loop, address)
    pack, write, new_future = questions.decide, connection.write, loop.create_future

    def take(key: str) -> asyncio.Future[Any]:
        answer = new_future()
        write(pack(key, 1, None, 0).packed, (answer.set_result,))
        return answer

    return take


def bare(url: str) -> Callable[[str], Any]:
    from headgate.engines.redis.sync_connection import SyncConnection

    headgate.Limiter(LIMIT, url).take("the server knows the script now")
    address, questions = _way(url)
    exchange, pack, by = SyncConnection(address, 1.0, 1.0).exchange, questions.decide, time.monotonic() + 3600
    return lambda key: exchange(pack(key, 1, None, 0).packed, by)


def _way(url: str) -> tuple[Any, Any]:
    """Returns where the server is, and what is asked."""
    from headgate.engines.redis.protocol import RequestBuilder
    from headgate.engines.redis.topology import topology

    return topology(url).node(b""), RequestBuilder(headgate.parse(LIMIT), LIMIT, "hg")


def _must_not_end(trouble: Exception) -> None:
    raise trouble
