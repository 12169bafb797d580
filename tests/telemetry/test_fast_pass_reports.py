"""Passes that are counted without a decision give the counts and the records of the plain path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Counts, ManualClock, Observer
from headgate.algorithms.decision import Decision
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.observer import Observers
from headgate.telemetry import recent_records
from headgate.telemetry.decision_log import DecisionLog
from headgate.telemetry.fast_pass_reports import pass_reports
from headgate.telemetry.memory_records import MemoryRecordsStore
from headgate.telemetry.recent_records import RecentRecords

RULES: dict[str, Any] = {
    "rules": [
        {"name": "user", "key": "user", "limit": "3/minute burst 6", "missing": "skip"},
        {"name": "sku", "key": "sku", "limit": "4/minute fixed", "missing": "skip"},
        {"name": "all", "when": {"path": "/"}, "limit": "6/minute queue 2"},
    ]
}
CALLS = st.lists(
    st.sampled_from([{"user": "ann"}, {"user": "bob"}, {"sku": "7"}, {"path": "/"}]), min_size=1, max_size=3
)


@settings(max_examples=200)
@given(st.lists(st.tuples(CALLS, st.sampled_from([0, 0, 0.3, 20, 70])), min_size=2, max_size=25))
def test_counts_are_those_of_the_plain_path(story: list[tuple[list[dict[str, str]], float]]) -> None:
    clock = ManualClock()
    counts, plain = Counts(clock=clock), Counts(clock=clock)
    with (
        RuleLimiter(RULES, clock=clock, observers=[counts]) as limiter,
        RuleLimiter(RULES, clock=clock, observers=[plain]) as twin,
    ):
        count_passes = pass_reports(limiter.observers)
        assert count_passes is not None
        for attributes, pause in story:
            calls = [BatchedCall(each) for each in attributes]
            twin.check_together(calls)
            batch = limiter.plan_batch(calls)
            charges = batch.joint_plan.charges
            outcomes = limiter.engine.decide_all(charges)
            if batch.shares_counters or not count_passes(charges, outcomes):
                for decision in batch.decisions(outcomes):
                    counts.decided(decision, None, False)
            clock.advance(pause)
        assert counts.totals() == plain.totals()
        assert counts.last(minutes=60) == plain.last(minutes=60)
        for rule in ("user", "sku", "all"):
            assert counts.hot_keys(rule) == plain.hot_keys(rule)
        assert counts.limits() == plain.limits()


def test_the_first_passes_of_a_second_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_records, "MAX_RECORDS_PER_S", 3)
    clock = ManualClock()
    counts, records = Counts(clock=clock), RecentRecords(MemoryRecordsStore(), clock=clock)
    with RuleLimiter(RULES, clock=clock, observers=[counts, records]) as limiter:
        count_passes = pass_reports(limiter.observers)
        assert count_passes is not None
        passed = []
        for _ in range(6):
            batch = limiter.plan_batch([BatchedCall({"user": "ann"})])
            charges = batch.joint_plan.charges
            outcomes = limiter.engine.decide_all(charges)
            passed.append(count_passes(charges, outcomes))
            if not passed[-1]:
                limiter.observers.decided(batch.decisions(outcomes)[0], None)  # type: ignore[union-attr]
        assert passed == [False] * 3 + [True] * 3
        assert counts.totals()["user"].allowed == 6
    assert records.written == 3


class Tally(Observer):
    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None: ...


def test_other_observers_get_decisions(tmp_path: Any) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    for observers in ([Counts(), Tally()], [Counts(), log], [Counts(), Counts()], [Tally()], []):
        assert pass_reports(Observers(observers)) is None
    assert pass_reports(None) is None
    log.close()
