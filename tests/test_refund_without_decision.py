"""Units refunded by hand: never more than requested, and never more than is used, for every algorithm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.algorithms.slots import Slots
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import InvalidCharge
from headgate.flow import run
from headgate.limit_syntax import parse
from headgate.refund_without_decision import give_back

LIMITS = [
    *("10/s", "7/s burst 3", "700000/s burst 5", "3/minute burst 6"),
    *("10/s queue 5", "600/minute queue 0", "10/s queue 8 nodelay"),
    *("10/s fixed", "5/week fixed in Asia/Shanghai"),
    *("10/s sliding", "10/s sliding cells 2", "10/s log"),
    *("10/s smooth", "10/s smooth burst 0s", "10/s smooth burst 3s", "10/s smooth warmup 2s"),
]
steps = st.lists(
    st.tuples(st.sampled_from([0, 1000, 90_000, 100_000, 350_000, 1_000_000]), st.integers(1, 4)), max_size=8
)


class UntrackedRefundKey:
    """One key of one limit, on a clock of its own, so that two of them can live the same life."""

    def __init__(self, text: str) -> None:
        self.clock = ManualClock()
        self.meter = MemoryEngine(self.clock).meter(parse(text), text)

    def live(self, walk: list[tuple[int, int]]) -> None:
        for pause_us, cost in walk:
            self.clock.sleep_us(pause_us)
            self.meter.decide("k", cost)

    def greedy(self, walk: list[tuple[int, int]] = [(0, 1)]) -> int:  # noqa: B006
        """Returns how many units pass, one by one, at each of the walk's instants."""
        passed = 0
        for pause_us, _ in walk:
            self.clock.sleep_us(pause_us)
            while passed < 500 and self.meter.decide("k", 1)[0]:
                passed += 1
        return passed


@pytest.mark.parametrize("text", LIMITS)
@given(before=steps, units=st.integers(1, 30), after=steps)
def test_no_more_passes_than_was_given_back_nor_than_on_a_key_never_used(
    text: str, before: list[tuple[int, int]], units: int, after: list[tuple[int, int]]
) -> None:
    refunded, twin, now, as_it_is = (UntrackedRefundKey(text) for _ in range(4))
    for key in (refunded, twin, now, as_it_is):
        key.live(before)
    run(give_back(refunded.meter, "k", units))
    run(give_back(now.meter, "k", units))
    assert now.greedy() <= max(UntrackedRefundKey(text).greedy(), as_it_is.greedy())
    assert refunded.greedy([(0, 1), *after]) <= twin.greedy([(0, 1), *after]) + units


@pytest.mark.parametrize("text", [text for text in LIMITS if "smooth" not in text])
@given(costs=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_recently_taken_units_are_given_back_completely(text: str, costs: list[int]) -> None:
    key = UntrackedRefundKey(text)
    taken = sum(cost for cost in costs if key.meter.decide("k", cost)[0])
    before, after = run(give_back(key.meter, "k", 30))
    assert after[1] == before[1] + taken == UntrackedRefundKey(text).meter.decide("k", 0)[1]


@pytest.mark.parametrize(("text", "pause_us"), [("10/s sliding", 100_000), ("10/s log", 1), ("10/s fixed", 1)])
def test_windows_give_back_units_of_several_instants_the_newest_first(text: str, pause_us: int) -> None:
    key = UntrackedRefundKey(text)
    key.live([(pause_us, 2)] * 4)
    before, after = run(give_back(key.meter, "k", 5))
    assert (before[1], after[1]) == (2, 7)


@pytest.mark.parametrize("text", ["10/s smooth", "10/s smooth warmup 2s"])
def test_of_a_smooth_limit_the_time_for_which_it_is_shut_comes_back(text: str) -> None:
    key = UntrackedRefundKey(text)
    key.meter.decide("k", 5)
    before, after = run(give_back(key.meter, "k", 5))
    assert (before[0], after[0]) == (False, True)


def test_a_part_of_it_comes_back() -> None:
    key = UntrackedRefundKey("10/s smooth")
    key.meter.decide("k", 5)
    _, after = run(give_back(key.meter, "k", 2))
    assert after[2] == 300_000


def test_of_a_warm_up_no_more_than_the_price_of_the_units() -> None:
    key = UntrackedRefundKey("10/s smooth warmup 2s")
    key.meter.decide("k", 5)
    before, after = run(give_back(key.meter, "k", 1))
    assert before[2] is not None
    assert after[2] is not None
    assert before[2] - 300_000 <= after[2] < before[2], "a unit costs three times 100 ms at most"


def test_a_slot_is_released_by_its_holder() -> None:
    slots = MemoryEngine(ManualClock()).slots(Slots(3), "s")
    with pytest.raises(InvalidCharge, match="held, not taken"):
        run(give_back(slots, "k", 1))  # type: ignore[arg-type]
