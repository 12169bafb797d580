"""Do limits that find themselves keep a service useful, where fixed numbers are wrong?

Simulated, with the cases in benchmarks/adaptive_cases (`headgate simulate --case FILE` runs them alone);
adaptive_server.py has the staged case on real servers. The best fixed limit is the best bulkhead of 1 to 100, by
goodput, with the same arrivals. Calls are good if they are answered within twice the stage's work.
"""

import os
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.line_chart import Line, write_chart
from benchmarks.report import BenchmarkReport, figure
from benchmarks.vector_dev_cases import answer_vector_cases
from headgate import AdaptiveLimiter, Limiter
from headgate.adaptive.simulation.case import LimiterSettings, SimulationCase
from headgate.adaptive.simulation.compare import LimiterResult, compare
from headgate.adaptive.simulation.measures import StageMeasures
from headgate.adaptive.simulation.run import Simulation
from headgate.cli.simulation_case import read_case

CASES = Path(__file__).parent / "adaptive_cases"
ADAPTIVE = LimiterSettings("adaptive")
WORKERS = os.cpu_count() or 1


def answer(report: BenchmarkReport) -> None:
    _staged(report)
    _mild_overload(report)
    answer_vector_cases(report)
    _priorities(report)
    _capacity_halves(report)
    _capacity_doubles(report)
    _cold_start(report)
    _cost(report)


def _staged(report: BenchmarkReport) -> None:
    case = _case(report, "staged")
    stages = _table(report, case, compare(case, WORKERS))
    adaptive = stages["adaptive"]
    best = best_fixed(case, 1)
    report.say(f"The best fixed limit of the overloaded stage is {best[0]}: {best[1]:.1f} good calls a second.")
    overloaded = adaptive[1].row()
    report.target(
        "staged: goodput in the overload, of the best fixed limit's",
        overloaded["goodput"] / best[1],
        at_least=0.93,
    )
    report.target("staged: p99 in the overload, in works", overloaded["p99"] / 0.150, at_most=2)
    for number, name in ((0, "before"), (2, "5 s after")):
        row = adaptive[number].row()
        report.target(
            f"staged: refused {name} the overload, in %", 100 * row["refused"] / row["offered"], at_most=0.1
        )
    row = adaptive[2].row()
    report.target(
        "staged: good 5 s after the overload, of the offered", row["good"] / row["offered"], at_least=0.999
    )
    _chart(case)
    report.say("The limit over time: .cache/bench/adaptive_staged.svg")


def _chart(case: SimulationCase) -> None:
    lines = []
    for name in ("adaptive", "gradient2", "vegas", "aimd"):
        simulation = Simulation(case, LimiterSettings(name), 1, sample_every=0.25)
        simulation.run()
        lines.append(Line(name, [(sample.at, float(sample.limit or 0)) for sample in simulation.samples]))
    write_chart(
        Path(".cache/bench/adaptive_staged.svg"),
        "The limit, while calls take 50 ms, 150 ms (from 20 s to 60 s) and 50 ms; 12 threads, 100 calls/s",
        lines,
        y_max=60,
        marks=((20, "150 ms"), (60, "50 ms")),
    )


