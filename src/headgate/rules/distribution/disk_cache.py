"""Caches the last good rulebook on disk, for a program that starts while its server is unreachable.

There is one file for each origin of rulebooks, in the user's cache folder, readable by its owner only. It is
written to a temporary file and renamed, so it is complete or absent; its first line is a digest of the rest, so
damage is detected. The cache is optional: if writing fails, the log says so once, and nothing else happens.

Laws (tests/rules/distribution/test_disk_cache.py):
  - reading returns a rulebook that was written, with its time; or nothing, and the log says why;
  - two origins never share a file.
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
from headgate.rules.distribution.source import RulebookText

_log = logging.getLogger("headgate")
_url_login = re.compile(r"//.*@")


class CachedRulebook(NamedTuple):
    """A rulebook from the cache, and when it was written."""

    content: RulebookText
    at_us: int


class DiskCache:
    """Stores the last good rulebook that came from `origin`, such as an engine's URL and prefix.

    `path`: the file; by default one in the cache folder, named by the origin without its login.
    """

    def __init__(
        self, origin: str, path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        self._clock = clock or SystemClock()
        self._warned = False
        self.path: Path = _default_path(origin) if path is None else Path(path)

    def write(self, content: RulebookText) -> None:
        body = json.dumps([self._clock.now_us(), *content], separators=(",", ":")).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # mkstemp makes a file of mode 0600.
            descriptor, temporary_path = tempfile.mkstemp(prefix=".rules-", dir=self.path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(b"%b\n%b" % (_digest(body), body))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary_path, self.path)
            except BaseException:
                os.unlink(temporary_path)
                raise
        except OSError as error:
            if not self._warned:
                self._warned = True
                _log.warning("headgate: the rulebook could not be cached in %s. %s", self.path, error)
        else:
            self._warned = False

    def read(self) -> CachedRulebook | None:
        """Returns the cached rulebook, or None if it is missing or damaged."""
        try:
            digest, _, body = self.path.read_bytes().partition(b"\n")
            if digest != _digest(body):
                raise ValueError("its digest does not match")
            at_us, *fields = json.loads(body)
            return CachedRulebook(RulebookText(*fields), at_us)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            _log.warning("headgate: the rulebook cached in %s cannot be used: %s.", self.path, error)
            return None


def _default_path(origin: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():  # the XDG specification ignores relative paths
        # Without a home folder this is /~/.cache, where writing fails and is logged.
        folder = Path("/", os.path.expanduser("~"), ".cache")
    return folder / "headgate" / f"rules-{sha256(_url_login.sub('//', origin).encode()).hexdigest()[:24]}.json"


def _digest(body: bytes) -> bytes:
    return sha256(body).hexdigest().encode()
