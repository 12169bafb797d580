"""Do limits that find themselves keep a real server useful, alone and in four processes?

The staged case on uvicorn: a thread pool, and each call's work in ten slices of sleep. Clients send at the
instants of a Poisson process, whether or not earlier calls were answered. Each server runs in a process of its
own, and its limiter is an AdaptiveLimiter, a rule of a FastAPI application, or a semaphore for the fixed limits.

With four processes, each sends its calls on to one server with the 12 threads, and a quarter of the calls come to
each; their adaptive rules agree through Redis.

Beside the result stand the machine's load, how late the generator of calls was, and the limits over time: a busy
machine makes both sides late.
"""

import asyncio
import json
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.line_chart import Line, write_chart
from benchmarks.report import BenchmarkReport, figure
from headgate.observer import LimitChange, Observer
from tests.servers import RedisServer

THREADS, SLICES, RATE = 12, 10, 100
STAGES = ((10.0, 0.050), (20.0, 0.150), (10.0, 0.050))  # seconds, and the work of a call
SETTLE = 5.0
ROUNDS = 3

Work = Callable[[float], Awaitable[None]]


class ServedLimit(NamedTuple):
    """A limit, and in how many processes: a fixed one, the limit of a rule, or None for an AdaptiveLimiter."""

    name: str
    limit: int | dict[str, Any] | None
    processes: int = 1


ALONE = (
    *(ServedLimit(f"fixed {limit}", limit) for limit in (14, 18, 22)),
    ServedLimit("adaptive", None),
    ServedLimit("rule", {"adaptive": "concurrency"}),
    ServedLimit("rule, p90 300ms", {"adaptive": "concurrency", "target": "p90 300ms", "between": [5, 500]}),
)
FOUR = (
    *(ServedLimit(f"four, fixed {limit} each", limit, 4) for limit in (4, 5, 6)),
    ServedLimit("four, rule that agrees", {"adaptive": "concurrency", "between": [1, 200]}, 4),
)
QUICK = ("fixed 18", "adaptive", "rule", "four, fixed 5 each", "four, rule that agrees")

_spawn = multiprocessing.get_context("spawn")


class Result(NamedTuple):
    """The calls of one stage, after its first seconds."""

    offered: int
    refused: int
    good: int
    seconds: float
    p99: float
    late: float  # the P99 of how late calls were sent
    limit: float | None  # of all processes together, on average
    load: float  # of the machine, over the last minute


class Run(NamedTuple):
    """The stages of one run, and the limit over time, of all processes together."""

    stages: list[Result]
    limits: list[tuple[float, float]]


Runs = Sequence[dict[str, Run]]  # of each round, by the name of the subject


def answer(report: BenchmarkReport) -> None:
    report.say("**The staged case on uvicorn**, with a pool of 12 threads; the median of rounds")
    subjects = [each for each in (*ALONE, *FOUR) if not report.quick or each.name in QUICK]
    runs = measure(report, "uvicorn", subjects, run)
    chart = Path(".cache/bench/adaptive_server.svg")
    draw(chart, "The limit of a rule", ("rule", "four, rule that agrees"), runs)
    report.say(f"The limit over time, of four the sum: {chart}")
    for processes in (1, 4):
        compare_with_fixed(report, [each for each in subjects if each.processes == processes], runs)


def measure(
    report: BenchmarkReport, case: str, subjects: Sequence[ServedLimit], run: Callable[[ServedLimit], Run]
) -> Runs:
    """Runs all subjects in rounds, and reports a row for each of their stages."""
    runs = [{each.name: run(each) for each in subjects} for _ in range(1 if report.quick else ROUNDS)]
    rows = []
    for subject in subjects:
        for number in range(len(STAGES)):
            stages = [each[subject.name].stages[number] for each in runs]
            for stage in stages:
                report.keep(case=case, limiter=subject.name, stage=number + 1, **stage._asdict())
            limits = [stage.limit for stage in stages if stage.limit is not None]
            cells = [
                f"{median(100 * stage.refused / stage.offered for stage in stages):.1f}",
                figure(median(map(_goodput, stages))),
                figure(1000 * median(stage.p99 for stage in stages)),
                f"{median(limits):.1f}" if limits else "",
                figure(1000 * median(stage.late for stage in stages)),
                f"{median(stage.load for stage in stages):.1f}",
            ]
            rows.append([f"{subject.name}, stage {number + 1}", *cells])
    report.table(["", "refused %", "good/s", "p99 ms", "limit", "late ms", "load"], rows)
    return runs


