"""Where a rulebook comes from while a program runs: a file, or the editions that were pushed to a server.

A source has a signature, which is cheap and changes whenever there may be something new, and a paper: the book as
it stands there, not loaded yet. What cannot be reached raises OSError or EngineUnavailable; what was reached and
can be no rulebook raises InvalidRule.

A file is known by its device and inode, its size and its times, wherever its path leads: editors that write in
place or rename a new file over the old one, and links that are turned to another folder (Kubernetes) are all
seen. It is read once it has held still for SETTLE, and only what is the same before and after counts. So a file
that is being written is not taken for a short one, unless its writer pauses longer than that; what it adds then is
a change like any other. An empty file is no rulebook: it is what is left when a writer fails.

Laws (tests/rules/distribution/test_source.py):
  - if the text changes, the signature does;
  - what is read is a text that the file held as a whole, never parts of two.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple, Protocol

from headgate.clock import Clock, SystemClock
from headgate.errors import InvalidRule
from headgate.rules.distribution.version import LARGEST, RulebookVersion

SETTLE_US = 200_000
READ_ATTEMPTS = 3

_FORMATS = {".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".json": "json"}


class Paper(NamedTuple):
    """A rulebook as somebody wrote it. `document`: the same as JSON, if it was pushed."""

    text: str
    format: str | None  # None: its name does not tell
    name: str
    version: int | None = None
    document: str | None = None

    @property
    def plain(self) -> tuple[str, str | None]:
        """What to read and how: the JSON where there is one, because it needs no YAML."""
        return (self.text, self.format) if self.document is None else (self.document, "json")


class Source(Protocol):
    name: str

    def signature(self) -> Hashable: ...
    def read(self) -> Paper | None: ...


class FileSource:
    """A file."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.path: Path = Path(path).absolute()  # a daemon may leave the folder that it was started in
        self.name: str = str(path)
        self._clock = clock or SystemClock()

    def signature(self) -> Hashable:
        try:
            return _signature(os.stat(self.path))
        except FileNotFoundError:
            self._clock.sleep_us(SETTLE_US)  # some editors remove the old one first
            return _signature(os.stat(self.path))

    def read(self) -> Paper:
        raw = self._held_still()
        if len(raw) > LARGEST:
            raise InvalidRule(f"{self.name} has more than {LARGEST:,} bytes: that is no rulebook.")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise InvalidRule(f"{self.name}:{line}: this is not UTF-8. Save the file as UTF-8.") from None
        if not text.strip():
            raise InvalidRule(f"{self.name} is empty. A book without rules is written rules: []")
        return Paper(text, _FORMATS.get(self.path.suffix.lower()), self.name)

    def _held_still(self) -> bytes:
        for _ in range(READ_ATTEMPTS):
            before = os.stat(self.path)
            # The next write must have another time than the one seen here, and clocks of files are coarse.
            changed_us = max(before.st_mtime_ns, before.st_ctime_ns) // 1000
            if self._clock.now_us() - changed_us < SETTLE_US:
                self._clock.sleep_us(SETTLE_US)
            with self.path.open("rb") as file:
                opened = os.fstat(file.fileno())
                raw = file.read(LARGEST + 1)
            if _signature(before) == _signature(opened) == _signature(os.stat(self.path)):
                return raw
        raise OSError(f"{self.name} changes all the time: nobody can read it as a whole")


def _signature(of: os.stat_result) -> tuple[int, ...]:
    return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns


class PublishedVersions(Protocol):
    """What is asked of editions (rules/editions.py)."""

    text: str

    def stamp(self) -> tuple[int, int]: ...
    def current(self) -> RulebookVersion | None: ...


class PushedSource:
    """The edition in force."""

    def __init__(self, editions: PublishedVersions) -> None:
        self._editions = editions
        self.name: str = editions.text

    def signature(self) -> Hashable:
        return self._editions.stamp()

    def read(self) -> Paper | None:
        """None: nobody has pushed one."""
        found = self._editions.current()
        if found is None:
            return None
        name = f"edition {found.version} in {self.name}"
        return Paper(found.text, found.format, name, found.version, found.book)
