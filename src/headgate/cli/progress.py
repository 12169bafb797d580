"""Shows the progress of long work on stderr, with an estimate of what is left; only in a terminal."""

from __future__ import annotations

import sys
import time

_FIRST_AFTER_S = 1.0
_EVERY_S = 0.2
_CLEAR = "\r\x1b[K"


class Progress:
    """A line such as "reading: 42 %, 12 s left", which is drawn after a second and removed at the end."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._begin = time.monotonic()
        self._next = self._begin + _FIRST_AFTER_S
        self._drawn = False
        self._enabled = sys.stderr.isatty()

    def __call__(self, share: float | None) -> None:
        """Reports which share of the work is done; None: unknown."""
        if not self._enabled:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        sys.stderr.write(f"{_CLEAR}{progress_text(self._task, now - self._begin, share)}")
        sys.stderr.flush()
        self._drawn = True

    def task(self, task: str) -> None:
        """Begins another task."""
        self._task, self._begin = task, time.monotonic()

    def clear(self) -> None:
        """Removes the line."""
        if self._drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._drawn = False


def progress_text(task: str, seconds: float, share: float | None) -> str:
    """Returns the line: the share that is done, and the time that is left.

    >>> progress_text("reading", 6.0, 0.25), progress_text("reading", 6.0, None)
    ('reading: 25 %, 18 s left', 'reading: 6 s')
    """
    if not share:
        return f"{task}: {seconds:.0f} s"
    return (
        f"{task}: {min(share, 1):.0%}".replace("%", " %") + f", {max(0.0, seconds / share - seconds):.0f} s left"
    )
