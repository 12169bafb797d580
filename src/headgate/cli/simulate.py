"""headgate simulate: plays simulated calls in virtual time, through limits or against a simulated server.

`headgate simulate SHAPE` plays a shape of traffic through several limits (simulate_shape.py); `--case FILE`
compares limiters, adaptive ones too, on a simulated server that becomes slower and faster.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from headgate.cli import simulate_shape
from headgate.cli.command_parser import Commands, Misuse, command, whole_number
from headgate.cli.output import Output
from headgate.cli.text_table import TextTable
from headgate.extras import require

_CALLS_FOR_PROCESSES = 300_000  # fewer take less time than processes take to start

_COLUMNS = (
    ("offered", "offered", 1),
    ("accepted", "accepted", 1),
    ("refused", "refused", 1),
    ("timed out", "timed_out", 1),
    ("goodput/s", "goodput", 1),
    ("p50 ms", "p50", 1000),
    ("p90 ms", "p90", 1000),
    ("p99 ms", "p99", 1000),
    ("in flight", "mean_in_flight", 1),
    ("max", "max_in_flight", 1),
    ("limit min", "min_limit", 1),
    ("mean", "mean_limit", 1),
    ("max ", "max_limit", 1),
)


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "simulate",
        run,
        "play a shape of traffic through limits, or compare limiters on a simulated server",
        "headgate simulate flash-sale --limit '50/s burst 100' --limit '50/s sliding'",
        "headgate simulate retry-storm --retries honour --limit '20/s' --rules rules.yaml --html report.html",
        "headgate simulate --case staged.yaml --json",
        more="Time is virtual: minutes of load take seconds. The same command prints the same numbers anywhere.",
    )
    simulate_shape.add_options(parser)
    parser.add_argument("--case", metavar="FILE", help="YAML: a server, a load, and the limiters to compare on it")
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        metavar="N",
        default=None,
        help="processes that share a long case (default: one for each processor)",
    )


def run(args: argparse.Namespace) -> Output:
    if args.case is None:
        if args.workers is not None:
            raise Misuse("--workers shares a long case among processes: it goes with --case FILE.")
        return simulate_shape.run(args)
    if args.shape is not None:
        raise Misuse("Say a shape of traffic, or --case FILE, not both.")
    if given := simulate_shape.given_options(args):
        raise Misuse(f"{given[0]} goes with a shape of traffic, not with --case: the case says what is compared.")
    return _compare_limiters(args)


def _compare_limiters(args: argparse.Namespace) -> Output:
    require("A case to simulate", "yaml", "yaml")
    from headgate.adaptive.simulation.compare import compare, document
    from headgate.cli.simulation_case import offered_calls, read_case

    case = read_case(Path(args.case))
    calls = offered_calls(case)
    workers = args.workers or (os.cpu_count() or 1 if calls > _CALLS_FOR_PROCESSES else 1)
    result = document(case, compare(case, workers))
    rows = [
        [entry["limiter"], str(stage["stage"]), *(_cell(stage[key], scale) for _, key, scale in _COLUMNS)]
        for entry in result["limiters"]
        for stage in entry["stages"]
    ]
    titles = ["limiter", "stage", *(title for title, _, _ in _COLUMNS)]
    seeds = f"{len(case.seeds)} seed{'' if len(case.seeds) == 1 else 's'}"
    return Output(result, [f"{case.name}, {seeds}", TextTable(titles, rows, titles[1:]), *_priority_lines(result)])


def _cell(value: Any, scale: int) -> str | int | None:
    if value is None or isinstance(value, int):
        return value
    value *= scale
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _priority_lines(result: dict[str, Any]) -> list[str | TextTable]:
    """Returns a table of the classes, where a case has several."""
    rows = [
        [entry["limiter"], str(stage["stage"]), name, counts["offered"], counts["refused"], counts["succeeded"]]
        for entry in result["limiters"]
        for stage in entry["stages"]
        for name, counts in stage.get("priorities", {}).items()
    ]
    titles = ("limiter", "stage", "priority", "offered", "refused", "succeeded")
    return ["", TextTable(titles, rows, titles[3:])] if rows else []
