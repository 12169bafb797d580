"""Shares of processes that know only their number: each has the rate divided by it, and at least one unit."""

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import YEAR, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.engines.layers.fallback.limit_share import equal_share, share
from headgate.limit_syntax import parse
from tests.engines.layers.test_limit_share import LIMITS


def rate(limit: Limit) -> Fraction | None:
    """Units per microsecond in the long run; None for calendars and slots, whose time cannot be stretched."""
    match limit:
        case TokenBucket():
            return Fraction(limit.amount, limit.period_us)
        case LeakyBucket():
            return Fraction(limit.rate, 1000 * 1_000_000)
        case Smooth():
            return Fraction(limit.args[0]) / 1_000_000
        case SlidingWindow():
            return Fraction(limit.amount, limit.cell_us * limit.cells)
        case SlidingLog():
            return Fraction(limit.amount, limit.period_us)
        case FixedWindow() if limit.unit is None:
            return Fraction(limit.amount, limit.period_us)
    return None


def divides_well(limit: Limit, count: int) -> bool:
    """Returns whether rounding costs at most a thousandth of the rate."""
    match limit:
        case TokenBucket() | Smooth():
            return True
        case LeakyBucket():
            return limit.rate >= 1000 * count
        case SlidingWindow() if limit.amount < count:
            return limit.cell_us >= 1000
        case FixedWindow() | SlidingLog() if limit.amount < count:
            return limit.period_us >= 1000
        case FixedWindow() | SlidingWindow() | SlidingLog():
            return limit.amount % count == 0 or limit.amount >= 1000 * count
    return False


def too_slow(limit: Limit, count: int) -> bool:
    """Returns whether a share would have less than nginx's thousandth of a unit per second."""
    return isinstance(limit, LeakyBucket) and limit.rate < count


@settings(max_examples=1000)
@given(LIMITS, st.integers(1, 60))
@example(LeakyBucket(100, 1, 0), 4)
@example(TokenBucket(5, 1, 2), 3)
@example(FixedWindow(2, 1), 3)
def test_equal_shares_together_have_the_rate_of_the_limit(limit: Limit, count: int) -> None:
    part = equal_share(limit, count)
    if part is None:
        assert too_slow(limit, count)
        return
    assert type(part) is type(limit)
    assert part.units_at_once == max(1, limit.units_at_once // count)
    whole, each = rate(limit), rate(part)
    if whole is not None and each is not None:
        assert each * count <= whole
        if divides_well(limit, count):
            assert each * count >= whole * Fraction(999, 1000)
    else:
        assert part.units_at_once * count <= max(limit.units_at_once, count)


@settings(max_examples=500)
@given(LIMITS, st.integers(1, 40))
def test_by_rank_the_rate_is_divided_among_all_and_whole_units_are_given_away(limit: Limit, count: int) -> None:
    parts = [part for rank in range(count) if (part := equal_share(limit, count, rank)) is not None]
    if too_slow(limit, count):
        assert parts == []
        return
    assert len(parts) == count
    assert min(part.units_at_once for part in parts) >= 1
    if not isinstance(limit, Smooth):
        assert sum(part.units_at_once for part in parts) == max(limit.units_at_once, count)
    whole = rate(limit)
    if whole is not None:
        assert sum(rate(part) or 0 for part in parts) <= whole


@pytest.mark.parametrize(
    ("text", "count", "part"),
    [
        ("100/s queue 0", 4, "25000/1000s queue 0"),
        ("100/s queue 2", 4, "25000/1000s queue 0"),
        ("100/s queue 9 delay 5", 4, "25000/1000s queue 1"),
        ("100/s burst 2", 4, "1/40ms"),
        ("5/s burst 2", 3, "1/600ms"),
        ("100/s burst 200", 4, "1/40ms burst 50"),
        ("2/s fixed", 3, "1/1500ms fixed"),
        ("2/day fixed", 3, "1/36h fixed"),
        ("3/s fixed", 4, "1/1333334us fixed"),
        ("2/s log", 3, "1/1500ms log"),
        ("2/s sliding", 3, "1/1500ms sliding"),
        ("3/s sliding", 4, "1/1333340us sliding"),
        ("7/s fixed", 4, "1/s fixed"),
        ("2/month fixed in Asia/Tokyo", 3, "1/month fixed in Asia/Tokyo"),
        ("2 slots", 3, "1 slots"),
    ],
)
def test_equal_shares_by_hand(text: str, count: int, part: str) -> None:
    assert str(equal_share(parse(text), count)) == part
    assert str(share(parse(text), count, None)) == part  # a member that knows no rank


def test_a_limit_that_is_too_slow_has_no_equal_share() -> None:
    assert equal_share(LeakyBucket(1, 900, 50), 4) is None
    assert equal_share(FixedWindow(1, 60 * YEAR / 1_000_000), 2) is None
    assert equal_share(SlidingWindow(1, 60 * YEAR / 1_000_000), 2) is None
    assert equal_share(SlidingLog(1, 60 * YEAR / 1_000_000), 2) is None
    assert equal_share(TokenBucket(1, 60 * YEAR / 1_000_000), 2) is None


def test_a_bucket_whose_period_cannot_be_written_keeps_one_unit_of_burst() -> None:
    assert str(equal_share(TokenBucket(999_983, 100 * 365 * 86400, 1), 10)) == "99998/36500d burst 1"
