"""Four real processes agree on one limit through a real Redis, each by its own thread and clock.

What they come to in front of one service, and what each gets of it, is in tests/adaptive/test_agreement.py, in
virtual time. Here nothing is timed: each step waits until it is so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.wait_until import until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

PATIENCE_S = 120  # of a busy machine


class AgreeingProcess:
    """A process that begins with this limit."""

    def __init__(self, url: str, start: int) -> None:
        command = [sys.executable, "-m", "tests.enforcement.agreeing_process", url, str(start)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def send(self, line: str = "limit") -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    @property
    def limit(self) -> int:
        return int(self.send()["limit"])

    def end(self) -> str:
        """Ends it, and returns what it logged."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return str(errors)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def processes(server: RedisServer) -> Iterator[list[AgreeingProcess]]:
    with ExitStack() as stack:
        made = [AgreeingProcess(server.url, start) for start in (10, 12, 14, 39)]
        for each in made:
            stack.enter_context(each.process)
            stack.callback(each.process.kill)
        yield made


def _wait_until_agreed(processes: Sequence[AgreeingProcess]) -> int:
    """Waits until all have the same limit, and returns it."""

    def differing() -> str | None:
        limits = [each.limit for each in processes]
        return None if len(set(limits)) == 1 else str(limits)

    until(differing, PATIENCE_S)
    return processes[0].limit


def test_four_processes_agree_and_one_bad_one_shrinks_nobody(
    processes: list[AgreeingProcess], server: RedisServer
) -> None:
    agreed = _wait_until_agreed(processes)
    assert 10 <= agreed <= 14, "the median, whatever the fourth has"
    bad, *good = processes

    bad.send("bad")
    until(lambda: None if bad.send()["lowered"] >= 3 else "its drops lowered nothing", PATIENCE_S)
    assert min(each.limit for each in good) >= 10, "the least that one of them began with"

    for gone in good[1:]:
        gone.process.kill()
        gone.process.wait()
    survivor = good[0]
    until(lambda: None if bad.limit <= 2 else f"the bad one goes on from {bad.limit}", PATIENCE_S)
    kept = survivor.limit
    assert kept >= 10, "of two each keeps its own"

    server.stop()
    survivor.send("good")
    assert survivor.send() == {"limit": kept, "lowered": 0, "passes": True}, "without Redis it goes on alone"
    errors = survivor.end()
    assert errors.count("adaptive limits are not agreed on") <= 1
