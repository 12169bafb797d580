"""The last good rulebook on disk, for a program that starts while its server is gone.

One file for each place that books come from, in the user's cache folder, readable by its owner only. It is written
aside and renamed, so it is there as a whole or not at all; its first line holds a digest of the rest, so what
is damaged is known. Keeping is a favour: if it fails, that is told once in the log, and nothing else happens.

Laws (tests/rules/distribution/test_disk_cache.py):
  - what is read is a paper that was written, with its time; or nothing, and the log says why;
  - two places never share a file.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from headgate.clock import Clock, SystemClock
from headgate.rules.distribution.source import Paper

_log = logging.getLogger("headgate")
_login = re.compile(r"//.*@")


class CachedRulebook(NamedTuple):
    paper: Paper
    at_us: int


class DiskCache:
    """Keeps the last good paper that came from `origin`, such as an engine's URL and prefix.

    `path`: the file; unless given, one in the cache folder, named by the origin without its login.
    """

    def __init__(
        self, origin: str, path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._told = False
        self.path: Path = _default(origin) if path is None else Path(path)

    def write(self, paper: Paper) -> None:
        body = json.dumps([self._clock.now_us(), *paper], separators=(",", ":")).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside, name = tempfile.mkstemp(prefix=".rules-", dir=self.path.parent)  # its mode is 0600
            try:
                with os.fdopen(aside, "wb") as file:
                    file.write(b"%b\n%b" % (_digest(body), body))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as why:
            if not self._told:
                self._told = True
                _log.warning("headgate: the rulebook could not be kept in %s. %s", self.path, why)
        else:
            self._told = False

    def read(self) -> CachedRulebook | None:
        """What was kept last, if it can be read."""
        try:
            digest, _, body = self.path.read_bytes().partition(b"\n")
            if digest != _digest(body):
                raise ValueError("it does not say what was written")
            at_us, *paper = json.loads(body)
            return CachedRulebook(Paper(*paper), at_us)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as why:
            _log.warning("headgate: the rulebook kept in %s is of no use: %s.", self.path, why)
            return None


def _default(origin: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # so the XDG rules have it: a relative one is as good as none
        folder = Path(
            "/", os.path.expanduser("~"), ".cache"
        )  # who has no home gets /~, and is told: nothing is kept
    return folder / "headgate" / f"rules-{sha256(_login.sub('//', origin).encode()).hexdigest()[:24]}.json"


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()
