"""Measures Envoy's rate limit service, beside grpcio and beside the least that Python can do.

The server has a core of its own; h2load (4 connections with 24 streams) and Redis have the other. Each round
starts what it measures anew; those who are compared run side by side and take turns of a second. Compared with

    an empty servicer of grpcio    reads the request and says OK; tuned as the service's processes are, or not
    limits on grpcio               the service's decisions, counted as there, behind a servicer of grpcio
    the floor                      the same behind a server that checks nothing (minimal_grpc_server.py)

Ratios are formed within each round, by calls a second, and by the server's CPU time for a call, which other work
on the machine changes less. Random keys are 10,000; where they are sent from (rls_load.py) takes as long as the
service, so their target is one of CPU time.
"""

import os
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from benchmarks.interleaved_runs import SPEED, Samples, ratio
from benchmarks.report import BenchmarkReport, figure
from benchmarks.service_processes import Running, cpu_us, load_core, running
from headgate.service.envoy.messages import RateLimitRequest
from headgate.service.envoy.rls import PATH
from tests.servers.server_programs import command

SECONDS = 1
TURNS = 3
WARM_UP_S = 4  # requests are cached when they come again: random keys take a while
RANDOM = 0  # in place of a number of descriptors: one descriptor with a random key
CPU, REDIS_CPU, P99 = "cpu_us", "redis_cpu_us", "p99_ms"


class RlsSubject(NamedTuple):
    kind: str
    engine: str
    descriptors: int = 1
    workers: int = 1


EMPTY, TUNED = "empty servicer of grpcio", "the same, tuned"
ON_GRPC = "limits on grpcio, Redis"
FLOOR, FLOOR_REDIS = "floor, memory", "floor, Redis"
MEMORY, REDIS, FOUR = "memory", "Redis", "Redis, four descriptors"
MEMORY_FOUR = "memory, four descriptors"
EMPTY_RANDOM, MEMORY_RANDOM, REDIS_RANDOM = (
    f"{name}, random keys" for name in ("empty servicer of grpcio", "memory", "Redis")
)
TWO = "Redis, two workers on both cores"
SUBJECTS = {
    EMPTY: RlsSubject("base-grpc", "memory"),
    TUNED: RlsSubject("base-tuned-grpc", "memory"),
    ON_GRPC: RlsSubject("base-tuned-limits-grpc", "redis"),
    FLOOR: RlsSubject("base-tuned-limits-minimal", "memory"),
    FLOOR_REDIS: RlsSubject("base-tuned-limits-minimal", "redis"),
    MEMORY: RlsSubject("grpc", "memory"),
    MEMORY_FOUR: RlsSubject("grpc", "memory", 4),
    REDIS: RlsSubject("grpc", "redis"),
    FOUR: RlsSubject("grpc", "redis", 4),
    EMPTY_RANDOM: RlsSubject("base-grpc", "memory", RANDOM),
    MEMORY_RANDOM: RlsSubject("grpc", "memory", RANDOM),
    REDIS_RANDOM: RlsSubject("grpc", "redis", RANDOM),
    TWO: RlsSubject("grpc", "redis", workers=2),
}
COMPARED = (
    (EMPTY, MEMORY, TUNED, FLOOR, MEMORY_FOUR),
    (EMPTY, REDIS, FOUR, TUNED, FLOOR_REDIS, ON_GRPC),
    (EMPTY_RANDOM, MEMORY_RANDOM, REDIS_RANDOM),
    (REDIS, TWO),
)


