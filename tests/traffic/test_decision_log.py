"""A decision log that is replayed under its own rules gives the same answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from headgate import ManualClock, RuleLimiter
from headgate.errors import InvalidLog
from headgate.rules import load
from headgate.traffic.reader import LogReader
from headgate.traffic.replay import Replay, replay_calls

RULES = {
    "rules": [
        {"name": "login", "key": "address", "limit": "2/s burst 3", "overrides": True},
        {"name": "user", "key": "user", "missing": "skip", "limit": "1/s", "mode": "shadow"},
    ]
}


def record(limiter: RuleLimiter, attributes: dict[str, str], now_us: int) -> dict[str, Any]:
    decision = limiter.check(attributes)
    verdicts = [
        {
            "rule": verdict.rule,
            "key": verdict.key,
            "allowed": verdict.allowed,
            "override": limiter.overrides("login").get(verdict.key),
        }
        for verdict in decision.verdicts
    ]
    return {
        "at_us": now_us,
        "attributes": attributes,
        "cost": 1,
        "allowed": decision.allowed,
        "rule": decision.rule,
        "verdicts": verdicts,
        "version": 7,
        "sample": 1,
    }


def recorded_log(overrides: bool = False) -> list[dict[str, Any]]:
    clock, chance = ManualClock(1_794_800_944_000_000), random.Random(3)
    limiter = RuleLimiter(RULES, clock=clock)
    records = []
    for number in range(300):
        if overrides and number in (100, 200):
            login = limiter.overrides("login")
            assert login.set("address=192.0.2.1", "20/s") if number == 100 else login.unset("address=192.0.2.1")
        clock.advance(chance.choice((0, 0, 0.05, 0.3)))
        attributes = {"address": f"192.0.2.{chance.randint(1, 3)}", "user": "ann"}
        records.append(record(limiter, attributes, clock.now_us()))
    return records


def replayed(path: Path, records: list[dict[str, Any]]) -> Replay:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    reader = LogReader([str(path)])
    result = replay_calls(reader.batches(), load.from_mapping(RULES))
    assert reader.summaries[0].title == "decision log"
    return result


@pytest.mark.parametrize("overrides", [False, True])
def test_the_same_answers_call_by_call(tmp_path: Path, overrides: bool) -> None:
    records = recorded_log(overrides)
    recorded = replayed(tmp_path / "log", records).recorded
    assert (recorded.calls, recorded.same) == (300, 300)
    assert recorded.same_groups == recorded.groups
    assert recorded.versions == {7}
    assert 0 < sum(each["allowed"] for each in records) < 300


def test_two_rulebooks_are_compared_under_the_same_overrides(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(each) + "\n" for each in recorded_log(overrides=True)))
    rules = load.from_mapping(RULES)
    differences = replay_calls(LogReader([str(log)]).batches(), rules, rules).differences
    assert (differences.newly_refused, differences.newly_passed) == (0, 0)


def test_from_several_processes_the_same_in_number(tmp_path: Path) -> None:
    records = sorted(recorded_log(), key=lambda each: (each["at_us"], each["allowed"]))
    recorded = replayed(tmp_path / "log", records).recorded
    assert recorded.same < recorded.calls
    assert recorded.same_groups == recorded.groups


def test_another_answer_is_found(tmp_path: Path) -> None:
    records = recorded_log()
    records[150]["allowed"] = not records[150]["allowed"]
    recorded = replayed(tmp_path / "log", records).recorded
    assert recorded.same == 299
    assert recorded.groups - recorded.same_groups == 1
    assert recorded.first_difference is not None
    assert recorded.first_difference.line == 151


def test_a_sampled_log_is_refused(tmp_path: Path) -> None:
    records = [each | {"sample": 0.1} for each in recorded_log()]
    with pytest.raises(InvalidLog, match=r"This decision log is sampled \(line 1: sample 0.1\)"):
        replayed(tmp_path / "log", records)


def test_records_that_are_none_are_unreadable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    good = json.dumps({"at_us": 5, "attributes": {}, "allowed": True})
    bad: list[dict[str, Any]] = [{"at_us": "5"}, {"attributes": []}, {"allowed": 1}, {"verdicts": [1]}]
    lines = [json.dumps({"at_us": 5, "attributes": {}, "allowed": True} | each) for each in bad]
    log.write_text("\n".join([good, *lines, "[]", "{"]))
    reader = LogReader([str(log)])
    assert len(list(reader.calls())) == 1
    assert reader.summaries[0].unreadable == 6
