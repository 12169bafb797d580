"""The token bucket: stories in seconds, and the numbers it must get exactly right.

The reason for its length: one algorithm, told on one key class.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import HORIZON_US, SECOND, YEAR
from headgate.algorithms.token_bucket import (
    DetailedState,
    State,
    TokenBucket,
    convert_pace,
    decide,
    pack,
    refund,
    unpack,
)
from headgate.errors import InvalidRule

BASE_US = 1_700_000_000_000_000
LONG = 10**9


class TokenBucketKey:
    """One count's life. Times are seconds after BASE_US."""

    def __init__(self, limit: TokenBucket) -> None:
        self.limit = limit
        self.state: State | None = None

    def decide(self, at: float, cost: int, patience: float | None = None) -> Outcome:
        patience_us = None if patience is None else round(patience * SECOND)
        outcome, after = decide(self.limit, self.state, _us(at), cost, patience_us)
        self.state = after
        return outcome

    def take(self, at: float, cost: int = 1) -> str:
        allowed, remaining, retry_us, *_ = self.decide(at, cost)
        if allowed:
            return f"{remaining} left"
        return "never" if retry_us is None else f"in {retry_us / SECOND:.12g}"

    def left(self, at: float) -> int:
        return self.decide(at, 0)[1]

    def charge(self, at: float, cost: int, patience: float | None = None) -> Receipt:
        outcome = self.decide(at, cost, patience)
        assert outcome[0], outcome
        return Receipt.from_outcome(outcome, cost)

    def refund(self, at: float, receipt: Receipt, units: int = LONG, *, cancel: bool = False) -> bool:
        after = refund(self.limit, self.state, _us(at), units, receipt, cancel)
        self.state = self.state if after is None else after
        return after is not None


def _us(at: float) -> int:
    return BASE_US + round(at * SECOND)


def test_it_bursts_then_settles() -> None:
    key = TokenBucketKey(TokenBucket(2, burst=3))
    assert key.take(0, 3) == "0 left"
    assert key.take(0) == "in 0.5"
    assert key.take(0.5) == "0 left"
    assert key.take(0.5, 4) == "never"
    assert key.left(2) == 3
    assert key.left(1000) == 3


def test_the_numbers_of_the_essay() -> None:
    """100/s burst 200: 200 pass at once, the next one 10 ms later, and so on each 10 ms."""
    key = TokenBucketKey(TokenBucket(100, burst=200))
    assert [key.take(0) for _ in range(200)][-1] == "0 left"
    assert key.take(0) == "in 0.01"
    assert key.take(0.009999) == "in 1e-06"
    assert key.take(0.01) == "0 left"
    assert key.take(0.01) == "in 0.01"


def test_the_burst_is_the_amount_unless_given() -> None:
    assert TokenBucketKey(TokenBucket(5, 60)).take(0, 5) == "0 left"
    assert TokenBucketKey(TokenBucket(5, 60)).take(0, 6) == "never"


def test_reset_is_when_the_bucket_is_full_of_tokens_again() -> None:
    key = TokenBucketKey(TokenBucket(10))
    assert key.decide(0, 4)[3] == 400_000
    assert key.decide(0.1, 0)[3] == 300_000
    assert key.decide(0.4, 0)[3] == 0


def test_a_peek_says_whether_one_would_pass() -> None:
    key = TokenBucketKey(TokenBucket(1))
    assert key.decide(0, 0)[:3] == (True, 1, 0)
    key.take(0)
    assert key.decide(0.25, 0)[:3] == (False, 0, 750_000)


