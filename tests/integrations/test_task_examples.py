"""examples/celery_app.py and examples/dramatiq_app.py with real workers on a real Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.integrations.task_workers import PATIENCE_S, dramatiq_workers, workers
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def start_workers(server: RedisServer, example: str) -> AbstractContextManager[Any]:
    if example == "celery_app":
        return workers(server, 1, application=f"examples.{example}")
    return dramatiq_workers(server, 1, application=f"examples.{example}")


@pytest.mark.parametrize("example", ["celery_app", "dramatiq_app"])
def test_the_examples_of_task_queues_limit_as_they_say(example: str) -> None:
    with RedisServer() as server, start_workers(server, example):
        environment = {**os.environ, "BROKER": server.url, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        command = [sys.executable, "-c", f"from examples import {example}; {example}.send_mails()"]
        shown = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S
        )
    assert shown.stderr == ""
    assert shown.stdout.split("\n") == [
        *[f"to {user}: mail {number}" for number in range(4) for user in (1, 2)],
        "",
    ]
