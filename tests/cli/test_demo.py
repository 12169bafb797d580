"""headgate demo in a pipe, in a terminal, and interrupted."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from headgate.cli import main

ROOT = Path(__file__).parents[2]
BORROWED, GIVEN_BACK = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"


def test_fast_prints_the_last_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--fast"]) == 0
    out = capsys.readouterr().out
    assert "20.0 s of 20" in out
    assert "\x1b" not in out, "a pipe gets no colours"


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns how long the demo waited, without waiting."""
    lengths: list[float] = []
    monkeypatch.setattr("headgate.cli.demo.time.sleep", lengths.append)
    return lengths


def test_in_a_pipe_it_tells_line_by_line_and_does_not_wait(
    capsys: pytest.CaptureFixture[str], slept: list[float]
) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert re.findall(r"^ *([\d.]+) s  (\w+)", out, re.M)[:5] == [
        ("0.0", "calm"),
        ("4.0", "the"),
        ("8.0", "lull"),
        ("13.7", "second"),
        ("15.5", "closing"),
    ]
    assert "token bucket" in out
    assert "\x1b" not in out
    assert slept == []


def test_in_a_pipe_it_waits_if_seconds_are_given(capsys: pytest.CaptureFixture[str], slept: list[float]) -> None:
    assert main(["demo", "--seconds", "100"]) == 0
    assert sum(slept) == pytest.approx(100)
    assert "20.0 s  over" in capsys.readouterr().out


def test_it_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; sys.path.insert(0, 'src'); from headgate.cli import main; sys.exit(main(['demo', '--fast']))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "sliding log" in ran.stdout


class Terminal:
    """The demo in a terminal of 80 by 24."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headgate.cli", "demo", *words],
            cwd=ROOT,
            env=environment | {"PYTHONPATH": "src", "TERM": "xterm-256color", "PYTHONUTF8": "1"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.seen = b""

    def read_until(self, wanted: bytes) -> bytes:
        while wanted not in self.seen and self._read():
            pass
        assert wanted in self.seen, self.seen
        return self.seen

    def read_all(self) -> bytes:
        while self._read():
            pass
        os.close(self._master)
        return self.seen

    def _read(self) -> bool:
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # the other side has closed
            return False
        self.seen += chunk
        return bool(chunk)


def test_live_it_borrows_the_terminal_and_gives_it_back() -> None:
    terminal = Terminal("--seconds", "1")
    seen = terminal.read_all()
    assert terminal.process.wait(10) == 0
    assert seen.startswith(BORROWED)
    page, _, after = seen.partition(GIVEN_BACK)
    assert page.count(b"\x1b[H") > 3, "several pictures"
    assert b"\x1b[32m" in page
    assert "20.0 s of 20" in after.decode(), "the last picture stays"


def test_without_colours_there_are_none_live_either() -> None:
    terminal = Terminal("--seconds", "0.5", "--no-color")
    assert re.findall(rb"\x1b\[\d+m", terminal.read_all()) == []
    assert terminal.process.wait(10) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_gives_the_terminal_back(number: signal.Signals, code: int) -> None:
    terminal = Terminal("--seconds", "60")
    terminal.read_until(b"\x1b[H")
    terminal.process.send_signal(number)
    seen = terminal.read_all()
    assert terminal.process.wait(10) == code
    assert seen.count(GIVEN_BACK) == 1
    assert b"Traceback" not in seen
