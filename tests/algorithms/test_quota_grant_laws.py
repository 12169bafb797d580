"""The laws of quota grants on random histories: holders report, fall silent, come back under another name, miss
a grant or get it late; limits change; the clock steps.
"""

from fractions import Fraction
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, QuotaUnits, quota_units
from headgate.algorithms.limit import SECOND
from headgate.algorithms.quota_grants import (
    DEPARTED,
    MAX_GRANTS_PER_HOLDER,
    MAX_HOLDERS,
    State,
    dead_at_us,
    grant,
    remove_holder,
    target,
    ttl_and_grace,
)
from headgate.limit_syntax import parse

BASE_US = 1_700_000_000_000_000
REPORT_US = 4 * SECOND
TTL_US, GRACE_US = ttl_and_grace(REPORT_US)
LIVE_US = TTL_US + GRACE_US

DIVISIONS = [
    quota_units(parse(text)) for text in ("100/s", "30/s", "100/s burst 5", "7/minute fixed", "1000000/s burst 90")
]


class GrantStep(NamedTuple):
    kind: str
    holder: int
    number: int
    after_us: int


class RecordedGrant(NamedTuple):
    """One part that was told: in the limit's own units, and when it may be used, in true time."""

    division: QuotaUnits
    units: int
    burst: int
    arrives_us: int
    until_us: int
    counted_us: int


