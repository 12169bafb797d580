"""The default algorithm on cases that it was not tuned on: goodput beside what the server can do, and p99.

A stage's share is its goodput over the calls that could have been answered: all that came, or as many as the
threads can work on. Near that point a random load always wastes some.
"""

from typing import NamedTuple

import pytest

from headgate.adaptive.simulation.case import LimiterSettings, SimulationCase, Stage, ThreadsSettings
from headgate.adaptive.simulation.measures import pool
from headgate.adaptive.simulation.run import Simulation

ADAPTIVE = LimiterSettings("adaptive")
SEEDS = (101, 102)


class Hostile(NamedTuple):
    """A load, the least share of possible goodput in every stage, and the most p99 in works."""

    name: str
    threads: int
    stages: tuple[Stage, ...]
    share: float = 0.9
    p99: float = 2.1
    slices: int = 100
    timeout: float = 5.0
    settle: float = 5.0


def _drift(start: float, factor: float, steps: int) -> tuple[Stage, ...]:
    return tuple(Stage(10, 100, start * factor**step) for step in range(steps))


HOSTILE = [
    Hostile("another size", 30, (Stage(20, 150, 0.1), Stage(30, 150, 0.4), Stage(20, 150, 0.1))),
    Hostile("two threads", 2, (Stage(20, 20, 0.04), Stage(30, 20, 0.2), Stage(20, 20, 0.04)), share=0.7, p99=6),
    Hostile("milliseconds", 8, (Stage(15, 800, 0.005), Stage(20, 2500, 0.005)), share=0.85),
    Hostile("seconds", 20, (Stage(60, 8, 1.5), Stage(120, 25, 1.5)), timeout=10, settle=20),
    Hostile("ten times too much", 12, (Stage(15, 60, 0.1), Stage(20, 1200, 0.1), Stage(20, 60, 0.1))),
    Hostile("cold start in an overload", 12, (Stage(30, 300, 0.1),)),
    Hostile("healthy cold start of a big server", 150, (Stage(20, 1000, 0.1),), share=0.98, p99=1.3),
    Hostile("fewer threads", 12, (Stage(20, 90, 0.1), Stage(30, 90, 0.1, threads=4))),
    Hostile("three times the threads", 5, (Stage(20, 140, 0.1), Stage(30, 140, 0.1, threads=15))),
    Hostile("sawtooth", 12, tuple(Stage(6, 300 if step % 2 else 40, 0.1) for step in range(8)), settle=2),
    Hostile("idle, then a spike", 12, tuple(Stage(15, 170 if step % 2 else 1, 0.05) for step in range(4))),
    Hostile("slow drift", 12, _drift(0.05, 1.12, 12), share=0.75, p99=3, settle=2),
    Hostile("faster again and again", 12, _drift(0.3, 0.85, 10), share=0.55, p99=2.6, settle=2),
    Hostile("a plain queue", 12, (Stage(20, 100, 0.05), Stage(30, 100, 0.2), Stage(20, 100, 0.05)), slices=1),
    Hostile("few slices", 12, (Stage(20, 100, 0.05), Stage(30, 100, 0.2), Stage(20, 100, 0.05)), slices=10),
    Hostile("short timeouts", 12, (Stage(20, 100, 0.05), Stage(30, 100, 0.2), Stage(20, 100, 0.05)), timeout=0.5),
    Hostile("even arrivals", 12, (Stage(20, 100, 0.05, even=True), Stage(30, 100, 0.2, even=True))),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_it_keeps_the_service_useful(hostile: Hostile) -> None:
    server = ThreadsSettings(hostile.threads, hostile.slices)
    case = SimulationCase(
        hostile.name, SEEDS, server, hostile.stages, (ADAPTIVE,), hostile.timeout, hostile.settle
    )
    threads = hostile.threads
    runs = [Simulation(case, ADAPTIVE, seed).run() for seed in SEEDS]
    for number, stage in enumerate(hostile.stages):
        threads = stage.threads or threads
        row = pool(run[number] for run in runs).row()
        possible = min(row["offered"] / row["seconds"], threads / stage.work)
        assert row["goodput"] >= hostile.share * possible, f"stage {number + 1}"
        assert row["p99"] <= hostile.p99 * stage.work, f"stage {number + 1}"
