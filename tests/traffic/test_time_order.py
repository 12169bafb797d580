"""Calls come out in order within the window; later ones get the earliest time that is left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.rules.attributes import Attributes
from headgate.traffic.recorded_call import RecordedCall
from headgate.traffic.time_order import TimeOrder

WINDOW_US = 100


def calls(times_us: list[int]) -> list[RecordedCall]:
    return [RecordedCall(time_us, Attributes(), line=number) for number, time_us in enumerate(times_us)]


@given(st.lists(st.lists(st.integers(0, 300), min_size=1), min_size=1))
def test_in_order_and_complete(batches: list[list[int]]) -> None:
    order = TimeOrder(WINDOW_US)
    out = [call for batch in batches for call in order.add(calls(batch))] + order.finish()
    times = [call.time_us for call in out]
    assert times == sorted(times)
    assert len(times) == sum(map(len, batches))
    if not order.late:
        assert times == sorted(time_us for batch in batches for time_us in batch)


def test_within_the_window() -> None:
    order = TimeOrder(WINDOW_US)
    out = order.add(calls([50, 40, 120, 60])) + order.finish()
    assert [call.time_us for call in out] == [40, 50, 60, 120]
    assert (order.disordered, order.late) == (2, 0)


def test_beyond_the_window() -> None:
    order = TimeOrder(WINDOW_US)
    first = order.add(calls([0, 10, 500]))
    late = order.add(calls([5, 600])) + order.finish()
    assert [call.time_us for call in first] == [0, 10]
    assert [call.time_us for call in late] == [400, 500, 600]
    assert order.late == 1


@given(st.lists(st.integers(0, 300), min_size=1), st.integers(1, 5))
def test_batches_change_nothing(times_us: list[int], size: int) -> None:
    whole, parts = TimeOrder(WINDOW_US), TimeOrder(WINDOW_US)
    together = whole.add(calls(times_us)) + whole.finish()
    batches = [times_us[at : at + size] for at in range(0, len(times_us), size)]
    apart = [call for batch in batches for call in parts.add(calls(batch))] + parts.finish()
    assert [call.time_us for call in together] == [call.time_us for call in apart]
    assert (whole.disordered, whole.late) == (parts.disordered, parts.late)


def test_a_call_beyond_the_window_is_late_in_its_batch_too() -> None:
    order = TimeOrder(WINDOW_US)
    out = order.add(calls([0, 10, 500, 5, 600])) + order.finish()
    assert [call.time_us for call in out] == [0, 10, 400, 500, 600]
    assert (order.disordered, order.late) == (1, 1)


def test_calls_of_one_instant_keep_their_order() -> None:
    order = TimeOrder(WINDOW_US)
    order.add(calls([7, 7, 3]))
    assert [call.line for call in order.finish()] == [2, 0, 1]
