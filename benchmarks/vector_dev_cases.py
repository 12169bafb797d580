"""Vector's cases of adaptive concurrency: one client, a server with a delay, bounds on flight and rate."""

from typing import NamedTuple

from benchmarks.report import BenchmarkReport, figure
from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase
from headgate.adaptive.simulation.run import Simulation


class VectorServerCase(NamedTuple):
    """A case, and the bounds that Vector's own client stays within: most and mean calls in flight, and mean rate.

    Where Vector bounds no rate and calls always take the delay, the rate's bounds follow from the mean in flight.
    """

    name: str
    requests: int
    server: dict[str, float]
    most: tuple[float, float]
    mean: tuple[float, float]
    rate: tuple[float, float]


VECTOR_CASES = (
    VectorServerCase("constant link", 500, {"delay": 0.1}, (30, 31), (15, 16), (150, 160)),
    VectorServerCase(
        "shallow knee", 1000, {"delay": 0.1, "knee_start": 10, "knee_exp": 1.1}, (12, 12), (9, 11), (87, 89)
    ),
    VectorServerCase("defers above 5", 500, {"delay": 0.1, "defer_above": 5}, (5, 13), (2.4, 5.0), (20, 44)),
    VectorServerCase("defers above 100/s", 1000, {"delay": 0.1, "defer_rate": 100}, (16, 24), (6, 9), (31, 75)),
    VectorServerCase("drops above 5", 500, {"delay": 0.1, "drop_above": 5}, (4, 5), (1.8, 4.0), (15, 32)),
    VectorServerCase("slow link", 200, {"delay": 0.1, "scale": 1.0}, (2, 7), (1.5, 5.0), (9.9, 10.1)),
    VectorServerCase("jittery link", 1000, {"delay": 0.1, "jitter": 0.1}, (20, 40), (8, 20), (70, 150)),
)


def answer_vector_cases(report: BenchmarkReport) -> None:
    report.say("**Vector's cases**: the bounds of Vector's client in brackets")
    rows, verdicts = [], []
    for case in VECTOR_CASES:
        load = SimulationCase(case.name, (1,), case.server, ClosedLoad(case.requests), (), timeout=1.0)
        [measures] = Simulation(load, LimiterSettings("adaptive"), 1).run()
        row, rate = measures.row(), measures.succeeded / measures.seconds
        verdict = judge(case, row["max_in_flight"], row["mean_in_flight"], rate)
        report.keep(case=case.name, rate=rate, verdict=verdict, **row)
        rows.append(
            [
                case.name,
                f"{row['max_in_flight']} {_bounds(case.most)}",
                f"{row['mean_in_flight']:.1f} {_bounds(case.mean)}",
                f"{rate:.1f} {_bounds(case.rate)}",
                str(row["deferred"]),
                figure(1000 * row["p50"]),
                verdict,
            ]
        )
        verdicts.append(verdict)
    report.table(["", "most in flight", "mean in flight", "calls/s", "deferred", "p50 ms", "verdict"], rows)
    report.target(
        "Vector's cases: inside the bounds or better", len(verdicts) - verdicts.count("outside"), at_least=7
    )


def judge(case: VectorServerCase, most: float, mean: float, rate: float) -> str:
    """Returns `inside` if all is within the bounds; `better` for a higher rate at response times that are not
    longer than the bounds allow (by Little's law: the mean in flight / the rate); else `outside`."""
    measured = ((most, case.most), (mean, case.mean), (rate, case.rate))
    if all(low <= value <= high for value, (low, high) in measured):
        return "inside"
    longest = case.mean[1] / case.rate[0]
    return "better" if rate > case.rate[1] and mean / rate <= longest else "outside"


def _bounds(bounds: tuple[float, float]) -> str:
    return f"[{bounds[0]:g}..{bounds[1]:g}]"
