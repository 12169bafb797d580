"""Clients that go on asking while something breaks, and what they saw."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.wait_until import until


class BackgroundClients:
    """So many threads that ask, one call after the other; `ask` says in a word what it saw."""

    def __init__(self, send_request: Callable[[], str], clients: int = 4) -> None:
        self._send_request = send_request
        self.seen: Counter[str] = Counter()
        self.slowest = 0.0
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._clients = [threading.Thread(target=self._run) for _ in range(clients)]

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                word = self._send_request()
            except Exception as error:
                self.errors.append(error)
                return
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.seen[word] += 1

    def more(self, word: str, count: int = 20) -> None:
        """Return when this was seen so often again."""
        before = self.seen[word]
        until(lambda: f"{self.seen}, {self.errors}" if self.seen[word] < before + count else None, 30)

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for client in self._clients:
            client.join()
        if error is None:
            assert not self.errors, self.errors


def descriptors(pid: int) -> int:
    """Returns how many it has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_mib(pid: int) -> int:
    """Resident."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) // 1024


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
