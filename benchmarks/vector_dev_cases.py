"""Vector's cases of adaptive concurrency: one client, a server with a delay, bounds on flight and rate."""

from typing import NamedTuple

from benchmarks.report import BenchmarkReport, figure
from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase
from headgate.adaptive.simulation.run import Simulation


class VectorServerCase(NamedTuple):
    """A case, and the bounds that Vector's own client stays within: calls in flight (most, mean) and mean rate."""

    name: str
    requests: int
    server: dict[str, float]
    most: tuple[float, float]
    mean: tuple[float, float]
    rate: tuple[float, float] | None


VECTOR_CASES = (
    VectorServerCase("constant link", 500, {"delay": 0.1}, (30, 31), (15, 16), None),
    VectorServerCase(
        "shallow knee", 1000, {"delay": 0.1, "knee_start": 10, "knee_exp": 1.1}, (12, 12), (9, 11), (87, 89)
    ),
    VectorServerCase("defers above 5", 500, {"delay": 0.1, "defer_above": 5}, (5, 13), (2.4, 5.0), (20, 44)),
    VectorServerCase("defers above 100/s", 1000, {"delay": 0.1, "defer_rate": 100}, (16, 24), (6, 9), (31, 75)),
    VectorServerCase("slow link", 200, {"delay": 0.1, "scale": 1.0}, (2, 7), (1.5, 5.0), None),
)


def answer_vector_cases(report: BenchmarkReport) -> None:
    report.say("**Vector's cases**: the bounds of Vector's client in brackets")
    rows = []
    for case in VECTOR_CASES:
        load = SimulationCase(case.name, (1,), case.server, ClosedLoad(case.requests), (), timeout=1.0)
        [measures] = Simulation(load, LimiterSettings("adaptive"), 1).run()
        row, rate = measures.row(), measures.succeeded / measures.seconds
        report.keep(case=case.name, rate=rate, **row)
        rows.append(
            [
                case.name,
                f"{row['max_in_flight']} {_bounds(case.most)}",
                f"{row['mean_in_flight']:.1f} {_bounds(case.mean)}",
                f"{rate:.1f} {_bounds(case.rate)}",
                str(row["deferred"]),
                figure(1000 * row["p50"]),
            ]
        )
        if case.rate:
            report.target(f"Vector's {case.name}: mean rate", rate, at_least=case.rate[0])
        else:
            report.target(f"Vector's {case.name}: mean in flight", row["mean_in_flight"], at_least=case.mean[0])
    report.table(["", "most in flight", "mean in flight", "calls/s", "deferred", "p50 ms"], rows)


def _bounds(bounds: tuple[float, float] | None) -> str:
    return f"[{bounds[0]:g}..{bounds[1]:g}]" if bounds else ""
