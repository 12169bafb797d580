"""The default algorithm in front of services that mislead it: uneven calls, drops, pauses, random bursts.

The bounds leave room to what was measured, and are out of reach of a limiter that collapses or creeps.
"""

from typing import Any

import pytest

from benchmarks.vector_dev_cases import VECTOR_CASES, VectorServerCase, judge
from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase, Stage, ThreadsSettings
from headgate.adaptive.simulation.measures import pool
from headgate.adaptive.simulation.run import Simulation

ADAPTIVE = LimiterSettings("adaptive")
SEEDS = (1, 2)

pytestmark = pytest.mark.slow


def _rows(
    server: Any,
    load: tuple[Stage, ...],
    settings: LimiterSettings = ADAPTIVE,
    settle: float = 5.0,
    timeout: float = 5.0,
) -> list[dict[str, Any]]:
    case = SimulationCase("hostile", SEEDS, server, load, (settings,), timeout, settle)
    return [
        pool(runs).row() for runs in zip(*(Simulation(case, settings, seed).run() for seed in SEEDS), strict=True)
    ]


@pytest.mark.parametrize(("threads", "work"), [(12, 0.1), (4, 0.1), (2, 0.05), (1, 0.02), (50, 0.1)])
@pytest.mark.parametrize("load", [0.6, 0.75, 0.8])
def test_random_bursts_of_a_healthy_load_are_not_refused(threads: int, work: float, load: float) -> None:
    [row] = _rows(ThreadsSettings(threads), (Stage(120, load * threads / work, work),))
    assert row["refused"] <= 0.002 * row["offered"]


@pytest.mark.parametrize("variation", [1.0, 2.0, 4.0])
def test_calls_of_very_different_length_do_not_make_the_limit_collapse(variation: float) -> None:
    load = tuple(
        Stage(seconds, rate, 0.1, variation=variation) for seconds, rate in ((30, 72), (40, 156), (30, 72))
    )
    server = ThreadsSettings(12)
    ours = _rows(server, load)
    fixed = _rows(server, load, LimiterSettings("bulkhead", {"limit": 16}))
    assert ours[0]["goodput"] >= 0.95 * fixed[0]["goodput"]
    assert ours[1]["goodput"] >= 0.7 * fixed[1]["goodput"]  # of a limiter that collapses: 0.4
    assert ours[2]["goodput"] >= 0.75 * fixed[2]["goodput"]


@pytest.mark.parametrize("bound", ["drop_above", "defer_above"])
def test_a_service_that_only_drops_is_held_at_its_bound(bound: str) -> None:
    stages = (Stage(20, 100, 0.1), Stage(30, 250, 0.1), Stage(20, 100, 0.1))
    rows = _rows({"delay": 0.1, bound: 15.0}, stages, timeout=1.0)
    assert rows[1]["goodput"] >= 0.85 * 139  # of the best fixed limit
    assert rows[1]["max_limit"] < 25
    assert rows[2]["goodput"] >= 0.9 * 97


@pytest.mark.parametrize("factor", [1.2, 1.5, 2, 4, 10])
def test_a_service_that_becomes_slower_for_good_keeps_its_goodput(factor: float) -> None:
    row = _rows(ThreadsSettings(12), (Stage(20, 60, 0.05), Stage(60, 60, 0.05 * factor)))[1]
    possible = min(60.0, 12 / (0.05 * factor))
    assert row["goodput"] >= 0.9 * possible


def test_a_pause_of_the_server_is_soon_forgotten() -> None:
    for seconds in (0.1, 0.3, 1, 3):
        stages = (
            Stage(15, 60, 0.1),
            Stage(seconds, 60, 0.1, threads=0),
            Stage(5, 60, 0.1, threads=12),
            Stage(15, 60, 0.1),
        )
        row = _rows(ThreadsSettings(12), stages, settle=0)[3]
        assert row["refused"] <= 0.02 * row["offered"]
        assert row["good"] >= 0.97 * row["offered"]


def test_a_pause_every_second_does_not_drive_the_limit_down() -> None:
    stages = tuple(
        Stage(0.1, 60, 0.1, threads=0) if number % 2 else Stage(0.9, 60, 0.1, threads=12) for number in range(80)
    )
    rows = _rows(ThreadsSettings(12), stages, settle=0)
    assert sum(row["refused"] for row in rows) <= 0.05 * sum(row["offered"] for row in rows)
    assert min(row["min_limit"] for row in rows) >= 6


def test_a_server_that_warms_up_under_overload_is_followed() -> None:
    """Both the base and R have a queue from the first call on; R falls with every thread more."""
    threads = (2, 3, 4, 5, 6, 8, 10, 12)
    rows = _rows(ThreadsSettings(2), tuple(Stage(6, 100, 0.1, threads=number) for number in threads), settle=3)
    for number, row in list(zip(threads, rows, strict=True))[1:]:
        possible = min(row["offered"] / row["seconds"], number / 0.1)
        assert row["goodput"] >= 0.8 * possible, number
        assert row["max_limit"] <= 2.5 * number, number


def test_steps_up_and_down_are_followed() -> None:
    rates = (60, 150, 60, 240, 30, 480, 90)
    rows = _rows(ThreadsSettings(12), tuple(Stage(10, rate, 0.1) for rate in rates), settle=3)
    for rate, row in zip(rates, rows, strict=True):
        assert row["goodput"] >= 0.85 * min(120.0, row["offered"] / row["seconds"]), rate


def test_timeouts_alone_shrink_the_limit_and_it_recovers() -> None:
    stages = (Stage(15, 60, 0.1), Stage(8, 60, 10.0), Stage(60, 60, 0.1), Stage(20, 60, 0.1))
    rows = _rows(ThreadsSettings(12), stages, timeout=1.0)
    assert rows[1]["min_limit"] == 1
    assert rows[3]["refused"] <= 0.01 * rows[3]["offered"]


def test_a_day_of_load_is_followed_up_and_down() -> None:
    rates = (5, 10, 20, 40, 60, 80, 100, 120, 140, 140, 120, 100, 80, 60, 40, 20, 10, 5)
    rows = _rows(ThreadsSettings(12), tuple(Stage(15, rate, 0.1) for rate in rates))
    for rate, row in zip(rates, rows, strict=True):
        if rate <= 80:
            assert row["refused"] <= 0.01 * row["offered"], rate
        assert row["goodput"] >= 0.7 * min(120.0, row["offered"] / row["seconds"]), rate
        assert row["max_limit"] < 60


@pytest.mark.parametrize("case", VECTOR_CASES, ids=lambda case: case.name)
def test_a_client_stays_inside_the_bounds_of_vectors_client_or_does_better(case: VectorServerCase) -> None:
    load = SimulationCase(case.name, (1,), case.server, ClosedLoad(case.requests), (), timeout=1.0)
    [measures] = Simulation(load, ADAPTIVE, 1).run()
    row = measures.row()
    assert (
        judge(case, row["max_in_flight"], row["mean_in_flight"], measures.succeeded / measures.seconds)
        != "outside"
    )
