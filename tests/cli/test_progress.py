"""Progress is shown in a terminal only, after a second, with what is left."""

from __future__ import annotations

import io
import sys

import pytest

from headgate.cli import progress
from headgate.cli.progress import Progress, progress_text


class InteractiveStream(io.StringIO):
    def isatty(self) -> bool:
        return True


class TurnedTime:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, time = InteractiveStream(), TurnedTime()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "time", time)
    line = Progress("reading")
    time.now += 0.9
    line(0.1)
    assert terminal.getvalue() == ""
    time.now += 1.1
    line(0.25)
    assert "reading: 25 %, 6 s left" in terminal.getvalue()
    line(0.26)
    assert "26 %" not in terminal.getvalue()
    line.clear()
    assert terminal.getvalue().endswith("\x1b[K")


def test_elsewhere_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    line = Progress("reading")
    line(0.5)
    line.clear()
    assert stream.getvalue() == ""


def test_without_a_size() -> None:
    assert progress_text("reading", 12.3, None) == "reading: 12 s"
    assert progress_text("reading", 1.0, 2.0) == "reading: 100 %, 0 s left"
