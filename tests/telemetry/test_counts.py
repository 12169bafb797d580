"""Counts: each decision is counted once per rule, by second and minute, in bounded memory."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from headgate import (
    AdaptiveConcurrency,
    AdaptiveLimiter,
    AsyncLimiter,
    Charge,
    Counts,
    DecisionCounts,
    EngineUnavailable,
    InvalidRule,
    Limiter,
    ManualClock,
    RateLimited,
)
from headgate.algorithms.decision import Decision, DegradedOutcome, DetachedLimit, PrefetchedOutcome
from headgate.engines.layers.denial_cache.sync_engine import DenialCacheEngine
from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.prefetch import PrefetchEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.limit_syntax import parse
from headgate.telemetry.decision_counts import NO_RULE, OTHER_RULES
from headgate.telemetry.time_rings import CountRing

DEAD = "redis://127.0.0.1:1/0?deadline=50ms"


def rule(name: str, limit: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "key": "user", "missing": "deny", "limit": limit, **fields}


def test_a_limiter_without_rules_is_counted_under_its_name() -> None:
    counts, clock = Counts(clock=ManualClock()), ManualClock()
    named = Limiter("2/minute", name="login", clock=clock, observers=[counts])
    unnamed = Limiter("5/s", clock=clock, observers=[counts])
    for _ in range(3):
        named.take("ann")
        unnamed.take("ann")
    named.peek("ann")  # decides nothing
    assert counts.totals()["login"] == DecisionCounts(allowed=2, refused=1, near_limit=1)
    assert counts.totals()["5/s"].calls == 3


def test_each_rule_is_counted_by_its_verdict() -> None:
    counts = Counts(clock=ManualClock())
    rules = {"rules": [rule("small", "1/minute"), rule("large", "100/minute")]}
    limiter = Limiter.from_rules(rules, clock=ManualClock(), observers=[counts])
    for _ in range(3):
        limiter.check({"user": "ann"})
    assert counts.totals()["small"][:2] == (1, 2)
    assert counts.totals()["large"][:2] == (3, 0)


def test_a_rule_with_several_limits_is_counted_once_per_call() -> None:
    counts = Counts(clock=ManualClock())
    limiter = Limiter.from_rules(
        {"rules": [rule("both", "10/s; 2/hour")]}, clock=ManualClock(), observers=[counts]
    )
    for _ in range(3):
        limiter.check({"user": "ann"})
    assert (counts.totals()["both"].allowed, counts.totals()["both"].refused) == (2, 1)


def test_a_limiter_with_several_limits_is_counted_once_per_call() -> None:
    counts = Counts(clock=ManualClock())
    limiter = Limiter("10/s; 2/hour", name="both", clock=ManualClock(), observers=[counts])
    for _ in range(3):
        limiter.take("ann")
    limiter.take_all([Charge("bob"), Charge("all", "9/s")])
    assert (counts.totals()["both"].allowed, counts.totals()["both"].refused) == (3, 1)
    assert counts.totals()["9/s"].allowed == 1


def test_shadow_and_candidate_verdicts_are_counted_apart() -> None:
    counts = Counts(clock=ManualClock())
    rules = {"rules": [rule("login", "3/minute", candidate="1/minute"), rule("trial", "2/minute", mode="shadow")]}
    limiter = Limiter.from_rules(rules, clock=ManualClock(), observers=[counts])
    for _ in range(4):
        limiter.check({"user": "ann"})
    login, trial = counts.totals()["login"], counts.totals()["trial"]
    assert (login.allowed, login.refused) == (3, 1)
    assert (login.candidate_allowed, login.candidate_refused, login.candidate_calls) == (1, 3, 4)
    assert (trial.shadow_allowed, trial.shadow_refused, trial.shadow_calls, trial.calls) == (2, 2, 4, 0)


def test_a_missing_dimension_and_a_call_without_rules_are_counted() -> None:
    counts = Counts(clock=ManualClock())
    rules = {"rules": [{**rule("login", "3/minute"), "when": {"path": "/login"}}]}
    limiter = Limiter.from_rules(rules, clock=ManualClock(), observers=[counts])
    limiter.check({"path": "/login"})
    limiter.check({"path": "/"})
    assert counts.totals()["login"].refused == 1
    assert counts.totals()[NO_RULE].allowed == 1


def test_a_delayed_call_is_allowed_and_delayed() -> None:
    counts = Counts(clock=ManualClock())
    limiter = Limiter("10/s burst 1", name="paced", clock=ManualClock(), observers=[counts])
    limiter.wait("ann")
    limiter.wait("ann")
    assert counts.totals()["paced"][:4] == (2, 0, 0, 1)


def test_the_layer_that_decided_is_counted() -> None:
    clock = ManualClock()
    counts = Counts(clock=clock)
    engine = DenialCacheEngine(MemoryEngine(clock))
    limiter = Limiter("1/minute", engine, name="login", clock=clock, observers=[counts])
    for _ in range(4):
        limiter.take("ann")
    total = counts.totals()["login"]
    assert (total.allowed, total.refused, total.by_denial_cache, total.by_engine) == (1, 3, 2, 2)

    class LimitWithName(DetachedLimit):
        name = "layers"

    plain = (True, 90, 0, 0, 0, 0, 0)
    source = LimitWithName(parse("100/s"))
    for outcome in (PrefetchedOutcome(plain), DegradedOutcome(plain), plain):
        counts.decided(Decision(outcome, source, "ann", 1), 5, False)
    layers = counts.totals()["layers"]
    assert (layers.by_prefetch, layers.by_fallback, layers.degraded, layers.by_engine) == (1, 1, 1, 1)


@pytest.mark.parametrize("is_observed", [True, False])
def test_prefetched_units_are_counted_through_all_layers(is_observed: bool) -> None:
    clock = ManualClock()
    counts = Counts(clock=clock)
    prefetch = PrefetchEngine(MemoryEngine(clock), clock=clock)
    engine = FallbackEngine(DenialCacheEngine(prefetch), clock=clock)
    observers = [counts] if is_observed else []
    with Limiter("1000/minute", engine, name="login", clock=clock, observers=observers) as limiter:
        outcomes = [limiter.take("ann").outcome for _ in range(50)]
    assert 0 < prefetch.prefetched < 50
    marked = sum(isinstance(outcome, PrefetchedOutcome) for outcome in outcomes)
    if is_observed:
        assert marked == prefetch.prefetched == counts.totals()["login"].by_prefetch
    else:
        assert marked < prefetch.prefetched  # a mark costs time, and nobody looks at it


def test_an_adaptive_limiter_sheds() -> None:
    counts = Counts()
    limiter = AdaptiveLimiter(AdaptiveConcurrency(initial=2), name="backend", observers=[counts])
    calls = [limiter.acquire(), limiter.acquire()]
    with pytest.raises(RateLimited):
        limiter.acquire()
    for call in calls:
        call.success()
    backend = counts.totals()["backend"]
    assert (backend.allowed, backend.refused, backend.shed, backend.by_engine) == (2, 0, 1, 2)


@pytest.mark.parametrize(
    ("limit", "near"),
    [
        ({"adaptive": "concurrency", "between": [1, 1000]}, 4),  # 3, 2, 1 and 0 of 20 are left
        ({"adaptive": "rate", "target": "p90 1s", "between": [10, 200]}, 4),  # likewise, of a tenth of 200
    ],
)
def test_a_call_is_near_the_limit_that_an_adaptive_rule_has_now(limit: dict[str, Any], near: int) -> None:
    counts = Counts(clock=ManualClock())
    rules = {"rules": [{"name": "app", "limit": limit}]}
    limiter = Limiter.from_rules(rules, clock=ManualClock(), observers=[counts])
    decisions = [limiter.check({}) for _ in range(25)]
    app = counts.totals()["app"]
    assert (app.allowed, app.refused, app.near_limit) == (20, 5, near)
    for decision in decisions:
        limiter.finish(decision)


def test_an_error_is_counted_under_no_rule() -> None:
    counts = Counts()
    limiter = Limiter("1/minute", DEAD, observers=[counts])
    with pytest.raises(EngineUnavailable):
        limiter.take("ann")
    assert counts.totals() == {NO_RULE: DecisionCounts(errors=1)}


async def test_the_async_limiter_is_counted() -> None:
    counts = Counts(clock=ManualClock())
    limiter = AsyncLimiter("2/minute", name="login", clock=ManualClock(), observers=[counts])
    await asyncio.gather(*(limiter.take("ann") for _ in range(5)))
    assert counts.totals()["login"][:2] == (2, 3)


def test_seconds_stay_for_two_minutes_and_minutes_for_25_hours() -> None:
    clock = ManualClock(1_700_000_000_000_000)
    counts = Counts(clock=clock)
    limiter = Limiter("1000000/s", name="api", clock=clock, observers=[counts])
    for _ in range(26 * 60):
        limiter.take("ann")
        clock.advance(60)
    assert counts.last(seconds=120)["api"].allowed == 1  # the last call is 60 s old; the one before it 120
    assert counts.last(minutes=1500)["api"].allowed == 1499
    assert counts.last(minutes=5)["api"].allowed == 4
    assert counts.totals()["api"].allowed == 26 * 60
    assert counts.last(seconds=30) == {}
    assert [row.allowed for row in counts.series("api", minutes=4)] == [1, 1, 1, 0]
    assert [row.allowed for row in counts.series("nobody", minutes=2)] == [0, 0]


def test_a_clock_that_is_set_back_or_far_ahead_loses_no_new_counts() -> None:
    clock = ManualClock(1_700_000_000_000_000)
    counts = Counts(clock=clock)
    limiter = Limiter("1000000/s", name="api", clock=clock, observers=[counts])
    limiter.take("ann")
    clock.advance(10 * 365 * 86400)
    limiter.take("ann")
    clock.set_us(1_700_000_000_000_000 + 5_000_000)
    limiter.take("ann")
    assert counts.totals()["api"].calls == 3
    assert counts.last(seconds=60)["api"].calls >= 1
    assert [row.calls for row in counts.series("api", seconds=1)] == [1]


def test_threads_lose_no_count() -> None:
    counts = Counts()
    # The limit has a clock that stands: on a busy machine the calls may take longer than a unit to refill.
    limiter = Limiter("1000/hour", name="api", clock=ManualClock(), observers=[counts])

    def call() -> None:
        for _ in range(5000):
            limiter.take("ann")

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        counts.last(seconds=1)  # empties the lists while they grow
    total = counts.totals()["api"]
    assert (total.allowed, total.refused) == (1000, 39_000)


def test_rules_beyond_the_bound_are_counted_together() -> None:
    counts = Counts(clock=ManualClock(), max_rules=2)
    for number in range(5):
        Limiter("2/minute", name=f"rule {number}", clock=ManualClock(), observers=[counts]).take("ann")
    totals = counts.totals()
    assert set(totals) == {"rule 0", "rule 1", OTHER_RULES}
    assert totals[OTHER_RULES].allowed == 3


def test_many_meters_are_forgotten_and_counted_on() -> None:
    counts = Counts(clock=ManualClock())
    for _ in range(5000):
        Limiter("2/minute", name="one", clock=ManualClock(), observers=[counts]).take("ann")
    assert counts.totals()["one"].allowed == 5000


def test_a_forked_child_starts_empty() -> None:
    counts = Counts()
    limiter = Limiter("1000/s", name="api", observers=[counts])
    limiter.take("ann")
    child = os.fork()
    if child == 0:
        limiter.take("ann")
        os._exit(counts.totals()["api"].allowed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert counts.totals()["api"].allowed == 1


@pytest.mark.parametrize("span", [{}, {"seconds": 1, "minutes": 1}, {"seconds": 0}, {"minutes": 1.5}])
def test_a_span_is_seconds_or_minutes(span: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule, match="seconds="):
        Counts().last(**span)


def test_max_rules_is_a_number() -> None:
    with pytest.raises(InvalidRule, match="max_rules"):
        Counts(max_rules=0)


def test_a_ring_keeps_the_largest_number_that_fits() -> None:
    ring = CountRing(120)
    ring.add(1000, DecisionCounts(allowed=2**32 - 2))
    ring.add(1000, DecisionCounts(allowed=5, refused=1))
    assert ring.sum(1000, 1000)[:2] == (2**32 - 1, 1)


def test_counts_have_shares_and_sums() -> None:
    counts = DecisionCounts(allowed=6, refused=1, shed=3).plus(DecisionCounts(delayed=2))
    assert (counts.calls, counts.refused_share, counts.delayed) == (10, 0.4, 2)
    assert DecisionCounts().refused_share == 0
    assert counts.as_dict()["degraded"] == 0
