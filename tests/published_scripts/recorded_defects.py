"""The recorded defects of published limiters: one timeline each, made by running them on a driven Redis.

The times of a timeline are relative to the instant at which driven servers start here too (BASE_US).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import BASE_US

FILE = Path(__file__).parents[1] / "vectors" / "seed_bugs.jsonl"


class DefectStep(NamedTuple):
    at_us: int
    op: str | None
    args: list[Any]
    cost: int
    expect: dict[str, Any]  # what the defective one did

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "DefectStep":
        return cls(BASE_US + _us(raw), raw.get("op"), raw.get("args", []), raw.get("cost") or 0, raw["expect"])


class RecordedDefect(NamedTuple):
    name: str
    claim: str
    config: dict[str, Any]
    steps: list[DefectStep]
    conclusion: str


def read_entries() -> list[RecordedDefect]:
    return [_entry(json.loads(line)) for line in FILE.read_text().splitlines()]


def _entry(raw: dict[str, Any]) -> RecordedDefect:
    steps = [DefectStep.read(step) for step in raw["steps"]]
    return RecordedDefect(raw["name"], raw["claim"], raw["config"], steps, raw["conclusion"])


def _us(raw: dict[str, Any]) -> int:
    """The instant in whole microseconds, which is as fine as a server's clock is."""
    if "t_ns" in raw:
        return int(raw["t_ns"]) // 1000
    return int(raw["t_us"]) if "t_us" in raw else int(raw["t_ms"]) * 1000
