"""Measures the cost of a decision inside the server, compared with a minimal script.

redis-benchmark calls our assembled scripts and the minimal GCRA in turn, 50 clients, 16 calls in a pipeline and
one at a time; server and clients have a core each. 100,000 keys, every call allowed. The sliding log of 70,000 a
day is measured on 8 keys: while it fills, and full, with units leaving as fast as others come. A refusal is
measured on one key.
"""

import os
import statistics
import struct
import time
from dataclasses import dataclass
from typing import Any

from benchmarks import minimal_limiters
from benchmarks.interleaved_runs import Samples, median, ratio
from benchmarks.redis_process import pinned_server, requests_per_second, server_cpu_us, usec_per_call
from benchmarks.report import BenchmarkReport, figure, thousands
from headgate import parse
from headgate.engines.redis.protocol import RequestBuilder
from headgate.engines.redis.script_assembly import Script
from tests.servers import RedisServer

OURS, MINIMAL = "token bucket", "floor: minimal GCRA"
FILLING, FULL = "sliding log 70,000/day, filling", "sliding log 70,000/day, full"
LOG = "70000/day log"
CALLS = 20_000
COLUMNS = ("requests_per_second", "usec_per_call", "server_cpu_us")


@dataclass
class _ScriptCall:
    script: Script
    words: list[str]  # of one call; __rand_int__ stands for one of so many keys
    keys: int = 100_000
    pipelines: tuple[int, ...] = (16, 1)
    left: int = 0  # calls until the keys start anew

    @property
    def names(self) -> list[str]:
        return [self.words[3].replace("__rand_int__", f"{number:012d}") for number in range(self.keys)]


def answer(report: BenchmarkReport) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with pinned_server(cores[-1]) as server:
        called = _script_calls()
        for one in called.values():
            server.call("SCRIPT", "LOAD", one.script.text)
        samples: dict[int, Samples] = {16: {name: [] for name in called}, 1: {}}
        samples[1] = {name: [] for name, one in called.items() if 1 in one.pipelines}
        for number in range(report.rounds(15)):
            names = list(called)[number % len(called) :] + list(called)[: number % len(called)]
            for name in names:
                for pipeline in called[name].pipelines:
                    sample = _run(server, name, called[name], pipeline, cores[0])
                    samples[pipeline][name].append(sample)
                    report.keep(subject=name, pipeline=pipeline, round=number, **sample)
    _print_table(report, samples)


def _script_calls() -> dict[str, _ScriptCall]:
    many = [
        _minimal("floor: a script that does nothing", "return 1"),
        _minimal(MINIMAL, minimal_limiters.MINIMAL_GCRA, 600_000, 60_000_000),
        _ours(OURS, "100/minute"),
        _ours("token bucket, with a remainder", "7/s burst 100"),
        _ours("leaky bucket", "100/minute queue 100 nodelay"),
        _ours("fixed window", "100/minute fixed"),
        _ours("sliding window", "100/minute sliding"),
        _ours("sliding log", "100/minute log"),
        _ours("smooth", "100000/s smooth"),
    ]
    few = [
        _ours(FILLING, LOG, keys=8, pipelines=(16,)),
        _ours(FULL, LOG, keys=8, pipelines=(16,)),
        _minimal(
            MINIMAL + ", refused", minimal_limiters.MINIMAL_GCRA, 60_000_000, 60_000_000, keys=1, pipelines=(16,)
        ),
        _ours(OURS + ", refused", "1/minute", keys=1, pipelines=(16,)),
    ]
    return dict(many + few)


def _ours(name: str, text: str, **how: Any) -> tuple[str, _ScriptCall]:
    """The very words that the engine would send."""
    question = RequestBuilder(parse(text), name, "hg").decide("user:__rand_int__", 1, None, 0)
    assert question.script is not None
    words = question.packed.decode().split("\r\n")[2::2]
    return name, _ScriptCall(question.script, words, **how)