@pytest.mark.parametrize(
    ("amount", "per", "units"),
    [(700_000, 1, 50_000), (123_457, 86_400, 5_000), (999_999, 1, 50_000), (7, 1, 5_000), (1, YEAR / SECOND, 50)],
)
def test_no_fraction_is_ever_lost(amount: int, per: float, units: int) -> None:
    """After the burst, who always comes as soon as allowed gets unit n at n * period / amount, rounded up."""
    limit = TokenBucket(amount, per, burst=2)
    now_us = BASE_US
    _, state = decide(limit, None, now_us, 2)
    for unit in range(1, units):
        denied, _ = decide(limit, state, now_us, 1)
        assert not denied[0]
        assert denied[2] is not None
        now_us += denied[2]
        outcome, state = decide(limit, state, now_us, 1)
        assert outcome[0]
        assert now_us - BASE_US == -(-unit * round(per * SECOND) // amount)


def test_whole_microseconds_alone_would_be_a_third_wrong() -> None:
    """700,000/s for a tenth of a second, asked each microsecond: 70,000 and the burst; not 100,000."""
    limit, state = TokenBucket(700_000, burst=2), None
    passed = 0
    for now_us in range(BASE_US, BASE_US + 100_001):
        outcome, after = decide(limit, state, now_us, 1)
        if outcome[0]:
            state, passed = after, passed + 1
    assert passed == 70_002


def test_one_a_year_comes_after_a_year_and_not_a_microsecond_before() -> None:
    limit = TokenBucket(1, YEAR / SECOND)
    _, state = decide(limit, None, BASE_US, 1)
    assert decide(limit, state, BASE_US, 1)[0][2] == YEAR
    assert decide(limit, state, BASE_US + YEAR - 1, 1)[0][:3] == (False, 0, 1)
    assert decide(limit, state, BASE_US + YEAR, 1)[0][:3] == (True, 0, 0)


@pytest.mark.parametrize(
    ("amount", "per", "burst"),
    [(1_000_000_007, 1, 10**9), (10**9 + 7, 86_400, 9_007_200), (1, YEAR / SECOND, 101), (10**16, 1, None)],
)
def test_a_limit_that_cannot_be_exact_is_refused(amount: int, per: float, burst: int | None) -> None:
    with pytest.raises(InvalidRule, match=r"cannot be exact: .* at most 2\^53\. Lower the burst, or round"):
        TokenBucket(amount, per, burst)


@pytest.mark.parametrize(
    ("amount", "per", "burst"),
    [(1, YEAR / SECOND, 100), (1_000_000, 1, 1_000_000), (10**9 + 7, 86_400, 9_007_199), (123_457, 86_400, 10**9)],
)
def test_limits_just_within_the_bound_are_exact(amount: int, per: float, burst: int) -> None:
    key = TokenBucketKey(TokenBucket(amount, per, burst))
    assert key.take(0, burst - 1) == "1 left"
    assert key.take(0) == "0 left"


@pytest.mark.parametrize(
    ("amount", "per", "burst", "sentence"),
    [
        (0, 1, None, "The amount of a token bucket must be a whole number of at least 1, not 0."),
        (-3, 1, None, "not -3"),
        (True, 1, None, "not True"),
        (1.5, 1, None, "not 1.5"),
        (1, 0, None, "The period of a token bucket must be between one microsecond and 285 years"),
        (1, float("nan"), None, "not nan seconds"),
        (1, "minute", None, "must be a number of seconds, not 'minute'"),
        (1, 1, 0, "The burst of a token bucket must be a whole number of at least 1, not 0."),
    ],
)
def test_nonsense_gets_a_sentence(amount: int, per: float, burst: int | None, sentence: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        TokenBucket(amount, per, burst)
    assert sentence in str(refused.value)


def test_a_reservation_is_served_when_its_overflow_has_drained() -> None:
    key = TokenBucketKey(TokenBucket(10))
    assert key.decide(0, 10, 0)[4] == 0
    assert key.decide(0, 5, LONG)[:5] == (True, 0, 0, 1_500_000, 500_000)
    assert key.decide(0, 1, LONG)[4] == 600_000
    assert key.take(0.55) == "in 0.15"
    assert key.take(0.7) == "0 left"


def test_a_reservation_beyond_its_patience_charges_nothing() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 10)
    assert key.decide(0, 5, 0.499999)[:3] == (False, 0, 500_000)
    assert key.decide(0, 5, 0.5)[4] == 500_000


def test_debt_is_bounded() -> None:
    limit = TokenBucket(1, YEAR / SECOND, burst=3)
    _, state = decide(limit, None, BASE_US, 3)
    outcome, deeper = decide(limit, state, BASE_US, 1, 10**18)
    assert (outcome[0], outcome[4]) == (True, YEAR)
    assert decide(limit, deeper, BASE_US, 1, 10**18)[0][:3] == (False, 0, 2 * YEAR)
    assert 2 * YEAR > HORIZON_US


def test_a_refund_mints_nothing() -> None:
    """Take 10 at t=0 from 10/s burst 10, let others take 10 at t=1, refund the first."""
    key = TokenBucketKey(TokenBucket(10))
    first = key.charge(0, 10)
    assert key.take(1, 10) == "0 left"
    assert not key.refund(1, first)
    assert key.left(1) == 0


def test_a_refund_gives_back_what_has_not_drained() -> None:
    key = TokenBucketKey(TokenBucket(10))
    first = key.charge(0, 10)
    assert key.take(0.5, 5) == "0 left"
    assert key.refund(0.5, first)
    assert key.left(0.5) == 5  # five of the first's ten were still there
    assert not key.refund(0.5, first._replace(refunded_units=10))


def test_a_refund_in_parts() -> None:
    key = TokenBucketKey(TokenBucket(10))
    first = key.charge(0, 6)
    assert key.refund(0, first, 2)
    assert key.left(0) == 6
    assert key.refund(0, first._replace(refunded_units=2), 100)
    assert key.left(0) == 10


def test_a_refund_in_parts_mints_nothing() -> None:
    key = TokenBucketKey(TokenBucket(10))
    first = key.charge(0, 6)
    assert key.refund(0.4, first, 2)  # the last two of its six; four have drained
    assert key.take(0.4, 5) == "5 left"
    assert not key.refund(0.4, first._replace(refunded_units=2), 4)
    assert key.left(0.4) == 5


def test_a_refund_of_a_key_that_was_forgotten_gives_nothing() -> None:
    key = TokenBucketKey(TokenBucket(10))
    first = key.charge(0, 6)
    key.state = None
    assert not key.refund(0, first)


def test_cancel_gives_a_place_back() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 10)
    place = key.charge(0, 5, LONG)
    assert key.refund(0.2, place, cancel=True)
    assert key.take(0.2) == "1 left"


