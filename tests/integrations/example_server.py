"""Runs an example application in a process of its own, and calls it as clients do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import pytest

from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

PORT = "PORT"  # stands for the port in a command
START_TIMEOUT_S = 60


def environment(engine: str) -> dict[str, str]:
    """Returns the environment in which an example finds headgate, and its engine."""
    return {**os.environ, "ENGINE": engine, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


@contextmanager
def serve_example(words: Sequence[str], engine: str) -> Iterator[httpx.Client]:
    """Starts Python with these words, waits until /health answers, and yields a client."""
    port = str(free_port())
    command = [sys.executable, *(word.replace(PORT, port) for word in words)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment(engine), cwd=ROOT, stdout=quiet, stderr=quiet)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            until(lambda: _not_ready(client, process), START_TIMEOUT_S)
            yield client
    finally:
        process.terminate()
        process.wait()


def _not_ready(client: httpx.Client, process: subprocess.Popen[bytes]) -> str | None:
    assert process.poll() is None, f"the server ended with {process.returncode}"
    try:
        return None if client.get("/health").status_code == 200 else "the application is not healthy"
    except httpx.TransportError:
        return "the server does not listen"


def engine_url(engine: str, request: pytest.FixtureRequest) -> str:
    """Returns the URL of an engine by its name: memory, or redis, which is emptied."""
    if engine == "memory":
        return "memory://"
    redis: RedisServer = request.getfixturevalue("redis_server")
    redis.flush()
    return redis.url
