"""Compares the answers of a replay with those that a decision log recorded.

From one process the answers agree call by call. From several, the order of calls at one instant is not known, so
the answers of each key and instant agree in number.
"""

from __future__ import annotations

from collections import Counter

from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.traffic.formats.decision_log import DecisionRecord
from headgate.traffic.recorded_call import RecordedCall


class RecordedOverrides:
    """Sets the overrides in a limiter that were in force when each call was decided."""

    def __init__(self, limiter: RuleLimiter) -> None:
        self._limiter = limiter
        self._limits: dict[tuple[str, str], str] = {}  # by rule and key

    def prepare(self, record: DecisionRecord) -> None:
        """Sets and removes overrides, as the next call was decided under them."""
        for counter, limit in record.overrides.items():
            if self._limits.get(counter) == limit:
                continue
            rule, key = counter
            live_rule = self._limiter.rulebook.rule(rule)
            if live_rule is None or not live_rule.overrides:
                continue
            if limit is None:  # it was removed
                self._limiter.overrides(rule).unset(key)
                self._limits.pop(counter, None)
            else:
                self._limiter.overrides(rule).set(key, limit)
                self._limits[counter] = limit


class RecordedAnswers:
    """Counts in how many calls, and in how many groups of one key and instant, the answers agree."""

    def __init__(self) -> None:
        self.calls: int = 0
        self.same: int = 0
        self.groups: int = 0
        self.same_groups: int = 0
        self.first_difference: RecordedCall | None = None
        self.versions: set[int] = set()
        self._at_us = -1
        self._balance: Counter[tuple[tuple[str, str], ...]] = Counter()

    def compare(self, call: RecordedCall, passed: bool) -> None:
        """Compares one answer with the recorded one."""
        record = call.record
        assert record is not None
        if call.time_us != self._at_us:
            self.finish()
            self._at_us = call.time_us
        self.calls += 1
        self.same += passed is record.allowed
        if passed is not record.allowed and self.first_difference is None:
            self.first_difference = call
        if record.version is not None:
            self.versions.add(record.version)
        self._balance[record.keys] += passed - record.allowed

    def finish(self) -> None:
        """Compares the groups of the last instant."""
        self.groups += len(self._balance)
        self.same_groups += sum(not balance for balance in self._balance.values())
        self._balance.clear()
