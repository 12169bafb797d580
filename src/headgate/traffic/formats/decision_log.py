"""Reads headgate's decision log: one JSON line for each call that was decided.

    {"at_us": 1794800944000000, "attributes": {"address": "192.0.2.7"}, "cost": 1, "allowed": false,
     "rule": "login", "version": 7, "sample": 1, "latency_us": 31, "status": 429,
     "verdicts": [{"rule": "login", "key": "address=192.0.2.7", "allowed": false, "override": null}],
     "shadow": [], "candidate": []}

at_us, attributes and allowed are required. A log with a `sample` below 1 has not all calls, so a replay would
decide otherwise: it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headgate.errors import InvalidLog
from headgate.rules.attributes import Attributes
from headgate.traffic.formats.extraction import normalize_address
from headgate.traffic.recorded_call import RecordedCall

REQUIRED = ("at_us", "attributes", "allowed")


class DecisionRecord(NamedTuple):
    """A record of a decision log: whether the call passed, which rule decided, and the keys."""

    allowed: bool
    rule: str | None
    keys: tuple[tuple[str, str], ...]  # rule and key of each live verdict
    overrides: dict[tuple[str, str], str | None]  # the override of each key, None if it has none
    version: int | None


def is_decision_log(sample: Sequence[str]) -> bool:
    """Whether the first line is a record of a decision log."""
    try:
        found = json.loads(sample[0])
    except ValueError:
        return False
    return isinstance(found, dict) and all(name in found for name in REQUIRED)


def parse_record(line: str, number: int) -> RecordedCall:
    """Returns the call of a record. Raises ValueError if it is none, and InvalidLog if the log is sampled."""
    record = json.loads(line)
    if not isinstance(record, dict) or not all(name in record for name in REQUIRED):
        raise ValueError("it is no record of a decision log")
    if record.get("sample", 1) != 1:
        raise InvalidLog(
            f"This decision log is sampled (line {number}: sample {record['sample']}), so calls are missing, and "
            "a replay would decide otherwise. Record one with sample 1, or replay an access log."
        )
    at_us, named, allowed = (record[name] for name in REQUIRED)
    if type(at_us) is not int or not isinstance(named, dict) or type(allowed) is not bool:
        raise ValueError("at_us is a number of microseconds, attributes an object, allowed true or false")
    attributes = Attributes(named)
    if address := normalize_address(str(named.get("address") or "")):
        dict.__setitem__(attributes, "address", address)
    verdicts = {(str(each.get("rule")), str(each.get("key"))): each.get("override") for each in _verdicts(record)}
    return RecordedCall(
        at_us,
        attributes,
        record.get("status"),
        record.get("duration_us"),
        record.get("cost"),
        number,
        DecisionRecord(allowed, record.get("rule"), tuple(verdicts), verdicts, record.get("version")),
    )


def _verdicts(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    verdicts = record.get("verdicts") or []
    if not isinstance(verdicts, list) or not all(isinstance(verdict, dict) for verdict in verdicts):
        raise ValueError("verdicts are a list of objects")
    return verdicts