class GrantSimulation:
    """Holders and their ledger, and a judge with a clock of his own that never steps."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.true_us = BASE_US
        self.ahead_us = 0  # the ledger's clock before the judge's
        self.division = DIVISIONS[0]
        self.names = dict.fromkeys(range(5), 0)
        self.given: dict[str, list[RecordedGrant]] = {}

    def name(self, holder: int) -> str:
        return f"{holder}.{self.names[holder]}"

    def play(self, step: GrantStep) -> None:
        self.true_us += step.after_us
        now_us = self.true_us + self.ahead_us
        if step.kind == "leave":
            self.state = remove_holder(self.state, now_us, self.name(step.holder))
        elif step.kind == "rename":
            self.names[step.holder] += 1
        elif step.kind == "limit":
            self.division = DIVISIONS[step.number % len(DIVISIONS)]
        elif step.kind == "clock":
            self.ahead_us += step.number
        elif step.kind == "lost ledger":  # who asks next knows of all that was told
            self.state = None
        else:
            self.report(step, now_us)

    def report(self, step: GrantStep, now_us: int) -> None:
        wants = None if step.number < 0 else step.number
        latest_us = max((each.counted_us for grants in self.given.values() for each in grants), default=0)
        unknown_us = now_us + latest_us - self.true_us
        granted, self.state = grant(
            self.division, self.state, now_us, self.name(step.holder), wants, TTL_US, GRACE_US, unknown_us
        )
        assert len(self.state.holders) <= MAX_HOLDERS
        assert all(0 < len(holder.grants) <= MAX_GRANTS_PER_HOLDER for holder in self.state.holders)
        assert dead_at_us(self.state) <= max(now_us, self.state.stamp_us) + LIVE_US
        if granted is None:
            return
        assert (granted.units > 0) == (granted.burst > 0)
        late_us = 0 if step.kind == "report" else GRACE_US
        arrives_us = self.true_us + late_us
        counted_us = self.true_us + LIVE_US
        given = RecordedGrant(
            self.division, granted.units, granted.burst, arrives_us, arrives_us + TTL_US, counted_us
        )
        if step.kind == "lost":
            given = given._replace(until_us=0)
        self.given.setdefault(self.name(step.holder), []).append(given)

    def judge(self) -> tuple[Fraction, Fraction]:
        """Returns how full the limit is, by the most that anybody may be using: its rate, and its burst. 1 is
        full.
        """
        alive = {
            name: [each for each in grants if each.counted_us > self.true_us]
            for name, grants in self.given.items()
        }
        used = [
            max(
                (each for each in grants if each.arrives_us <= self.true_us < each.until_us),
                default=None,
                key=late,
            )
            for grants in alive.values()
        ]
        live = [each for parts in alive.values() for each in parts]
        if not live:
            return Fraction(0), Fraction(0)
        rate = sum(max((pace(each) for each in parts), default=Fraction(0)) for parts in alive.values())
        burst = sum(max((each.burst for each in parts), default=0) for parts in alive.values())
        assert sum(pace(each) for each in used if each) <= rate
        most_rate = max(Fraction(each.division.amount, each.division.period_us) for each in live)
        return rate / most_rate, Fraction(burst, max(each.division.burst for each in live))


def pace(given: RecordedGrant) -> Fraction:
    return Fraction(given.units, given.division.period_us)


def late(given: RecordedGrant) -> int:
    return given.arrives_us


# Mostly short, and few holders: a law about what is out at once is tried only while something is out.
PAUSES = st.sampled_from([0, 1, SECOND, SECOND, REPORT_US // 2, REPORT_US, LIVE_US - 1, LIVE_US])
WANTS = st.sampled_from([-1, 0, 1, ALL_GRANT_UNITS // 5, ALL_GRANT_UNITS // 3, ALL_GRANT_UNITS]) | st.integers(
    0, ALL_GRANT_UNITS
)
WHO = st.integers(0, 2)
REPORTS = st.builds(GrantStep, st.sampled_from(["report", "report", "late", "lost"]), WHO, WANTS, PAUSES)
OTHERS = st.builds(GrantStep, st.sampled_from(["leave", "rename", "limit"]), WHO, st.integers(0, 9), PAUSES)
LOSSES = st.builds(GrantStep, st.just("lost ledger"), st.just(0), st.just(0), PAUSES)
BACKWARDS = st.sampled_from([-1, -SECOND, -LIVE_US, -3600 * SECOND])
BACK = st.builds(GrantStep, st.just("clock"), st.just(0), BACKWARDS, PAUSES)


@settings(max_examples=100)
@given(st.lists(REPORTS, min_size=20, max_size=40))
def test_no_more_than_the_limit_is_ever_out(story: list[GrantStep]) -> None:
    simulation, reported_us = GrantSimulation(), dict[str, int]()
    for step in story:
        simulation.play(step)
        assert max(simulation.judge()) <= 1
        reported_us[simulation.name(step.holder)] = simulation.true_us
        living = {name for name, at_us in reported_us.items() if at_us + LIVE_US > simulation.true_us}
        assert simulation.state is not None
        assert {holder.name for holder in simulation.state.holders} == living
        assert dead_at_us(simulation.state) == simulation.true_us + LIVE_US


@settings(max_examples=150)
@given(st.lists(st.one_of(REPORTS, REPORTS, REPORTS, REPORTS, OTHERS, BACK, LOSSES), min_size=20, max_size=40))
def test_nor_when_limits_change_clocks_step_back_and_ledgers_are_lost(story: list[GrantStep]) -> None:
    simulation = GrantSimulation()
    for step in story:
        simulation.play(step)
        assert max(simulation.judge()) <= 1


@settings(max_examples=100)
@given(
    st.lists(st.one_of(REPORTS, REPORTS, OTHERS), min_size=5, max_size=20),
    st.sampled_from([1, SECOND, REPORT_US, LIVE_US, 3600 * SECOND]),
    st.lists(REPORTS, min_size=5, max_size=20),
)
def test_a_clock_that_jumps_ahead_puts_the_limit_out_once_more(
    before: list[GrantStep], jump_us: int, after: list[GrantStep]
) -> None:
    simulation = GrantSimulation()
    for step in [*before, GrantStep("clock", 0, jump_us, 0), *after]:
        simulation.play(step)
        assert max(simulation.judge()) <= 2
    simulation.play(GrantStep("report", 0, ALL_GRANT_UNITS, LIVE_US))
    assert max(simulation.judge()) <= 1


# ----- fairness, by a judge who sorts -----


def owed(least: int, noted: list[int]) -> tuple[list[int], int]:
    """Computes by sorting what each holder should get, and what is left over."""
    busy = [rank for rank, each in enumerate(noted) if each > 0][: ALL_GRANT_UNITS // least]
    parts = dict.fromkeys(range(len(noted)), 0)
    left, waiting = ALL_GRANT_UNITS, sorted(busy, key=lambda rank: (max(least, noted[rank]), rank))
    while waiting and max(least, noted[waiting[0]]) * len(waiting) <= left:
        first = waiting.pop(0)
        parts[first] = max(least, noted[first])
        left -= parts[first]
    if waiting:
        for place, rank in enumerate(sorted(waiting)):
            parts[rank] = left // len(waiting) + (place < left % len(waiting))
        left = 0
    return list(parts.values()), left


def fair(least: int, noted: list[int]) -> list[int]:
    """Every holder's target."""
    parts, left = owed(least, noted)
    idle = [rank for rank, each in enumerate(noted) if each == 0]
    busy = [rank for rank, each in enumerate(noted) if each > 0]
    sharers: list[int | None] = [*busy[: ALL_GRANT_UNITS // least]]
    for each in (*idle, None):  # None: who may come
        if (len(sharers) + 1) * least <= left:
            sharers.append(each)
    for place, sharer in enumerate(sharers):
        if sharer is not None:
            parts[sharer] += left // len(sharers) + (place < left % len(sharers))
    return parts


LEAST = st.sampled_from(
    [
        1,
        1000,
        ALL_GRANT_UNITS // 100,
        ALL_GRANT_UNITS // 7 + 1,
        ALL_GRANT_UNITS // 3,
        ALL_GRANT_UNITS // 2 + 1,
        ALL_GRANT_UNITS,
    ]
)
NOTED = (
    st.sampled_from([DEPARTED, 0, 0, 1, ALL_GRANT_UNITS // 4, ALL_GRANT_UNITS])
    | st.integers(0, ALL_GRANT_UNITS)
    | st.integers(0, ALL_GRANT_UNITS // 50)
)


@settings(max_examples=300)
@given(LEAST, st.lists(NOTED, min_size=1, max_size=30))
def test_targets_are_fair_and_leave_nothing(least: int, noted: list[int]) -> None:
    targets = [target(least, noted, rank) for rank in range(len(noted))]
    assert targets == fair(least, noted)
    assert sum(targets) <= ALL_GRANT_UNITS
    assert all(each == 0 or each >= least for each in targets)
    busy = sum(each > 0 for each in noted)
    if sum(max(least, each) for each in noted if each > 0) >= ALL_GRANT_UNITS:
        assert ALL_GRANT_UNITS - sum(targets) < least  # used up, but for what lets nothing pass
    if 0 < busy <= ALL_GRANT_UNITS // least:
        equal = (min(each, ALL_GRANT_UNITS // busy) for each in noted)
        assert all(part >= each for part, each in zip(targets, equal, strict=True))


class ReportRounds:
    """Holders that report at their own time in every round, for as long as they are there."""

    def __init__(self, phases: list[int], wants: list[int], part: QuotaUnits) -> None:
        self.part = part
        self.state: State | None = None
        self.phases, self.wants = phases, wants
        self.parts = [0] * len(phases)
        self.now_us = BASE_US

    def until(self, end_us: int) -> None:
        """All reports up to that instant, those at the instant too."""
        first = BASE_US - REPORT_US
        due = sorted(
            (at_us, holder)
            for holder, phase_us in enumerate(self.phases)
            for at_us in range(first + phase_us, end_us + 1, REPORT_US)
            if at_us > self.now_us
        )
        for at_us, holder in due:
            self.report(at_us, holder)
        self.now_us = end_us

    def report(self, at_us: int, holder: int) -> None:
        self.now_us = at_us
        granted, self.state = grant(
            self.part, self.state, at_us, str(holder), self.wants[holder], TTL_US, GRACE_US
        )
        assert granted is not None
        self.parts[holder] = granted.grains

    def noted(self) -> dict[int, int]:
        assert self.state is not None
        noted = {int(holder.name): holder.demand for holder in self.state.holders}
        for holder, each in noted.items():
            assert self.wants[holder] <= each <= self.wants[holder] * 4 // 3 + 1
        return noted

    def assert_fair(self) -> None:
        """Asserts that each holder has its target."""
        noted = self.noted()
        parts = fair(self.part.least, list(noted.values()))
        assert {holder: self.parts[holder] for holder in noted} == dict(zip(noted, parts, strict=True))

    def assert_owed(self) -> None:
        """Asserts that each holder has at least what it is owed, if all that want any can have some."""
        noted = self.noted()
        if sum(each > 0 for each in noted.values()) <= ALL_GRANT_UNITS // self.part.least:
            parts, _ = owed(self.part.least, list(noted.values()))
            assert all(self.parts[holder] >= part for holder, part in zip(noted, parts, strict=True))


HOLDING = st.integers(1, 6).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(1, REPORT_US), min_size=count, max_size=count, unique=True),
        st.lists(WANTS.filter(lambda wants: wants >= 0), min_size=count, max_size=count),
    )
)


@settings(max_examples=100)
@given(HOLDING, st.sampled_from(DIVISIONS), st.integers(0, 5), WANTS.filter(lambda wants: wants >= 0))
def test_a_change_is_everywhere_within_two_reports(
    holding: tuple[list[int], list[int]], part: QuotaUnits, who: int, wants: int
) -> None:
    rounds = ReportRounds(*holding, part)
    settled_us = BASE_US + 5 * REPORT_US
    rounds.until(settled_us)
    rounds.assert_fair()
    who %= len(rounds.phases)
    rounds.wants[who] = wants
    report_us = settled_us - REPORT_US + rounds.phases[who]
    report_us += 0 if report_us > settled_us else REPORT_US
    rounds.until(report_us + 2 * REPORT_US)
    rounds.assert_owed()
    rounds.until(report_us + 3 * REPORT_US)
    rounds.assert_fair()


@settings(max_examples=100)
@given(HOLDING, st.sampled_from(DIVISIONS), st.integers(1, REPORT_US), WANTS.filter(lambda wants: wants >= 0))
def test_a_new_holder_is_served_within_two_reports(
    holding: tuple[list[int], list[int]], part: QuotaUnits, phase_us: int, wants: int
) -> None:
    rounds = ReportRounds(*holding, part)
    rounds.until(BASE_US + 5 * REPORT_US)
    came_us = rounds.now_us + phase_us
    rounds.phases.append(phase_us)
    rounds.wants.append(wants)
    rounds.parts.append(0)
    rounds.until(came_us + 2 * REPORT_US)
    rounds.assert_owed()
    rounds.until(came_us + 3 * REPORT_US)
    rounds.assert_fair()


@settings(max_examples=100)
@given(HOLDING, st.sampled_from(DIVISIONS), st.data())
def test_many_changes_at_once_are_everywhere_within_three(
    holding: tuple[list[int], list[int]], part: QuotaUnits, data: st.DataObject
) -> None:
    rounds = ReportRounds(*holding, part)
    rounds.until(BASE_US + 5 * REPORT_US)
    count = len(rounds.phases)
    wants = st.lists(WANTS.filter(lambda each: each >= 0), min_size=count, max_size=count)
    rounds.wants = data.draw(wants)
    rounds.until(rounds.now_us + REPORT_US)  # everybody has said so
    rounds.until(rounds.now_us + 3 * REPORT_US)
    rounds.assert_fair()