def draw(chart: Path, title: str, names: Sequence[str], runs: Runs) -> None:
    """Draws the limits over time of the first round."""
    write_chart(
        chart,
        f"{title}, while calls take 50, 150 (from 10 s to 30 s) and 50 ms; 12 threads, 100 calls/s",
        [Line(name.partition(",")[0], runs[0][name].limits) for name in names],
        y_max=100,
        marks=((10, "150 ms"), (30, "50 ms")),
    )


def compare_with_fixed(report: BenchmarkReport, among: Sequence[ServedLimit], runs: Runs) -> None:
    """Checks the overloaded stage of those that find their limit against the best fixed limit among them."""
    fixed = [each.name for each in among if isinstance(each.limit, int)]
    best = max(median(_goodput(each[name].stages[1]) for each in runs) for name in fixed)
    for subject in among:
        if not isinstance(subject.limit, int):
            overloads = [each[subject.name].stages[1] for each in runs]
            ratio = median(map(_goodput, overloads)) / best
            report.target(
                f"{subject.name}: goodput in the overload, of the best fixed one's", ratio, at_least=0.85
            )
            works = median(stage.p99 for stage in overloads) / STAGES[1][1]
            report.target(f"{subject.name}: p99 in the overload, in works", works, at_most=2.5)


def _goodput(stage: Result) -> float:
    return stage.good / stage.seconds


class LimitLog(Observer):
    """Writes each change of a limit to a file, with its time."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def limit_changed(self, change: LimitChange) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([time.monotonic(), change.before, change.after]) + "\n")


def run(subject: ServedLimit) -> Run:
    """Starts the servers of a subject, and sends them the load."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        logs = [str(Path(folder) / str(number)) for number in range(subject.processes)]
        engine, backend = "memory://", None
        if subject.processes > 1:
            backend = stack.enter_context(serving(10_000, None, engine, None))
            if isinstance(subject.limit, dict):
                engine = stack.enter_context(RedisServer()).url
        ports = [stack.enter_context(serving(subject.limit, backend, engine, log)) for log in logs]
        return asyncio.run(send_load(ports, logs))


@contextmanager
def serving(limit: Any, backend: int | None, engine: str, log: str | None) -> Iterator[int]:
    """Runs a server in a process of its own; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = _spawn.Process(target=serve, args=(port, limit, backend, engine, log), daemon=True)
    process.start()
    try:
        yield port
    finally:
        process.terminate()
        process.join()


async def send_load(ports: Sequence[int], logs: Sequence[str]) -> Run:
    """Sends the calls of all stages to servers; each log has the changes of a limit."""
    for port in ports:
        await wait_for(port)
    chance = random.Random(1)
    calls: list[asyncio.Task[tuple[int, float, int, float]]] = []
    late: list[list[float]] = [[] for _ in STAGES]
    loads: list[float] = []
    started, at = time.monotonic() + 0.2, 0.0
    for number, (seconds, work) in enumerate(STAGES):
        ends = sum(length for length, _ in STAGES[: number + 1])
        while (at := at + chance.expovariate(RATE)) < ends:
            await asyncio.sleep(max(0.0, started + at - time.monotonic()))
            late[number].append(time.monotonic() - started - at)
            port = chance.choice(ports)
            calls.append(asyncio.create_task(_call(port, number, at - (ends - seconds), work)))
        at = ends
        loads.append(os.getloadavg()[0])
    answers = await asyncio.gather(*calls)
    changes = [_changes(log) for log in logs]
    results = []
    for number, (seconds, work) in enumerate(STAGES):
        measured = [(status, took) for status, into, stage, took in answers if stage == number and into >= SETTLE]
        passed = sorted(took for status, took in measured if status == 200)
        good = sum(took <= 2 * work for took in passed)
        p99 = passed[len(passed) * 99 // 100] if passed else 0.0
        ends = started + sum(length for length, _ in STAGES[: number + 1])
        limits = [_mean_limit(each, ends - seconds + SETTLE, ends) for each in changes if each]
        late[number].sort()
        results.append(
            Result(
                len(measured),
                len(measured) - len(passed),
                good,
                seconds - SETTLE,
                p99,
                late[number][len(late[number]) * 99 // 100],
                sum(limits) if limits else None,
                loads[number],
            )
        )
    looks = [0.25 * number for number in range(round(4 * sum(length for length, _ in STAGES)))]
    over_time = [(look, sum(_limit_at(each, started + look) for each in changes if each)) for look in looks]
    return Run(results, over_time)


def _changes(log: str) -> list[tuple[float, int, int]]:
    path = Path(log)
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _mean_limit(changes: Sequence[tuple[float, int, int]], begins: float, ends: float) -> float:
    """The limit on average, by looking ten times a second."""
    looks = [begins + 0.1 * number for number in range(round(10 * (ends - begins)))]
    return mean(_limit_at(changes, look) for look in looks)


def _limit_at(changes: Sequence[tuple[float, int, int]], at: float) -> float:
    return next((after for changed_at, _, after in reversed(changes) if changed_at <= at), changes[0][1])


async def _call(port: int, stage: int, into: float, work: float) -> tuple[int, float, int, float]:
    """Sends a call; returns its status, time in the stage, stage, and how long it took."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(5):
            status = await _get(port, work)
    except (TimeoutError, IndexError, ConnectionError):
        status = 0
    return status, into, stage, time.monotonic() - started


