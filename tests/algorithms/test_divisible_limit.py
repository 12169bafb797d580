"""A divided limit: a bucket that admits no more than the limit does."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, MAX_UNITS, QuotaUnits, quota_units
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import DAY, HOUR, SECOND, UNLIMITED
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.token_bucket import TokenBucket
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse


@pytest.mark.parametrize(
    ("text", "amount", "seconds", "burst"),
    [
        ("100/s burst 200", 10**8, 10**6, 200),
        ("1/s", 10**6, 10**6, 1),
        ("999/s", 999 * 10**6, 10**6, 999),
        ("1000/s", 10**6, 10**3, 1000),
        ("1000000/s burst 5", 10**6, 1, 5),
        ("999999/s burst 5", 999_999_000, 10**3, 5),
        ("5000/3ms", 1_666_666, 1, 5000),
        ("1000000000/s", 10**9, 1, 10**9),
        ("10/minute", 166_666_666, 10**9, 10),
        ("10/s queue 5", 10**7, 10**6, 6),
        ("10/s queue 5 nodelay", 10**7, 10**6, 6),
        ("100/minute fixed", 1_500_000, 10**6, 10),
        ("100/minute sliding", 1_500_000, 10**6, 10),
        ("100/minute log", 1_500_000, 10**6, 10),
        ("2/s fixed", 10**6, 10**6, 1),
        ("1/365d", 31, 10**9, 1),
    ],
)
def test_limits_as_they_are_divided(text: str, amount: int, seconds: int, burst: int) -> None:
    assert quota_units(parse(text)) == QuotaUnits(amount, seconds * SECOND, burst)


def test_windows_of_a_calendar_are_taken_for_the_longest() -> None:
    month = quota_units(parse("1000/month fixed in Europe/Berlin"))
    assert month.amount == 900 * month.period_us // (31 * DAY + HOUR)
    day = quota_units(parse("1000/day fixed in Europe/Berlin"))
    assert day.amount == 900 * day.period_us // (25 * HOUR)
    assert month.burst == day.burst == 100


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10 slots", "slots are held"),
        ("10/s smooth", "wait for each other"),
        ("1/minute fixed", "at least 2 units"),
        ("1000000001/s burst 5", "10\\^9 units a second"),
        ("1000000/s burst 1000000001", "at once"),
        ("1/12000d", "less than one in 10\\^9 seconds"),
    ],
)
def test_an_indivisible_limit_raises_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidRule, match=f'^"{text}" cannot be divided among holders: .*{why}'):
        quota_units(parse(text))


def test_an_unlimited_rule_cannot_be_divided() -> None:
    with pytest.raises(InvalidRule, match="it has no rate"):
        quota_units(UNLIMITED)


@given(st.integers(1, 10**9), st.integers(1, 10**13), st.integers(1, 10**6))
def test_a_rate_is_kept_or_rounded_down(amount: int, period_us: int, burst: int) -> None:
    assume(amount * SECOND <= MAX_UNITS * period_us)
    try:
        limit = TokenBucket(amount, period_us / SECOND, burst)
    except InvalidRule:
        assume(False)
    divided = quota_units(limit)
    true, rounded = Fraction(limit.amount, limit.period_us), Fraction(divided.amount, divided.period_us)
    assert divided.amount <= MAX_UNITS
    assert divided.burst == burst
    assert rounded <= true
    assert true - rounded < Fraction(1, divided.period_us)
    if true >= Fraction(1, 1000 * SECOND):
        assert true - rounded < true / 10**6


@given(st.integers(2, 10**6), st.integers(1, 10**9))
def test_a_window_and_its_bucket_pass_as_much_in_any_period(amount: int, period_ms: int) -> None:
    divided = quota_units(SlidingLog(amount, period_ms / 1000))
    passes = divided.burst + Fraction(divided.amount, divided.period_us) * period_ms * 1000
    assert passes <= amount
    assert passes > amount * (1 - Fraction(1, 10**6)) or period_ms > 10**6


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_queue_passes_at_once(rate: int, queue: int) -> None:
    divided = quota_units(LeakyBucket(rate, 1, queue))
    assert Fraction(divided.amount * SECOND, divided.period_us) == rate
    assert divided.burst == queue + 1


@given(st.integers(1, MAX_UNITS), st.integers(1, MAX_UNITS))
def test_the_least_part_lets_something_pass(amount: int, burst: int) -> None:
    divided = QuotaUnits(amount, SECOND, burst)
    assert 1 <= divided.least <= ALL_GRANT_UNITS
    assert min(amount, burst) * divided.least // ALL_GRANT_UNITS == 1 or divided.least == 1
    assert min(amount, burst) * (divided.least - 1) // ALL_GRANT_UNITS == 0


@given(st.integers(1, MAX_UNITS), st.integers(0, 10**12), st.integers(0, 10**12))
def test_demand_is_rounded_up_to_grant_units(amount: int, units: int, elapsed_us: int) -> None:
    divided = QuotaUnits(amount, 1000 * SECOND, 1)
    grains = divided.grains(units, elapsed_us)
    allowed = Fraction(amount * grains, ALL_GRANT_UNITS) * max(1, elapsed_us) / divided.period_us
    assert (
        grains == ALL_GRANT_UNITS
        or units <= allowed < units + Fraction(amount * elapsed_us + 1, ALL_GRANT_UNITS * divided.period_us) + 1
    )