def _mild_overload(report: BenchmarkReport) -> None:
    case = _case(report, "mild_overload")
    if report.quick:
        case = replace(case, seeds=case.seeds[:1])
    minutes: list[dict[int, list[float]]] = []
    lows, highs = [], []
    for seed in case.seeds:
        simulation = Simulation(case, ADAPTIVE, seed, sample_every=0.1)
        [measures] = simulation.run()
        lows.append(measures.min_limit)
        highs.append(measures.max_limit)
        by_minute: dict[int, list[float]] = {}
        for sample in simulation.samples:
            by_minute.setdefault(int(sample.at // 60), []).append(float(sample.limit or 0))
        minutes.append(by_minute)
    report.target("mild overload: the least limit", min(lows), at_least=10)
    report.target("mild overload: the greatest limit", max(highs), at_most=28)
    early, late = (_mean(minutes, span) for span in (range(5, 10), range(25, 30)))
    report.say(f"Mean limit in minutes 5 to 10: {early:.2f}; in minutes 25 to 30: {late:.2f}.")
    report.target(
        "mild overload: the last five minutes' limit over that of minutes 5 to 10", late / early, at_most=1.05
    )
    report.target("mild overload: the same, downwards", late / early, at_least=0.95)


def _mean(minutes: list[dict[int, list[float]]], span: range) -> float:
    values = [value for by_minute in minutes for minute in span for value in by_minute.get(minute, [])]
    return sum(values) / len(values)


def _priorities(report: BenchmarkReport) -> None:
    case = _case(report, "priorities")
    stages = _table(report, case, compare(case, WORKERS))
    measures = stages["adaptive"][1]
    high = measures.succeeded_by_priority[0] / measures.offered_by_priority[0]
    report.target("priorities: high-priority calls that succeed in the spike, in %", 100 * high, at_least=99.4)


def _capacity_halves(report: BenchmarkReport) -> None:
    case = _case(report, "capacity_halves")
    stages = _table(report, case, compare(case, WORKERS))
    ours, bucket = stages["adaptive"][1].row(), stages["rate 120/s"][1].row()
    goodput = ours["goodput"] / max(0.01, bucket["goodput"])
    report.target("capacity halves: goodput, of a token bucket's", goodput, at_least=1.8)
    report.target("capacity halves: p99, of a token bucket's", ours["p99"] / bucket["p99"], at_most=0.33)


def _capacity_doubles(report: BenchmarkReport) -> None:
    case = _case(report, "capacity_doubles")
    stages = _table(report, case, compare(case, WORKERS))
    before, after = (stage.row() for stage in stages["adaptive"])
    growth = after["mean_limit"] / before["mean_limit"]
    report.target("capacity doubles: the limit after 10 s, of the one before", growth, at_least=1.7)
    report.target(
        "capacity doubles: goodput after 10 s, of the possible 120/s", after["goodput"] / 120, at_least=0.93
    )


def _cold_start(report: BenchmarkReport) -> None:
    case = _case(report, "cold_start")
    stages = _table(report, case, compare(case, WORKERS))
    row, best = stages["adaptive"][0].row(), best_fixed(case, 0)
    report.target("cold start: goodput, of the best fixed limit's", row["goodput"] / best[1], at_least=0.93)


def _cost(report: BenchmarkReport) -> None:
    """An adaptive guard beside a guard of slots, in turn."""
    slots, adaptive = Limiter("20 slots"), AdaptiveLimiter()
    ratios = []
    for _ in range(report.rounds(10)):
        spent = []
        for guard in (lambda: slots.guard("key"), adaptive.guard):
            started = time.process_time()
            for _ in range(5_000):
                with guard():
                    pass
            spent.append((time.process_time() - started) / 5_000 * 1e6)
        report.keep(case="cost", slots_us=spent[0], adaptive_us=spent[1])
        ratios.append(spent[1] / spent[0])
    ratios.sort()
    report.target("cost: an adaptive guard, in guards of slots", ratios[len(ratios) // 2], at_most=2)


def best_fixed(case: SimulationCase, stage: int) -> tuple[int, float]:
    """The bulkhead of 1 to 100 with the most goodput in a stage, and that goodput."""
    limiters = tuple(LimiterSettings("bulkhead", {"limit": limit}) for limit in range(1, 101))
    results = compare(replace(case, limiters=limiters), WORKERS)
    goodputs = [(result.stages[stage].row()["goodput"], result.settings.options["limit"]) for result in results]
    goodput, limit = max(goodputs)
    return limit, goodput


def _case(report: BenchmarkReport, name: str) -> SimulationCase:
    case = read_case(CASES / f"{name}.yaml")
    return replace(case, seeds=case.seeds[:2]) if report.quick else case


def _table(
    report: BenchmarkReport, case: SimulationCase, results: list[LimiterResult]
) -> dict[str, list[StageMeasures]]:
    report.say(f"**{case.name}**")
    rows = []
    for result in results:
        for number, stage in enumerate(result.stages, 1):
            row = stage.row()
            report.keep(case=case.name, limiter=result.settings.label, stage=number, **row)
            cells = [
                f"{100 * row['refused'] / max(1, row['offered']):.1f}",
                str(row["timed_out"]),
                figure(row["goodput"]),
                *(figure(1000 * (row[name] or 0)) for name in ("p50", "p99")),
                figure(row["mean_in_flight"]),
                *(
                    "" if row[name] is None else figure(row[name])
                    for name in ("min_limit", "mean_limit", "max_limit")
                ),
            ]
            rows.append([f"{result.settings.label}, stage {number}", *cells])
    head = ["", "refused %", "timed out", "good/s", "p50 ms", "p99 ms", "in flight", "limit min", "mean", "max"]
    report.table(head, rows)
    return {result.settings.label: result.stages for result in results}