def test_cancel_gives_back_only_what_nobody_built_on() -> None:
    """Of a place of 5, the 3 that a later one waits behind are gone; 2 come back."""
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 10)
    place = key.charge(0, 5, LONG)
    later = key.charge(0, 3, LONG)
    assert later.delay_us == 800_000
    assert key.refund(0, place, cancel=True)
    assert key.decide(0, 1, LONG)[4] == 700_000


def test_cancel_gives_nothing_once_served() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 10)
    place = key.charge(0, 5, LONG)
    assert not key.refund(0.500001, place, cancel=True)
    assert key.refund(0.5, place, cancel=True)


def test_a_step_back_leaves_at_worst_an_empty_bucket() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(3600, 4)
    assert key.left(3600) == 6
    assert key.left(0) == 0  # the level is not told by the state
    denied, restamped = decide(key.limit, key.state, _us(0), 10)
    assert denied[2] == SECOND
    assert restamped is not None
    # Whoever keeps this is not locked out for the length of the step: the bucket is full of water since now.
    assert pack(restamped) == f"{_us(3600.4)}:0::{_us(0)}+1+100000+10"
    assert decide(key.limit, restamped, _us(1), 10)[0][0]


def test_a_step_back_keeps_the_debt() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(3600, 10)
    assert key.charge(3600, 5, LONG).delay_us == 500_000
    assert [key.charge(0, 1, LONG).delay_us for _ in range(3)] == [600_000, 700_000, 800_000]


LIMITS = st.builds(
    TokenBucket,
    st.integers(1, 1000),
    st.sampled_from([0.001, 1, 60, 3600, 86400]),
    st.none() | st.integers(1, 1000),
)


@example(TokenBucket(820), TokenBucket(782), 22, 0.0)
@given(LIMITS, LIMITS, st.integers(1, 1000), st.floats(0, 2))
def test_another_pace_keeps_the_units(old: TokenBucket, new: TokenBucket, used: int, wait: float) -> None:
    """A change gives no fresh burst: units that were used and have not refilled yet stay used, rounded up."""
    used = min(used, old.burst)
    _, state = decide(old, None, BASE_US, used)
    now_us = BASE_US + round(wait * old.period_us / old.amount * used)
    held, _ = decide(old, state, now_us, 0)
    assert state is not None
    seen = convert_pace(new, state, old.pace)
    outcome, _ = decide(new, seen, now_us, 0)
    still_used = old.burst - held[1]
    # Of nearly the same rate the pace is the same, and the time is kept.
    least = still_used if old.pace != new.pace else still_used * 16 // 17
    assert outcome[1] <= max(0, new.burst - least)
    assert new.burst - outcome[1] <= min(new.burst, still_used * 17 // 16 + 2)


@given(LIMITS, LIMITS, st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=30))
def test_alternating_between_two_limits_admits_at_most_the_larger_burst(
    one: TokenBucket, other: TokenBucket, calls: list[tuple[bool, int]]
) -> None:
    """At one instant: two versions of a rulebook at work on one key mint nothing."""
    passed, stored_limit, text = 0, one, ""
    for first, cost in calls:
        limit = one if first else other
        state = unpack(text, limit, str(limit.pace)) if text else None
        outcome, after = decide(limit, state, BASE_US, cost)
        if outcome[0] and after is not None:
            passed, stored_limit, text = passed + cost, limit, pack(after, str(limit.pace))
    assert passed <= max(one.burst, other.burst), stored_limit


