"""MemoryVersionStore: the published versions of a service that counts in memory; they end with the process."""

from __future__ import annotations

import json
import time
from threading import Lock
from typing import Final

MAX_VERSIONS: Final = 20


class MemoryVersionStore:
    """Numbers, dates and keeps the last versions, as a server does; its methods are awaited.

    >>> MemoryVersionStore().text
    'this process'
    """

    text: str = "this process"

    def __init__(self) -> None:
        self._documents: dict[int, bytes] = {}
        self._latest: tuple[int, int] = (0, 0)
        self._lock = Lock()

    async def add(self, document: str, expected: int | None = None) -> tuple[bool, int, int]:
        """Adds a version. Returns whether it was added, its number and time; or the latest number, if it is not
        the expected one."""
        return self.add_now(document, expected)

    def add_now(self, document: str, expected: int | None = None) -> tuple[bool, int, int]:
        """Does the same without being awaited."""
        with self._lock:
            latest = self._latest[0]
            if expected is not None and expected != latest:
                return False, latest, 0
            number, at_us = latest + 1, time.time_ns() // 1000
            self._documents[number] = json.dumps(
                json.loads(document) | {"version": number, "at_us": at_us}
            ).encode()
            self._documents.pop(number - MAX_VERSIONS, None)
            self._latest = number, at_us
            return True, number, at_us

    async def stamp(self) -> tuple[int, int]:
        """Returns the latest number, and when it was published."""
        return self._latest

    async def load_version(self, version: int) -> bytes | None:
        """Returns the document of one version; None if there is none."""
        return self._documents.get(version)

    async def versions(self) -> list[int]:
        """Returns the numbers of all stored versions, newest first."""
        return sorted(self._documents, reverse=True)
