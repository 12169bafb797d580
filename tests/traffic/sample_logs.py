"""Writes small sample logs in the usual formats."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

BEGIN = datetime(2026, 11, 16, 8, 0, tzinfo=UTC)
BEGIN_US = round(BEGIN.timestamp()) * 1_000_000
AGENT = "Mozilla/5.0 (X11; Linux x86_64)"


def combined_line(seconds: float, address: str, path: str = "/", status: int = 200, agent: str = AGENT) -> str:
    """A line of a combined log, so many seconds after BEGIN."""
    at = (BEGIN + timedelta(seconds=seconds)).strftime("%d/%b/%Y:%H:%M:%S +0000")
    return f'{address} - - [{at}] "GET {path} HTTP/1.1" {status} 512 "-" "{agent}"'


def visits(visitors: int, seed: int = 7, hours: float = 4.0) -> Iterator[tuple[float, str, str]]:
    """Visitors who open pages of a few files each, in bursts: seconds, address and path."""
    chance = random.Random(seed)
    for number in range(visitors):
        address = f"192.0.2.{number % 250}" if number < 250 else f"198.51.{number // 250}.{number % 250}"
        at = chance.uniform(0, hours * 3600)
        for _ in range(chance.randint(1, 4)):
            for file in range(chance.randint(1, 6)):
                yield at + file * chance.uniform(0, 0.4), address, f"/page/{chance.randint(1, 40)}"
            at += chance.expovariate(1 / 60)


def scan(
    begin: float, calls: int, per_second: float, address: str = "203.0.113.66"
) -> Iterator[tuple[float, str, str]]:
    """A scanner that tries one path after the other."""
    for number in range(calls):
        yield begin + number / per_second, address, f"/admin-{number}.php"


def combined_text(calls: Iterable[tuple[float, str, str]]) -> str:
    """The text of a combined log, in order; paths of scanners are not found."""
    lines = (
        combined_line(seconds, address, target, 404 if target.endswith(".php") else 200)
        for seconds, address, target in sorted(calls)
    )
    return "\n".join(lines) + "\n"


def combined_log(path: Path, calls: Iterable[tuple[float, str, str]]) -> Path:
    """Writes calls as a combined log."""
    path.write_text(combined_text(calls), "utf-8")
    return path