def answer(report: BenchmarkReport) -> None:
    tables: list[Samples] = [{name: [] for name in names} for names in COMPARED]
    for number in range(report.rounds(4)):
        for names, samples in zip(COMPARED, tables, strict=True):
            for name, sample in _in_turn(names, number).items():
                samples[name].append(sample)
                report.keep(subject=name, round=number, load=os.getloadavg()[0], **sample)
    for samples in tables:
        _print_table(report, samples)
    memory, redis, random, _ = tables
    for samples, name, floor, times in ((memory, MEMORY, FLOOR, 10), (redis, REDIS, FLOOR_REDIS, 8)):
        for other in (EMPTY, TUNED):
            report.target(f"{name}, of an {other}" if other == EMPTY else f"{name}, of {other}",
                          ratio(samples, name, other, SPEED), at_least=times)  # fmt: skip
        report.target(f"{name}, by CPU of an {EMPTY}", ratio(samples, EMPTY, name, CPU), at_least=times)
        report.target(f"{name}, of the floor", ratio(samples, name, floor, SPEED), at_least=0.55)
        report.target(f"{name}, by CPU of the floor", ratio(samples, floor, name, CPU), at_least=0.55)
    for name in (MEMORY_RANDOM, REDIS_RANDOM):
        report.target(f"{name}, by CPU", ratio(random, EMPTY_RANDOM, name, CPU), at_least=4)
    report.target("four descriptors, of one", ratio(redis, FOUR, REDIS, SPEED), at_least=0.6)
    report.target("four descriptors, by CPU of one", ratio(redis, REDIS, FOUR, CPU), at_least=0.6)
    report.target("Redis CPU, of limits on grpcio", ratio(redis, REDIS, ON_GRPC, REDIS_CPU), at_most=1 / 3)
    report.target("p99 on Redis, of limits on grpcio", ratio(redis, REDIS, ON_GRPC, P99), at_most=0.5)
    report.target(f"p99 on Redis, of an {EMPTY}", ratio(redis, REDIS, EMPTY, P99), at_most=0.5)


def _print_table(report: BenchmarkReport, samples: Samples) -> None:
    rows = []
    for name, taken in samples.items():
        columns = (SPEED, P99, CPU, REDIS_CPU)
        values = [median(sample[column] for sample in taken) for column in columns]
        rows.append([name, *(figure(value) if value else "" for value in values)])
    report.table(["", "calls/s", "p99 ms", "CPU us", "Redis CPU us"], rows)


def _in_turn(names: Sequence[str], number: int) -> dict[str, dict[str, float]]:
    """One sample of each, in this round."""
    turns: Samples = {name: [] for name in names}
    shift = number % len(names)
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(running(each.kind, each.engine, each.workers))
            for name, each in ((name, SUBJECTS[name]) for name in names)
        }
        for turn in range(TURNS + 1):
            for name in (*names[shift:], *names[:shift]):
                seconds = SECONDS if turn > 0 else WARM_UP_S
                sample = _measure(started[name], SUBJECTS[name].descriptors, seconds)
                if turn > 0:
                    turns[name].append(sample)
    return {
        name: {what: fmean(turn[what] for turn in samples) for what in samples[0]}
        for name, samples in turns.items()
    }


def _measure(subject: Running, descriptors: int, seconds: int) -> dict[str, float]:
    redis_pids = [] if subject.redis_pid is None else [subject.redis_pid]
    before, redis_before = cpu_us(subject.pids), cpu_us(redis_pids)
    count, speed, p99_ms = (
        _random_keys(subject.address, seconds)
        if descriptors == RANDOM
        else _h2load(subject.address, descriptors, seconds)
    )
    return {
        SPEED: speed,
        P99: p99_ms,
        CPU: (cpu_us(subject.pids) - before) / count,
        REDIS_CPU: (cpu_us(redis_pids) - redis_before) / count,
    }


def _random_keys(address: str, seconds: int) -> tuple[int, float, float]:
    words = [*load_core(), sys.executable, "-m", "benchmarks.rls_load", address, str(2 * seconds)]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found = re.fullmatch(r"(\d+) succeeded, 0 failed, ([\d.]+) per second\n", output)
    assert found, output
    return int(found[1]), float(found[2]), 0.0


def _h2load(address: str, descriptors: int, seconds: int) -> tuple[int, float, float]:
    """Returns how many calls succeeded, how many in a second, and the 99th percentile of their times in ms."""
    request = RateLimitRequest(domain="bench")
    for number in range(descriptors):
        entry = request.descriptors.add().entries.add()
        entry.key, entry.value = f"d{number}", "10.0.0.1"
    body = request.SerializeToString()
    with tempfile.NamedTemporaryFile("wb") as file, tempfile.NamedTemporaryFile("rb") as log:
        file.write(b"\0" + struct.pack(">I", len(body)) + body)
        file.flush()
        words = [*load_core(), str(command("h2load", "nghttp2-client")), "-D", str(seconds), "-c4", "-m24"]
        words += ["-d", file.name, "--log-file", log.name]
        words += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://{address}{PATH}"]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        times_us = sorted(int(line.split("\t")[2]) for line in Path(log.name).read_text().splitlines())
    speed, count = (
        re.search(r"finished in \S+, ([\d.]+) req/s", output),
        re.search(r"(\d+) succeeded, 0 failed", output),
    )
    assert speed, output
    assert count, output
    return int(count[1]), float(speed[1]), times_us[len(times_us) * 99 // 100] / 1000
