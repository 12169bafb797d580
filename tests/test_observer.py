"""Observers receive every decision once, cannot change it, and an error of theirs reaches no caller."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    AsyncLimiter,
    Charge,
    EngineUnavailable,
    InvalidRule,
    Limiter,
    ManualClock,
    Observer,
    RateLimited,
)
from headgate.algorithms.decision import CachedOutcome, Decision
from headgate.enforcement.check_together import BatchedCall
from headgate.engines.layers.denial_cache.sync_engine import DenialCacheEngine
from headgate.engines.memory.engine import MemoryEngine

RULES = {"rules": [{"name": "login", "key": "user", "missing": "deny", "limit": "2/minute"}]}
DEAD = "redis://127.0.0.1:1/0?deadline=50ms"


class RecordingObserver(Observer):
    """Records what it receives."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.latencies_us: list[int | None] = []
        self.errors: list[Exception] = []
        self.closed: int = 0

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        self.decisions.append(decision)
        self.latencies_us.append(latency_us)

    def failed(self, error: Exception, latency_us: int | None) -> None:
        self.errors.append(error)

    def close(self) -> None:
        self.closed += 1


def test_every_verb_that_decides_is_reported_once() -> None:
    observer = RecordingObserver()
    limiter = Limiter("2/minute", clock=ManualClock(), observers=[observer])
    decisions = [
        limiter.take("ann"),
        limiter.take_all([Charge("ann"), Charge("all", "9/s")]),
        limiter.take("ann"),
        limiter.reserve("bob").decision,
        limiter.wait("kim"),
    ]
    assert observer.decisions == decisions
    assert [decision.allowed for decision in decisions] == [True, True, False, True, True]
    assert all(latency_us is not None and latency_us >= 0 for latency_us in observer.latencies_us)


@pytest.mark.parametrize("limit", ["2/minute", "2/minute; 5/hour"])
def test_a_peek_is_not_reported(limit: str) -> None:
    observer = RecordingObserver()
    Limiter(limit, observers=[observer]).peek("ann")
    Limiter.from_rules(RULES, observers=[observer]).peek({"user": "ann"})
    assert observer.decisions == []


def test_several_limits_are_one_decision() -> None:
    observer = RecordingObserver()
    decision = Limiter("2/minute; 5/hour", observers=[observer]).take("ann")
    assert observer.decisions == [decision]


def test_slots_are_reported_whether_held_or_refused() -> None:
    observer = RecordingObserver()
    limiter = Limiter("1 slot", observers=[observer])
    with limiter.acquire("exports"), pytest.raises(RateLimited):
        limiter.acquire("exports")
    assert [decision.allowed for decision in observer.decisions] == [True, False]


def test_a_rulebook_reports_its_decisions_with_attributes() -> None:
    observer = RecordingObserver()
    limiter = Limiter.from_rules(RULES, clock=ManualClock(), observers=[observer])
    decisions = [
        limiter.check({"user": "ann"}),
        *limiter.check_together([BatchedCall({"user": "bob"}), BatchedCall({"user": "kim"})]),
        limiter.wait({"user": "ann"}),
        limiter.reserve({"user": "eve"}),
    ]
    assert observer.decisions == decisions
    users = [decision.attributes["user"] for decision in observer.decisions if decision.attributes]
    assert users == ["ann", "bob", "kim", "ann", "eve"]


async def test_async_limiters_report_alike() -> None:
    observer = RecordingObserver()
    async with AsyncLimiter("2/minute", clock=ManualClock(), observers=[observer]) as limiter:
        decisions: list[Decision] = [await limiter.take("ann"), await limiter.take_all([Charge("ann")])]
        decisions += [await limiter.wait("kim"), (await limiter.reserve("bob")).decision]
        await limiter.peek("ann")
    async with AsyncLimiter.from_rules(RULES, clock=ManualClock(), observers=[observer]) as rule_limiter:
        decisions += [await rule_limiter.check({"user": "ann"}), await rule_limiter.wait({"user": "ann"})]
        decisions += [await rule_limiter.reserve({"user": "bob"})]
        decisions += await rule_limiter.check_together([BatchedCall({"user": "kim"})])
        await rule_limiter.peek({"user": "ann"})
    async with AsyncLimiter("1 slot", observers=[observer]) as slots, await slots.acquire("exports"):
        decisions += [observer.decisions[-1]]
        with pytest.raises(RateLimited) as refusal:
            await slots.acquire("exports")
        decisions.append(refusal.value.decision)
    assert observer.decisions == decisions
    assert observer.closed == 3


