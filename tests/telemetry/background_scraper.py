"""Scrapes an address again and again in a thread, and notes what a Prometheus would not understand."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import httpx
from prometheus_client.parser import text_string_to_metric_families


class BackgroundScraper:
    """Scrapes while a block runs. `problems`: answers that are no metrics, counters that disappear or go back."""

    def __init__(self, url: str) -> None:
        self.scrapes: int = 0
        self.problems: list[str] = []
        self.counters: dict[str, float] = {}
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def decisions(self) -> float:
        """All decisions of the last scrape."""
        return sum(value for name, value in self.counters.items() if name.startswith("headgate_decisions_total"))

    def _run(self) -> None:
        while not self._stopped.wait(0.01):
            try:
                reply = httpx.get(self._url, timeout=10)
                reply.raise_for_status()
                counters = counters_of(reply.text)
            except (httpx.HTTPError, ValueError) as error:
                self.problems.append(repr(error))
                continue
            for name, value in self.counters.items():
                if counters.get(name, -1.0) < value:
                    self.problems.append(f"{name}: {counters.get(name)} after {value}")
            self.counters = counters
            self.scrapes += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()


def counters_of(text: str) -> dict[str, float]:
    """The counters of a scrape, by name and labels."""
    return {
        f"{sample.name} {sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.endswith(("_total", "_count", "_sum", "_bucket"))
    }
