"""SharedCounts: reads the counts of all processes and gateways, merged in Redis.

    with SharedCounts("redis://localhost:6379/0") as counts:
        counts.last(seconds=60)["login"].refused

It has the reading methods of Counts. A process's counts are here one to two seconds after the calls, its hot keys
when their ten seconds have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import NamedTuple, Self

from headgate.clock import Clock, check_clock
from headgate.engines.url import open_counts_store
from headgate.telemetry import shared_layout as layout
from headgate.telemetry.counts import check_kind, check_span
from headgate.telemetry.decision_counts import DecisionCounts
from headgate.telemetry.hot_keys import SLICE_S, SLICES, HotKey, masked, merged
from headgate.telemetry.key_estimates import CALLS, DISTINCT_KINDS, HOT_KINDS, REFUSED, REFUSED_KINDS
from headgate.telemetry.recent_limit_changes import SLICE_S as CHANGES_SLICE_S
from headgate.telemetry.recent_limit_changes import RecentLimitChange, changes_key, newest

MAX_READ_KEYS = 200  # hot keys that are read of a slice or an hour
MAX_RULES = 1000


class CountsWriterState(NamedTuple):
    """A process that writes counts: its name (host:pid), how many seconds ago it wrote, and its version."""

    name: str
    age_s: int
    version: str | None = None


class SharedCounts:
    """Reads the counts that Counts(shared_at=...) and nginx wrote. Thread-safe.

    url, prefix   as given to Counts
    clock         reads the time; the machine's unless given. The clocks of all machines should agree
    """

    def __init__(self, url: str, *, prefix: str = "hg", clock: Clock | None = None) -> None:
        self._clock = check_clock(clock)
        self._store = open_counts_store(url, prefix)
        self.text: str = self._store.text

    def rules(self) -> list[str]:
        """Returns the names that were counted in the last 25 hours, sorted."""
        return sorted(rule for rule, _ in self._store.highest([layout.RULES], MAX_RULES)[0])

    def last(
        self, *, seconds: int | None = None, minutes: int | None = None, rules: Iterable[str] | None = None
    ) -> dict[str, DecisionCounts]:
        """Returns the counts of each rule (or of these) over the last seconds (at most 120) or minutes (at most
        1500); rules without any are left out."""
        rows = self._rows(self.rules() if rules is None else [*rules], seconds, minutes)
        sums = {rule: _sum(by_unit.values()) for rule, by_unit in rows.items()}
        return {rule: counts for rule, counts in sums.items() if any(counts)}

    def series(self, rule: str, *, seconds: int | None = None, minutes: int | None = None) -> list[DecisionCounts]:
        """Returns the counts of one rule in each of the last seconds or minutes, the oldest first."""
        first, last, _ = self._units(seconds, minutes)
        rows = self._rows([rule], seconds, minutes)[rule]
        return [rows.get(number, DecisionCounts()) for number in range(first, last + 1)]

    def all_series(
        self, *, seconds: int | None = None, minutes: int | None = None, rules: Iterable[str] | None = None
    ) -> dict[str, list[DecisionCounts]]:
        """Returns the counts of each rule (or of these) in each of the last seconds or minutes, the oldest first;
        rules without any are left out."""
        first, last, _ = self._units(seconds, minutes)
        rows = self._rows(self.rules() if rules is None else [*rules], seconds, minutes)
        nothing = DecisionCounts()
        return {
            rule: [by_unit.get(unit, nothing) for unit in range(first, last + 1)]
            for rule, by_unit in rows.items()
            if by_unit
        }

    def _rows(
        self, rules: list[str], seconds: int | None, minutes: int | None
    ) -> dict[str, dict[int, DecisionCounts]]:
        first, last, unit = self._units(seconds, minutes)
        blocks = [
            (rule, block) for rule in rules for block in range(first // layout.BLOCK, last // layout.BLOCK + 1)
        ]
        hashes = self._store.hashes([layout.block_key(unit, block, rule) for rule, block in blocks])
        rows: dict[str, dict[int, DecisionCounts]] = {rule: {} for rule in rules}
        for (rule, block), fields in zip(blocks, hashes, strict=True):
            for number, counts in layout.rows_of(block, fields).items():
                if first <= number <= last:
                    rows[rule][number] = counts
        return rows

    def _units(self, seconds: int | None, minutes: int | None) -> tuple[int, int, str]:
        unit, number, kept = check_span(seconds, minutes)
        last = self._now_s() // (60 if unit == "minutes" else 1)
        return last - min(number, kept) + 1, last, unit

    def _now_s(self) -> int:
        return self._clock.now_us() // 1_000_000

    def hot_keys(self, rule: str, kind: str = CALLS, number: int = 10, mask: bool = False) -> list[HotKey]:
        """Returns the keys with the most calls of a rule in the last minute; or, by kind "refused",
        "shadow_refused" or "candidate_refused", with the most refusals. `mask` hides most of each key."""
        check_kind(kind, HOT_KINDS)
        now = self._now_s() // SLICE_S
        suffixes = [layout.hot_key(each, kind, rule) for each in range(now - SLICES, now + 1)]
        return self._merged(suffixes, number, mask)

    def most_refused(
        self, rule: str, kind: str = REFUSED, hours: int = 1, number: int = 10, mask: bool = False
    ) -> list[HotKey]:
        """Returns the keys that a rule, its shadow or its candidate refused most in the last hours. Hours are
        whole: 1 is since the last full hour."""
        check_kind(kind, REFUSED_KINDS)
        return self._merged(
            [layout.most_refused_key(hour, kind, rule) for hour in self._hours(hours)], number, mask
        )

    def distinct_keys(self, rule: str, kind: str = REFUSED, hours: int = 1) -> int:
        """Returns about how many different keys (within 3 %) a rule refused; or, by kind, "shadow_refused",
        "candidate_refused", or "tried" for those that a shadow or a candidate decided."""
        check_kind(kind, DISTINCT_KINDS)
        return self._store.distinct([layout.distinct_key(hour, kind, rule) for hour in self._hours(hours)])

    def _hours(self, hours: int) -> range:
        now = self._now_s() // 3600
        return range(now - hours + 1, now + 1)

    def _merged(self, suffixes: list[str], number: int, mask: bool) -> list[HotKey]:
        found = self._store.highest(suffixes, MAX_READ_KEYS)
        keys = merged([[HotKey(*each) for each in part] for part in found], number)
        return masked(keys) if mask else keys

    def limit_changes(self, number: int = 10) -> list[RecentLimitChange]:
        """Returns the newest changes of adaptive limits in the last ten minutes, the latest first."""
        now = self._now_s() // CHANGES_SLICE_S
        sets = self._store.highest([changes_key(now), changes_key(now - 1)], number)
        since_us = self._clock.now_us() - CHANGES_SLICE_S * 1_000_000
        changes = newest((text for part in sets for text, _ in part), number)
        return [each for each in changes if each.at_us >= since_us]

    def writers(self) -> list[CountsWriterState]:
        """Returns the processes that wrote counts in the last 25 hours, the latest first."""
        found = self._store.highest([layout.WRITERS], MAX_RULES)[0]
        states = self._store.texts([f"w:{writer}" for writer, _ in found])
        now_s = self._now_s()
        writers = []
        for (writer, at_s), state in zip(found, states, strict=True):
            name, _, version = state.get("name", writer).partition(" ")
            writers.append(CountsWriterState(name, max(0, now_s - at_s), version or None))
        return writers

    def degraded_writers(self, seconds: int = 10) -> list[HotKey]:
        """Returns the processes whose fallback decided calls in the last seconds (at most 60), and how many calls,
        the most first. Seconds are counted by tens, so a few more may be in it."""
        now_s = self._now_s()
        blocks = range((now_s - min(seconds, 60) + 1) // layout.BLOCK, now_s // layout.BLOCK + 1)
        found = self._store.highest([layout.degraded_key(block) for block in blocks], MAX_READ_KEYS)
        return merged([[HotKey(*each) for each in part] for part in found], MAX_READ_KEYS)

    def close(self) -> None:
        """Closes the connections; a with statement does so, too."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sum(rows: Iterable[DecisionCounts]) -> DecisionCounts:
    total = DecisionCounts()
    for row in rows:
        total = total.plus(row)
    return total