def _minimal(name: str, text: str, *numbers: int, **how: Any) -> tuple[str, _ScriptCall]:
    script = Script(text)
    key = f"hg2:tb:{name}:{{user:__rand_int__}}"
    return name, _ScriptCall(script, ["EVALSHA", script.sha, "1", key, *map(str, numbers)], **how)


def _run(server: RedisServer, name: str, called: _ScriptCall, pipeline: int, core: int) -> dict[str, float]:
    calls = CALLS if pipeline > 1 else CALLS // 4
    log = name in (FILLING, FULL)
    if name == FULL:
        for one in called.names:
            server.call("SET", one, _full_ring(), "PX", 86_400_000)
    elif name == FILLING and called.left < calls:
        server.call("UNLINK", *called.names)
        called.left = 8 * 60_000
    called.left -= calls
    before = _written(server, called.names) if log else 0
    server.call("CONFIG", "RESETSTAT")
    cpu_us = server_cpu_us(server.pid)
    speed = requests_per_second(server, called.words, calls=calls, pipeline=pipeline, keys=called.keys, core=core)
    cpu_us = server_cpu_us(server.pid) - cpu_us
    sample = {
        "requests_per_second": speed,
        "usec_per_call": usec_per_call(server),
        "server_cpu_us": cpu_us / calls,
    }
    if log:
        sample["allowed"] = (_written(server, called.names) - before) / calls
    return sample


def _full_ring(size: int = 70_000, day_us: int = 86_400_000_000) -> bytes:
    """A log that is full, as it is stored: its units leave one by one from now on, each 100 microseconds."""
    now_us = time.time_ns() // 1000
    oldest_us = now_us - day_us
    ring = b"".join((oldest_us + 100 * number).to_bytes(7, "big") for number in range(size))
    newest_us = oldest_us + 100 * (size - 1)
    numbers = (size, 0, newest_us, newest_us, 0)  # head, tail, newest, stamp, ahead
    return struct.pack(">I", size) + b"".join(number.to_bytes(7, "big") for number in numbers) + ring


def _written(server: RedisServer, names: list[str]) -> int:
    """Returns how many units the logs have taken in: their heads."""
    heads = [server.call("GETRANGE", name, 4, 10) for name in names]
    return sum(int.from_bytes(head, "big") for head in heads if isinstance(head, bytes))


def _print_table(report: BenchmarkReport, samples: dict[int, Samples]) -> None:
    rows = []
    for name in samples[16]:
        cells = [figure(ratio(samples[16], name, MINIMAL, "requests_per_second"))]
        for taken in samples.values():
            if name in taken:
                speed, usec, cpu = (median(taken, name, column) for column in COLUMNS)
                cells += [thousands(speed), figure(usec), figure(cpu)]
            else:
                cells += ["", "", ""]
        rows.append([name, *cells])
    head = ["", "of minimal", "16: requests/s", "us per call", "CPU us", "1: requests/s", "us per call", "CPU us"]
    report.table(head, rows)
    many = samples[16]
    for name in (FILLING, FULL):
        allowed = statistics.median(sample["allowed"] for sample in many[name])
        report.say(f"{name}: {allowed:.0%} of the calls were allowed.")
    value = ratio(many, OURS, MINIMAL, "requests_per_second")
    report.target("token bucket over the minimal GCRA, requests/s, pipeline 16", value, at_least=0.75)
    value = ratio(samples[1], OURS, MINIMAL, "requests_per_second")
    report.target("token bucket over the minimal GCRA, requests/s, one at a time", value, at_least=0.75)
    value = 1 / ratio(many, OURS, MINIMAL, "server_cpu_us")
    report.target("token bucket over the minimal GCRA, by the server's CPU, pipeline 16", value, at_least=0.75)
    for name in (FILLING, FULL):
        value = ratio(many, name, OURS, "server_cpu_us")
        report.target(f"{name}: the server's CPU, of a token bucket's", value, at_most=2.5)
