"""The report of simulate: limits side by side under one shape of traffic."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED
from headgate.traffic.report.html_page import heading, html_page, paragraph, table
from headgate.traffic.report.svg_charts import MAX_BARS, Series, merge_values, stacked_bars
from headgate.traffic.shapes import TrafficShape
from headgate.traffic.simulate_shape import SimulatedLimit

TITLES = ("limit", "offered", "passed", "delayed", "refused", "gave up", "peak/s", "p50", "p99")
LEGEND = "peak/s: most calls passed in a second; p50, p99: seconds until a call passed"


def simulation_page(shape: TrafficShape, limits: Sequence[SimulatedLimit]) -> str:
    """Returns the report as HTML."""
    body = [
        heading(f"Simulated traffic: {shape.name}", 1),
        paragraph(describe_shape(shape)),
        heading("Side by side"),
        table(TITLES, [simulation_row(limit) for limit in limits]),
        paragraph(LEGEND, "soft"),
    ]
    bars = [merge_values([sum(second) for second in limit.seconds], MAX_BARS) for limit in limits]
    highest = max(max(each, default=0) for each in bars)
    for limit in limits:
        layers = [
            Series("passed", "passed", [second[PASSED] for second in limit.seconds]),
            Series("delayed", "delayed", [second[DELAYED] for second in limit.seconds]),
            Series("refused", "refused", [second[REFUSED] for second in limit.seconds]),
        ]
        layers = [layer for layer in layers if layer.name != "delayed" or any(layer.values)]
        labels = ["0 s", f"{len(limit.seconds)} s"]
        body += [heading(limit.name), stacked_bars("Calls over time", layers, labels, at_least=highest)]
    return html_page(f"Simulated traffic: {shape.name}", body)


def describe_shape(shape: TrafficShape) -> str:
    """Returns a shape in words.

    >>> describe_shape(TrafficShape("poisson"))
    'poisson: 50 calls a second on average, 60 s, 100 clients; a refused call is given up'
    """
    policies = {
        "none": "a refused call is given up",
        "honour": "refused clients honour Retry-After",
        "ignore": "refused clients try again at once",
    }
    return (
        f"{shape.name}: {shape.rate:g} calls a second on average, {shape.seconds:g} s, {shape.clients:,} clients; "
        f"{policies[shape.policy]}"
    )


def simulation_row(limit: SimulatedLimit) -> tuple[str | int, ...]:
    """Returns the row of a limit under TITLES."""
    return (
        limit.name,
        limit.offered,
        limit.passed,
        limit.delayed,
        limit.refused,
        limit.given_up,
        limit.peak_passed,
        f"{limit.wait_s(0.5):.2f}",
        f"{limit.wait_s(0.99):.2f}",
    )
