"""The staged case on a real server: uvicorn, a thread pool, and each call's work in ten slices of sleep.

Clients send at the instants of a Poisson process, whether or not earlier calls were answered. The server runs in a
process of its own, and its limiter is an AdaptiveLimiter, a rule of a FastAPI application, or a semaphore for the
fixed limits.
"""

import asyncio
import multiprocessing
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

from benchmarks.report import BenchmarkReport, figure

THREADS, SLICES, RATE = 12, 10, 100
STAGES = ((10.0, 0.050), (20.0, 0.150), (10.0, 0.050))  # seconds, and the work of a call
SETTLE = 5.0
FIXED = (14, 18, 22)
ROUNDS = 3

Subject = int | str | None  # a fixed limit, one of RULES, or an AdaptiveLimiter
RULES: dict[str, dict[str, Any]] = {
    "rule": {"adaptive": "concurrency"},
    "rule, p90 300ms": {"adaptive": "concurrency", "target": "p90 300ms", "between": [5, 500]},
}

_spawn = multiprocessing.get_context("spawn")


class Result(NamedTuple):
    """The calls of one stage, after its first seconds."""

    offered: int
    refused: int
    good: int
    seconds: float
    p99: float


def answer(report: BenchmarkReport) -> None:
    report.say("**The staged case on uvicorn**, with a pool of 12 threads; the median of rounds")
    limits: tuple[Subject, ...] = (20, None, "rule") if report.quick else (*FIXED, None, *RULES)
    rounds = [{limit: run(limit) for limit in limits} for _ in range(1 if report.quick else ROUNDS)]
    rows = []
    for limit in limits:
        name = "adaptive" if limit is None else limit if isinstance(limit, str) else f"fixed {limit}"
        for number in range(len(STAGES)):
            stages = [each[limit][number] for each in rounds]
            for stage in stages:
                report.keep(case="uvicorn", limiter=name, stage=number + 1, **stage._asdict())
            refused = median(100 * stage.refused / stage.offered for stage in stages)
            p99 = median(stage.p99 for stage in stages)
            cells = [f"{refused:.1f}", figure(median(map(_goodput, stages))), figure(1000 * p99)]
            rows.append([f"{name}, stage {number + 1}", *cells])
    report.table(["", "refused %", "good/s", "p99 ms"], rows)
    best = max(median(_goodput(each[limit][1]) for each in rounds) for limit in limits if isinstance(limit, int))
    for limit in (None, "rule"):
        name, overloads = "uvicorn" if limit is None else "FastAPI", [each[limit][1] for each in rounds]
        ours = median(map(_goodput, overloads))
        report.target(f"{name}: goodput in the overload, of the best fixed limit's", ours / best, at_least=0.85)
        p99 = median(stage.p99 for stage in overloads)
        report.target(f"{name}: p99 in the overload, in works", p99 / STAGES[1][1], at_most=2.5)


def _goodput(stage: Result) -> float:
    return stage.good / stage.seconds


def run(limit: Subject) -> list[Result]:
    """Starts a server with this limit, and sends it the load."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = _spawn.Process(target=serve, args=(port, limit), daemon=True)
    process.start()
    try:
        return asyncio.run(_load(port))
    finally:
        process.terminate()
        process.join()


async def _load(port: int) -> list[Result]:
    await _wait_for(port)
    chance = random.Random(1)
    calls: list[asyncio.Task[tuple[int, float, int, float]]] = []
    started, at = time.monotonic() + 0.2, 0.0
    for number, (seconds, work) in enumerate(STAGES):
        ends = sum(length for length, _ in STAGES[: number + 1])
        while (at := at + chance.expovariate(RATE)) < ends:
            await asyncio.sleep(max(0.0, started + at - time.monotonic()))
            calls.append(asyncio.create_task(_call(port, number, at - (ends - seconds), work)))
        at = ends
    answers = await asyncio.gather(*calls)
    results = []
    for number, (seconds, work) in enumerate(STAGES):
        measured = [(status, took) for status, into, stage, took in answers if stage == number and into >= SETTLE]
        passed = sorted(took for status, took in measured if status == 200)
        good = sum(took <= 2 * work for took in passed)
        p99 = passed[len(passed) * 99 // 100] if passed else 0.0
        results.append(Result(len(measured), len(measured) - len(passed), good, seconds - SETTLE, p99))
    return results


async def _call(port: int, stage: int, into: float, work: float) -> tuple[int, float, int, float]:
    """Sends a request on a connection; returns its status, time in the stage, stage, and how long it took."""
    started = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{int(work * 1e6)} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    try:
        async with asyncio.timeout(5):
            answer_bytes = await reader.read()
        status = int(answer_bytes.split(b" ", 2)[1])
    except (TimeoutError, IndexError, ConnectionError):
        status = 0
    finally:
        writer.close()
    return status, into, stage, time.monotonic() - started


async def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return
    raise RuntimeError("uvicorn did not start")


def serve(port: int, limit: Subject) -> None:
    """Runs the server until it is killed."""
    import uvicorn

    uvicorn.run(make_app(limit), host="127.0.0.1", port=port, log_level="error", access_log=False)


def make_rule_app(limit: dict[str, Any]) -> Any:
    """Returns a FastAPI application that works in a thread pool, with a rulebook of this limit."""
    from fastapi import FastAPI

    from headgate.integrations.fastapi import rate_limits

    pool = ThreadPoolExecutor(THREADS)
    app = FastAPI()
    rate_limits(app, rules={"rules": [{"name": "app", "limit": limit}]})

    @app.get("/{microseconds}")
    async def work(microseconds: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SLICES):
            await loop.run_in_executor(pool, time.sleep, microseconds / 1e6 / SLICES)

    return app


def make_app(limit: Subject) -> Any:
    """Returns an ASGI app that works in a thread pool, behind a limit."""
    from headgate import AdaptiveLimiter, RateLimited

    if isinstance(limit, str):
        return make_rule_app(RULES[limit])
    pool = ThreadPoolExecutor(THREADS)
    adaptive = AdaptiveLimiter()
    fixed = threading.BoundedSemaphore(limit or 1)

    async def work(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(SLICES):
            await loop.run_in_executor(pool, time.sleep, seconds / SLICES)

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
