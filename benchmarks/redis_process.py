"""A real Redis for the benchmarks, pinned to a core, and what it says about itself."""

import csv
import io
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import RedisServer


@contextmanager
def pinned_server(core: int) -> Iterator[RedisServer]:
    """A server of our own on that core."""
    with RedisServer("redis") as server:
        for task in Path(f"/proc/{server.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})
        yield server


def server_cpu_us(pid: int) -> float:
    """CPU time that the main thread of the server has used."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def used_memory(server: RedisServer) -> int:
    return int(_info(server, "memory", "used_memory"))


def usec_per_call(server: RedisServer) -> float:
    """Microseconds that an EVALSHA took inside the server, since the counters were last reset."""
    fields = dict(pair.split("=") for pair in _info(server, "commandstats", "cmdstat_evalsha").split(","))
    return float(fields["usec_per_call"])


def _info(server: RedisServer, section: str, field: str) -> str:
    answer = server.call("INFO", section)
    assert isinstance(answer, bytes)
    return dict(line.split(":", 1) for line in answer.decode().splitlines() if ":" in line)[field]


def requests_per_second(
    server: RedisServer, words: Sequence[str | int | float], *, calls: int, pipeline: int, keys: int, core: int
) -> float:
    """redis-benchmark with 50 clients; __rand_int__ in a word is one of so many numbers."""
    command = ["redis-benchmark", "-s", server.unix_path, "-c", "50", "-P", str(pipeline), "-n", str(calls)]
    command += ["-r", str(keys), "--csv", *(str(word) for word in words)]
    ran = subprocess.run(["taskset", "-c", str(core), *command], capture_output=True, text=True, check=True)
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    if not rows:
        raise RuntimeError(f"redis-benchmark measured nothing: {ran.stdout} {ran.stderr}")
    return float(rows[-1]["rps"])
