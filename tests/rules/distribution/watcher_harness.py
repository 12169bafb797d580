"""Harness of watcher tests: a source that the test writes, and rulebooks of one word."""

import time
from collections.abc import Callable

from headgate.errors import InvalidRule
from headgate.rules.distribution.watcher import RulebookText


class FakeSource:
    """A source that a test writes. Texts that begin with ! are no books."""

    name = "here"

    def __init__(self, text: str | None = "one") -> None:
        self.looks = self.reads = 0
        self.trouble: Exception | None = None
        self.text: str | None = None
        self._stamp = 0
        if text is not None:
            self.put(text)

    def put(self, text: str | None) -> None:
        self.text, self._stamp = text, self._stamp + 1

    def signature(self) -> int:
        self.looks += 1
        if self.trouble:
            raise self.trouble
        return self._stamp

    def read(self) -> RulebookText | None:
        self.reads += 1
        return (
            None if self.text is None else RulebookText(self.text, "yaml", f"version {self._stamp}", self._stamp)
        )


def load_text(paper: RulebookText) -> str:
    if paper.text.startswith("!"):
        raise InvalidRule(f"{paper.name}:1: {paper.text} is no limit.")
    return f"<{paper.text}>"


def eventually(happens: Callable[[], object], within: float = 10) -> None:
    deadline = time.monotonic() + within
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.005)
