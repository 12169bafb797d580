"""Starts real workers of Celery and Dramatiq on a real Redis, and reads what their tasks have recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from celery.backends.base import SyncBackendMixin
from celery.backends.redis import RedisBackend
from celery.result import AsyncResult
from redis import Redis

from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.wait_until import until

APPLICATION = "tests.integrations.celery_tasks"
ACTORS = "tests.integrations.dramatiq_actors"
RUNS = "runs"
PATIENCE_S = 180.0
POLL_INTERVAL_S = 0.05

_redis: Redis | None = None


class TaskRun(NamedTuple):
    """A run of a task, as it recorded itself."""

    task: str
    argument: int
    at: float
    process: int
    retries: int


def record(name: str, argument: object, retries: int = 0) -> None:
    """Appends a TaskRun to the list, from the process of a worker."""
    global _redis
    _redis = _redis or Redis.from_url(os.environ["BROKER"])
    _redis.rpush(RUNS, json.dumps([name, argument, time.time(), os.getpid(), retries]))


class PolledResults(SyncBackendMixin, RedisBackend):  # type: ignore[misc]  # the types have other bases
    """Reads results by polling. Celery's own backend subscribes to each, and unsubscribes when the garbage
    collector finds it: in whichever test runs then, from a server that is gone by then."""

    def on_task_call(self, producer: object, task_id: str) -> None:
        """Subscribes to nothing when a task is sent."""

    def wait_for(self, task_id: str, timeout: float | None = None, interval: float = 0.5, **options: Any) -> Any:
        backend: Any = super()
        return backend.wait_for(task_id, timeout, min(interval, POLL_INTERVAL_S), **options)


class TaskClient:
    """Sends tasks of APPLICATION by name."""

    def __init__(self, server: RedisServer) -> None:
        results = f"{__name__}:{PolledResults.__name__}+{server.url}"
        self.app: Celery = Celery("client", broker=server.url, backend=results, set_as_current=False)

    def send(self, task: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        """Sends a task; its arguments are positional, keywords are options of the message."""
        return self.app.send_task(f"{APPLICATION}.{task}", args, **options)

    def signature(self, task: str, *args: Any, **options: Any) -> Any:
        """Returns a signature of a task, for chains and chords."""
        return self.app.signature(f"{APPLICATION}.{task}", args, **options)


@contextmanager
def task_client(server: RedisServer) -> Iterator[TaskClient]:
    """Makes a client, and closes its connections."""
    client = TaskClient(server)
    try:
        yield client
    finally:
        client.app.close()


def runs(server: RedisServer, *tasks: str) -> list[TaskRun]:
    """Returns the runs so far, of these tasks or of all."""
    listed = server.call("LRANGE", RUNS, 0, -1)
    assert isinstance(listed, list)
    every = [TaskRun(*json.loads(each)) for each in listed if isinstance(each, bytes)]
    return [each for each in every if not tasks or each.task in tasks]


def wait_for_runs(server: RedisServer, number: int, *tasks: str, seconds: float = PATIENCE_S) -> list[TaskRun]:
    """Waits until there are so many runs, and returns them."""

    def missing() -> str | None:
        count = len(runs(server, *tasks))
        return None if count >= number else f"{count} of {number} runs"

    until(missing, seconds)
    return runs(server, *tasks)


@contextmanager
def workers(
    server: RedisServer,
    number: int = 1,
    *,
    processes: int = 2,
    application: str = APPLICATION,
    **environment: str,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts Celery workers, and waits until they are ready; stops them at the end."""
    words = ["celery", "-A", application, "worker", "--loglevel=INFO"]
    words += ["--without-gossip", "--without-mingle", "--without-heartbeat", f"--concurrency={processes}"]
    modules = [[*words, f"--hostname=worker{index}@%h"] for index in range(number)]
    with _running(server, modules, environment, b" ready.", 1) as started:
        yield started


@contextmanager
def dramatiq_workers(
    server: RedisServer,
    number: int = 1,
    *,
    processes: int = 2,
    threads: int = 2,
    application: str = ACTORS,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts Dramatiq workers, and waits until they are ready; stops them at the end."""
    words = ["dramatiq", application]
    words += [f"--processes={processes}", f"--threads={threads}", "--worker-shutdown-timeout=1000"]
    modules = [words] * number
    with _running(server, modules, {}, b"is ready for action", processes) as started:
        yield started


@contextmanager
def _running(
    server: RedisServer,
    modules: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    ready: bytes,
    times: int,
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs Python modules until the block ends; shows their logs if it failed."""
    variables = {**os.environ, "BROKER": server.url, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"worker{index}.log" for index in range(len(modules))]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for words, log in zip(modules, logs, strict=True):
                with log.open("wb") as output:
                    started.append(
                        subprocess.Popen(
                            [sys.executable, "-m", *words], env=variables, cwd=ROOT, stdout=output, stderr=output
                        )
                    )
            until(lambda: _not_ready(started, logs, ready, times), PATIENCE_S)
            yield started
        except BaseException:
            for log in logs:
                sys.stderr.write(f"{log.name}:\n{log.read_text('utf-8', 'replace')[-6000:]}\n")
            raise
        finally:
            for worker in started:
                worker.terminate()
            for worker in started:
                try:
                    worker.wait(20)
                except subprocess.TimeoutExpired:
                    worker.kill()
                    worker.wait()


def _not_ready(
    started: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path], ready: bytes, times: int
) -> str | None:
    for worker, log in zip(started, logs, strict=True):
        if worker.poll() is not None:
            raise RuntimeError(f"{log.name} ended with {worker.returncode}")
        if log.read_bytes().count(ready) < times:
            return f"{log.name} is not ready"
    return None
