"""Simulations: the same numbers every time, no call lost, and what each limiter is known for."""

from dataclasses import replace
from typing import Any

import pytest

from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase, Stage, ThreadsSettings
from headgate.adaptive.simulation.compare import compare, document
from headgate.adaptive.simulation.measures import StageMeasures
from headgate.adaptive.simulation.run import Simulation
from headgate.algorithms.token_bucket import TokenBucket

STAGED = SimulationCase(
    name="staged",
    seeds=(1, 2),
    server=ThreadsSettings(12),
    load=(Stage(5, 100, 0.05), Stage(10, 100, 0.15), Stage(5, 100, 0.05)),
    limiters=tuple(
        LimiterSettings(kind, options)
        for kind, options in (
            ("none", {}),
            ("bulkhead", {"limit": 24}),
            ("rate", {"limit": TokenBucket(80, 1)}),
            ("breaker", {}),
            ("aimd", {}),
            ("vegas", {}),
            ("gradient2", {}),
            ("adaptive", {}),
            ("target_rate", {"target": 0.3, "ceiling": 150}),
        )
    ),
    timeout=2.0,
)

each_limiter = pytest.mark.parametrize("settings", STAGED.limiters, ids=lambda settings: settings.label)


def _run(case: SimulationCase, kind: str, seed: int = 1, **options: Any) -> list[StageMeasures]:
    return Simulation(case, LimiterSettings(kind, options), seed).run()


@each_limiter
def test_no_call_is_lost(settings: LimiterSettings) -> None:
    for stage in Simulation(STAGED, settings, 1).run():
        assert stage.offered == stage.accepted + stage.refused
        assert stage.accepted == stage.succeeded + stage.timed_out + stage.deferred
        assert stage.good <= stage.succeeded
        assert len(stage.responses_ns) == stage.accepted


@each_limiter
def test_a_seed_gives_the_same_numbers(settings: LimiterSettings) -> None:
    first, second, other = (
        [stage.row() for stage in Simulation(STAGED, settings, seed).run()] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_all_limiters_meet_the_same_arrivals() -> None:
    offered = {tuple(stage.offered for stage in _run(STAGED, kind)) for kind in ("none", "aimd", "adaptive")}
    assert len(offered) == 1


def test_a_bulkhead_and_no_limit_behave_as_expected() -> None:
    none = _run(STAGED, "none")[1].row()
    fixed = _run(STAGED, "bulkhead", limit=24)[1].row()
    assert none["goodput"] < 10
    assert none["timed_out"] > 0
    assert 70 < fixed["goodput"] < 85
    assert fixed["max_in_flight"] <= 24
    assert fixed["p99"] <= 0.31


def test_the_default_keeps_an_overloaded_service_useful_and_a_healthy_one_alone() -> None:
    case = replace(STAGED, load=(Stage(10, 100, 0.05), Stage(20, 100, 0.15), Stage(15, 100, 0.05)), settle=5.0)
    for seed in range(10, 14):
        before, overload, after = (stage.row() for stage in _run(case, "adaptive", seed))
        assert before["refused"] == 0
        assert overload["goodput"] > 70
        assert overload["p99"] < 0.3
        assert after["refused"] <= 0.001 * after["offered"]


def test_the_default_survives_timeouts_and_recovers() -> None:
    """Calls take 3 s and time out after 1 s; the work of those goes on, and keeps the server busy for a while."""
    load = (Stage(5, 50, 0.05), Stage(10, 50, 3.0), Stage(10, 50, 0.05), Stage(15, 50, 0.05))
    _, stuck, _, after = (stage.row() for stage in _run(replace(STAGED, load=load, timeout=1.0), "adaptive"))
    assert stuck["good"] == 0
    assert stuck["min_limit"] == 1
    assert after["refused"] <= 0.01 * after["offered"]
    assert after["good"] >= 0.99 * after["offered"]


def test_even_arrivals_are_even() -> None:
    case = replace(STAGED, load=(Stage(2, 10, 0.05, even=True),))
    [stage] = _run(case, "none")
    assert stage.offered in (19, 20)


def test_threads_follow_the_stages() -> None:
    case = replace(STAGED, load=(Stage(5, 100, 0.1), Stage(5, 100, 0.1, threads=2)))
    healthy, halved = (stage.row() for stage in _run(case, "bulkhead", limit=20))
    assert healthy["p50"] < 0.15
    assert halved["p50"] > 0.5


def test_a_stage_without_calls_is_a_stage() -> None:
    case = replace(STAGED, load=(Stage(1, 50, 0.05), Stage(1, 0, 0.05), Stage(1, 50, 0.05), Stage(1, 0, 0.05)))
    assert [stage.offered > 0 for stage in _run(case, "adaptive")] == [True, False, True, False]


def test_priorities_are_served_by_importance() -> None:
    load = (Stage(5, 40, 0.1), Stage(10, 260, 0.1, priorities={"high": 20.0, "low": 240.0}))
    measures = _run(replace(STAGED, load=load, timeout=5.0), "adaptive")[1]
    assert measures.succeeded_by_priority[0] >= 0.98 * measures.offered_by_priority[0]
    assert measures.refused_by_priority[1] > 0.3 * measures.offered_by_priority[1]


@pytest.mark.parametrize("queue", [0.0, 0.1])
def test_a_spike_of_unimportant_calls_spares_the_others_with_and_without_a_queue(queue: float) -> None:
    load = (Stage(5, 60, 0.1), Stage(15, 390, 0.1, priorities={"high": 30.0, "low": 360.0}))
    case = replace(STAGED, load=load, timeout=1.0, settle=5.0)
    measures = _run(case, "adaptive", queue=queue)[1]
    assert measures.succeeded_by_priority[0] >= 0.985 * measures.offered_by_priority[0]
    assert measures.row()["goodput"] >= 0.85 * 120


def test_a_client_sends_as_fast_as_its_limit_allows() -> None:
    case = replace(STAGED, server={"delay": 0.1}, load=ClosedLoad(200), timeout=1.0)
    [fixed] = _run(case, "bulkhead", limit=4)
    assert fixed.succeeded == 200
    assert fixed.seconds == pytest.approx(5.0)
    assert fixed.row()["mean_in_flight"] == pytest.approx(4.0)
    [paced] = _run(replace(case, load=ClosedLoad(200, 0.05)), "none")
    assert paced.seconds == pytest.approx(10.05, abs=0.1)


def test_a_client_of_threads_sends_its_work() -> None:
    case = replace(STAGED, load=ClosedLoad(240, work=0.1), timeout=None)
    [fixed] = _run(case, "bulkhead", limit=24)
    assert (fixed.succeeded, fixed.good) == (240, 240)
    assert fixed.seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    "server", [{"drop_above": 0.0}, {"defer_rate": 100.0}, {"knee_start": 10.0, "knee_exp": 2.0}]
)
def test_a_client_without_answers_gives_up(server: dict[str, float]) -> None:
    case = replace(STAGED, server={"delay": 0.1, **server}, load=ClosedLoad(2000), timeout=1.0)
    [measures] = _run(case, "none")
    assert measures.succeeded < 2000
    assert measures.offered <= 30 * 2000


