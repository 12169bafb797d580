"""A publication that got no reply: remembered in the operator's browser, until it is known whether it was made.

The server may have stored the version although no reply came. A short-lived cookie keeps what was sent, so that
the next view of the rulebook finds out, in any worker: a newer version by this user with this note is the one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from headgate.service.admin.schema import VersionInfo

COOKIE: Final = "headgate_publication"
COOKIE_S: Final = 3600
_packed = re.compile(r"([0-9]{1,15})\.([0-9a-f]{32})", re.ASCII)


class UncertainPublication(NamedTuple):
    """The version that was in force before, and a digest of the note."""

    base: int
    digest: str

    @classmethod
    def of(cls, base: int, user: str, note: str) -> UncertainPublication:
        """Returns what is remembered of a publication."""
        return cls(base, hashlib.sha256(f"{user}\n{note.strip()}".encode("utf-8", "replace")).hexdigest()[:32])

    @property
    def packed(self) -> str:
        """The value of the cookie."""
        return f"{self.base}.{self.digest}"

    def find(self, versions: Iterable[VersionInfo], user: str) -> VersionInfo | None:
        """Returns the version that was published after all; None if there is none."""
        for each in versions:
            digest = UncertainPublication.of(self.base, user, each.note).digest
            if each.version > self.base and each.author == user and hmac.compare_digest(digest, self.digest):
                return each
        return None


def unpack(cookies: list[str]) -> UncertainPublication | None:
    """Returns the publication that a cookie remembers; None if there is none.

    >>> unpack([UncertainPublication.of(7, "ann", "more").packed]).base
    7
    """
    for cookie in cookies:
        if match := _packed.fullmatch(cookie):
            return UncertainPublication(int(match[1]), match[2])
    return None
