"""Counts the calls of each rule by key in decision logs, live and in shadow mode, also of a sample."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headgate.errors import InvalidLog
from headgate.traffic.formats.decision_log import REQUIRED
from headgate.traffic.log_files import LogFile

MAX_KEYS: Final = 10_000  # of a rule that are counted one by one
OTHER_KEYS: Final = "(others)"
MAX_UNREADABLE_SHARE: Final = 0.5


class LoggedKeys(NamedTuple):
    """The calls of each rule by key; beyond MAX_KEYS under OTHER_KEYS. `hashed`: whether addresses are hashed."""

    by_rule: dict[str, Counter[str]]
    calls: int
    hashed: bool


def count_logged_keys(paths: Sequence[str]) -> LoggedKeys:
    """Reads decision logs; raises InvalidLog if one is none."""
    by_rule: dict[str, Counter[str]] = {}
    calls, hashed = 0, False
    for path in paths:
        file, unreadable, read = LogFile(path), 0, 0
        try:
            for line in file:
                record = _record(line)
                if record is None:
                    unreadable += bool(line.strip())
                    continue
                read += 1
                hashed = hashed or "address" in (record.get("hashed") or ())
                _add(by_rule, record)
        finally:
            file.close()
        if unreadable > MAX_UNREADABLE_SHARE * (read + unreadable) or not read:
            raise InvalidLog(
                f"{file.name} is not a decision log: {read:,} of its {read + unreadable:,} lines are records. "
                "Give the file that DecisionLog, or decision_log of a service or of nginx, writes."
            )
        calls += read
    return LoggedKeys(by_rule, calls, hashed)


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and all(name in record for name in REQUIRED) else None


def _add(by_rule: dict[str, Counter[str]], record: dict[str, Any]) -> None:
    """Adds one call to each rule that decided it."""
    pairs = set()
    for field in ("verdicts", "shadow"):
        verdicts = record.get(field)
        for verdict in verdicts if isinstance(verdicts, list) else ():
            if isinstance(verdict, dict) and isinstance(verdict.get("key"), str):
                pairs.add((str(verdict.get("rule") or verdict.get("limit") or ""), verdict["key"]))
    for rule, key in pairs:
        keys = by_rule.setdefault(rule, Counter())
        keys[key if key in keys or len(keys) < MAX_KEYS else OTHER_KEYS] += 1