@pytest.mark.parametrize("timeout", [None, 1.0])
def test_a_delay_of_years_has_no_end(timeout: float | None) -> None:
    case = replace(STAGED, server={"delay": 0.1, "knee_exp": 9.0, "knee_start": 1.0}, timeout=timeout)
    [measures] = _run(replace(case, load=(Stage(60, 100, 0.1),)), "none")
    assert measures.max_in_flight > 5000
    assert measures.seconds == pytest.approx(60.0)


@pytest.mark.parametrize("server", [{"defer_above": 5.0}, {"drop_above": 5.0}, {"defer_rate": 100.0}])
def test_a_client_finds_the_bound_of_a_service_that_turns_calls_away(server: dict[str, float]) -> None:
    case = replace(STAGED, server={"delay": 0.1, **server}, load=ClosedLoad(500), timeout=1.0)
    [measures] = _run(case, "adaptive")
    assert measures.succeeded == 500
    assert measures.succeeded / measures.seconds > 20
    assert measures.deferred + measures.timed_out < 350


def test_samples_show_the_limit_over_time() -> None:
    simulation = Simulation(STAGED, LimiterSettings("bulkhead", {"limit": 7}), 1, sample_every=0.5)
    simulation.run()
    assert [sample.at for sample in simulation.samples[:3]] == [0.5, 1.0, 1.5]
    assert {sample.limit for sample in simulation.samples} == {7}


def test_a_document_pools_the_seeds() -> None:
    case = replace(STAGED, limiters=STAGED.limiters[:2])
    result = document(case, compare(case))
    assert [entry["limiter"] for entry in result["limiters"]] == ["none", "bulkhead 24"]
    for entry in result["limiters"]:
        for number, stage in enumerate(entry["stages"]):
            each = [run["stages"][number] for run in entry["by_seed"]]
            assert stage["offered"] == sum(row["offered"] for row in each)
            assert stage["goodput"] == pytest.approx(sum(row["goodput"] for row in each) / 2)
    assert document(case, compare(case, workers=2)) == result
