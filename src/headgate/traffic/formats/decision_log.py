"""Reads headgate's decision log: one JSON line for each call that was decided.

    {"at_us": 1794800944000000, "seq": 7, "process": "web-1:4242", "attributes": {"address": "192.0.2.7"},
     "cost": 1, "allowed": false, "rule": "login", "version": 7, "sample": 1, "latency_us": 31, "status": 429,
     "verdicts": [{"rule": "login", "key": "address=192.0.2.7", "allowed": false, "override": null}],
     "shadow": [], "candidate": []}

at_us, attributes and allowed are required; docs/reference/decision-log.md describes all fields. A log with a
`sample` below 1 has not all calls, so a replay would decide otherwise: it is refused. A line with an `error` is a
call that could not be decided; it charged nothing, and is left out, as is a line with a `limit_change`: it is no
call.
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


class CodeCharge(NamedTuple):
    """A charge by a limit that is not in the rulebook, but in an application's code or in a request."""

    rule: str
    key: str
    limit: str
    cost: int


class DecisionRecord(NamedTuple):
    """A record of a decision log: whether the call passed, which rule decided, and the keys."""

    allowed: bool
    rule: str | None
    keys: tuple[tuple[str, str], ...]  # rule and key of each live verdict
    overrides: dict[tuple[str, str], str | None]  # the override of each key where it is known, None if it has none
    version: int | None
    number: int = 0  # of the call in its process
    process: str = ""
    patience_us: int | None = None  # how long the call would have waited
    together: tuple[int, int] | None = None  # which of how many calls that were decided together
    code_charges: tuple[CodeCharge, ...] = ()
    degraded: bool = False
    shed: bool = False  # refused by load shedding, before any rule was asked
    hashed: tuple[str, ...] = ()  # attributes that are hashed
    in_code: bool = False  # no rule of the rulebook was matched, only limits in code or in the request
    real_costs: tuple[tuple[str, int], ...] = ()  # by rule, where it was refunded or settled after the response

    @property
    def is_plain(self) -> bool:
        """Returns whether nothing but the attributes matters: the call was decided at once, and stayed charged."""
        return self.patience_us is None and not self.real_costs


def is_decision_log(sample: Sequence[str]) -> bool:
    """Returns whether the first line is a record of a decision log."""
    try:
        found = json.loads(sample[0])
    except ValueError:
        return False
    return isinstance(found, dict) and all(name in found for name in REQUIRED)


def call_order(call: RecordedCall) -> tuple[int, int]:
    """Returns the order of calls in a decision log: by time, and at one instant as their process decided them."""
    return call.time_us, 0 if call.record is None else call.record.number


class RecordParser:
    """Parses the lines of one decision log, and counts calls that it does not have as they were."""

    def __init__(self) -> None:
        self.missing: int = 0
        self.degraded: int = 0
        self.undecided: int = 0

    def notes(self) -> list[str]:
        """Returns sentences about calls that a replay cannot decide as they were decided."""
        notes = []
        if self.missing:
            notes.append(
                f"{self.missing:,} calls are missing: the log dropped them, so a replay may decide otherwise"
            )
        if self.degraded:
            notes.append(
                f"{self.degraded:,} calls were decided by a fallback while the engine was down; a replay decides "
                "them as the engine would have"
            )
        if self.undecided:
            notes.append(f"{self.undecided:,} calls could not be decided, and are left out")
        return notes

    def __call__(self, line: str, number: int) -> RecordedCall | None:
        """Returns the call of a record. Raises ValueError if it is none, and InvalidLog if the log is sampled."""
        record = json.loads(line)
        if not isinstance(record, dict) or not all(name in record for name in REQUIRED):
            raise ValueError("it is no record of a decision log")
        if record.get("sample", 1) != 1:
            raise InvalidLog(
                f"This decision log is sampled (line {number}: sample {record['sample']}), so calls are missing, "
                "and a replay would decide otherwise. Record one with sample 1, or replay an access log."
            )
        self.missing += _whole_number(record, "dropped") or 0
        if "limit_change" in record:
            return None
        if "error" in record:
            self.undecided += 1
            return None
        at_us, named, allowed = (record[name] for name in REQUIRED)
        if type(at_us) is not int or not isinstance(named, dict) or type(allowed) is not bool:
            raise ValueError("at_us is a number of microseconds, attributes an object, allowed true or false")
        attributes = Attributes(named)
        if address := normalize_address(str(named.get("address") or "")):
            dict.__setitem__(attributes, "address", address)
        self.degraded += bool(record.get("degraded"))
        duration_us = record.get("duration_us")
        if duration_us is None and isinstance(duration_s := record.get("duration_s"), int | float):
            duration_us = round(duration_s * 1_000_000)  # nginx knows seconds
        return RecordedCall(
            at_us,
            attributes,
            record.get("status"),
            duration_us,
            _whole_number(record, "cost"),
            number,
            _decision_record(record),
        )


def _decision_record(record: Mapping[str, Any]) -> DecisionRecord:
    keys: dict[tuple[str, str], None] = {}
    overrides: dict[tuple[str, str], str | None] = {}
    real_costs: dict[str, int] = {}
    charges = []
    for verdict in _verdicts(record):
        counter = str(verdict.get("rule")), str(verdict.get("key"))
        keys[counter] = None
        if (real_cost := _whole_number(verdict, "real_cost")) is not None:
            real_costs[counter[0]] = real_cost
        if verdict.get("in_code") and isinstance(verdict.get("limit"), str):
            charges.append(CodeCharge(*counter, verdict["limit"], _whole_number(verdict, "cost") or 0))
        elif "override" in verdict:
            limit, earlier = verdict["override"], overrides.get(counter)
            overrides[counter] = f"{earlier}; {limit}" if earlier is not None and limit is not None else limit
    together = record.get("together")
    return DecisionRecord(
        record["allowed"],
        record.get("rule"),
        tuple(keys),
        overrides,
        record.get("version"),
        _whole_number(record, "seq") or 0,
        str(record.get("process", "")),
        _whole_number(record, "patience_us"),
        (together[0], together[1]) if isinstance(together, list) and len(together) == 2 else None,
        tuple(charges),
        bool(record.get("degraded")),
        bool(record.get("shed")),
        tuple(record.get("hashed") or ()),
        bool(record.get("in_code")),
        tuple(real_costs.items()),
    )


def _whole_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or type(value) is int:
        return value
    raise ValueError(f"{name} is a whole number")


def _verdicts(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    verdicts = record.get("verdicts") or []
    if not isinstance(verdicts, list) or not all(isinstance(verdict, dict) for verdict in verdicts):
        raise ValueError("verdicts are a list of objects")
    return verdicts