@pytest.mark.parametrize(
    "decide",
    [
        lambda observers: Limiter("1/s", DEAD, observers=observers).take("ann"),
        lambda observers: Limiter("1/s", DEAD, observers=observers).wait("ann"),
        lambda observers: Limiter.from_rules(RULES, DEAD, observers=observers).check({"user": "ann"}),
        lambda observers: Limiter.from_rules(RULES, DEAD, observers=observers).reserve({"user": "ann"}),
    ],
)
def test_a_call_that_cannot_be_decided_is_reported(decide: Callable[[list[Observer]], Any]) -> None:
    observer = RecordingObserver()
    with pytest.raises(EngineUnavailable) as failure:
        decide([observer])
    assert observer.errors == [failure.value]
    assert observer.decisions == []


class SampleObserver(RecordingObserver):
    """Records a sample of the calls."""

    def __init__(self, sample: float, all_refusals: bool = True) -> None:
        super().__init__()
        self.sample, self.all_refusals = sample, all_refusals


def limiter_of_one_key(observers: list[Observer]) -> Callable[[], Decision]:
    limiter = Limiter("500/hour fixed", clock=ManualClock(), observers=observers)
    return lambda: limiter.take("ann")


def limiter_of_a_rule(observers: list[Observer]) -> Callable[[], Decision]:
    book = {"rules": [{"name": "api", "limit": "500/hour fixed"}]}
    limiter = Limiter.from_rules(book, clock=ManualClock(), observers=observers)
    return lambda: limiter.check({})


def limiter_of_a_shadow(observers: list[Observer]) -> Callable[[], Decision]:
    book = {"rules": [{"name": "api", "limit": "500/hour fixed", "mode": "shadow"}]}
    limiter = Limiter.from_rules(book, clock=ManualClock(), observers=observers)
    return lambda: limiter.check({})


@pytest.mark.parametrize("make", [limiter_of_one_key, limiter_of_a_rule, limiter_of_a_shadow])
def test_an_observer_of_a_sample_receives_its_share_and_all_refusals(
    make: Callable[[list[Observer]], Callable[[], Decision]],
) -> None:
    random.seed(7)
    tenth, part_of_it, refusals = SampleObserver(0.1), SampleObserver(0.05, all_refusals=False), SampleObserver(0)
    call = make([tenth, part_of_it, refusals])
    decisions = [call() for _ in range(1000)]
    refused = [decision for decision in decisions if decision.has_refusal]
    assert len(refused) == 500
    assert refusals.decisions == refused
    assert [each for each in tenth.decisions if each.has_refusal] == refused
    assert 20 <= len(tenth.decisions) - 500 <= 90
    # One number is drawn for all: who receives fewer calls receives some of those that others do.
    assert 20 <= len(part_of_it.decisions) <= 90
    assert {id(each) for each in part_of_it.decisions} <= {id(each) for each in tenth.decisions}
    # What was drawn is timed, and so is nothing else.
    timed = [latency_us is not None for latency_us in tenth.latencies_us]
    passes = [was_timed for was_timed, each in zip(timed, tenth.decisions, strict=True) if not each.has_refusal]
    assert all(passes)
    assert 20 <= sum(timed) - len(passes) <= 90
    assert None not in part_of_it.latencies_us


def test_calls_are_not_timed_if_no_observer_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = RecordingObserver()
    monkeypatch.setattr(RecordingObserver, "uses_latency", False)
    for make in (limiter_of_one_key, limiter_of_a_rule):
        make([observer])()
    assert observer.latencies_us == [None, None]


def test_an_observer_that_is_given_twice_receives_a_call_once() -> None:
    observer = RecordingObserver()
    Limiter("9/minute", observers=[observer, observer]).take("ann")
    assert len(observer.decisions) == 1


class FailingObserver(Observer):
    """Raises an error for every decision."""

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        raise RuntimeError("disk full")


def test_an_error_of_an_observer_is_logged_once_and_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    observer = RecordingObserver()
    limiter = Limiter("9/minute", observers=[FailingObserver(), observer])
    with caplog.at_level(logging.ERROR, "headgate"):
        assert [limiter.take("ann").allowed for _ in range(3)] == [True] * 3
    assert len(observer.decisions) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "headgate: the observer FailingObserver failed; its further errors of this kind are not logged."
    ]


def test_something_else_than_an_observer_is_refused() -> None:
    with pytest.raises(InvalidRule, match=r"observers= is a list of headgate.Observer objects; 'counts' is none"):
        Limiter("1/s", observers=["counts"])  # type: ignore[list-item]


def test_a_repeated_refusal_says_that_the_denial_cache_answered() -> None:
    clock = ManualClock()
    limiter = Limiter("1/minute", DenialCacheEngine(MemoryEngine(clock), clock=clock), clock=clock)
    outcomes = [limiter.take("ann").outcome for _ in range(3)]
    assert [isinstance(outcome, CachedOutcome) for outcome in outcomes] == [False, False, True]


def test_closing_a_limiter_closes_its_observers() -> None:
    observer = RecordingObserver()
    with Limiter("1/s", observers=[observer]):
        pass
    with Limiter.from_rules(RULES, observers=[observer]):
        pass
    assert observer.closed == 2
