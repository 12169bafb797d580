"""A rotating file keeps every line once, whole, however many processes write and rotate it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate import ManualClock
from headgate.clock import SystemClock
from headgate.telemetry.rotating_file import RotatingFile

DAY_S = 86_400
MIDNIGHT_US = 20_000 * DAY_S * 1_000_000


def open_file(path: Path, clock: ManualClock | None = None, **settings: float) -> RotatingFile:
    options: dict[str, float] = {"max_bytes": 1000, "keep_files": 3} | settings
    return RotatingFile(
        path,
        clock or SystemClock(),
        int(options["max_bytes"]),
        options.get("max_age_s"),
        int(options["keep_files"]),
    )


def test_by_size(tmp_path: Path) -> None:
    file = open_file(tmp_path / "log", max_bytes=30)
    for number in range(10):
        assert file.append([b"line %03d!\n" % number]) == (1, None)
    file.close()
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts["log"] == "line 009!\n"
    assert texts["log.1"] == "line 006!\nline 007!\nline 008!\n"
    assert sorted(texts) == ["log", "log.1", "log.2", "log.3"]
    assert texts["log.3"].startswith("line 000!")


def test_by_time(tmp_path: Path) -> None:
    clock = ManualClock(MIDNIGHT_US - 2_000_000)
    file = open_file(tmp_path / "log", clock, max_age_s=DAY_S)
    file.append([b"evening\n"])
    clock.advance(1)
    file.append([b"late\n"])
    clock.advance(1)
    file.append([b"midnight\n"])
    clock.advance(3 * DAY_S)
    file.append([b"days later\n"])
    file.close()
    assert (tmp_path / "log.2").read_text() == "evening\nlate\n"
    assert (tmp_path / "log.1").read_text() == "midnight\n"
    assert (tmp_path / "log").read_text() == "days later\n"


def test_a_process_that_starts_later_rotates_what_is_old(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old\n")
    os.utime(tmp_path / "log", (1000, 1000))
    file = open_file(tmp_path / "log", ManualClock(MIDNIGHT_US), max_age_s=DAY_S)
    file.append([b"new\n"])
    file.close()
    assert (tmp_path / "log.1").read_text() == "old\n"


def test_no_old_file_is_kept_if_so_configured(tmp_path: Path) -> None:
    file = open_file(tmp_path / "log", max_bytes=1, keep_files=0)
    for number in range(3):
        file.append([b"%d\n" % number])
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log").read_text() == "2\n"


def test_logrotate_may_rename_it_too(tmp_path: Path) -> None:
    file = open_file(tmp_path / "log")
    file.append([b"a\n"])
    (tmp_path / "log").rename(tmp_path / "log-yesterday")
    file.append([b"b\n"])
    file.close()
    assert (tmp_path / "log-yesterday").read_text() == "a\n"
    assert (tmp_path / "log").read_text() == "b\n"


def test_something_that_is_no_file_is_not_rotated() -> None:
    file = open_file(Path("/dev/null"), max_bytes=1)
    assert [file.append([b"x\n"]) for _ in range(3)] == [(1, None)] * 3
    file.close()


@pytest.mark.parametrize("max_bytes", [300, 5000])
def test_many_processes_lose_and_tear_no_line(tmp_path: Path, max_bytes: int) -> None:
    processes, lines = 6, 200
    pids = []
    for number in range(processes):
        pid = os.fork()
        if pid == 0:
            file = open_file(tmp_path / "log", max_bytes=max_bytes, keep_files=1000)
            for line in range(0, lines, 2):
                text = [b"process %d line %04d ends\n" % (number, each) for each in (line, line + 1)]
                if file.append(text) != (2, None):
                    os._exit(1)
            os._exit(0)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * processes
    found = sorted(line for path in tmp_path.iterdir() for line in path.read_text().splitlines())
    assert found == sorted(
        f"process {number} line {line:04d} ends" for number in range(processes) for line in range(lines)
    )
    assert len(list(tmp_path.iterdir())) > 1
