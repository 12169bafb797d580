"""Reads recorded files: one case on each line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Where a step says when it was, in nanoseconds each.
_TIMES = {"t_ns": 1, "t_us": 1_000, "t_ms": 1_000_000}


class UnreadableVector(Exception):
    """A file, a case or a step that cannot be replayed; the sentence says why."""


class RecordedFields:
    """Returns the recorded value of a name, or raises a sentence that it is missing. Numbers are exact."""

    def __init__(self, what: str, fields: object) -> None:
        if not isinstance(fields, dict):
            raise UnreadableVector(f"{what} is not an object.")
        self.what = what
        self.raw: Mapping[str, Any] = fields

    def __contains__(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def number(self, name: str, default: int | None = None) -> Fraction:
        value = self.raw[name] if name in self else default
        if value is None:
            raise UnreadableVector(f'{self.what} does not say "{name}".')
        if isinstance(value, bool) or not isinstance(value, int | Fraction):
            raise UnreadableVector(f'"{name}" of {self.what} is not a number but {value!r}.')
        return Fraction(value)

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value.denominator != 1:
            raise UnreadableVector(f'"{name}" of {self.what} is not a whole number but {float(value)!r}.')
        return value.numerator

    def flag(self, name: str) -> bool:
        value = self.raw.get(name)
        if not isinstance(value, bool):
            raise UnreadableVector(f'"{name}" of {self.what} is neither true nor false but {value!r}.')
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.raw.get(name, default)
        if not isinstance(value, str):
            raise UnreadableVector(f'"{name}" of {self.what} is not a text but {value!r}.')
        return value

    def list(self, name: str) -> Sequence[object]:
        value = self.raw.get(name)
        if not isinstance(value, list):
            raise UnreadableVector(f'"{name}" of {self.what} is not a list.')
        return value


class VectorStep(RecordedFields):
    """One arrival and what was answered."""

    def __init__(self, number: int, fields: object) -> None:
        super().__init__(f"step {number}", fields)
        self.expect = RecordedFields(f"the answer of step {number}", self.raw.get("expect") or {})

    @property
    def cost(self) -> int:
        return self.whole("cost", 1)

    @property
    def at_ns(self) -> Fraction:
        for name, unit in _TIMES.items():
            if name in self:
                return self.number(name) * unit
        raise UnreadableVector(f"{self.what} does not say when it was: t_us, t_ms or t_ns.")

    @property
    def at_us(self) -> int:
        """The microsecond it falls into."""
        return int(self.at_ns // 1000)


class VectorCase(NamedTuple):
    name: str
    subject: str
    config: RecordedFields
    steps: Sequence[VectorStep]
    is_claim: bool  # shows a defect of somebody's script, which ours must not have


def read_vectors(path: Path) -> Iterator[VectorCase | UnreadableVector]:
    """The cases of a file, and a sentence for each line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        yield UnreadableVector(f"{path.name} cannot be read: {error}")
        return
    if not any(line.strip() for line in lines):
        yield UnreadableVector(f"{path.name} is empty.")
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _case(line)
            except UnreadableVector as why:
                yield UnreadableVector(f"{path.name}:{number}: {why}")


def _case(line: str) -> VectorCase:
    # Fractions, so that 25.5 per second is exactly that; NaN and Infinity stay floats and are no numbers here.
    load = partial(json.loads, parse_float=Fraction)
    try:
        case = RecordedFields("the case", load(line))
    except (ValueError, RecursionError) as error:
        raise UnreadableVector(f"not JSON: {error}") from error
    case.what = f"case {case.text('name', '(without a name)')}"
    steps = [VectorStep(number, fields) for number, fields in enumerate(case.list("steps"), 1)]
    config = RecordedFields(f"the config of {case.what}", case.raw.get("config", {}))
    return VectorCase(case.what[5:], case.text("subject"), config, steps, "claim" in case)
