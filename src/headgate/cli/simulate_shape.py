"""headgate simulate SHAPE: plays a shape of traffic through several limits side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headgate.cli.command_parser import Misuse, duration_option, whole_number
from headgate.cli.log_options import write_report
from headgate.cli.output import Output
from headgate.cli.progress import Progress
from headgate.cli.replay import ceil_level
from headgate.cli.rulebook_option import print_warnings, warn_unmatched
from headgate.cli.text_style import Style
from headgate.cli.text_table import TextTable
from headgate.rules import load
from headgate.traffic.replay_counts import REFUSED
from headgate.traffic.report.documents import simulation_document
from headgate.traffic.report.simulation_page import LEGEND, TITLES, describe_shape, simulation_page, simulation_row
from headgate.traffic.report.svg_charts import merge_values
from headgate.traffic.shapes import RETRIES, SHAPES, TrafficShape
from headgate.traffic.simulate_shape import CALL_ATTRIBUTES, SimulatedLimit, limit_rulebook, simulate
from headgate.traffic.unmatched_rules import describe_unmatched_rules

_COLUMNS = 60  # of the picture


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of simulated traffic."""
    parser.add_argument("shape", nargs="?", metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("--limit", action="append", default=[], metavar="LIMIT", help="a limit; repeatable")
    parser.add_argument("--rules", action="append", default=[], metavar="FILE", help="a rulebook; repeatable")
    parser.add_argument("--rate", type=_positive, default=50.0, metavar="N", help="calls a second (50)")
    parser.add_argument("--for", dest="span", type=duration_option, default=60.0, metavar="SPAN", help="(1m)")
    parser.add_argument("--clients", type=whole_number(1), default=100, metavar="N", help="(100)")
    parser.add_argument("--per-client", action="store_true", help="each --limit counts each client by itself")
    parser.add_argument(
        "--retries",
        choices=RETRIES,
        help="whether refused clients try again: honour or ignore Retry-After",
    )
    parser.add_argument(
        "--duration", type=duration_option, default=0.1, metavar="SPAN", help="that a call holds slots (100ms)"
    )
    parser.add_argument("--seed", type=whole_number(0), default=1, metavar="N", help="another gives other calls")
    parser.add_argument("--html", metavar="FILE", help="write a report as a web page that needs no network")


def given_options(args: argparse.Namespace) -> list[str]:
    """Returns the options of simulated traffic that differ from their defaults."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    return [
        action.option_strings[0]
        for action in parser._actions
        if action.option_strings and getattr(args, action.dest) != action.default
    ]


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"a number above 0 and up to 1,000,000, not {text!r}")
    return value


def run(args: argparse.Namespace) -> Output:
    if args.shape is None:
        raise Misuse(f"Say which shape of traffic ({', '.join(SHAPES)}), or --case FILE.")
    if not args.limit and not args.rules:
        raise Misuse("Say what it meets: --limit '50/s burst 100', or --rules FILE; several are compared.")
    shape = TrafficShape(args.shape, args.rate, args.span, args.clients, args.seed, args.retries)
    books = [(limit, limit_rulebook(limit, args.per_client)) for limit in args.limit]
    books += [(Path(name).name, print_warnings(load.read(name), as_json=args.json)) for name in args.rules]
    progress = Progress("simulating")
    results = []
    try:
        for name, book in books:
            progress.task(f"simulating {name}")
            results.append(simulate(shape, name, book, args.duration, progress))
    finally:
        progress.clear()
    for (name, book), result in zip(books, results, strict=True):
        warn_unmatched(name, describe_unmatched_rules(book, result.decided_rules, CALL_ATTRIBUTES), args)
    written = write_report(args.html, simulation_page(shape, results))
    lines: list[str | tuple[str, str] | TextTable] = [*describe_shape(shape).split("; "), ""]
    for result in results:
        lines += [*_picture(result), ""]
    lines.append(TextTable(TITLES, [simulation_row(result) for result in results], right_aligned=TITLES[1:]))
    lines.append(LEGEND)
    return Output(simulation_document(shape, results), [*lines, *written])


def _picture(result: SimulatedLimit) -> list[str | tuple[str, str]]:
    """Draws what was offered and what was refused, each as a row of bars."""
    levels = Style.on(sys.stdout).levels
    offered = merge_values([sum(second) for second in result.seconds], _COLUMNS)
    refused = merge_values([second[REFUSED] for second in result.seconds], _COLUMNS)
    highest = max(offered, default=0)
    lines: list[str | tuple[str, str]] = [result.name]
    for name, values, color in (("offered", offered, "cyan"), ("refused", refused, "red")):
        bars = "".join(levels[ceil_level(value, highest, len(levels) - 1)] for value in values)
        lines.append((f"  {name}  {bars}", color))
    return lines
