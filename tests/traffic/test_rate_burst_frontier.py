"""The frontier agrees with the token bucket itself, exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms import token_bucket
from headgate.algorithms.decision import ALLOWED
from headgate.limit_syntax import parse
from headgate.traffic.rate_burst_frontier import (
    RATES,
    Rate,
    count_refused,
    frontier_point,
    quantile,
    smallest_burst,
)

TIMES_US = st.lists(st.integers(0, 300_000_000), min_size=1, max_size=60).map(sorted)
SOME_RATES = st.sampled_from(RATES)


def refused_by_the_model(rate: Rate, burst: int, times_us: list[int], costs: list[int]) -> int:
    limit = parse(f"{rate} burst {burst}")
    assert isinstance(limit, token_bucket.TokenBucket)
    state, refused = None, 0
    for time_us, cost in zip(times_us, costs, strict=True):
        outcome, state = token_bucket.decide(limit, state, time_us, cost)
        refused += not outcome[ALLOWED]
    return refused


@given(SOME_RATES, TIMES_US)
def test_the_smallest_burst_refuses_nobody_and_less_refuses_somebody(rate: Rate, times_us: list[int]) -> None:
    burst = smallest_burst(rate, times_us)
    ones = [1] * len(times_us)
    assert refused_by_the_model(rate, burst, times_us, ones) == 0
    if burst > 1:
        assert refused_by_the_model(rate, burst - 1, times_us, ones) > 0
    assert smallest_burst(rate, times_us, ones) == burst


@given(SOME_RATES, st.lists(st.tuples(st.integers(0, 10**8), st.integers(1, 50)), min_size=1, max_size=40))
def test_with_costs(rate: Rate, calls: list[tuple[int, int]]) -> None:
    times_us, costs = (list(column) for column in zip(*sorted(calls), strict=True))
    burst = smallest_burst(rate, times_us, costs)
    assert refused_by_the_model(rate, burst, times_us, costs) == 0
    if burst > max(costs):
        assert refused_by_the_model(rate, burst - 1, times_us, costs) > 0


@given(SOME_RATES, st.integers(1, 20), TIMES_US)
def test_refusals_are_those_of_the_model(rate: Rate, burst: int, times_us: list[int]) -> None:
    assert count_refused(rate, burst, times_us) == refused_by_the_model(rate, burst, times_us, [1] * len(times_us))


@given(TIMES_US)
def test_a_faster_rate_never_needs_a_larger_burst(times_us: list[int]) -> None:
    bursts = [smallest_burst(rate, times_us) for rate in RATES]
    assert bursts == sorted(bursts, reverse=True)


def test_quantiles_over_keys() -> None:
    point = frontier_point(Rate(1, 1_000_000), range(1, 1001))
    assert point[1:] == (500, 900, 990, 999, 1000)
    assert quantile([7], 0.5) == 7
