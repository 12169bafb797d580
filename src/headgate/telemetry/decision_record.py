"""The fields of a decision log's line: everything that a replay, or a person, needs to know of one call.

docs/reference/decision-log.md describes each field. A record is made in the thread that writes it, from the
decision and a copy of the call's attributes; the call itself pays for neither.

A rulebook's attributes are those that its rules use, in normal form. A limiter without a rulebook has the keys of
its charges in `verdicts`, and the key of the deciding one as the attribute `key`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    REMAINING,
    RETRY_AFTER_US,
    CachedOutcome,
    Decision,
    DegradedOutcome,
    LockedOutcome,
    OverriddenOutcome,
    PrefetchedOutcome,
)
from headgate.algorithms.limit import UNLIMITED
from headgate.enforcement.rule_decision import CANDIDATE, SHADOW, RuleDecision
from headgate.rules.attributes import AttributeReader
from headgate.rules.keys import Dimension
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rulebook
from headgate.telemetry.key_hashing import KeyHasher, counted_dimensions
from headgate.telemetry.single_verdict_line import SingleVerdictLines

MAX_VALUE_LENGTH = 2048  # characters of an attribute; a longer one is cut, and the record says so

# Outcomes of these say nothing about the override of a key.
_OVERRIDE_UNKNOWN = (CachedOutcome, DegradedOutcome, LockedOutcome, PrefetchedOutcome)

Record = dict[str, Any]


class DecidedCall(NamedTuple):
    """A call as an observer saw it, until its record is made."""

    decision: Decision
    attributes: Mapping[str, Any] | None  # a copy
    at_us: int  # by the log's clock, for a call that no engine decided
    latency_us: int | None  # if it was timed
    number: int
    status: int | None = None
    duration_us: int | None = None


class BookFields(NamedTuple):
    """The parts of a record that follow from its rulebook."""

    book: Rulebook
    read: AttributeReader
    rules: frozenset[str]
    rules_with_overrides: frozenset[str]
    hashed: Mapping[str, Dimension]

    @classmethod
    def of(cls, book: Rulebook) -> BookFields:
        names = {name for rule in book.rules for name in used_attributes(rule)}
        return cls(
            book,
            AttributeReader(names),
            frozenset(rule.name for rule in book.rules),
            frozenset(rule.name for rule in book.rules if rule.overrides),
            counted_dimensions(book.rules),
        )


_NO_BOOK = BookFields(Rulebook(), AttributeReader(()), frozenset(), frozenset(), {"key": Dimension("key")})


class RecordMaker:
    """Makes records. `sample`: the part of the calls that are recorded; with a salt, keys are hashed."""

    def __init__(self, sample: float, salt: str | None) -> None:
        self._sample: float | int = 1 if sample == 1 else sample
        self._short_lines = SingleVerdictLines(self._sample, MAX_VALUE_LENGTH)
        self._hasher = None if salt is None else KeyHasher(salt)
        self._fields = _NO_BOOK
        self.process: str = process_name()

    def short_line(self, call: DecidedCall) -> str | None:
        """Returns the line of a call if one verdict is all there is to say of it; else None."""
        if self._hasher is not None:
            return None
        return self._short_lines.line(call, self._fields_of(call.decision), self.process)

    def record(self, call: DecidedCall) -> Record:
        """Returns the record of a call."""
        decision, book = call.decision, self._fields_of(call.decision)
        rule_decision = isinstance(decision, RuleDecision)
        live, shadows = decision.counter_decisions, decision.shadow_decisions
        attributes = book.read(call.attributes) if rule_decision and call.attributes else {}
        if not rule_decision:
            attributes = {"key": decision.key}
        if self._hasher is not None:
            attributes = self._hasher.attributes(attributes, book.hashed)
        times_us = (part.outcome[AT_US] for part in (decision, *live, *shadows))
        record: Record = {
            "at_us": decision.together_at_us or next(filter(None, times_us), call.at_us),
            "seq": call.number,
            "process": self.process,
            "attributes": attributes,
            "cost": decision.stated_cost if rule_decision else decision.cost,
            "allowed": decision.allowed,
            "rule": decision.rule,
            "version": book.book.version,
            "sample": self._sample,
            "latency_us": call.latency_us,
            "status": call.status,
        }
        if rule_decision and call.attributes is None:
            record["in_code"] = True
        if call.duration_us is not None:
            record["duration_us"] = call.duration_us
        if decision.degraded:
            record["degraded"] = True
        if (decided_by := getattr(decision, "decided_by", None)) is not None:
            record["decided_by"] = decided_by
        if decision.patience_us is not None:
            record["patience_us"] = decision.patience_us
        if decision.together is not None:
            record["together"] = list(decision.together)
        if self._hasher is not None:
            record["hashed"] = sorted(book.hashed)
        if long := [name for name, value in attributes.items() if len(value) > MAX_VALUE_LENGTH]:
            record["cut"] = long
            for name in long:
                attributes[name] = attributes[name][:MAX_VALUE_LENGTH]
        record["verdicts"] = [self._verdict(part, book) for part in live]
        if call.status is not None:  # what it charged was changed, if at all, before that
            for verdict, part in zip(record["verdicts"], live, strict=True):
                if change := part.surcharged_units - part.refunded_units:
                    verdict["real_cost"] = part.cost + change
        for kind in (SHADOW, CANDIDATE):
            record[kind] = [self._verdict(part, book) for part in shadows if part.shadow_kind == kind]
        return record

    def _fields_of(self, decision: Decision) -> BookFields:
        book = decision.rulebook if isinstance(decision, RuleDecision) else None
        if book is None:
            return _NO_BOOK
        if book is not self._fields.book:
            self._fields = BookFields.of(book)
        return self._fields

    def _verdict(self, part: Decision, book: BookFields) -> Record:
        outcome, limit = part.outcome, part.source.limit
        fields: Record = {
            "rule": part.rule,
            "key": part.key if self._hasher is None else self._hashed_key(part, book),
            "limit": None if limit is UNLIMITED else limit.text,
            "cost": part.cost,
            "allowed": outcome[ALLOWED],
            "remaining": outcome[REMAINING],
            "retry_after_us": outcome[RETRY_AFTER_US],
            "delay_us": outcome[DELAY_US],
        }
        if part.rule is not None and part.rule not in book.rules:
            fields["in_code"] = True
        elif (
            part.rule in book.rules_with_overrides
            and part.shadow_kind != CANDIDATE
            and limit is not UNLIMITED
            and not isinstance(outcome, _OVERRIDE_UNKNOWN)
        ):
            fields["override"] = limit.text if isinstance(outcome, OverriddenOutcome) else None
        return fields

    def key_of_rule(self, key: str) -> str:
        """Returns the key of a rule, hashed if there is a salt."""
        return key if self._hasher is None else self._hasher.rule_key(key)

    def _hashed_key(self, part: Decision, book: BookFields) -> str:
        assert self._hasher is not None
        return self._hasher.rule_key(part.key) if part.rule in book.rules else self._hasher.hash(part.key)


def process_name() -> str:
    """Returns the name of this process: its machine and number."""
    return f"{socket.gethostname()}:{os.getpid()}"
