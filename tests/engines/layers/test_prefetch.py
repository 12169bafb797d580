"""Prefetched units of hot keys: stories on a manual clock, and real processes.

Several lease engines over one embedded engine are several processes to it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.algorithms.decision import Receipt
from headgate.clock import ManualClock
from headgate.engines.layers.prefetch import PrefetchEngine, guarantee, max_prefetch
from headgate.engines.layers.prefetch.prefetched_units import PrefetchTable
from headgate.engines.layers.prefetch.sync_give_back import give_back
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from tests.engines.layers.prefetch_harness import PrefetchHarness

PREFETCHED = ["1000/100s", "1000/day fixed", "1000/day sliding", "1000/day log", "1000/month fixed in Asia/Tokyo"]


@pytest.fixture
def harness() -> Iterator[PrefetchHarness]:
    opened = PrefetchHarness()
    yield opened
    opened.engine.close()


@pytest.mark.parametrize("text", PREFETCHED)
def test_recent_demand_is_prefetched_in_one_charge(text: str) -> None:
    harness = PrefetchHarness(text)
    harness.takes(40)
    assert harness.warehouse.costs[:4] == [1, 1, 1, 1 + 4]  # the fourth call makes the key hot
    assert harness.warehouse.costs[4] == 1 + 9  # nine calls were made by then
    assert len(harness.warehouse.costs) == 7
    assert harness.engine.prefetched == 40 - 7
    harness.engine.close()


def test_a_cold_key_leases_nothing(harness: PrefetchHarness) -> None:
    for _ in range(50):
        harness.takes(1)
        harness.clock.advance(0.034)
    assert harness.warehouse.costs == [1] * 50
    assert harness.engine.prefetched == 0


def test_a_key_that_was_hot_is_cold_after_a_hold_time(harness: PrefetchHarness) -> None:
    harness.takes(100)
    harness.clock.advance(0.201)
    harness.engine.give_back_expired()
    harness.warehouse.costs.clear()
    harness.takes(3)
    assert harness.warehouse.costs == [1, 1, 1]


def test_no_more_is_held_than_the_bound() -> None:
    for units, most in ((None, 100), (7, 7)):
        harness = PrefetchHarness(units=units)
        harness.takes(300)
        assert max(harness.warehouse.costs) == 1 + most == 1 + max_prefetch(parse("1000/day fixed"), units)
        harness.engine.close()


def test_near_the_edge_every_call_is_a_single_take(harness: PrefetchHarness) -> None:
    passed = [decision.allowed for decision in harness.takes(1010)]
    assert passed == [True] * 1000 + [False] * 10
    assert harness.warehouse.costs[-11:] == [1] * 11
    assert harness.limiter.take("k").retry_after is not None


def test_a_prefetch_is_at_most_half_of_the_remaining_units(harness: PrefetchHarness) -> None:
    harness.plain.take("k", 900)
    harness.takes(100)
    costs = harness.warehouse.costs[1:]
    for number, cost in enumerate(costs):
        assert cost - 1 <= (100 - sum(costs[:number])) // 2


def test_a_refused_prefetch_is_retried_for_the_call_alone(harness: PrefetchHarness) -> None:
    harness.takes(7)  # and one is left in stock
    assert harness.plain.take("k", 1000 - harness.counted() - 1)
    harness.warehouse.costs.clear()
    assert [decision.allowed for decision in harness.takes(3)] == [True, True, False]
    assert harness.warehouse.costs == [1 + 9, 1, 1]


@pytest.mark.parametrize("text", PREFETCHED)
def test_unused_units_are_given_back_after_the_hold_time(text: str) -> None:
    harness = PrefetchHarness(text)
    harness.takes(50)
    assert harness.counted() > 50
    harness.clock.advance(0.0999)
    harness.engine.give_back_expired()
    assert harness.counted() > 50
    harness.clock.advance(0.0001)
    harness.engine.give_back_expired()
    assert harness.counted() == (49 if text == "1000/100s" else 50)  # a bucket drains one in 0.1 s
    harness.engine.close()


def test_unused_units_are_given_back_on_close(harness: PrefetchHarness) -> None:
    harness.takes(50)
    harness.takes(20, "other")
    harness.engine.close()
    assert (harness.counted(), harness.counted("other"), harness.engine.lost_units) == (50, 20, 0)
    harness.takes(10)  # an engine that was closed begins anew
    harness.engine.close()
    assert harness.counted() == 60


def test_a_lease_does_not_outlive_its_window() -> None:
    harness = PrefetchHarness("1000/s fixed")
    harness.clock.set_us(1_700_000_000_950_000)
    harness.takes(50)
    harness.clock.advance(0.05)
    assert harness.limiter.take("k").remaining == 999  # a new window, and nothing of the old one in it
    assert harness.warehouse.returned == []  # what ended with its window need not be given back
    harness.engine.close()


def test_a_call_that_wants_more_than_is_left_gives_the_rest_back_first(harness: PrefetchHarness) -> None:
    harness.takes(7)
    assert harness.counted() == 8
    harness.limiter.take("k", 500)
    assert harness.warehouse.returned == [1]
    assert harness.limiter.take("k", 400).allowed


def test_undrained_units_of_a_bucket_are_given_back_on_close() -> None:
    harness = PrefetchHarness("1000/s")
    harness.takes(50)
    harness.clock.advance(0.01)  # the lease lasts until its own water has drained, which is less than a hold time
    harness.engine.close()
    assert harness.counted() == 40


def test_calls_of_one_cost_leave_nothing_behind(harness: PrefetchHarness) -> None:
    harness.takes(60, cost=7)
    assert harness.warehouse.returned == []
    assert all(cost % 7 == 0 for cost in harness.warehouse.costs)


@pytest.mark.parametrize("text", ["1000/100s", "700/s burst 1000", "1000/day fixed", "1000/day log"])
def test_a_prefetched_decision_says_what_single_takes_at_that_instant_would(text: str) -> None:
    harness, twin = PrefetchHarness(text), Limiter(text, MemoryEngine(ManualClock()), name="n")
    for decision in harness.takes(40):
        single = twin.take("k")
        assert (decision.allowed, decision.remaining, decision.retry_after, decision.delay) == (
            *(single.allowed, single.remaining, single.retry_after, single.delay),
        )
        assert 0 <= single.outcome[3] - decision.outcome[3] <= (2 if text == "700/s burst 1000" else 0)
    harness.engine.close()


def test_a_peek_shows_what_is_held_here_as_well(harness: PrefetchHarness) -> None:
    harness.takes(50)
    assert harness.plain.peek("k").remaining < 950
    assert harness.limiter.peek("k").remaining == 950
    assert harness.plain.take("k", harness.plain.peek("k").remaining)
    assert not harness.plain.peek("k").allowed
    assert harness.limiter.peek("k").allowed
    assert harness.limiter.take("k").allowed


def test_a_refund_goes_into_the_stock_it_came_from(harness: PrefetchHarness) -> None:
    decision = harness.takes(8)[-1]
    counted, remaining = harness.counted(), decision.remaining
    harness.limiter.refund(decision)
    harness.limiter.refund(decision)
    assert (harness.counted(), harness.warehouse.returned) == (counted, [])
    assert harness.limiter.take("k").remaining == remaining


def test_a_refund_of_another_charge_goes_into_the_count(harness: PrefetchHarness) -> None:
    single = harness.takes(1)[0]
    harness.clock.advance(0.001)
    harness.takes(5)
    harness.limiter.refund(single)
    assert harness.warehouse.returned == [1]


def test_a_refund_after_its_lease_goes_into_the_count(harness: PrefetchHarness) -> None:
    decisions = harness.takes(8)
    harness.clock.advance(0.1)
    for decision in decisions:
        harness.limiter.refund(decision)
    harness.engine.give_back_expired()
    assert harness.counted() == 0


def test_no_more_returns_into_a_stock_than_was_taken_from_it(harness: PrefetchHarness) -> None:
    decision = harness.takes(5)[-1]
    meter: Any = decision.source
    for _ in range(20):  # a caller that forgets what it gave back
        meter.refund("k", 1, Receipt.from_outcome(decision.outcome, 1))
    batch = meter.table.batches["k"]
    assert (batch.unready, batch.receipt.cost) == (5, 5)  # the rest went to the inner engine, to judge


def test_a_reset_forgets_what_is_held(harness: PrefetchHarness) -> None:
    harness.takes(50)
    harness.limiter.reset("k")
    assert harness.counted() == 0
    harness.takes(1)
    harness.engine.close()
    assert (harness.counted(), harness.warehouse.returned) == (1, [])


def test_a_lease_that_arrives_after_a_reset_is_forgotten(harness: PrefetchHarness) -> None:
    harness.warehouse.meanwhile = lambda: harness.limiter.reset("k")
    harness.takes(4)
    assert (harness.engine.lost_units, harness.counted()) == (4, 0)
    harness.warehouse.costs.clear()
    harness.takes(1)
    assert harness.warehouse.costs == [1]


def test_one_lease_at_a_time_is_on_its_way(harness: PrefetchHarness) -> None:
    harness.warehouse.meanwhile = lambda: harness.takes(3)
    harness.takes(4)
    assert harness.warehouse.costs == [1, 1, 1, 1 + 4, 1, 1, 1]


def test_nothing_is_prefetched_while_units_are_being_given_back(harness: PrefetchHarness) -> None:
    harness.takes(50)
    batch = harness.engine._hot_keys.remove_expired(harness.clock.now_us(), closing=True)[0]
    harness.warehouse.costs.clear()
    harness.takes(5)
    assert harness.warehouse.costs == [1] * 5
    give_back(harness.engine._hot_keys, batch)
    harness.takes(1)
    assert harness.warehouse.costs[-1] > 1


def test_a_failed_question_leaves_the_next_one_free_to_lease(harness: PrefetchHarness) -> None:
    def fail() -> None:
        raise EngineUnavailable("nobody is there")

    harness.warehouse.meanwhile = fail
    with pytest.raises(EngineUnavailable):
        harness.takes(4)
    harness.takes(1)
    assert harness.warehouse.costs[-1] == 1 + 5


def test_a_changed_limit_gives_back_what_the_old_one_prefetched(harness: PrefetchHarness) -> None:
    harness.takes(50)
    harness.limiter.set_limit("500/day fixed", "k")
    assert harness.counted() == 50
    harness.takes(50)
    assert harness.limiter.peek("k").remaining == 400
    harness.limiter.set_limit("800/day fixed")  # and without naming the key, when it is next asked
    assert harness.limiter.take("k").remaining == 699


def test_limits_that_delay_calls_are_not_prefetched() -> None:
    for text in ("100/s queue 900 nodelay", "1000/s smooth"):
        harness = PrefetchHarness(text)
        harness.takes(20)
        assert harness.warehouse.costs == [1] * 20
        assert guarantee(parse(text), nodes=3).endswith("decided by the engine itself.")


def test_reservations_and_several_limits_are_decided_inside(harness: PrefetchHarness) -> None:
    harness.takes(50)
    counted = harness.counted()
    harness.limiter.reserve("k", 2)
    assert harness.counted() == counted + 2
    both = Limiter("1000/day fixed; 1000/hour fixed", harness.engine, clock=harness.clock)
    assert [both.take("k").remaining for _ in range(10)] == list(range(999, 989, -1))
    with pytest.raises(InvalidCharge, match="another engine"):
        harness.engine.decide_all([(harness.warehouse.meter(parse("1/s"), "x"), "k", 1)])
    with Limiter("2 slots", harness.engine, clock=harness.clock).acquire("k") as lease:
        assert lease


def test_units_that_cannot_be_given_back_are_counted_and_raise_nothing(harness: PrefetchHarness) -> None:
    harness.takes(50)
    held = harness.counted() - 50
    harness.warehouse.reachable = False
    harness.clock.advance(0.1)
    harness.engine.give_back_expired()
    assert harness.engine.lost_units == held > 0


def test_a_forked_child_forgets_without_giving_back(harness: PrefetchHarness) -> None:
    harness.takes(50)
    counted = harness.counted()
    harness.engine.reset_after_fork()
    harness.engine.close()
    assert (harness.counted(), harness.engine.prefetched) == (counted, 0)


def test_a_clock_that_steps_back_ends_what_is_held(harness: PrefetchHarness) -> None:
    harness.takes(50)
    harness.clock.advance(-3600)
    harness.engine.give_back_expired()
    assert harness.counted() == 50


def test_demand_is_remembered_for_some_thousands_of_keys(harness: PrefetchHarness) -> None:
    harness.takes(5, "held")
    meter: Any = harness.engine.meter(parse("1000/day fixed"), "n")
    table: PrefetchTable = meter.table
    for number in range(10_000):
        harness.takes(1, f"key {number}")
    assert len(table.demand_by_key) <= 4096 + 1
    assert "held" in table.batches
    assert "held" in table.demand_by_key


def test_options_that_cannot_be_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"hold_us": 0}, {"units": 0}, {"units": 1.5}]
    for options in wrong:
        with pytest.raises(InvalidRule):
            PrefetchEngine(MemoryEngine(), **options)


def test_the_law_is_printed_with_its_numbers() -> None:
    assert guarantee(parse("1000/s"), nodes=4) == (
        "1000/s, prefetched by 4 processes, at most 100 units each: over any span at most 400 units more are "
        "admitted than the limit alone admits, and at most 400 units are kept from others, for at most 100 ms."
    )
    assert "in any window not one unit more is admitted" in guarantee(parse("1000/s fixed"), units=5, nodes=2)
