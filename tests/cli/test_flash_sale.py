"""The sale itself: the same every time, and each gate does what its words say."""

from random import Random

import pytest

from headgate import ManualClock
from headgate.cli.flash_sale import BUYERS, PHASES, SECONDS, TICKS, FlashSale, SaleGate, SlotGate


def gate(sale: FlashSale, name: str) -> SaleGate:
    return next(one for one in sale.gates if one.name.startswith(name))


def between(ticks: list[int], start: float, end: float) -> int:
    return sum(ticks[round(start * 100) : round(end * 100)])


def test_it_is_the_same_every_time(played: FlashSale) -> None:
    again = FlashSale()
    while not again.is_over:
        again.play_until(again.seconds + 0.37)  # however it is paced
    assert again.offered == played.offered
    assert [one.served for one in again.gates] == [one.served for one in played.gates]


def test_thousands_of_buyers_and_every_call_is_accounted_for(played: FlashSale) -> None:
    assert played.tick == TICKS
    assert 2000 < len(played.buyers) <= BUYERS
    assert played.calls > 5000
    assert all(one.passed + one.refused == played.calls for one in played.gates)


def test_the_phases_differ_as_they_say(played: FlashSale) -> None:
    ends = [*(phase.at for phase in PHASES[1:]), SECONDS]
    for phase, end in zip(PHASES, ends, strict=True):
        calls = between(played.offered, phase.at, end)
        assert calls == pytest.approx(phase.calls * (end - phase.at), rel=0.3)


def test_the_token_bucket_lets_a_burst_through_and_then_its_rate(played: FlashSale) -> None:
    bucket = gate(played, "token")
    assert between(bucket.served, 4, 4.3) > 200
    assert between(bucket.served, 5, 8) == pytest.approx(300, abs=2)
    assert bucket.delayed == 0


def test_the_leaky_bucket_never_bursts_and_makes_some_wait(played: FlashSale) -> None:
    leaky = gate(played, "leaky")
    assert max(between(leaky.served, start / 10, start / 10 + 0.1) for start in range(200)) <= 11
    assert leaky.delayed > 500
    assert between(leaky.waited, 8, 8.5) > 0, "the queue is served after the rush"


def test_the_fixed_window_doubles_at_its_edge_and_the_sliding_ones_do_not(played: FlashSale) -> None:
    assert between(gate(played, "fixed").served, 13.7, 14.3) > 350
    assert gate(played, "fixed").peak > 350
    assert gate(played, "sliding log").peak == 200
    assert 200 <= gate(played, "sliding window").peak < 250


def test_the_warm_up_starts_slowly_and_reaches_its_rate(played: FlashSale) -> None:
    smooth = gate(played, "smooth").served
    assert between(smooth, 4, 4.5) < 25
    assert between(smooth, 7.5, 8) > 40


def test_slots_pass_as_many_as_finish(played: FlashSale) -> None:
    slots = gate(played, "slots")
    assert between(slots.served, 4, 4.02) <= 20
    assert between(slots.served, 5, 8) == pytest.approx(300, rel=0.15), "20 of them, a fifth of a second each"


def test_a_buyer_refused_for_lack_of_slots_is_not_charged() -> None:
    clock = ManualClock()
    slots = SlotGate("slots", "20 slots", "", clock, Random(1))
    for number in range(20):
        slots.call(f"user:{number}", clock.now_us())
    for _ in range(10):
        slots.call("user:99", clock.now_us())
    assert (slots.passed, slots.refused, slots.refused_to_user) == (20, 10, 0)


def test_impatient_buyers_meet_their_limit_and_cost_the_item_nothing(played: FlashSale) -> None:
    assert all(one.refused_to_user > 50 for one in played.gates)
    # A fifth of the rush is theirs: had they been charged to the item as well, the others would have got less.
    assert between(gate(played, "token").served, 5, 8) == pytest.approx(300, abs=2)
