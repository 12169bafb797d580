"""Draws on a terminal's alternate screen, and restores the terminal whatever happens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

_ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


@contextmanager
def full_screen(stream: TextIO) -> Iterator[None]:
    """Switches to the alternate screen for a block. SIGTERM ends the process after the screen is restored."""
    before = signal.signal(signal.SIGTERM, _exit)
    stream.write(_ENTER)
    try:
        yield
    finally:
        stream.write(_LEAVE)
        stream.flush()
        signal.signal(signal.SIGTERM, before)


def draw(stream: TextIO, lines: list[str], height: int) -> None:
    """Draws the whole screen in one write, so that nothing flickers; cuts what is below its last line."""
    screen = f"{_CLEAR_LINE}\r\n".join(lines[:height])
    stream.write(f"{_HOME}{screen}{_CLEAR_LINE}{_CLEAR_SCREEN}")
    stream.flush()


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
