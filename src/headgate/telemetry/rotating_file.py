"""Appends lines to a file that several processes may write, and rotates it by size and age.

The current file has the name that was given; older ones are FILE.1 (the youngest), FILE.2 and so on. Lines are
appended by one write at the end of the file (O_APPEND), so those of several processes do not mix. A process that
rotates holds a lock on the file (flock); the others see before their next write that the name belongs to another
file, and open that. A line that was on its way meanwhile is in the rotated file: none is lost.

A disk that becomes full in the middle of a line leaves a part of it. The next line then begins on a line of its
own.

Laws (tests/telemetry/test_rotating_file.py): every line that `append` counts as written is in exactly one file,
whole, however many processes write and rotate; at most `keep_files` rotated files are kept.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

from headgate.clock import Clock

if sys.platform != "win32":
    from fcntl import LOCK_EX, LOCK_NB, flock

MAX_BYTES = 100_000_000
MAX_AGE_S = 86_400.0
KEEP_FILES = 7


class RotatingFile:
    """A file of lines. Only one thread may use it."""

    def __init__(
        self, path: str | os.PathLike[str], clock: Clock, max_bytes: int, max_age_s: float | None, keep_files: int
    ) -> None:
        self.path: Path = Path(path).absolute()
        self._clock = clock
        self._max_bytes, self._keep_files = max_bytes, keep_files
        self._max_age_us = None if max_age_s is None else round(max_age_s * 1_000_000)
        self._fd: int | None = None
        self._period = 0  # in which the file was begun
        self._inside_line = False  # a part of a line is the end of the file
        self._rotates = True

    def open(self) -> None:
        """Opens the file, and makes it if it is not there; raises OSError if it cannot be written."""
        if self._fd is not None:
            return
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        status = os.fstat(fd)
        self._fd, self._rotates = fd, stat.S_ISREG(status.st_mode)
        written_us = status.st_mtime_ns // 1000 if status.st_size else self._clock.now_us()
        self._period = self._period_of(written_us)

    def append(self, lines: list[bytes]) -> tuple[int, OSError | None]:
        """Appends lines, each with its line end; returns how many are written whole, and why not all are."""
        written, head = 0, b""
        try:
            self._open_current()
            assert self._fd is not None
            head = b"\n" if self._inside_line else b""
            data = head + b"".join(lines)
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            whole, end = _whole_lines(lines, written - len(head))
            if written:
                self._inside_line = written != len(head) + end
            return whole, error
        self._inside_line = False
        return len(lines), None

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(OSError):  # it reports a write that failed before
                os.close(fd)

    def _open_current(self) -> None:
        """Makes sure that the open file is the one of that name, and rotates it if it is full or old."""
        if self._fd is not None and self._rotates and not self._has_name():
            self.close()
            self._inside_line = False
        self.open()
        if self._rotates and self._must_rotate():
            self._rotate()

    def _has_name(self) -> bool:
        assert self._fd is not None
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def _must_rotate(self) -> bool:
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if not size:
            self._period = self._period_of(self._clock.now_us())
            return False
        return size >= self._max_bytes or self._period_of(self._clock.now_us()) != self._period

    def _rotate(self) -> None:
        """Renames the file, unless another process is doing so or has done so."""
        assert self._fd is not None
        try:
            if sys.platform != "win32":
                flock(self._fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            return  # the next write finds the new file
        if self._has_name():
            numbers = range(1, self._keep_files + 1)
            last = next((number for number in numbers if not self._rotated(number).exists()), self._keep_files)
            for number in range(last, 0, -1):
                older = self._rotated(number)
                younger = self._rotated(number - 1) if number > 1 else self.path
                with suppress(FileNotFoundError):
                    os.replace(younger, older)
            if not self._keep_files:
                os.unlink(self.path)
        self.close()  # and so the lock
        self._inside_line = False
        self.open()

    def _rotated(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _period_of(self, time_us: int) -> int:
        return 0 if self._max_age_us is None else time_us // self._max_age_us


def _whole_lines(lines: list[bytes], written: int) -> tuple[int, int]:
    """Returns how many lines end within so many bytes, and where the last of them ends."""
    count = end = 0
    for line in lines:
        if end + len(line) > written:
            break
        end += len(line)
        count += 1
    return count, end
