"""Adaptive limits as rules: calls enter, end with an outcome, and move the limit of their rule and key."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, ManualClock, Observer, RateLimited
from headgate.enforcement import adaptive_rules
from headgate.enforcement.call_plan import CallPlan
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.errors import InvalidCharge
from headgate.observer import LimitChange
from headgate.rules import load
from headgate.rules.rule import Rulebook

TARGET = {"adaptive": "concurrency", "target": "p50 200ms", "between": [2, 40]}


def rulebook(limit: dict[str, Any], **fields: Any) -> Rulebook:
    return load.from_mapping({"rules": [{"name": "app", "limit": limit, **fields}]})


class AdaptiveStory:
    """A limiter on a clock that the story moves."""

    def __init__(self, limit: dict[str, Any], **fields: Any) -> None:
        self.clock = ManualClock()
        self.changes: list[LimitChange] = []
        story = self

        class RuleLimitChanges(Observer):
            def limit_changed(self, change: LimitChange) -> None:
                story.changes.append(change)

        self.limiter = RuleLimiter(rulebook(limit, **fields), clock=self.clock, observers=[RuleLimitChanges()])

    def wave(self, calls: int, seconds: float, outcome: str = "success", **attributes: str) -> list[RuleDecision]:
        """So many calls begin, and end together after that time."""
        decisions = [self.limiter.check(attributes) for _ in range(calls)]
        self.clock.advance(seconds)
        for decision in decisions:
            if decision.allowed:
                self.limiter.finish(decision, outcome)
        return decisions

    def limit(self, key: str = "all") -> int:
        return self.limiter.adaptive.rules["app"].limits()[key][0]


def test_calls_above_the_limit_are_refused_with_503_until_one_ends() -> None:
    story = AdaptiveStory(TARGET)
    decisions = [story.limiter.check({}) for _ in range(21)]
    assert [decision.allowed for decision in decisions] == [True] * 20 + [False]
    assert decisions[-1].refusal is not None
    assert decisions[-1].refusal.status == 503
    assert str(decisions[-1]) == (
        'refused by rule "app" (adaptive concurrency p50 200ms between 2 and 40, now 20): retry after 0.005 s'
    )
    story.limiter.finish(decisions[0])
    assert story.limiter.check({}).allowed


def test_slow_calls_lower_the_limit_and_quick_ones_raise_it() -> None:
    story = AdaptiveStory(TARGET)
    for _ in range(8):
        story.wave(30, 0.5)
    assert story.limit() < 10
    for _ in range(150):
        story.wave(45, 0.15)
    assert story.limit() == 40
    assert story.changes[0] == LimitChange("app", "all", 20, 16, "above the target")
    assert story.changes[-1].reason == "below the target"


def test_dropped_calls_count_as_slower_than_any_other() -> None:
    story = AdaptiveStory(TARGET)
    for _ in range(30):
        story.wave(30, 0.5, "dropped")
    assert story.limit() == 2


def test_ignored_calls_move_nothing() -> None:
    story = AdaptiveStory(TARGET)
    for _ in range(30):
        story.wave(30, 5.0, "ignored")
    assert (story.limit(), story.changes) == (20, [])


def test_each_key_has_a_separate_limit() -> None:
    story = AdaptiveStory(TARGET, key="host", missing="one")
    for _ in range(30):
        story.wave(30, 0.5, host="slow.example")
    story.wave(5, 0.05, host="quick.example")
    assert (story.limit("host=slow.example"), story.limit("host=quick.example")) == (3, 20)


def test_a_rate_follows_response_times() -> None:
    story = AdaptiveStory({"adaptive": "rate", "target": "p90 100ms", "between": [10, 400]})
    for _ in range(40):
        story.wave(40, 0.3)
    assert 10 <= story.limit() < 100
    assert story.changes[0].reason == "above the target"


@pytest.mark.parametrize(("kind", "bound", "calls"), [("concurrency", 8, 4), ("rate", 20, 1)])
def test_the_least_important_calls_are_refused_first(kind: str, bound: int, calls: int) -> None:
    priority = {"by": "plan", "order": ["pro", "free"]}
    story = AdaptiveStory({"adaptive": kind, "target": "p99 1s", "between": [bound, bound], "priority": priority})
    passed = {"pro": 0, "free": 0}
    for step in range(200):  # of a tenth of a second, in which twice as many calls come as can pass
        decisions = [
            (plan, story.limiter.check({"plan": plan}))
            for plan in ("free", "pro", "free", "free")
            for _ in range(calls)
        ]
        story.clock.advance(0.1)
        for plan, decision in decisions:
            if decision.allowed:
                story.limiter.finish(decision)
                passed[plan] += step >= 100
    assert passed["pro"] >= 0.9 * 100 * calls
    assert 0.5 * 100 * calls < passed["free"] < 1.2 * 100 * calls


def test_in_shadow_the_verdict_is_reported_and_the_call_passes() -> None:
    story = AdaptiveStory(TARGET, mode="shadow")
    decisions = [story.limiter.check({}) for _ in range(25)]
    assert all(decision.allowed for decision in decisions)
    assert [verdict.allowed for decision in decisions for verdict in decision.shadow_verdicts] == [True] * 20 + [
        False
    ] * 5
    for decision in decisions:
        story.limiter.finish(decision)
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 0


def test_what_was_learned_outlives_a_changed_rulebook_as_far_as_its_bounds_allow() -> None:
    story = AdaptiveStory(TARGET)
    for _ in range(8):
        story.wave(30, 0.5)
    learned = story.limit()
    open_call = story.limiter.check({})
    story.limiter.replace(rulebook({**TARGET, "target": "p50 300ms"}, when={"path": "/**"}))
    assert story.limit() == learned
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 1, "calls in flight stay"
    story.limiter.finish(open_call)
    story.limiter.replace(rulebook({**TARGET, "between": [15, 40]}))
    assert story.limit() == 15
    story.limiter.replace(rulebook({**TARGET, "priority": {"by": "plan", "order": ["pro", "free"]}}))
    assert story.limit() == 15
    assert story.limiter.check({"plan": "pro"}).allowed
    story.limiter.replace(rulebook({"adaptive": "concurrency"}))
    assert story.limit() == 15
    story.limiter.replace(Rulebook())
    story.limiter.replace(rulebook(TARGET))
    assert story.limiter.check({}).remaining == 19, "a rule that was gone learns anew"


def test_a_call_that_another_rule_refuses_is_not_in_flight() -> None:
    book = load.from_mapping({"rules": [{"name": "app", "limit": TARGET}, {"name": "users", "limit": "1/minute"}]})
    limiter = Limiter.from_rules(book, clock=ManualClock())
    first, second = limiter.check({}), limiter.check({})
    assert (first.allowed, second.allowed, second.rule) == (True, False, "users")
    assert limiter.adaptive.rules["app"].limits()["all"][1] == 1


def test_calls_that_are_decided_together_begin_together_or_not_at_all() -> None:
    story = AdaptiveStory({**TARGET, "between": [1, 2]})
    together = story.limiter.check_together([BatchedCall({}), BatchedCall({}), BatchedCall({})])
    assert [decision.allowed for decision in together] == [True, True, False]
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 0
    both = story.limiter.check_together([BatchedCall({}), BatchedCall({})])
    assert [decision.allowed for decision in both] == [True, True]
    assert story.limiter.give_back(BatchedCall({}), 1).allowed
    for decision in both:
        story.limiter.finish(decision)
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 0


def test_a_call_planned_before_the_rulebook_changed_is_decided_by_what_is_there() -> None:
    classes = {**TARGET, "priority": {"by": "plan", "order": ["pro", "trial", "free"]}}
    story = AdaptiveStory(classes)
    old, unbound = story.limiter.plan_call({"plan": "free"}), story.limiter.compiled_rulebook
    story.limiter.replace(rulebook({**TARGET, "priority": {"by": "plan", "order": ["pro", "free"]}}))
    assert story.limiter.decide_plan(old).allowed
    story.limiter.replace(rulebook(TARGET))
    assert story.limiter.decide_plan(old).allowed
    story.limiter.replace(Rulebook())
    late = CallPlan(unbound, unbound.match({"plan": "pro"}), {"plan": "pro"})
    assert story.limiter.decide_plan(late).allowed


def test_a_shadow_that_would_have_refused_gives_nothing_back() -> None:
    rate = {"adaptive": "rate", "target": "p90 100ms", "between": [10, 10]}
    book = {"rules": [{"name": "app", "limit": rate, "mode": "shadow"}, {"name": "users", "limit": "1/day"}]}
    limiter = RuleLimiter(load.from_mapping(book), clock=ManualClock())
    shadows = [limiter.check({}).shadow_verdicts[0].allowed for _ in range(4)]
    assert shadows == [True, False, False, False]


def test_a_block_reports_how_it_ended() -> None:
    story = AdaptiveStory(TARGET)

    def call(error: Exception | None) -> None:
        with story.limiter.hold({}):
            story.clock.advance(0.02)
            if error is not None:
                raise error

    for _ in range(60):
        with pytest.raises(TimeoutError):
            call(TimeoutError())
    assert story.limit() < 20, "timeouts are drops"
    fallen = story.limit()
    for _ in range(60):
        with pytest.raises(ValueError, match="input"):
            call(ValueError("input"))
    assert story.limit() == fallen, "other exceptions say nothing"
    for _ in range(fallen):
        story.limiter.check({})  # nobody keeps these decisions, so their calls end
    with story.limiter.hold({}):
        assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 1


def test_an_awaited_limiter_does_the_same() -> None:
    async def story() -> tuple[int, int]:
        async with AsyncLimiter.from_rules(rulebook(TARGET), clock=ManualClock()) as limiter:
            decision = await limiter.check({})
            async with limiter.hold({}) as held:
                inside = limiter.adaptive.rules["app"].limits()["all"][1]
                assert await limiter.finish(held, "dropped")
            await limiter.finish(decision)
            return inside, limiter.adaptive.rules["app"].limits()["all"][1]

    assert asyncio.run(story()) == (2, 0)


def test_a_rule_whose_calls_nobody_ends_stands_still_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    story = AdaptiveStory(TARGET)
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(60):
            story.limiter.check({})
    [record] = caplog.records
    assert 'the rule "app" stands still: of 20 calls nobody said how they ended' in record.getMessage()
    assert "limiter.finish(decision)" in record.getMessage()
    assert story.limit() == 20


def test_a_call_ends_once_and_only_by_its_decision() -> None:
    story = AdaptiveStory(TARGET)
    decision = story.limiter.check({})
    for copied in (copy.copy(decision), pickle.loads(pickle.dumps(decision))):
        with pytest.raises(InvalidCharge, match="copied or pickled"):
            story.limiter.finish(copied)
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 1
    story.limiter.finish(decision)
    story.limiter.finish(decision)
    story.limiter.refund(decision)
    assert story.limiter.adaptive.rules["app"].limits()["all"][1] == 0


def test_a_peek_and_a_refund_leave_nothing_in_flight() -> None:
    story = AdaptiveStory(TARGET)
    assert story.limiter.peek({}).remaining == 20
    story.limiter.refund(story.limiter.check({}))
    story.limiter.cancel(story.limiter.reserve({}))
    assert story.limiter.check({}).remaining == 19
    story.limiter.reset({})
    assert story.limiter.peek({}).remaining == 20


def test_a_call_in_flight_has_no_cost_to_settle() -> None:
    story = AdaptiveStory(TARGET)
    with pytest.raises(InvalidCharge, match="it has no cost to settle"):
        story.limiter.settle(story.limiter.check({}), 5)


def test_a_peek_of_a_rate_says_whether_a_call_would_pass() -> None:
    story = AdaptiveStory({"adaptive": "rate", "target": "p90 100ms", "between": [20, 20]})
    decisions = [story.limiter.check({}) for _ in range(3)]
    assert [decision.allowed for decision in decisions] == [True, True, False], "a tenth of a second's calls"
    assert [decision.remaining for decision in decisions] == [1, 0, 0]
    assert not story.limiter.peek({}).allowed
    story.clock.advance(0.05)
    assert story.limiter.peek({}).remaining == 1


def test_a_key_with_calls_in_flight_outlives_any_number_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive_rules, "MAX_KEYS", 3)
    story = AdaptiveStory({**TARGET, "between": [2, 2]}, key="host", missing="one")
    busy = [story.limiter.check({"host": "busy"}) for _ in range(2)]
    for number in range(10):
        story.limiter.finish(story.limiter.check({"host": str(number)}))
    limits = story.limiter.adaptive.rules["app"].limits()
    assert (sorted(limits), limits["host=busy"][1]) == (["host=8", "host=9", "host=busy"], 2)
    assert not story.limiter.check({"host": "busy"}).allowed
    for decision in busy:
        story.limiter.finish(decision)


def test_an_unknown_outcome_is_refused() -> None:
    story = AdaptiveStory(TARGET)
    with pytest.raises(InvalidCharge, match="A call ends as success, dropped or ignored; not 'timeout'"):
        story.limiter.finish(story.limiter.check({}), "timeout")


def test_without_end_raises_like_every_refusal() -> None:
    story = AdaptiveStory({**TARGET, "between": [1, 1]})
    with story.limiter.hold({}), pytest.raises(RateLimited), story.limiter.hold({}):
        pass
