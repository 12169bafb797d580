"""Reports on a rule: live against its shadow and its candidate, and whether that is safe to enforce.

It reads counts (Counts of this process, or SharedCounts of all). The span is so many whole hours, of which the
last is the current one: distinct keys are counted by the hour.

    yes                at most `max_refused` of the keys would be refused (0.1 % unless given)
    no                 more of them
    not enough data    fewer than MIN_CALLS calls
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple, Protocol

from headgate.errors import InvalidRule
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.hot_keys import HotKey
from headgate.telemetry.key_estimates import CANDIDATE_REFUSED, HOURS_KEPT, REFUSED, SHADOW_REFUSED, TRIED

DEFAULT_HOURS: Final = 24
DEFAULT_MAX_REFUSED: Final = 0.001  # of the keys
MIN_CALLS: Final = 1000
SUFFERING_KEYS: Final = 10

LIVE, SHADOW, CANDIDATE = "live", "shadow", "candidate"
YES, NO, NOT_ENOUGH_DATA = "yes", "no", "not enough data"


class CountsReader(Protocol):
    """The methods of Counts and SharedCounts that a report needs."""

    def series(
        self, rule: str, *, seconds: int | None = None, minutes: int | None = None
    ) -> list[DecisionCounts]: ...
    def distinct_keys(self, rule: str, kind: str = ..., hours: int = ...) -> int: ...
    def most_refused(
        self, rule: str, kind: str = ..., hours: int = ..., number: int = ..., mask: bool = ...
    ) -> list[HotKey]: ...


class ReportRow(NamedTuple):
    """The counts of the live rule, of its shadow or of its candidate; `keys`: how many different ones called."""

    kind: str
    calls: int
    refused: int
    keys_refused: int
    keys: int | None = None
    safe: str | None = None
    why: str | None = None


class RuleReport(NamedTuple):
    """A rule against its shadow and its candidate. `suffering`: the keys that are, or would be, refused most."""

    rule: str
    hours: int
    since_s: int
    max_refused: float
    rows: list[ReportRow]
    suffering: list[HotKey]

    @property
    def trials(self) -> list[ReportRow]:
        """The rows of what is not enforced."""
        return [row for row in self.rows if row.kind != LIVE]

    def document(self) -> dict[str, Any]:
        """Returns the report as JSON data."""
        return {
            "rule": self.rule,
            "hours": self.hours,
            "since": float(self.since_s),
            "max_refused": self.max_refused,
            "rows": [row._asdict() for row in self.rows],
            "suffering": [each._asdict() for each in self.suffering],
        }


def report_rule(
    counts: CountsReader,
    rule: str,
    hours: int = DEFAULT_HOURS,
    max_refused: float = DEFAULT_MAX_REFUSED,
    mask: bool = False,
    now_s: int | None = None,
) -> RuleReport:
    """Reports on a rule over the last hours. Without rows it was not called."""
    if not 1 <= hours <= HOURS_KEPT:
        raise InvalidRule(f"A report covers 1 to {HOURS_KEPT} hours, not {hours}.")
    now_s = int(time.time()) if now_s is None else now_s
    since_s = (now_s // 3600 - hours + 1) * 3600
    total = DecisionCounts()
    for minute in counts.series(rule, minutes=now_s // 60 - since_s // 60 + 1):
        total = total.plus(minute)
    rows = []
    if total.calls:
        rows.append(
            ReportRow(LIVE, total.calls, total.refused + total.shed, counts.distinct_keys(rule, REFUSED, hours))
        )
    trials = (
        (SHADOW, total.shadow_calls, total.shadow_refused, SHADOW_REFUSED),
        (CANDIDATE, total.candidate_calls, total.candidate_refused, CANDIDATE_REFUSED),
    )
    suffering_kind = REFUSED
    for kind, calls, refused, keys_kind in trials:
        if calls:
            keys = counts.distinct_keys(rule, TRIED, hours)
            keys_refused = counts.distinct_keys(rule, keys_kind, hours)
            safe, why = _verdict(calls, keys_refused, keys, max_refused)
            rows.append(ReportRow(kind, calls, refused, keys_refused, keys, safe, why))
            suffering_kind = keys_kind
    suffering = counts.most_refused(rule, suffering_kind, hours, SUFFERING_KEYS, mask) if rows else []
    return RuleReport(rule, hours, since_s, max_refused, rows, suffering)


def _verdict(calls: int, keys_refused: int, keys: int, max_refused: float) -> tuple[str, str]:
    """Returns whether it is safe to enforce, and why."""
    if calls < MIN_CALLS:
        return NOT_ENOUGH_DATA, f"{calls:,} calls were seen, and {MIN_CALLS:,} are needed"
    share = min(1.0, keys_refused / keys) if keys else 0.0
    why = f"it refuses {share:.2%} of {keys:,} keys; at most {max_refused:.2%} may be refused"
    return (YES if share <= max_refused else NO), why