def test_the_pace_is_kept_with_the_state() -> None:
    minute, hour = TokenBucket(10, 60), TokenBucket(10, 3600)
    _, state = decide(minute, None, BASE_US, 10)
    assert state is not None
    assert (minute.pace, hour.pace) == (522, 617)
    assert pack(state, "522") == f"{BASE_US + 60 * SECOND}522"
    assert unpack(pack(state, "522"), minute, "522") == state
    assert decide(hour, unpack(pack(state, "522"), hour, "617"), BASE_US, 1)[0][0] is False
    in_debt = DetailedState(BASE_US + 90 * SECOND, 3, BASE_US)
    assert unpack(pack(in_debt, "522"), minute, "522") == in_debt
    carried_over = unpack(pack(in_debt, "522"), hour, "617")
    for now_us in (BASE_US, BASE_US - 40 * SECOND):
        assert decide(hour, carried_over, now_us, 0)[0][1:4] == (0, 360 * SECOND, 3600 * SECOND)  # a full bucket
    assert decide(hour, carried_over, BASE_US + HORIZON_US, 0)[0][1:4] == (10, 0, 0)


def test_a_refusal_at_another_pace_tells_the_time_and_gives_nothing_back() -> None:
    """10/hour used up, changed to 10/minute: refused once, one passes after 6 s; changed back, none does."""
    hour, minute = TokenBucket(10, 3600), TokenBucket(10, 60)
    _, state = decide(hour, None, BASE_US, 10)
    assert state is not None
    refused, noted = decide(minute, convert_pace(minute, state, hour.pace), BASE_US, 1)
    assert refused[:3] == (False, 0, 6 * SECOND)
    assert noted is not None
    assert pack(noted, str(minute.pace)) == f"{BASE_US + 3600 * SECOND}617:0::{BASE_US}+1+6000000+10"
    assert unpack(pack(noted, str(minute.pace)), minute, str(minute.pace)) == noted
    assert decide(minute, noted, BASE_US + 6 * SECOND, 1)[0][0]
    back = convert_pace(hour, noted, minute.pace)
    assert decide(hour, back, BASE_US, 0)[0][:4] == (False, 0, 360 * SECOND, 3600 * SECOND)


def test_counts_that_are_named_after_their_limit_need_no_pace() -> None:
    minute, hour = TokenBucket(10, 60), TokenBucket(10, 3600)
    _, state = decide(minute, None, BASE_US, 10)
    assert state is not None
    text = pack(state)
    assert text == f"{BASE_US + 60 * SECOND}"
    assert unpack(text, minute) == state
    named_after_the_first = unpack(text, hour, "617522")
    assert decide(hour, named_after_the_first, BASE_US, 0)[0][3] == 3600 * SECOND
    assert unpack(text, hour, "617") == state  # of an unknown pace the time is kept
    assert unpack(pack(state, "522"), hour) == state


@pytest.mark.parametrize(("amount", "per"), [(10**9, 1), (1, 100 * YEAR / SECOND), (1000000, 1)])
def test_every_pace_has_three_digits(amount: int, per: float) -> None:
    assert 100 <= TokenBucket(amount, per, 1).pace <= 999


def test_a_state_under_its_limit_keeps_the_time_until_the_bucket_is_dry() -> None:
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 10)
    key.limit = TokenBucket(100, burst=1000)
    assert key.decide(0, 0)[:4] == (True, 900, 0, SECOND)
    key.limit = TokenBucket(1, burst=5)
    assert key.decide(0, 0)[:4] == (True, 4, 0, SECOND)


def test_a_changed_limit_is_at_most_a_full_bucket() -> None:
    key = TokenBucketKey(TokenBucket(1, 60, burst=5))
    key.take(0, 5)
    key.limit = TokenBucket(10)
    assert key.take(0) == "in 0.1"


def test_grains_of_a_finer_limit_are_rounded_against_the_caller() -> None:
    key = TokenBucketKey(TokenBucket(700_000, burst=1))
    assert key.decide(0, 1)[3] == 2  # 10/7 of a microsecond
    key.limit = TokenBucket(1_000_000, burst=10)
    assert key.left(0) == 8


@pytest.mark.parametrize("text", ["5", "5:3", "5:3:2", "5:0:2"])
def test_the_stored_form(text: str) -> None:
    """The instant of running dry; grains beyond it, if any; and the stamp of one in debt."""
    assert pack(unpack(text)) == text


def test_the_stored_text_of_a_state() -> None:
    key = TokenBucketKey(TokenBucket(7, burst=2))
    key.take(0)
    assert _stored(key) == f"{BASE_US + 142_857}:1"
    key.charge(0, 2, LONG)
    assert _stored(key) == f"{BASE_US + 428_571}:3:{BASE_US}"
    key = TokenBucketKey(TokenBucket(10))
    key.take(0, 3)
    assert _stored(key) == f"{BASE_US + 300_000}"


def _stored(key: TokenBucketKey) -> str:
    assert key.state is not None
    return pack(key.state)
