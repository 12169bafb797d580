"""The most telling outages in short: killed, hanging, silent. `make chaos` has them all.

The bars are those of `make chaos`, with wider margins of time, for busy machines. The measures are pure, and have
stories of their own.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.chaos import single_server_faults
from tests.chaos.call_record import AMOUNT, BUCKET, DEADLINE, FIXED, CallRecord, ProcessRecord, TimerTick
from tests.chaos.metrics import SECOND, OverAdmission, longest_stall, over_admitted, recovery_seconds
from tests.chaos.resource_leaks import run_outage_cycles
from tests.chaos.run_load import ChaosLoad
from tests.chaos.thresholds import FaultResult, judge_load

MARGIN = 0.15
WITHIN = 6.0
NOON_US = 1_700_000_000 * SECOND  # an hour begins, and so does a window


def _measure(story: Callable[[ChaosLoad], None], threads: bool) -> FaultResult:
    load = ChaosLoad("local", threads, workers=2, warm=1.6, broken=1.5, settle=7.2)
    story(load)
    return judge_load(story.__name__, load, margin=MARGIN, within=WITHIN)


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "threads"),
    [
        (single_server_faults.kill, True),
        (single_server_faults.pause, False),
        (single_server_faults.silent_link, False),
    ],
)
def test_an_outage(story: Callable[[ChaosLoad], None], threads: bool) -> None:
    """Bars of time hold as far as the machine kept time itself: a control timer, which sends no request, must not
    have been later than a request may be."""
    result = _measure(story, threads)
    kept_time = result.timer <= DEADLINE
    assert [failure for failure in result.failures if kept_time or "recover" not in failure] == []
    assert result.errors == 0
    assert result.by_redis > result.calls / 4
    assert result.by_fallback > result.calls / 20


@pytest.mark.servers
@pytest.mark.slow
def test_outages_leave_nothing_behind() -> None:
    assert run_outage_cycles(cycles=8, before=4, peace=1.5).failures == []


def test_a_stall_is_what_the_machine_cannot_explain() -> None:
    ticks = [TimerTick(1.005, 1.006), TimerTick(1.011, 1.041), TimerTick(1.046, 1.0462)]
    assert longest_stall([_call(1.0, 1.09)], ticks) == pytest.approx(0.06)
    assert longest_stall([_call(1.042, 1.09)], ticks) == pytest.approx(0.048, abs=0.001)
    assert longest_stall([], ticks) == 0


def test_recovered_is_when_a_second_of_peace_begins() -> None:
    calls = [_call(end, end, degraded=True) for end in (9.9, 10.3, 10.8, 12.5)]
    assert recovery_seconds(calls, back=10.0, ended=14.0) == pytest.approx(0.8)
    assert recovery_seconds(calls[:1], back=10.0, ended=14.0) == 0
    assert recovery_seconds(calls[:3], back=10.0, ended=11.5) is None


def test_a_window_is_over_by_what_all_processes_admit() -> None:
    assert _over(FIXED, [10, 10]) == OverAdmission()
    assert _over(FIXED, [10, 15]) == OverAdmission(quiet=0.25)
    assert _over(FIXED, [20, 15], degraded=[False, True]) == OverAdmission(troubled=0.75)
    assert _over(FIXED, [15, 15], degraded=[True, True]) == OverAdmission(cut_off=0.5)
    assert _over(FIXED, [20, 20], disturbed_us=[NOON_US + 1]) == OverAdmission(troubled=1.0)


def test_the_versions_of_an_upgrade_count_by_themselves() -> None:
    assert _over(FIXED, [20, 20], layouts=[1, 2]) == OverAdmission()


def test_a_bucket_is_over_where_any_span_holds_too_much() -> None:
    assert _over(BUCKET, [30, 0]) == OverAdmission()
    # 45 of them within 45 us: in so short a span nearly nothing comes back.
    assert _over(BUCKET, [30, 15]).quiet == pytest.approx(0.5, abs=0.001)


def test_a_clock_that_was_turned_by_an_hour_is_taken_back() -> None:
    assert _over(FIXED, [20, 20], shift_us=[0, 3600 * SECOND], disturbed_us=[NOON_US]) == OverAdmission(
        troubled=1.0
    )


def _over(
    limit: str,
    admitted: list[int],
    degraded: tuple[bool, ...] | list[bool] = (False, False),
    layouts: tuple[int, ...] | list[int] = (1, 1),
    shift_us: tuple[int, ...] | list[int] = (0, 0),
    disturbed_us: tuple[int, ...] | list[int] = (),
) -> OverAdmission:
    """Two processes admit so many within some microseconds of noon; on their clock, noon is second 0."""
    assert AMOUNT[limit] >= 20
    tick: Iterator[int] = count()
    seen = []
    for process, units in enumerate(admitted):
        calls = [
            CallRecord(limit, 0, 0.0, 0.0, True, degraded[process], "", NOON_US + next(tick) + shift_us[process])
            for _ in range(units)
        ]
        seen.append(ProcessRecord(layouts[process], calls, []))
    return over_admitted(seen, NOON_US / SECOND, disturbed_us)


def _call(start: float, end: float, degraded: bool = False) -> CallRecord:
    return CallRecord(FIXED, 0, start, end, True, degraded, "", 0)
