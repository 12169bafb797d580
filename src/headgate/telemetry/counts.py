"""Counts: an observer that counts decisions by rule: per second for two minutes, per minute for 25 hours.

    counts = Counts()
    limiter = Limiter.from_rules("rules.yaml", observers=[counts])
    counts.last(seconds=60)["login"].refused            by rule: the last minute
    counts.series("login", minutes=30)                  one DecisionCounts for each minute, the oldest first
    counts.totals()                                     by rule: since this object was made

A limiter without rules is counted under its name, or under the text of its limit. Calls that no rule applied to,
and calls that could not be decided, are counted under NO_RULE.

How it stays cheap: a decision appends its key to the list of its rule and verdict.
Appending is atomic, so no call waits for a lock. When the list has BATCH_SIZE keys, when the second ends, and
before anybody reads, the list is emptied: its length is the count, and its keys go to the estimates of hot and
distinct keys.

The first `max_rules` names get their own counts. All later names share one, OTHER_RULES.

The reason for the length of this file: filling, emptying and reading use the same lists, and the same one lock.

Laws (tests/telemetry/test_counts.py):
  - each decision is counted once for each rule that decided it, whatever the number of threads;
  - a second's counts are readable for 120 s, a minute's for 25 hours, whatever the clock does meanwhile;
  - the memory is bounded by max_rules, not by keys or time;
  - a forked child starts with no counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    REMAINING,
    Decision,
    DegradedOutcome,
    JointDecision,
    Outcome,
)
from headgate.algorithms.limit import Limit
from headgate.clock import Clock, check_clock, nanoseconds
from headgate.engines.fork_reset import on_fork
from headgate.errors import InvalidRule
from headgate.observer import LimitChange, Observer
from headgate.rules.keys import ALL
from headgate.telemetry.counted_rule import (
    MINUTES_KEPT,
    SECONDS_KEPT,
    CountedMeter,
    CountedRule,
    UnsharedRule,
    limiter_name,
    outweighs,
)
from headgate.telemetry.decision_counts import NO_RULE, OTHER_RULES, DecisionCounts
from headgate.telemetry.hot_keys import HotKey, masked
from headgate.telemetry.key_estimates import (
    CALLS,
    DISTINCT_KINDS,
    HOT_KINDS,
    REFUSED,
    REFUSED_KINDS,
)
from headgate.telemetry.recent_limit_changes import MAX_SHARED

if TYPE_CHECKING:
    from headgate.telemetry.counts_writer import CountsWriter

BATCH_SIZE: Final = 1024  # keys that a list holds before it is emptied
MAX_METERS: Final = 4096  # meters whose rule is remembered: rulebooks come and go

_NS: Final = 1_000_000_000
_NO_LABEL: Final = (None, None)  # a limiter without rules


class Counts(Observer):
    """Counts the decisions of one or more limiters by rule. Thread-safe.

    shared_at  the URL of a Redis where the counts of all processes are merged (SharedCounts reads them); written
               once a second, by a thread
    prefix     what its keys begin with, as in Limiter(prefix=...)
    clock      reads the time; the machine's unless given
    max_rules  how many rules are counted apart

    >>> counts = Counts()
    >>> limiter = Limiter("2/minute", name="login", observers=[counts])
    >>> [limiter.take("ann").allowed for _ in range(3)]
    [True, True, False]
    >>> counts.last(seconds=60)["login"].calls, counts.totals()["login"].refused
    (3, 1)
    """

    def __init__(
        self,
        *,
        shared_at: str | None = None,
        prefix: str = "hg",
        clock: Clock | None = None,
        max_rules: int = 256,
    ) -> None:
        if type(max_rules) is not int or max_rules < 1:
            raise InvalidRule(f"max_rules is a whole number of at least 1, not {max_rules!r}.")
        self.clock: Clock = check_clock(clock)
        self._now_ns = nanoseconds(self.clock)
        self._max_rules = max_rules
        # Called when calls are counted in another second than before, or of another meter; and with each delay.
        self.activity_reports: list[Callable[[], object]] = []
        self.delay_reports: list[Callable[[float], object]] = []
        self._writer: CountsWriter | None = None
        if shared_at is not None:
            from headgate.telemetry.counts_writer import CountsWriter

            self._writer = CountsWriter(self, shared_at, prefix)
            self.activity_reports.append(self._writer.start)
        self._start_empty()
        on_fork(self._start_empty)

    def _start_empty(self) -> None:
        """Forgets all counts: a forked child counts its own calls only, and shares them by a thread of its own."""
        self._lock = Lock()
        self._rules: dict[str, CountedRule] = {}
        self._changes: deque[tuple[int, LimitChange]] = deque(maxlen=MAX_SHARED)
        self._meters: dict[Any, CountedMeter] = {}
        self._start_ns = self._now_ns() // _NS * _NS  # of the second that is being counted
        self._end_ns = self._start_ns + _NS
        # The same second by the engine's clock, from when it was last looked at.
        self._engine_start_us = self._engine_end_us = 0

    # The observer: called for every decision.

    uses_latency = False

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        """Counts a decision."""
        outcome: Outcome | None
        if decision.__class__ is Decision:
            meter, label, key, outcome = decision.source, _NO_LABEL, decision.key, decision.outcome
        elif decision.__class__ is JointDecision:
            self._count_joint(decision)
            return
        else:
            by_rules: Any = decision  # a RuleDecision; its module is not needed here
            if len(by_rules.labels) != 1 or by_rules.denied_matches:
                self._count_several(by_rules)
                return
            meter, key, _ = by_rules.charges[0]
            label, outcome = by_rules.labels[0], by_rules.outcomes[0]
        # Most calls are counted here. That the second has ended is seen by the engine's time: no clock is read.
        if (
            outcome.__class__ is not tuple
            or outcome[DELAY_US]
            or not self._engine_start_us <= outcome[AT_US] < self._engine_end_us
            or (counted := self._meters.get(meter)) is None
        ):
            if outcome is not None and outcome[DELAY_US]:
                self._report_delay(decision)
            self._count(meter, label, key, outcome)
            return
        if counted.is_global:
            counted.remaining = outcome[REMAINING]
        if outcome[ALLOWED]:
            keys = counted.allowed if outcome[REMAINING] >= counted.near_limit else counted.near
        else:
            keys = counted.refused
        keys.append(key)
        if len(keys) >= BATCH_SIZE:
            self._empty(counted.rule)

    def count_passes(self, charges: Sequence[tuple[Any, str, int]], outcomes: Sequence[Outcome]) -> bool:
        """Counts calls that passed and made one charge each; False if that needs their decisions (then none is
        counted). For fast_pass_reports.py."""
        meters, start_us, end_us = self._meters, self._engine_start_us, self._engine_end_us
        lists: list[tuple[list[str], str, CountedRule]] = []
        for (meter, key, _), outcome in zip(charges, outcomes):  # noqa: B905 (strict costs as much as a list)
            if (
                outcome.__class__ is not tuple
                or not outcome[ALLOWED]
                or outcome[DELAY_US]
                or not start_us <= outcome[AT_US] < end_us
                or (counted := meters.get(meter)) is None
            ):
                return False
            remaining = outcome[REMAINING]
            if counted.is_global:
                counted.remaining = remaining
            keys = counted.allowed if remaining >= counted.near_limit else counted.near
            lists.append((keys, key, counted.rule))
        for keys, key, rule in lists:
            keys.append(key)
            if len(keys) >= BATCH_SIZE:
                self._empty(rule)
        return True

    def failed(self, error: Exception, latency_us: int | None) -> None:
        """Counts a call that could not be decided."""
        self._counted_rule(NO_RULE).keys_counted_as(("errors",)).append("")

    def limit_changed(self, change: LimitChange) -> None:
        """Keeps a change of an adaptive limit until it is shared."""
        self._changes.append((self.clock.now_us(), change))
        for report in self.activity_reports:
            report()

    def _count(self, meter: Any, label: tuple[str | None, str | None], key: str, outcome: Outcome | None) -> None:
        """Counts the verdict of a rule that made one charge."""
        now_s = self._now_second()
        counted = self._counted_meter(meter, label, key, outcome)
        if outcome is None:  # not decided, because another rule had refused already
            return
        if outcome.__class__ is tuple:
            self._engine_start_us = outcome[AT_US]
            self._engine_end_us = outcome[AT_US] + ((now_s + 1) * _NS - self._now_ns()) // 1000
        keys = counted.keys_of(outcome)
        keys.append(key)
        if len(keys) >= BATCH_SIZE:
            self._empty(counted.rule)

    def _report_delay(self, decision: Decision) -> None:
        """Reports the delay of a call that passes later: the longest of its rules."""
        if delay := decision.delay:
            for report in self.delay_reports:
                report(delay)

    def _count_several(self, decision: Any) -> None:
        """Counts a decision of several charges: one verdict for each rule, by the charge that decides it."""
        for _, match in decision.denied_matches:
            verdict = "shadow_refused" if match.shadow else "refused"
            self._counted_rule(match.rule.name).keys_counted_as((verdict,)).append(match.key)
        decisive: dict[tuple[str, str | None], tuple[Any, str, Outcome]] = {}
        for label, (meter, key, _), outcome in zip(
            decision.labels, decision.charges, decision.outcomes, strict=True
        ):
            self._counted_meter(meter, label, key, outcome)
            if outcome is not None and (label not in decisive or outweighs(outcome, decisive[label][2])):
                decisive[label] = meter, key, outcome
        for label, (meter, key, outcome) in decisive.items():
            self._count(meter, label, key, outcome)
        if any(outcome is not None and outcome[DELAY_US] for outcome in decision.outcomes):
            self._report_delay(decision)
        if not decision.labels and not decision.denied_matches:
            self._counted_rule(NO_RULE).keys_counted_as(("allowed",)).append("")

    def _count_joint(self, decision: Decision) -> None:
        """Counts a decision of several limits without rules: one verdict for each name."""
        self._report_delay(decision)
        decisive: dict[str, Decision] = {}
        for part in decision.counter_decisions:
            name = limiter_name(part.source)
            if name not in decisive or outweighs(part.outcome, decisive[name].outcome):
                decisive[name] = part
        for part in decisive.values():
            self._count(part.source, _NO_LABEL, part.key, part.outcome)

    # Filling and emptying the lists.

    def _counted_meter(
        self, meter: Any, label: tuple[str | None, str | None], key: str, outcome: Outcome | None
    ) -> CountedMeter:
        """Returns the lists of a meter; notes what is left if its rule counts all calls together."""
        counted = self._meters.get(meter) or self._add_meter(meter, label, key)
        if counted.is_global and outcome is not None and not isinstance(outcome, DegradedOutcome):
            counted.remaining = outcome[REMAINING]
        return counted

    def _add_meter(self, meter: Any, label: tuple[str | None, str | None], key: str) -> CountedMeter:
        """Remembers which rule a meter belongs to."""
        rule, shadow_kind = label
        counted_rule = self._counted_rule(limiter_name(meter) if rule is None else rule)
        counted = CountedMeter(counted_rule, rule, shadow_kind, meter.limit, key == ALL)
        with self._lock:
            if len(self._meters) >= MAX_METERS:
                self._meters.clear()
            self._meters[meter] = counted
        self._report_activity()
        return counted

    def _counted_rule(self, name: str) -> CountedRule:
        counted = self._rules.get(name)
        if counted is None:
            with self._lock:
                if name not in self._rules and len(self._rules) >= self._max_rules and name != NO_RULE:
                    name = OTHER_RULES
                counted = self._rules.setdefault(name, CountedRule(self._writer is not None))
        return counted

    def _empty(self, rule: CountedRule) -> None:
        with self._lock:
            rule.empty(self._start_ns // _NS)

    def _begin_second(self) -> None:
        """Keeps the counts of the second that has ended, and starts the next second."""
        with self._lock:
            self._file_counts()
            self._start_ns = self._now_ns() // _NS * _NS
            self._end_ns = self._start_ns + _NS
            for rule in self._rules.values():
                rule.estimates.end_second(self._start_ns // _NS)
        self._report_activity()

    def _report_activity(self) -> None:
        for report in self.activity_reports:
            report()

    def _file_counts(self) -> None:
        second = self._start_ns // _NS
        for rule in self._rules.values():
            rule.empty(second)
            rule.file_counts(second)

    def take_unshared(self, at_once: bool = False) -> list[UnsharedRule]:
        """Returns what was counted since the last call and is to be shared; the writer calls it every second.
        `at_once`: also the hot keys of the ten seconds that have not ended.

        >>> Counts().take_unshared()
        []
        """
        self._now_second()
        with self._lock:
            self._file_counts()
            unshared = [rule.take_unshared(name, at_once) for name, rule in self._rules.items()]
        return [each for each in unshared if each.seconds or each.minutes or any(each.keys)]

    def take_limit_changes(self) -> list[tuple[int, LimitChange]]:
        """Returns the changes of adaptive limits since the last call, with their times in microseconds; of many,
        the newest.

        >>> Counts().take_limit_changes()
        []
        """
        changes = []
        while self._changes:
            changes.append(self._changes.popleft())
        return changes

    def flush(self) -> bool:
        """Shares at once what is not yet shared; returns whether Redis has it all.

        >>> Counts().flush()
        True
        """
        return self._writer is None or self._writer.write(at_once=True)

    def close(self) -> None:
        """Shares what is not yet shared, and ends the thread that does so."""
        if self._writer is not None:
            self._writer.close()

    # Reading.

    def last(self, *, seconds: int | None = None, minutes: int | None = None) -> dict[str, DecisionCounts]:
        """Returns the counts of each rule over the last seconds (at most 120) or minutes (at most 1500), of which
        the last is the current one; rules without any are left out.

        >>> Counts().last(minutes=5)
        {}
        """
        first, last, unit = self._units(seconds, minutes)
        with self._lock:
            self._file_counts()
            sums = {name: rule.ring(unit).sum(first, last) for name, rule in self._rules.items()}
        return {name: counts for name, counts in sums.items() if any(counts)}

    def series(self, rule: str, *, seconds: int | None = None, minutes: int | None = None) -> list[DecisionCounts]:
        """Returns the counts of one rule in each of the last seconds or minutes, the oldest first.

        >>> counts = Counts(clock=ManualClock())
        >>> limiter = Limiter("2/minute", name="login", observers=[counts])
        >>> limiter.take("ann").allowed
        True
        >>> [each.allowed for each in counts.series("login", seconds=3)]
        [0, 0, 1]
        """
        first, last, unit = self._units(seconds, minutes)
        with self._lock:
            self._file_counts()
            counted = self._rules.get(rule) or CountedRule(False)
            return counted.ring(unit).rows(first, last)

    def all_series(
        self, *, seconds: int | None = None, minutes: int | None = None
    ) -> dict[str, list[DecisionCounts]]:
        """Returns the counts of each rule in each of the last seconds or minutes, the oldest first; rules without
        any are left out.

        >>> Counts().all_series(seconds=3)
        {}
        """
        first, last, unit = self._units(seconds, minutes)
        with self._lock:
            self._file_counts()
            rings = {name: rule.ring(unit) for name, rule in self._rules.items()}
            return {name: ring.rows(first, last) for name, ring in rings.items() if ring.has_any(first, last)}

    def totals(self) -> dict[str, DecisionCounts]:
        """Returns the counts of each rule since this object was made.

        >>> Counts().totals()
        {}
        """
        with self._lock:
            self._file_counts()
            return {name: DecisionCounts(*rule.total) for name, rule in self._rules.items()}

    def limits(self) -> list[tuple[str, Limit, int | None]]:
        """Returns the limits by which rules decided calls; and of a rule that counts all calls together, the units
        that were left at the last one.

        >>> Counts().limits()
        []
        """
        with self._lock:
            meters = [*self._meters.values()]
        return [(each.live_rule, each.limit, each.remaining) for each in meters if each.live_rule is not None]

    def hot_keys(self, rule: str, kind: str = CALLS, number: int = 10, mask: bool = False) -> list[HotKey]:
        """Returns the keys with the most calls of a rule in the last minute; or, by kind "refused",
        "shadow_refused" or "candidate_refused", with the most refusals. `mask` hides most of each key.

        >>> counts = Counts()
        >>> limiter = Limiter("2/minute", name="login", observers=[counts])
        >>> [limiter.take("user=annabel").allowed for _ in range(3)]
        [True, True, False]
        >>> counts.hot_keys("login"), counts.hot_keys("login", "refused", mask=True)
        ([HotKey(key='user=annabel', calls=3)], [HotKey(key='user=an***', calls=1)])
        """
        check_kind(kind, HOT_KINDS)
        second = self._now_second()
        with self._lock:
            self._file_counts()
            counted = self._rules.get(rule)
            keys = [] if counted is None else counted.estimates.hot(second, kind, number)
        return masked(keys) if mask else keys

    def distinct_keys(self, rule: str, kind: str = REFUSED, hours: int = 1) -> int:
        """Returns about how many different keys (within 3 %) a rule refused; or, by kind, "shadow_refused",
        "candidate_refused", or "tried" for those that a shadow or a candidate decided. Hours are whole: 1 is since
        the last full hour. Where counts are shared, SharedCounts has them.

        >>> Counts().distinct_keys("login")
        0
        """
        check_kind(kind, DISTINCT_KINDS)
        hour = self._now_second() // 3600
        with self._lock:
            self._file_counts()
            counted = self._rules.get(rule)
            return 0 if counted is None else counted.estimates.distinct(hour - hours + 1, hour, kind)

    def most_refused(
        self, rule: str, kind: str = REFUSED, hours: int = 1, number: int = 10, mask: bool = False
    ) -> list[HotKey]:
        """Returns the keys that a rule, its shadow or its candidate refused most in the last hours. Where counts
        are shared, SharedCounts has them.

        >>> Counts().most_refused("login", "candidate_refused", hours=24)
        []
        """
        check_kind(kind, REFUSED_KINDS)
        hour = self._now_second() // 3600
        with self._lock:
            self._file_counts()
            counted = self._rules.get(rule)
            keys = [] if counted is None else counted.estimates.most_refused(hour - hours + 1, hour, kind, number)
        return masked(keys) if mask else keys

    def _now_second(self) -> int:
        """Files the last second if it has ended, and returns the current one."""
        if not self._start_ns <= self._now_ns() < self._end_ns:
            self._begin_second()
        return self._start_ns // _NS

    def _units(self, seconds: int | None, minutes: int | None) -> tuple[int, int, str]:
        """Returns the first and last second or minute of a span, and which of the two."""
        unit, number, kept = check_span(seconds, minutes)
        last = self._now_second() // (60 if unit == "minutes" else 1)
        return last - min(number, kept) + 1, last, unit


def check_span(seconds: int | None, minutes: int | None) -> tuple[str, int, int]:
    """Returns which unit a span has, how many of them, and how many are kept; raises InvalidRule."""
    given = [("seconds", seconds, SECONDS_KEPT), ("minutes", minutes, MINUTES_KEPT)]
    chosen = [(unit, number, kept) for unit, number, kept in given if number is not None]
    if len(chosen) != 1 or type(chosen[0][1]) is not int or chosen[0][1] < 1:
        raise InvalidRule("A span is given by seconds= (1 to 120) or by minutes= (1 to 1500).")
    return chosen[0]


def check_kind(kind: str, kinds: Sequence[str]) -> None:
    """Raises InvalidRule if there are no such keys."""
    if kind not in kinds:
        raise InvalidRule(f"Keys are of one kind of {', '.join(kinds)}; not {kind!r}.")
