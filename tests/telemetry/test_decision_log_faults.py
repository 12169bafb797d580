"""A decision log that cannot be written delays and refuses no call: records are dropped, and counted."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headgate import Limiter
from headgate.errors import InvalidSetting
from headgate.telemetry import decision_log, record_queue
from headgate.telemetry.decision_log import DecisionLog
from tests.telemetry.log_lines import read_lines

TAKE = """
import logging, os, resource, sys
logging.basicConfig(format="%(message)s")
from headgate import Limiter
from headgate.telemetry.decision_log import DecisionLog
log = DecisionLog(sys.argv[1])
limiter = Limiter("1000000/s", observers=[log])
limiter.take("ann")
log.close()
line_bytes = os.stat(sys.argv[1]).st_size  # another line may differ by the digits of a number
resource.setrlimit(resource.RLIMIT_FSIZE, (6 * line_bytes + line_bytes // 2, resource.RLIM_INFINITY))
for _ in range(3):
    assert all(limiter.take("ann").allowed for _ in range(100))
    log.close()
problem = log.problem
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
limiter.take("ann")
limiter.close()
print(log.written, log.dropped, problem, log.problem)
"""


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting) as refused:
        DecisionLog(tmp_path / "missing" / "log")
    assert str(refused.value) == (
        f"The decision log {tmp_path}/missing/log cannot be written: No such file or directory."
    )
    with pytest.raises(InvalidSetting, match=r"cannot be written: Is a directory\.$"):
        DecisionLog(tmp_path)


def test_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    log = DecisionLog("/dev/full")
    limiter = Limiter("1000000/s", observers=[log])
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(3):
            assert all(limiter.take("ann").allowed for _ in range(10))
            log.close()
    assert (log.written, log.dropped) == (0, 30)
    assert log.problem == "The decision log /dev/full cannot be written: No space left on device."
    assert [record.getMessage() for record in caplog.records] == [
        "headgate: the decision log /dev/full cannot be written: No space left on device. Records are dropped "
        "until it can be; calls are decided as before."
    ]


def test_a_file_that_may_not_grow_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    result = subprocess.run(
        [sys.executable, "-c", TAKE, path], capture_output=True, text=True, check=True, env=os.environ
    )
    written, dropped, rest = result.stdout.split(" ", 2)
    assert int(written) + int(dropped) == 302
    assert rest == f"The decision log {path} cannot be written: File too large. None\n"
    *whole, broken, last = path.read_text().splitlines()
    assert len(whole) == int(written) - 1
    assert not broken.endswith("}")
    assert f'"dropped":{dropped}' in last
    assert result.stderr.splitlines() == [
        f"headgate: the decision log {path} cannot be written: File too large. Records are dropped until it "
        "can be; calls are decided as before.",
        f"headgate: the decision log {path} is written again; {dropped} records were dropped.",
    ]


def test_a_folder_that_goes_away_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = DecisionLog(folder / "log")
    limiter = Limiter("1000000/s", observers=[log])
    limiter.take("ann")
    log.close()
    folder.rename(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(2):
            assert limiter.take("ann").allowed
            log.close()
        folder.mkdir()
        limiter.take("ann")
        log.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert (log.written, log.dropped) == (2, 2)
    [line] = read_lines(folder / "log")
    assert line["dropped"] == 2
    limiter.close()


def test_calls_that_come_faster_than_they_are_written_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decision_log, "MAX_QUEUED", 10)
    monkeypatch.setattr(record_queue, "BATCH_DELAY_S", 3600.0)
    log = DecisionLog(tmp_path / "log")
    log._queue._half = 100  # so that nothing wakes the thread
    limiter = Limiter("1000000/s", observers=[log])
    with caplog.at_level(logging.WARNING, "headgate"):
        assert all(limiter.take("ann").allowed for _ in range(25))
        log.close()
        limiter.take("ann")
        limiter.close()
    assert (log.written, log.dropped) == (11, 15)
    lines = read_lines(tmp_path / "log")
    assert [each.get("dropped") for each in lines] == [15, *[None] * 10]
    assert [record.getMessage() for record in caplog.records] == [
        f"headgate: 15 records of the decision log {tmp_path}/log were dropped, because calls came faster than "
        "they could be written. Record a sample: DecisionLog(..., sample=0.1)."
    ]


def test_a_process_without_threads_to_spare_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    log = DecisionLog(tmp_path / "log")
    limiter = Limiter("1000000/s", observers=[log])
    with caplog.at_level(logging.WARNING, "headgate"):
        assert all(limiter.take("ann").allowed for _ in range(3))
        limiter.close()
    assert (log.written, log.dropped) == (3, 0)
    assert len(caplog.records) == 1
