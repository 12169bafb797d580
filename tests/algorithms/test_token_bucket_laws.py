"""The token bucket's laws, as its essay lists them, over any history."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import HORIZON_US, MAX_CLOCK_SWING_US
from headgate.algorithms.token_bucket import State, TokenBucket, dead_at_us, decide, pack, refund, unpack

BASE_US = 1_700_000_000_000_000


class BucketCharge(NamedTuple):
    gap_us: int
    cost: int
    patience_us: int | None


limits = st.builds(
    TokenBucket,
    st.sampled_from([1, 2, 3, 7, 10, 100, 999, 700_000, 1_000_000]),
    st.sampled_from([0.001, 1, 60, 86_400]),
    st.sampled_from([1, 2, 3, 10, 50]),
)


@st.composite
def histories(draw: st.DrawFn, limit: TokenBucket, *, reserves: bool = True) -> list[BucketCharge]:
    """Charges one after another, with gaps about as long as a few units take."""
    unit_us = limit.period_us // limit.amount + 1
    patience = st.none() | st.integers(0, 30 * unit_us) if reserves else st.none()
    charges = st.builds(
        BucketCharge,
        st.sampled_from([0, 0, 1]) | st.integers(0, 4 * unit_us),
        st.integers(1, limit.burst),
        patience,
    )
    return draw(st.lists(charges, max_size=12))


class PlayedHistory:
    """A history that was played: the state, the clock, and every charge that passed."""

    def __init__(self, limit: TokenBucket, history: list[BucketCharge]) -> None:
        self.limit = limit
        self.state: State | None = None
        self.now_us = BASE_US
        self.receipts: list[Receipt] = []
        for charge in history:
            self.now_us += charge.gap_us
            self.decide(charge.cost, charge.patience_us)

    def decide(self, cost: int, patience_us: int | None = None) -> Outcome:
        outcome, after = decide(self.limit, self.state, self.now_us, cost, patience_us)
        self.state = after
        if outcome[0] and cost:
            self.receipts.append(Receipt.from_outcome(outcome, cost))
        return outcome

    def refund(self, receipt: Receipt, units: int, *, cancel: bool = False) -> None:
        after = refund(self.limit, self.state, self.now_us, units, receipt, cancel)
        self.state = self.state if after is None else after

    def level(self) -> int:
        """The water, in grains, as a charge would find it."""
        *_, reset_us, _, _, mark = decide(self.limit, self.state, self.now_us, 0)[0]
        grains = mark % self.limit.amount
        return (reset_us - (grains > 0)) * self.limit.amount + grains


@st.composite
def lives(draw: st.DrawFn, *, reserves: bool = True) -> PlayedHistory:
    limit = draw(limits)
    return PlayedHistory(limit, draw(histories(limit, reserves=reserves)))


def _within_the_rate(limit: TokenBucket, served: list[tuple[int, int]], slack_us: int = 0) -> bool:
    """Returns whether over any span of t at most  burst + amount * t / period  units were served.

    The instant at which a reservation is served is rounded up, so a span between two may be short by less than
    a microsecond; `slack_us` makes up for that.
    """
    served = sorted(served)
    for first, (from_us, _) in enumerate(served):
        units = 0
        for until_us, cost in served[first:]:
            units += cost
            if (units - limit.burst) * limit.period_us > (until_us - from_us + slack_us) * limit.amount:
                return False
    return True


@given(lives(), st.integers(1, 12))
def test_taking_n_is_the_same_as_taking_one_n_times(life: PlayedHistory, cost: int) -> None:
    outcome, after = decide(life.limit, life.state, life.now_us, cost)
    one_by_one = [life.decide(1) for _ in range(cost)]
    assert all(each[0] for each in one_by_one) == outcome[0]
    if outcome[0]:
        assert one_by_one[-1] == outcome
        assert life.state == after


@given(lives(), st.integers(1, 60))
def test_a_denied_charge_leaves_no_trace_and_passes_exactly_retry_after_later(
    life: PlayedHistory, cost: int
) -> None:
    outcome, after = decide(life.limit, life.state, life.now_us, cost)
    assume(not outcome[0])
    assert after is life.state
    if cost > life.limit.burst:
        assert outcome[2] is None
    else:
        assert outcome[2] is not None
        assert decide(life.limit, life.state, life.now_us + outcome[2], cost)[0][0]
        assert not decide(life.limit, life.state, life.now_us + outcome[2] - 1, cost)[0][0]


@given(lives(), st.integers(1, 50))
def test_remaining_is_what_can_be_taken_at_this_instant(life: PlayedHistory, cost: int) -> None:
    remaining = life.decide(0)[1]
    assert decide(life.limit, life.state, life.now_us, cost)[0][0] == (cost <= remaining)


@given(lives(), st.integers(1, 50), st.integers(0, 10**8))
def test_patience_reserves_what_would_pass_in_that_time(life: PlayedHistory, cost: int, patience_us: int) -> None:
    taken, _ = decide(life.limit, life.state, life.now_us, cost)
    reserved, _ = decide(life.limit, life.state, life.now_us, cost, patience_us)
    retry_us = taken[2]
    assert reserved[0] == (retry_us is not None and retry_us <= min(patience_us, HORIZON_US))
    assert reserved[4] == (retry_us if reserved[0] else 0)


@given(lives(reserves=False))
def test_over_any_span_no_more_than_the_burst_and_the_rate_pass(life: PlayedHistory) -> None:
    assert _within_the_rate(life.limit, [(receipt.at_us, receipt.cost) for receipt in life.receipts])


@given(lives())
def test_reservations_are_served_within_the_rate_and_in_order(life: PlayedHistory) -> None:
    served = [(receipt.served_us, receipt.cost) for receipt in life.receipts]
    assert _within_the_rate(life.limit, served, slack_us=1)
    assert [at_us for at_us, _ in served] == sorted(at_us for at_us, _ in served)


@given(lives(), st.lists(st.integers(0, 11), max_size=4), st.data())
def test_cancelling_never_lets_more_be_served(life: PlayedHistory, places: list[int], data: st.DataObject) -> None:
    """After any cancellation, the remaining reservations and later grants stay within the rate."""
    cancelled: set[int] = set()
    for place in places:
        life.now_us += data.draw(st.integers(0, 1000))
        if place < len(life.receipts) and place not in cancelled and life.receipts[place].served_us >= life.now_us:
            life.refund(life.receipts[place], life.receipts[place].cost, cancel=True)
            cancelled.add(place)
        life.decide(data.draw(st.integers(1, life.limit.burst)), HORIZON_US)
    served = [(each.served_us, each.cost) for n, each in enumerate(life.receipts) if n not in cancelled]
    assert _within_the_rate(life.limit, served, slack_us=1)


@given(lives(), st.integers(1, 50), st.integers(0, 10**9))
def test_a_step_back_drains_nothing_and_mints_nothing(life: PlayedHistory, cost: int, back_us: int) -> None:
    before, (level_before, in_debt) = life.decide(0), (life.level(), life.decide(0)[1] == 0)
    life.now_us -= back_us
    assert life.decide(0)[1] <= before[1]
    assert life.level() >= level_before or in_debt
    # Nobody is locked out for the length of the step: at worst until a full bucket, or the deepest debt that
    # there ever was, has drained from here.
    full_us = -(-life.limit.capacity // life.limit.amount)
    deepest_us = max(full_us, *(receipt.reset_after_us for receipt in life.receipts), 0)
    retry_us = life.decide(min(cost, life.limit.burst))[2]
    assert retry_us is not None
    assert retry_us <= deepest_us + MAX_CLOCK_SWING_US
    life.now_us += retry_us
    assert not retry_us or life.decide(min(cost, life.limit.burst))[0]


@given(lives(reserves=False), st.integers(1, 50), st.data())
def test_a_refund_leaves_at_least_what_others_poured(life: PlayedHistory, cost: int, data: st.DataObject) -> None:
    """Never more room than if the charge had never been; and at once, exactly as much."""
    without = PlayedHistory(life.limit, [])
    without.state, without.now_us = life.state, life.now_us
    level = life.level()
    assume(life.decide(cost)[0])
    receipt = life.receipts[-1]
    charged = life.state
    life.refund(receipt, cost)
    assert life.level() == level
    life.state = charged
    for charge in data.draw(histories(life.limit, reserves=False)):
        life.now_us = without.now_us = life.now_us + charge.gap_us
        if life.decide(charge.cost)[0]:
            assert without.decide(charge.cost)[0]
    life.refund(receipt, cost)
    assert life.level() >= without.level()


@given(lives(reserves=False), st.data())
def test_a_refund_in_two_parts_is_one_refund(life: PlayedHistory, data: st.DataObject) -> None:
    assume(life.receipts)
    receipt, state = data.draw(st.sampled_from(life.receipts)), life.state
    first = data.draw(st.integers(0, receipt.cost))
    second = data.draw(st.integers(0, receipt.cost - first))
    life.refund(receipt, first + second)
    whole, life.state = life.level(), state
    life.refund(receipt, first)
    life.refund(receipt._replace(refunded_units=first), second)
    assert life.level() == whole
    life.refund(receipt._replace(refunded_units=receipt.cost), 100)
    assert life.level() == whole


@given(lives(), st.integers(1, 50))
def test_a_reservation_cancelled_at_once_leaves_things_as_they_were(life: PlayedHistory, cost: int) -> None:
    level = life.level()
    assume(life.decide(cost, HORIZON_US)[0])
    life.refund(life.receipts[-1], cost, cancel=True)
    assert life.level() == level


@given(lives(), st.integers(1, 50), st.integers(1, 10**9))
def test_a_reservation_that_was_served_cannot_be_cancelled(life: PlayedHistory, cost: int, later_us: int) -> None:
    assume(life.decide(cost, HORIZON_US)[0])
    receipt = life.receipts[-1]
    assert refund(life.limit, life.state, receipt.served_us + later_us, cost, receipt, True) is None


@given(lives(reserves=False), limits)
def test_a_changed_limit_keeps_the_time_until_dry_at_most_a_full_bucket(
    life: PlayedHistory, changed: TokenBucket
) -> None:
    dry_us = life.decide(0)[3]
    life.limit = changed
    full_us = -(-changed.capacity // changed.amount)
    # What is a little more than full may be the swing of a clock, and drains first.
    assert life.decide(0)[3] == (dry_us if dry_us - full_us <= MAX_CLOCK_SWING_US else min(dry_us, full_us))


@given(lives(), st.integers(0, 60), st.integers(0, 10**6))
def test_a_dead_state_says_no_more_than_none(life: PlayedHistory, cost: int, later_us: int) -> None:
    if life.state is not None:
        now_us = max(life.now_us, dead_at_us(life.limit, life.state)) + later_us
        outcome, _ = decide(life.limit, life.state, now_us, cost)
        assert outcome == decide(life.limit, None, now_us, cost)[0]


@given(lives())
def test_a_state_is_stored_whole(life: PlayedHistory) -> None:
    if life.state is not None:
        assert unpack(pack(life.state)) == life.state
