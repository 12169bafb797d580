"""Starts services and baselines for the benchmarks, pins them to cores, and reads their CPU time."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.service_rules import BOOK
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until
from tests.service.service_harness import Service


class Running(NamedTuple):
    """A service or a baseline: its address, its processes, and the process of its Redis."""

    address: str
    pids: list[int]
    redis_pid: int | None


@contextmanager
def running(kind: str, engine: str = "memory", workers: int = 1) -> Iterator[Running]:
    """Starts what is measured. `kind`: http or grpc of the service, or base- and one of minimal_services.py."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        url, redis_pid = "memory://", None
        if engine == "redis":
            server = stack.enter_context(RedisServer())
            pin([server.pid], cores[:1])
            url, redis_pid = server.url, server.pid
        if kind.startswith("base-"):
            address, pid = stack.enter_context(_baseline(kind.removeprefix("base-"), url))
            pids = [pid]
        else:
            service = stack.enter_context(Service(BOOK, engine=url, workers=workers))
            address = service.http if kind == "http" else service.grpc
            pids = [service.pid, *(service.worker_pids if workers > 1 else [])]
        pin(pids, cores[-1:] if workers == 1 else cores)
        yield Running(address, pids, redis_pid)


@contextmanager
def _baseline(kind: str, url: str) -> Iterator[tuple[str, int]]:
    address = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "benchmarks.minimal_services", kind, address, url]
    process = subprocess.Popen(words)
    try:
        until(lambda: None if _listens(address) else "not yet", 20)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def pin(pids: Iterable[int], cores: Iterable[int]) -> None:
    """Lets processes, with all of their threads, run on these cores only."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def cpu_us(pids: Iterable[int]) -> float:
    """Returns the CPU time of processes, in all of their threads, so far."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1000


def load_core() -> list[str]:
    """Returns the words that run a command on the core of those who ask."""
    return ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