async def _get(port: int, work: float) -> int:
    """Sends a request on a connection of its own, and returns its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET /{int(work * 1e6)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return int((await reader.read()).split(b" ", 2)[1])
    finally:
        writer.close()


async def wait_for(port: int) -> None:
    """Waits until a server listens."""
    for _ in range(1200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError("uvicorn did not start")


def serve(port: int, limit: Any, backend: int | None, engine: str, log: str | None) -> None:
    """Runs a server until it is killed."""
    import uvicorn

    work = _threads() if backend is None else _calls_to(backend)
    observers = [] if log is None else [LimitLog(log)]
    app = (
        make_rule_app(limit, work, engine, observers)
        if isinstance(limit, dict)
        else make_app(limit, work, observers)
    )
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


def _threads() -> Work:
    """Returns work on a pool of threads."""
    pool = ThreadPoolExecutor(THREADS)

    async def work(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SLICES):
            await loop.run_in_executor(pool, time.sleep, seconds / SLICES)

    return work


def _calls_to(port: int) -> Work:
    """Returns work that another server does."""

    async def work(seconds: float) -> None:
        await _get(port, seconds)

    return work


def make_rule_app(limit: dict[str, Any], work: Work, engine: str, observers: Sequence[Observer]) -> Any:
    """Returns a FastAPI application with a rulebook of this limit."""
    from fastapi import FastAPI

    from headgate.integrations.fastapi import rate_limits

    app = FastAPI()
    rule: dict[str, Any] = {"name": "app", "limit": limit}
    if engine != "memory://":
        rule["where"] = "cluster"
    rate_limits(app, rules={"rules": [rule]}, engine=engine, observers=observers)

    @app.get("/{microseconds}")
    async def answer_request(microseconds: int) -> None:
        await work(microseconds / 1e6)

    return app


def make_app(limit: int | None, work: Work, observers: Sequence[Observer]) -> Any:
    """Returns an ASGI application behind a fixed limit, or an AdaptiveLimiter."""
    from headgate import AdaptiveLimiter, RateLimited

    adaptive = AdaptiveLimiter(observers=observers)
    fixed = threading.BoundedSemaphore(limit or 1)

    async def decide(seconds: float) -> int:
        if limit is None:
            try:
                async with adaptive.guard():
                    await work(seconds)
            except RateLimited:
                return 503
            return 200
        if not fixed.acquire(blocking=False):
            return 503
        try:
            await work(seconds)
        finally:
            fixed.release()
        return 200

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status = await decide(int(scope["path"][1:]) / 1e6)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return app
