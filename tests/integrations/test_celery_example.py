"""examples/celery_app.py with a real worker on a real Redis."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.integrations.task_workers import PATIENCE_S, workers
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

pytestmark = [pytest.mark.servers, pytest.mark.slow]


def test_the_celery_example_limits_as_it_says() -> None:
    with RedisServer() as server, workers(server, 1, application="examples.celery_app"):
        environment = {**os.environ, "BROKER": server.url, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        command = [sys.executable, "-c", "from examples import celery_app; celery_app.send_mails()"]
        shown = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S
        )
    assert shown.stderr == ""
    assert shown.stdout.split("\n") == [
        *[f"to {user}: mail {number}" for number in range(4) for user in (1, 2)],
        "",
    ]
