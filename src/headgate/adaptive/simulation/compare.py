"""Runs every limiter of a case with every seed, and pools what was measured."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase
from headgate.adaptive.simulation.measures import StageMeasures, pool
from headgate.adaptive.simulation.run import Simulation


@dataclass(frozen=True)
class LimiterResult:
    """The measures of one limiter: for each seed, its stages."""

    settings: LimiterSettings
    runs: tuple[tuple[StageMeasures, ...], ...]

    @property
    def stages(self) -> list[StageMeasures]:
        """The measures of each stage, pooled over the seeds."""
        return [pool(stage) for stage in zip(*self.runs, strict=True)]


def compare(case: SimulationCase, workers: int = 1) -> list[LimiterResult]:
    """Runs all limiters of a case, in so many processes."""
    jobs = [(case, settings, seed) for settings in case.limiters for seed in case.seeds]
    if workers > 1 and len(jobs) > 1:
        with ProcessPoolExecutor(min(workers, len(jobs))) as executor:
            runs = list(executor.map(_run, jobs))
    else:
        runs = [_run(job) for job in jobs]
    seeds = len(case.seeds)
    return [
        LimiterResult(settings, tuple(runs[number * seeds : (number + 1) * seeds]))
        for number, settings in enumerate(case.limiters)
    ]


def document(case: SimulationCase, results: list[LimiterResult]) -> dict[str, Any]:
    """Returns the results as a document: counts are sums over all seeds."""
    limiters = []
    for result in results:
        by_seed = [
            {"seed": seed, "stages": _rows(case, list(run))}
            for seed, run in zip(case.seeds, result.runs, strict=True)
        ]
        limiters.append(
            {"limiter": result.settings.label, "stages": _rows(case, result.stages), "by_seed": by_seed}
        )
    return {"name": case.name, "seeds": list(case.seeds), "limiters": limiters}


def _run(job: tuple[SimulationCase, LimiterSettings, int]) -> tuple[StageMeasures, ...]:
    return tuple(Simulation(*job).run())


def _rows(case: SimulationCase, stages: list[StageMeasures]) -> list[dict[str, Any]]:
    if isinstance(case.load, ClosedLoad):
        return [{"stage": 1} | stages[0].row()]
    return [
        {"stage": number, "rate": stage.rate, "work": stage.work} | measures.row(tuple(stage.priorities))
        for number, (stage, measures) in enumerate(zip(case.load, stages, strict=True), 1)
    ]
