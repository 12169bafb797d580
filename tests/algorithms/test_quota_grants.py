"""Quota grants as stories: which part of 100 units per second each holder gets for its demand."""

import pytest

from headgate.algorithms import quota_grants
from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, quota_units
from headgate.algorithms.limit import SECOND
from headgate.algorithms.quota_grants import MAX_HOLDERS, Holder, State, damped_demand, ttl_and_grace
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse

BASE_US = 1_700_000_000_000_000
TTL_US, GRACE_US = 7 * SECOND, 3 * SECOND


class GrantLedgerHarness:
    """One ledger of 100/s, asked in units per second at so many seconds."""

    def __init__(self, limit: str = "100/s", unknown_until: float = 0) -> None:
        self.division = quota_units(parse(limit))
        self.state: State | None = None
        self.unknown_us = self.us(unknown_until)
        self.ttl_us, self.grace_us = TTL_US, GRACE_US

    @staticmethod
    def us(at: float) -> int:
        return BASE_US + round(at * SECOND)

    def tells(self, at: float, holder: str, wants: float | None) -> float | None:
        """Returns the granted rate in units per second."""
        grains = None if wants is None else self.division.grains(round(wants * 1000), 1000 * SECOND)
        granted, self.state = quota_grants.grant(
            self.division, self.state, self.us(at), holder, grains, self.ttl_us, self.grace_us, self.unknown_us
        )
        if granted is None:
            return None
        assert granted.ttl_us == self.ttl_us
        return granted.units * SECOND / granted.period_us

    def leaves(self, at: float, holder: str) -> None:
        self.state = quota_grants.remove_holder(self.state, self.us(at), holder)


def test_a_single_holder_gets_its_demand_and_half_of_the_rest() -> None:
    ledger = GrantLedgerHarness()
    assert ledger.tells(0, "a", 40) == 45 + 27.5
    assert ledger.tells(5, "a", 200) == 100
    assert ledger.tells(10, "a", 0) == 50


def test_a_small_demand_is_met_and_the_others_share_the_rest() -> None:
    ledger = GrantLedgerHarness()
    rates: list[float | None] = []
    for at in (0, 5, 10, 15):
        rates = [ledger.tells(at, "a", 20), ledger.tells(at + 1, "b", 200), ledger.tells(at + 2, "c", 90)]
    assert rates == [22.5, 38.75, 38.75]


def test_a_grant_is_blocked_until_it_expires() -> None:
    ledger = GrantLedgerHarness()
    assert ledger.tells(0, "a", 200) == 100
    assert ledger.tells(1, "b", 200) == 0
    assert ledger.tells(5, "a", 200) == 50  # who knows whether it hears that
    assert ledger.tells(9.999_999, "b", 200) == 0
    assert ledger.tells(10, "b", 200) == 50


def test_a_silent_holder_expires_with_its_part() -> None:
    ledger = GrantLedgerHarness()
    ledger.tells(0, "a", 20)
    assert ledger.tells(9.9, "b", 200) == 38.75
    assert ledger.tells(10, "b", 200) == 100
    assert ledger.state is not None
    assert [holder.name for holder in ledger.state.holders] == ["b"]
    assert quota_grants.dead_at_us(ledger.state) == ledger.us(20)


def test_a_departed_holder_keeps_its_grant_until_it_expires() -> None:
    ledger = GrantLedgerHarness()
    ledger.tells(0, "a", 20)
    ledger.tells(0, "b", 200)
    ledger.leaves(1, "a")
    ledger.leaves(1, "nobody")
    assert ledger.tells(5, "b", 200) == 38.75  # a was told 61.25
    assert ledger.tells(10, "b", 200) == 100
    ledger.tells(11, "a", 0)
    assert quota_grants.remove_holder(None, BASE_US, "a") is None


def test_an_idle_holder_has_a_standby_as_long_as_there_is_room() -> None:
    ledger = GrantLedgerHarness()
    rates: list[float | None] = []
    for at in (0, 5, 10, 15):
        rates = [ledger.tells(at, "busy", 40), ledger.tells(at + 1, "idle", 0)]
    assert rates == [pytest.approx(45 + 55 / 3, abs=0.001), pytest.approx(55 / 3, abs=0.001)]
    for at in (20, 25, 30):
        rates = [ledger.tells(at, "busy", 200), ledger.tells(at + 1, "idle", 0)]
    assert rates == [100, 0]


def test_a_new_holder_gets_the_unused_part() -> None:
    ledger = GrantLedgerHarness()
    assert ledger.tells(0, "a", 0) == 50
    assert ledger.tells(0, "b", 200) == 50
    assert ledger.tells(0, "c", 1) == 0


