"""The report on a rule: who would suffer, and is it safe to enforce?"""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Counts, InvalidRule, Limiter, ManualClock
from headgate.operations.rule_report import report_rule

RULE = {"name": "login", "key": "user", "missing": "deny", "limit": "3/minute", "candidate": "1/minute"}


class Story:
    """Calls of users, counted in this process."""

    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock(1_700_000_000_000_000)
        self.counts = Counts(clock=self.clock)
        rules = {"rules": [{**RULE, **fields}]}
        self.limiter = Limiter.from_rules(rules, clock=self.clock, observers=[self.counts])

    def calls(self, users: int, each: int = 1) -> None:
        for user in range(users):
            for _ in range(each):
                self.limiter.check({"user": f"user {user}"})

    def report(self, **options: Any) -> Any:
        return report_rule(self.counts, "login", now_s=self.clock.now_us() // 1_000_000, **options)


def test_a_candidate_that_refuses_nobody_is_safe() -> None:
    story = Story()
    story.calls(1000)
    [live, candidate] = story.report().rows
    assert (live.calls, live.refused, live.keys_refused, live.safe) == (1000, 0, 0, None)
    assert (candidate.calls, candidate.refused, candidate.keys, candidate.safe) == (1000, 0, 1000, "yes")


def test_one_key_in_a_thousand_may_be_refused_and_two_not() -> None:
    story = Story()
    story.calls(1000)
    story.limiter.check({"user": "user 7"})
    candidate = story.report().rows[-1]
    assert (candidate.refused, candidate.keys_refused, candidate.safe) == (1, 1, "yes")
    story.limiter.check({"user": "user 8"})
    candidate = story.report().rows[-1]
    assert candidate.safe == "no"
    assert "0.20% of 1,000 keys" in candidate.why
    assert story.report(max_refused=0.002).rows[-1].safe == "yes"


def test_below_a_thousand_calls_there_is_not_enough_data() -> None:
    story = Story()
    story.calls(999)
    assert story.report().rows[-1].safe == "not enough data"


def test_the_ten_keys_that_would_suffer_most() -> None:
    story = Story()
    story.calls(12, each=2)
    for _ in range(20):
        story.limiter.check({"user": "annabel"})
    report = story.report()
    assert report.suffering[0] == ("user=annabel", 19)
    assert len(report.suffering) == 10
    assert story.report(mask=True).suffering[0] == ("user=an***", 19)
    assert report.rows[0].refused == 17  # the live limit refuses some of them, too


def test_a_rule_in_shadow_mode_is_reported_as_a_shadow() -> None:
    story = Story(mode="shadow")
    story.calls(300, each=4)
    kinds = {row.kind: row for row in story.report().rows}
    assert set(kinds) == {"shadow", "candidate"}
    assert (kinds["shadow"].calls, kinds["shadow"].refused, kinds["shadow"].keys_refused) == (1200, 300, 300)
    assert kinds["shadow"].safe == "no"


def test_hours_are_whole_and_the_current_one_is_the_last() -> None:
    story = Story()
    story.calls(10)
    story.clock.advance(3600)
    assert story.report(hours=1).rows == []
    assert story.report(hours=2).rows[0].calls == 10
    assert story.report(hours=2).since_s % 3600 == 0
    with pytest.raises(InvalidRule, match="1 to 25 hours"):
        story.report(hours=26)


def test_a_rule_that_was_not_called_has_no_rows() -> None:
    assert Story().report().rows == []
    assert Story().report().document()["suffering"] == []
