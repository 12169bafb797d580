"""Sources of a rulebook: a file, or the versions that were published on a server.

A source has a signature, which is cheap and changes whenever there may be something new, and a text that is not
parsed yet. A source that cannot be reached raises OSError or EngineUnavailable; a text that cannot be a rulebook
raises InvalidRule.

The signature of a file is its device and inode, its size and its times, after links: so it changes when an editor
writes in place or renames a new file over the old one, and when a link is pointed at another folder (Kubernetes).
A file is read once it has not changed for SETTLE_US, and only if it is the same before and after. So a file that
is half written is not taken for a short one, unless its writer pauses for longer; what it adds then is a change
like any other. An empty file is no rulebook: it is what a failed writer leaves.

Laws (tests/rules/distribution/test_source.py):
  - if the text changes, the signature does;
  - a text that is read was the whole content of the file at one instant, never parts of two.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple, Protocol

from headgate.clock import Clock, SystemClock
from headgate.errors import InvalidRule
from headgate.rules.distribution.rulebook_version import MAX_BYTES, RulebookVersion

SETTLE_US = 200_000
READ_ATTEMPTS = 3

_FORMATS = {".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".json": "json"}


class RulebookText(NamedTuple):
    """The text of a rulebook, not parsed yet. `document`: the same as JSON, if it was published."""

    text: str
    format: str | None  # None: the file name has no known suffix
    name: str
    version: int | None = None
    document: str | None = None

    @property
    def text_and_format(self) -> tuple[str, str | None]:
        """Returns the text to parse and its format: the JSON where there is one, because it needs no YAML."""
        return (self.text, self.format) if self.document is None else (self.document, "json")


class Source(Protocol):
    """A source that a rulebook comes from while a program runs."""

    name: str

    def signature(self) -> Hashable: ...
    def read(self) -> RulebookText | None: ...


class FileSource:
    """A rulebook file."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None) -> None:
        self.path: Path = Path(path).absolute()  # a daemon may change its working directory
        self.name: str = str(path)
        self._clock = clock or SystemClock()

    def signature(self) -> Hashable:
        try:
            return _signature(os.stat(self.path))
        except FileNotFoundError:
            self._clock.sleep_us(SETTLE_US)  # some editors remove the old file first
            return _signature(os.stat(self.path))

    def read(self) -> RulebookText:
        raw = self._read_unchanged()
        if len(raw) > MAX_BYTES:
            raise InvalidRule(f"{self.name} has more than {MAX_BYTES:,} bytes: that is no rulebook.")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1
            raise InvalidRule(f"{self.name}:{line}: this is not UTF-8. Save the file as UTF-8.") from None
        if not text.strip():
            raise InvalidRule(f"{self.name} is empty. A rulebook without rules is written rules: []")
        return RulebookText(text, _FORMATS.get(self.path.suffix.lower()), self.name)

    def _read_unchanged(self) -> bytes:
        for _ in range(READ_ATTEMPTS):
            stat_before = os.stat(self.path)
            # The next write must have another timestamp than this one, and file timestamps are coarse.
            changed_us = max(stat_before.st_mtime_ns, stat_before.st_ctime_ns) // 1000
            if self._clock.now_us() - changed_us < SETTLE_US:
                self._clock.sleep_us(SETTLE_US)
            with self.path.open("rb") as file:
                stat_open = os.fstat(file.fileno())
                raw = file.read(MAX_BYTES + 1)
            if _signature(stat_before) == _signature(stat_open) == _signature(os.stat(self.path)):
                return raw
        raise OSError(f"{self.name} changes all the time: it cannot be read as a whole")


def _signature(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


class PublishedVersions(Protocol):
    """The part of RulebookVersions that a source needs."""

    text: str

    def stamp(self) -> tuple[int, int]: ...
    def current(self) -> RulebookVersion | None: ...


class PushedSource:
    """The current published version."""

    def __init__(self, versions: PublishedVersions) -> None:
        self._versions = versions
        self.name: str = versions.text

    def signature(self) -> Hashable:
        return self._versions.stamp()

    def read(self) -> RulebookText | None:
        """Returns the current version; None if nothing was published."""
        version = self._versions.current()
        if version is None:
            return None
        name = f"version {version.version} in {self.name}"
        return RulebookText(version.text, version.format, name, version.version, version.book)