def test_a_demand_that_trembles_changes_nothing() -> None:
    ledger = GrantLedgerHarness()
    rates = {ledger.tells(at, "a", wants) for at, wants in enumerate([40, 44, 36, 45, 34, 41])}
    assert rates == {72.5}
    assert ledger.tells(6, "a", 33) != 72.5
    assert [
        damped_demand(0, 0),
        damped_demand(0, 8),
        damped_demand(9, 9),
        damped_demand(9, 7),
        damped_demand(9, 6),
        damped_demand(9, 10),
    ] == [0, 9, 9, 9, 7, 12]
    assert damped_demand(0, ALL_GRANT_UNITS) == damped_demand(ALL_GRANT_UNITS, ALL_GRANT_UNITS) == ALL_GRANT_UNITS


def test_an_unknown_demand_counts_as_an_equal_part() -> None:
    ledger = GrantLedgerHarness()
    ledger.tells(0, "a", 200)
    assert ledger.tells(1, "b", None) == 0
    ledger.tells(5, "a", 200)
    assert ledger.tells(10, "b", None) == 50
    assert ledger.tells(10, "b", 10) == 11.25
    assert ledger.tells(11, "b", None) == 11.25


def test_parts_too_small_for_a_unit_are_not_granted() -> None:
    ledger = GrantLedgerHarness("100/s burst 2")
    rates: list[float | None] = []
    for at in (0, 5, 10, 15):
        rates = [ledger.tells(at, name, wants) for name, wants in (("a", 0), ("b", 1), ("c", 30), ("d", 90))]
    assert rates == [0, 50, 50, 0]


def test_a_new_ledger_grants_nothing_until_lost_grants_have_expired() -> None:
    ledger = GrantLedgerHarness(unknown_until=6)
    assert ledger.tells(0, "a", 200) is None
    assert ledger.tells(5.9, "b", 200) is None
    assert ledger.tells(6, "a", 200) == 50
    assert ledger.tells(6, "b", 200) == 50


def test_a_ledger_never_listens_for_longer_than_a_part_can_live() -> None:
    ledger = GrantLedgerHarness(unknown_until=3600)
    assert ledger.tells(0, "a", 200) is None
    assert ledger.tells(9.9, "a", 200) is None
    assert ledger.tells(10, "a", 200) == 100


def test_a_clock_that_steps_back_leaves_every_part_its_time() -> None:
    ledger = GrantLedgerHarness(unknown_until=2)
    ledger.tells(1, "a", 200)
    ledger.tells(2, "a", 200)
    assert ledger.tells(-3600, "b", 200) == 0
    assert ledger.tells(-3590.1, "b", 200) == 0
    assert ledger.tells(-3590, "b", 200) == 100


def test_a_shorter_ttl_does_not_end_earlier_grants() -> None:
    ledger = GrantLedgerHarness()
    ledger.tells(0, "a", 40)
    ledger.ttl_us, ledger.grace_us = 2 * SECOND, SECOND
    assert ledger.tells(1, "a", 200) == 100
    assert ledger.tells(4, "b", 200) == 0
    assert ledger.tells(10, "b", 200) == 100


def test_many_falling_parts_are_merged_never_shortened() -> None:
    ledger = GrantLedgerHarness()
    grants: list[tuple[int, int]] = []
    for second, wants in enumerate([200, 70, 50, 35, 25, 15, 8]):
        ledger.tells(second, "a", wants)
        assert ledger.state is not None
        (holder,) = ledger.state.holders
        grants.append(holder.grants[-1])
        assert len(holder.grants) == min(len(grants), quota_grants.MAX_GRANTS_PER_HOLDER)
        for _, end_us in grants:
            at_us = end_us - 1
            most = max(grains for grains, until_us in grants if until_us > at_us)
            assert max(grains for grains, until_us in holder.grants if until_us > at_us) >= most


def test_a_limit_may_change_while_its_parts_are_out() -> None:
    ledger = GrantLedgerHarness("100/s")
    assert ledger.tells(0, "a", 200) == 100
    ledger.division = quota_units(parse("10/s"))
    assert ledger.tells(1, "b", 20) == 0
    assert ledger.tells(5, "a", 20) == 5
    assert ledger.tells(10, "b", 20) == 5


def test_a_ledger_is_full_some_time() -> None:
    holders = tuple(Holder(str(rank), 0, ((0, BASE_US + SECOND),)) for rank in range(MAX_HOLDERS))
    ledger = GrantLedgerHarness()
    ledger.state = State(BASE_US, 0, holders)
    assert ledger.tells(0, "one more", 200) == 0
    assert ledger.state.holders == holders
    assert ledger.tells(0, "7", 200) == 100
    assert ledger.tells(1, "one more", 200) == 0
    assert [holder.name for holder in ledger.state.holders] == ["7", "one more"]


@pytest.mark.parametrize(
    ("report", "ttl", "grace"),
    [(1, 2, 1), (1.5, 2, 1), (2, 3, 1), (3, 4, 2), (5, 7, 3), (10, 15, 5), (60, 90, 30)],
)
def test_how_long_parts_live(report: float, ttl: int, grace: int) -> None:
    assert ttl_and_grace(round(report * SECOND)) == (ttl * SECOND, grace * SECOND)


def test_reports_do_not_come_more_than_once_a_second() -> None:
    with pytest.raises(InvalidRule, match="at most once a second"):
        ttl_and_grace(SECOND - 1)
