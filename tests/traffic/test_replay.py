"""A replay decides recorded calls as the limiter does, by all that rules can say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter, ManualClock
from headgate.rules import load
from headgate.rules.attributes import Attributes
from headgate.traffic import replay_counts
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.replay import Replay, enforced, replay_calls
from headgate.traffic.replay_counts import RuleCounts

ANN, BOB = {"user": "ann", "plan": "free"}, {"user": "bob", "plan": "pro"}


def call(seconds: float, attributes: dict[str, str], **fields: Any) -> RecordedCall:
    return RecordedCall(round(seconds * 1_000_000), Attributes(attributes), **fields)


def replay(rule: dict[str, Any], calls: Sequence[RecordedCall], **options: Any) -> Replay:
    return replay_calls([calls], load.from_mapping({"rules": [{"name": "api"} | rule]}), **options)


def counts_of(result: Replay, kind: str | None = None) -> RuleCounts:
    return result.new.counts["api", kind]


def test_offered_passed_refused_and_who() -> None:
    calls = [call(0, ANN), call(0.1, ANN), call(0.2, ANN), call(0.3, BOB), call(61, ANN)]
    result = replay({"key": "user", "missing": "skip", "limit": "1/minute"}, calls)
    counts = counts_of(result)
    assert (counts.offered, counts.passed, counts.refused) == (5, 3, 2)
    assert (counts.keys.keys, counts.keys.refused_keys) == (2, 1)
    assert result.new.answers == [3, 0, 2]
    [worst] = counts.keys.most_refused(5)
    assert worst == ("user=ann", 2, 4, 100_000, 200_000)


def test_peaks() -> None:
    calls = [call(seconds, ANN) for seconds in (0, 0.5, 1, 2, 2.1, 2.2, 65)]
    timeline = replay({"limit": "2/minute"}, calls).new.timeline
    assert (timeline.peak_second, timeline.peak_second_at_us) == (3, 2_000_000)
    assert (timeline.peak_minute, timeline.passed_peak_minute, timeline.passed_peak_second) == (6, 2, 2)
    assert timeline.minutes == {0: [2, 0, 4], 1: [1, 0, 0]}


def test_the_picture_of_a_short_log_has_bars_of_seconds() -> None:
    timeline = replay({"limit": "2/minute"}, [call(seconds, ANN) for seconds in (60, 60.5, 63)]).new.timeline
    assert timeline.bars(70) == ([[2, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]], 60_000_000, 64_000_000)
    long = replay({"limit": "2/minute"}, [call(minute * 60, ANN) for minute in range(100)]).new.timeline
    assert (len(long.bars(70).counts), long.bars(70).last_us) == (50, 6_000_000_000)


def test_many_seconds_are_counted_by_the_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_counts, "MAX_SECONDS", 3)
    timeline = replay({"limit": "2/minute"}, [call(seconds, ANN) for seconds in range(65)]).new.timeline
    assert timeline.bars(70) == ([[3, 0, 57], [1, 0, 4]], 0, 120_000_000)


def test_shadows_refuse_nobody_unless_enforced() -> None:
    book = load.from_mapping({"rules": [{"name": "api", "limit": "1/minute", "mode": "shadow"}]})
    calls = [call(0, ANN), call(1, ANN)]
    shadow = replay_calls([calls], book)
    assert shadow.new.answers == [2, 0, 0]
    assert counts_of(shadow, "shadow").refused == 1
    live = replay_calls([calls], enforced(book))
    assert live.new.answers == [1, 0, 1]
    assert counts_of(live).refused == 1


def test_candidates() -> None:
    result = replay({"limit": "10/minute", "candidate": "1/minute"}, [call(0, ANN), call(1, ANN)])
    assert result.new.answers == [2, 0, 0]
    assert (counts_of(result).refused, counts_of(result, "candidate").refused) == (0, 1)


def test_tiers_and_costs() -> None:
    limit = {"by": "plan", "cases": {"free": "2/minute", "pro": "20/minute"}, "otherwise": "1/minute"}
    rule = {"key": "user", "missing": "skip", "limit": limit, "cost": "tokens"}
    calls = [call(0, person | {"tokens": "2"}) for person in (ANN, ANN, BOB, BOB)]
    assert [each.refused for each in counts_of(replay(rule, calls)).keys.most_refused(9)] == [1]


def test_the_cost_of_the_call() -> None:
    assert replay({"limit": "10/minute"}, [call(0, ANN, cost=8), call(1, ANN, cost=8)]).new.answers == [1, 0, 1]


def test_lockouts() -> None:
    rule = {"limit": "1/s", "lockout": {"after": 2, "within": "10s", "for": "1m"}}
    calls = [call(seconds, ANN) for seconds in (0, 0.1, 0.2, 30, 70)]
    assert replay(rule, calls).new.answers == [2, 0, 3]


def test_delays() -> None:
    result = replay({"limit": "1/s queue 5"}, [call(0, ANN), call(0, ANN), call(0, ANN)])
    assert result.new.answers == [1, 2, 0]
    assert counts_of(result).delayed == 2


def test_calendars() -> None:
    noon_us = 1_794_830_400_000_000  # 2026-11-16 12:00 UTC
    times = [noon_us, noon_us + 1, noon_us + 12 * 3600 * 1_000_000]
    calls = [RecordedCall(time_us, Attributes(ANN)) for time_us in times]
    assert replay({"limit": "1/day fixed in UTC"}, calls).new.answers == [2, 0, 1]


def test_slots_are_held_for_the_recorded_duration() -> None:
    calls = [
        call(0, ANN, duration_us=100_000_000),  # longer than the slot's ttl of 30 s
        call(40, ANN, duration_us=1_000_000),
        call(101, ANN, duration_us=2_000_000),
        call(102, ANN, duration_us=2_000_000),
        call(103, ANN),
    ]
    result = replay({"limit": "1 slot"}, calls)
    assert result.new.answers == [3, 0, 2]
    assert result.new.without_duration == 1


def test_several_limits_refuse_once() -> None:
    result = replay({"limit": ["1/s", "2/minute"]}, [call(0, ANN), call(0, ANN), call(5, ANN), call(6, ANN)])
    assert (counts_of(result).offered, counts_of(result).refused) == (4, 2)


def test_a_missing_key_is_refused_where_the_rule_says_so() -> None:
    result = replay({"key": "user", "missing": "deny", "limit": "9/s"}, [call(0, {}), call(0, ANN)])
    assert result.new.answers == [1, 0, 1]


def test_hostnames_are_addresses() -> None:
    calls = [call(0, {})] * 2
    for each in calls:
        dict.__setitem__(each.attributes, "address", "proxy7.example")
    for key in ("address", "address/24"):
        result = replay({"key": key, "limit": "1/minute"}, calls)
        [worst] = counts_of(result).keys.most_refused(1)
        assert worst.key == "address=proxy7.example"


def test_differences_between_two_rulebooks() -> None:
    calls = [call(seconds, ANN, line=number) for number, seconds in enumerate((0, 1, 2, 3), start=1)]
    old = load.from_mapping({"rules": [{"name": "old", "key": "user", "missing": "skip", "limit": "3/minute"}]})
    result = replay({"key": "user", "missing": "skip", "limit": "2/minute"}, calls, against=old, max_listed=5)
    assert result.differences.newly_refused == 1
    assert result.differences.keys_newly_refused == {"user=ann"}
    assert result.differences.calls == [(2_000_000, 3, "user=ann", False, "api")]
    turned = replay_calls([calls], old, result.new.limiter.rulebook, max_listed=5)
    assert turned.differences.calls == [(2_000_000, 3, "user=ann", True, "api")]


RULES = {
    "rules": [
        {"name": "each", "key": "user", "missing": "skip", "limit": "3/s burst 4", "candidate": "2/s"},
        {"name": "all", "limit": ["9/s", "40/minute"], "lockout": {"after": 3, "within": "5s", "for": "2s"}},
        {"name": "jobs", "when": {"user": "bob"}, "limit": "2 slots"},
    ]
}


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.sampled_from([ANN, BOB])), max_size=40))
def test_the_answers_are_those_of_the_limiter(steps: list[tuple[int, dict[str, str]]]) -> None:
    clock = ManualClock(0)
    limiter = Limiter.from_rules(RULES, clock=clock)
    calls, passed = [], 0
    for gap_us, attributes in steps:
        clock.set_us(clock.now_us() + gap_us)
        calls.append(RecordedCall(clock.now_us(), Attributes(attributes), duration_us=0))
        decision = limiter.check(attributes)
        passed += decision.allowed
        limiter.release(decision)
    result = replay_calls([calls], load.from_mapping(RULES))
    assert len(calls) - result.new.answers[2] == passed
