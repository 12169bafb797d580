"""Limit shares: together never more than the whole limit, and none larger than a fair part."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import HORIZON_US, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.clock import ManualClock
from headgate.engines.layers.fallback.limit_share import share, units_for_rank
from headgate.engines.memory.engine import MemoryEngine
from headgate.limit_syntax import parse

AMOUNTS = st.integers(1, 2000)
SPANS = st.sampled_from([0.001, 0.25, 1, 7, 60, 3600, 86400])
WHOLE = ["100/s", "1000/day fixed", "60/minute sliding", "9/s log", "7 slots"]
CALENDAR = st.sampled_from(["day", "week", "month", "year"])
LIMITS = st.one_of(
    st.builds(TokenBucket, AMOUNTS, SPANS, st.integers(1, 2000)),
    st.builds(LeakyBucket, st.integers(90, 2000), SPANS, st.integers(0, 2000), st.none() | st.integers(0, 300)),
    st.builds(FixedWindow, AMOUNTS, SPANS),
    st.builds(FixedWindow, AMOUNTS, CALENDAR, st.sampled_from(["Asia/Shanghai", "Europe/Berlin"])),
    st.builds(SlidingWindow, AMOUNTS, SPANS, st.sampled_from([1, 10, 50])),
    st.builds(SlidingLog, AMOUNTS, SPANS),
    st.builds(Slots, AMOUNTS, SPANS),
    st.builds(Smooth, st.floats(0.01, 2000), st.sampled_from([1, 60]), burst=st.sampled_from([0, 1, 5])),
    st.builds(Smooth, st.floats(0.01, 2000), st.just(1), st.sampled_from([2, 30]), st.sampled_from([1.5, 3.0])),
)


def rate(limit: Limit) -> Fraction:
    """Units per microsecond in the long run; of windows, in each of them."""
    match limit:
        case TokenBucket():
            return Fraction(limit.amount, limit.period_us)
        case LeakyBucket():
            return Fraction(limit.rate, 1000 * 1_000_000)
        case Smooth():
            return Fraction(limit.args[0]) / 1_000_000
        case FixedWindow() | SlidingWindow() | SlidingLog() | Slots():
            return Fraction(limit.amount)
    raise AssertionError(limit)


def span(limit: Limit) -> object:
    """Returns the fields that a share has in common with its limit."""
    match limit:
        case FixedWindow():
            return limit.period_us, limit.unit, limit.zone
        case SlidingWindow():
            return limit.cut
        case SlidingLog():
            return limit.period_us
        case Slots():
            return limit.ttl_us
        case Smooth():
            return limit.args[1:]
    return None


@settings(max_examples=500)
@given(LIMITS, st.integers(1, 40))
def test_all_shares_together_are_at_most_the_limit_and_none_is_more_than_fair(limit: Limit, count: int) -> None:
    shares = [part for rank in range(count) if (part := share(limit, count, rank)) is not None]
    assert all(type(part) is type(limit) and span(part) == span(limit) for part in shares)
    assert sum(map(rate, shares)) <= rate(limit)
    if not isinstance(limit, Smooth):
        assert sum(part.units_at_once for part in shares) <= limit.units_at_once
        assert all(part.units_at_once <= -(-limit.units_at_once // count) for part in shares)
    else:
        stores = sum(Fraction(part.store) for part in shares if isinstance(part, Smooth))
        assert stores <= Fraction(limit.store) * (1 + Fraction(count, 2**52))  # doubles


@given(st.sampled_from(WHOLE), st.integers(1, 200))
def test_whole_units_are_given_away_exactly(text: str, count: int) -> None:
    limit = parse(text)
    shares = [share(limit, count, rank) for rank in range(count)]
    assert sum(part.units_at_once for part in shares if part is not None) == limit.units_at_once
    parts = [part.units_at_once if part is not None else 0 for part in shares]
    assert parts == sorted(parts, reverse=True)
    assert max(parts) - min(parts) <= 1


def test_a_token_bucket_keeps_its_rate_to_the_microsecond() -> None:
    shares = [share(TokenBucket(100, 1, 10), 3, rank) for rank in range(3)]
    assert [str(part) for part in shares] == ["1/30ms burst 4", "1/30ms burst 3", "1/30ms burst 3"]
    few = [share(TokenBucket(100, 1, 2), 3, rank) for rank in range(3)]
    assert [str(part) for part in few] == ["1/20ms", "1/20ms", "None"]
    assert sum(rate(part) for part in few if part is not None) == rate(TokenBucket(100, 1, 2))


def test_a_bucket_that_no_period_can_express_is_rounded_down() -> None:
    limit = TokenBucket(999_983, 100 * 365 * 86400)
    part = share(limit, 10, 0)
    assert part is not None
    assert rate(part) * 10 <= rate(limit)
    slow = TokenBucket(1, 10 * 365 * 86400, 10)  # fills in a hundred years: a larger part could not
    parts = [share(slow, 4, rank) for rank in range(4)]
    assert [None if part is None else part.units_at_once for part in parts] == [2, 2, 2, 2]


def test_a_share_too_slow_for_its_algorithm_is_none() -> None:
    assert share(LeakyBucket(1, 900, 50), 4, 0) is None
    assert share(Smooth(1, HORIZON_US / 1_000_000 - 1000, burst=0), 2, 0) is None


@pytest.mark.parametrize("text", ["100/s", "10/s queue 5", "5/s smooth", "3 slots"])
def test_a_single_member_has_the_whole_limit(text: str) -> None:
    limit = parse(text)
    assert share(limit, 1, 0) is limit


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_units(whole: int, count: int) -> None:
    assert sum(units_for_rank(whole, count, rank) for rank in range(count)) == whole


@given(LIMITS.filter(lambda limit: not isinstance(limit, Slots)), st.lists(st.integers(1, 5), max_size=5))
def test_units_in_use_are_the_units_taken(limit: Limit, costs: list[int]) -> None:
    meter = MemoryEngine(ManualClock()).meter(limit, "limit")
    taken = sum(cost for cost in costs if meter.decide("key", cost)[0])
    if not isinstance(limit, Smooth):
        assert limit.units_in_use(meter.decide("key", 0)) == taken
    else:
        assert bool(taken) == bool(limit.units_in_use(meter.decide("key", 0)))
    assert meter.decide("other", 0)[1] == limit.units_at_once
