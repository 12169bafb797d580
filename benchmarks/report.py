"""Prints tables in Markdown with ratios beside their targets, and stores every raw sample."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FOLDER = Path(".cache/bench")


class BenchmarkReport:
    """One question's answer."""

    def __init__(self, name: str, question: str, *, quick: bool = False, write: bool = False) -> None:
        self.name = name
        self.quick = quick
        self.write = write  # whether a table goes into its page
        self.outcomes: list[str] = []
        FOLDER.mkdir(parents=True, exist_ok=True)
        self.path = FOLDER / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
        self._raw = self.path.open("w")
        print(f"\n# {name}: {question}\n", flush=True)
        self.keep(python=platform.python_version(), machine=platform.machine(), cores=os.cpu_count())

    def rounds(self, number: int) -> int:
        return max(2, number // 10) if self.quick else number

    def keep(self, **sample: Any) -> None:
        """One raw sample, as it was measured."""
        self._raw.write(json.dumps(sample) + "\n")

    def say(self, text: str) -> None:
        print(text + "\n", flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A Markdown table: the first column is words, the others are numbers."""
        lines = [list(head), *(list(row) for row in rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        for cells in (lines[0], ruler, *lines[1:]):
            first = cells[0].ljust(widths[0])
            rest = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
            print("| " + " | ".join([first, *rest]) + " |")
        print(flush=True)

    def target(
        self, what: str, value: float, *, at_least: float | None = None, at_most: float | None = None
    ) -> None:
        """A number next to what it should be."""
        if at_least is not None:
            met, wanted = value >= at_least, f"at least {at_least:g}"
        else:
            assert at_most is not None
            met, wanted = value <= at_most, f"at most {at_most:g}"
        line = f"- {'met    ' if met else 'NOT MET'}  {self.name}: {what}: {figure(value)} ({wanted})"
        self.keep(target=what, value=value, at_least=at_least, at_most=at_most, met=met)
        self.outcomes.append(line)
        print(line, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()


def figure(value: float) -> str:
    """Three digits that count: 1,234,567 is 1,230,000 to nobody's loss."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def thousands(value: float) -> str:
    return f"{value / 1000:,.0f}k" if value >= 10_000 else f"{value:,.0f}"
