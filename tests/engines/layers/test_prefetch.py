"""Leases: units of hot keys fetched ahead, in stories on a clock that is turned, and by real processes.

Several lease engines over one embedded engine are several processes to it.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.algorithms.decision import Receipt
from headgate.clock import ManualClock
from headgate.engines.layers.prefetch.engines import PrefetchEngine, guarantee, max_prefetch
from headgate.engines.layers.prefetch.prefetched_units import PrefetchTable
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.flow import run
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from tests.engines.layers.prefetch_harness import Kiosk

LEASED = ["1000/100s", "1000/day fixed", "1000/day sliding", "1000/day log", "1000/month fixed in Asia/Tokyo"]


@pytest.fixture
def kiosk() -> Iterator[Kiosk]:
    opened = Kiosk()
    yield opened
    opened.engine.close()


@pytest.mark.parametrize("text", LEASED)
def test_what_is_demanded_is_fetched_ahead_in_one_charge(text: str) -> None:
    kiosk = Kiosk(text)
    kiosk.takes(40)
    assert kiosk.warehouse.costs[:4] == [1, 1, 1, 1 + 4]  # the fourth call makes the key hot
    assert kiosk.warehouse.costs[4] == 1 + 9  # nine calls were made by then
    assert len(kiosk.warehouse.costs) == 7
    assert kiosk.engine.prefetched == 40 - 7
    kiosk.engine.close()


def test_a_cold_key_leases_nothing(kiosk: Kiosk) -> None:
    for _ in range(50):
        kiosk.takes(1)
        kiosk.clock.advance(0.034)
    assert kiosk.warehouse.costs == [1] * 50
    assert kiosk.engine.prefetched == 0


def test_a_key_that_was_hot_is_cold_after_a_hold_time(kiosk: Kiosk) -> None:
    kiosk.takes(100)
    kiosk.clock.advance(0.201)
    kiosk.engine.give_back_expired()
    kiosk.warehouse.costs.clear()
    kiosk.takes(3)
    assert kiosk.warehouse.costs == [1, 1, 1]


def test_no_more_is_held_than_the_bound() -> None:
    for units, most in ((None, 100), (7, 7)):
        kiosk = Kiosk(units=units)
        kiosk.takes(300)
        assert max(kiosk.warehouse.costs) == 1 + most == 1 + max_prefetch(parse("1000/day fixed"), units)
        kiosk.engine.close()


def test_near_the_edge_every_call_is_a_single_take(kiosk: Kiosk) -> None:
    passed = [decision.allowed for decision in kiosk.takes(1010)]
    assert passed == [True] * 1000 + [False] * 10
    assert kiosk.warehouse.costs[-11:] == [1] * 11
    assert kiosk.limiter.take("k").retry_after is not None


def test_a_lease_is_at_most_half_of_what_the_last_answer_left(kiosk: Kiosk) -> None:
    kiosk.plain.take("k", 900)
    kiosk.takes(100)
    costs = kiosk.warehouse.costs[1:]
    for number, cost in enumerate(costs):
        assert cost - 1 <= (100 - sum(costs[:number])) // 2


def test_a_refused_lease_is_asked_again_for_the_call_alone(kiosk: Kiosk) -> None:
    kiosk.takes(7)  # and one is left in stock
    assert kiosk.plain.take("k", 1000 - kiosk.counted() - 1)
    kiosk.warehouse.costs.clear()
    assert [decision.allowed for decision in kiosk.takes(3)] == [True, True, False]
    assert kiosk.warehouse.costs == [1 + 9, 1, 1]


@pytest.mark.parametrize("text", LEASED)
def test_what_is_left_is_given_back_when_its_time_is_over(text: str) -> None:
    kiosk = Kiosk(text)
    kiosk.takes(50)
    assert kiosk.counted() > 50
    kiosk.clock.advance(0.0999)
    kiosk.engine.give_back_expired()
    assert kiosk.counted() > 50
    kiosk.clock.advance(0.0001)
    kiosk.engine.give_back_expired()
    assert kiosk.counted() == (49 if text == "1000/100s" else 50)  # a bucket drains one in 0.1 s
    kiosk.engine.close()


def test_what_is_left_is_given_back_on_close(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    kiosk.takes(20, "other")
    kiosk.engine.close()
    assert (kiosk.counted(), kiosk.counted("other"), kiosk.engine.lost_units) == (50, 20, 0)
    kiosk.takes(10)  # an engine that was closed begins anew
    kiosk.engine.close()
    assert kiosk.counted() == 60


def test_a_lease_does_not_outlive_its_window() -> None:
    kiosk = Kiosk("1000/s fixed")
    kiosk.clock.set_us(1_700_000_000_950_000)
    kiosk.takes(50)
    kiosk.clock.advance(0.05)
    assert kiosk.limiter.take("k").remaining == 999  # a new window, and nothing of the old one in it
    assert kiosk.warehouse.returned == []  # what ended with its window need not be given back
    kiosk.engine.close()


def test_a_call_that_wants_more_than_is_left_gives_the_rest_back_first(kiosk: Kiosk) -> None:
    kiosk.takes(7)
    assert kiosk.counted() == 8
    kiosk.limiter.take("k", 500)
    assert kiosk.warehouse.returned == [1]
    assert kiosk.limiter.take("k", 400).allowed


def test_what_a_bucket_has_not_drained_is_given_back_on_close() -> None:
    kiosk = Kiosk("1000/s")
    kiosk.takes(50)
    kiosk.clock.advance(0.01)  # the lease lasts until its own water has drained, which is less than a hold time
    kiosk.engine.close()
    assert kiosk.counted() == 40


def test_calls_of_one_cost_leave_nothing_behind(kiosk: Kiosk) -> None:
    kiosk.takes(60, cost=7)
    assert kiosk.warehouse.returned == []
    assert all(cost % 7 == 0 for cost in kiosk.warehouse.costs)


@pytest.mark.parametrize("text", ["1000/100s", "700/s burst 1000", "1000/day fixed", "1000/day log"])
def test_a_leased_decision_says_what_single_takes_at_that_instant_would(text: str) -> None:
    kiosk, twin = Kiosk(text), Limiter(text, MemoryEngine(ManualClock()), name="n")
    for decision in kiosk.takes(40):
        single = twin.take("k")
        assert (decision.allowed, decision.remaining, decision.retry_after, decision.delay) == (
            *(single.allowed, single.remaining, single.retry_after, single.delay),
        )
        assert 0 <= single.outcome[3] - decision.outcome[3] <= (2 if text == "700/s burst 1000" else 0)
    kiosk.engine.close()


def test_a_peek_shows_what_is_held_here_as_well(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    assert kiosk.plain.peek("k").remaining < 950
    assert kiosk.limiter.peek("k").remaining == 950
    assert kiosk.plain.take("k", kiosk.plain.peek("k").remaining)
    assert not kiosk.plain.peek("k").allowed
    assert kiosk.limiter.peek("k").allowed
    assert kiosk.limiter.take("k").allowed


def test_a_refund_goes_into_the_stock_it_came_from(kiosk: Kiosk) -> None:
    decision = kiosk.takes(8)[-1]
    counted, remaining = kiosk.counted(), decision.remaining
    kiosk.limiter.refund(decision)
    kiosk.limiter.refund(decision)
    assert (kiosk.counted(), kiosk.warehouse.returned) == (counted, [])
    assert kiosk.limiter.take("k").remaining == remaining


def test_a_refund_of_another_charge_goes_into_the_count(kiosk: Kiosk) -> None:
    single = kiosk.takes(1)[0]
    kiosk.clock.advance(0.001)
    kiosk.takes(5)
    kiosk.limiter.refund(single)
    assert kiosk.warehouse.returned == [1]


def test_a_refund_after_its_lease_goes_into_the_count(kiosk: Kiosk) -> None:
    decisions = kiosk.takes(8)
    kiosk.clock.advance(0.1)
    for decision in decisions:
        kiosk.limiter.refund(decision)
    kiosk.engine.give_back_expired()
    assert kiosk.counted() == 0


def test_no_more_returns_into_a_stock_than_was_taken_from_it(kiosk: Kiosk) -> None:
    decision = kiosk.takes(5)[-1]
    meter: Any = decision.source
    for _ in range(20):  # a caller that forgets what it gave back
        meter.refund("k", 1, Receipt.from_outcome(decision.outcome, 1))
    batch = meter.table.batches["k"]
    assert (batch.unready, batch.receipt.cost) == (5, 5)  # the rest went to the inner engine, to judge


def test_a_reset_forgets_what_is_held(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    kiosk.limiter.reset("k")
    assert kiosk.counted() == 0
    kiosk.takes(1)
    kiosk.engine.close()
    assert (kiosk.counted(), kiosk.warehouse.returned) == (1, [])


def test_a_lease_that_arrives_after_a_reset_is_forgotten(kiosk: Kiosk) -> None:
    kiosk.warehouse.meanwhile = lambda: kiosk.limiter.reset("k")
    kiosk.takes(4)
    assert (kiosk.engine.lost_units, kiosk.counted()) == (4, 0)
    kiosk.warehouse.costs.clear()
    kiosk.takes(1)
    assert kiosk.warehouse.costs == [1]


def test_one_lease_at_a_time_is_on_its_way(kiosk: Kiosk) -> None:
    kiosk.warehouse.meanwhile = lambda: kiosk.takes(3)
    kiosk.takes(4)
    assert kiosk.warehouse.costs == [1, 1, 1, 1 + 4, 1, 1, 1]


def test_no_lease_is_asked_for_while_another_is_on_its_way_back(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    batch = kiosk.engine._hot_keys.remove_expired(kiosk.clock.now_us(), closing=True)[0]
    kiosk.warehouse.costs.clear()
    kiosk.takes(5)
    assert kiosk.warehouse.costs == [1] * 5
    run(kiosk.engine._hot_keys.give_back(batch))
    kiosk.takes(1)
    assert kiosk.warehouse.costs[-1] > 1


def test_a_failed_question_leaves_the_next_one_free_to_lease(kiosk: Kiosk) -> None:
    def fail() -> None:
        raise EngineUnavailable("nobody is there")

    kiosk.warehouse.meanwhile = fail
    with pytest.raises(EngineUnavailable):
        kiosk.takes(4)
    kiosk.takes(1)
    assert kiosk.warehouse.costs[-1] == 1 + 5


def test_a_changed_limit_gives_back_what_the_old_one_leased(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    kiosk.limiter.set_limit("500/day fixed", "k")
    assert kiosk.counted() == 50
    kiosk.takes(50)
    assert kiosk.limiter.peek("k").remaining == 400
    kiosk.limiter.set_limit("800/day fixed")  # and without naming the key, when it is next asked
    assert kiosk.limiter.take("k").remaining == 699


def test_what_paces_its_calls_is_passed_through() -> None:
    for text in ("100/s queue 900 nodelay", "1000/s smooth"):
        kiosk = Kiosk(text)
        kiosk.takes(20)
        assert kiosk.warehouse.costs == [1] * 20
        assert guarantee(parse(text), nodes=3).endswith("decided by the engine itself.")


def test_reservations_and_several_limits_are_decided_inside(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    counted = kiosk.counted()
    kiosk.limiter.reserve("k", 2)
    assert kiosk.counted() == counted + 2
    both = Limiter("1000/day fixed; 1000/hour fixed", kiosk.engine, clock=kiosk.clock)
    assert [both.take("k").remaining for _ in range(10)] == list(range(999, 989, -1))
    with pytest.raises(InvalidCharge, match="another engine"):
        kiosk.engine.decide_all([(kiosk.warehouse.meter(parse("1/s"), "x"), "k", 1)])
    with Limiter("2 slots", kiosk.engine, clock=kiosk.clock).acquire("k") as lease:
        assert lease


def test_units_that_cannot_be_given_back_are_counted_and_raise_nothing(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    held = kiosk.counted() - 50
    kiosk.warehouse.reachable = False
    kiosk.clock.advance(0.1)
    kiosk.engine.give_back_expired()
    assert kiosk.engine.lost_units == held > 0


def test_a_forked_child_forgets_without_giving_back(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    counted = kiosk.counted()
    kiosk.engine.reset_after_fork()
    kiosk.engine.close()
    assert (kiosk.counted(), kiosk.engine.prefetched) == (counted, 0)


def test_a_clock_that_steps_back_ends_what_is_held(kiosk: Kiosk) -> None:
    kiosk.takes(50)
    kiosk.clock.advance(-3600)
    kiosk.engine.give_back_expired()
    assert kiosk.counted() == 50


def test_demand_is_remembered_for_some_thousands_of_keys(kiosk: Kiosk) -> None:
    kiosk.takes(5, "held")
    meter: Any = kiosk.engine.meter(parse("1000/day fixed"), "n")
    table: PrefetchTable = meter.table
    for number in range(10_000):
        kiosk.takes(1, f"key {number}")
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
