"""headgate suggest: finds a limit in a log, and writes it as a rulebook in shadow mode."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.cli.command_parser import Commands, Misuse, command
from headgate.cli.log_options import (
    add_log_options,
    check_target,
    log_document,
    open_logs,
    summary_lines,
    write_report,
)
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.progress import Progress
from headgate.cli.text_style import Style
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.gateway import atomic_file
from headgate.traffic.call_table import CallTable
from headgate.traffic.rate_burst_frontier import FrontierPoint
from headgate.traffic.report.documents import suggestion_document
from headgate.traffic.report.suggestion_page import suggestion_page
from headgate.traffic.suggest_and_replay import attributes_to_read, parse_dimensions, read_table
from headgate.traffic.suggested_rulebook import rulebook_text, suggested_rulebook
from headgate.traffic.suggestion import MAX_REFUSED_SHARE, Suggestion, suggest_limit
from headgate.traffic.where_condition import parse_where

_SUFFIXES = (".yaml", ".yml")
_MAX_SHOWN_KEYS = 10
_MAX_SHOWN_RATES = 12
_BAR_WIDTH = 18


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "suggest",
        run,
        "find a limit in a log: what keys demand, and a burst and rate that refuse none of them",
        "headgate suggest access.log",
        "headgate suggest access.log.1.gz access.log --by user --where 'path: /api/**' --write rules.yaml",
        more="Needs no engine and no rulebook.",
    )
    add_log_options(parser)
    parser.add_argument(
        "--by",
        default="address",
        metavar="FIELD,...",
        help='whose calls count together: address unless given, user, any field, or "all" for one count',
    )
    parser.add_argument("--where", metavar="CONDITION", help="only these calls, as in a rulebook: 'path: /login'")
    parser.add_argument(
        "--refuse-keys",
        type=_percentage,
        default=0.0,
        metavar="PERCENT",
        help="that may be refused (none)",
    )
    parser.add_argument("--cost", metavar="FIELD", help="the field that holds the cost of a call (1 unless given)")
    parser.add_argument(
        "--write", metavar="FILE", help="write a rulebook in shadow mode, with the reasons, as YAML"
    )
    parser.add_argument(
        "--lockout", action="store_true", help="with --write: lock out, for an hour, keys that go on when refused"
    )
    parser.add_argument("--force", action="store_true", help="let --write replace a file that exists")


def _percentage(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"a percentage from 0 to below 100, such as 1%, not {text!r}")
    return share


def run(args: argparse.Namespace) -> Output:
    _check_targets(args)
    by = parse_dimensions(args.by)
    where = None if args.where is None else parse_where(args.where)
    if args.cost is not None:
        args.field = [*args.field, ("cost", args.cost)]
    progress = Progress("reading")
    try:
        reader = open_logs(args, attributes_to_read(by, where), progress)
        table = read_table(reader, by, where)
        progress.task("computing the frontier")
        suggestion = suggest_limit(table, args.refuse_keys, reader.options.timezone(), progress)
    finally:
        progress.clear()
    book = suggested_rulebook(suggestion, by, where, lockout=args.lockout)
    text = rulebook_text(suggestion, book, [summary.name for summary in reader.summaries])
    read_lines = summary_lines(reader, as_json=args.json)
    report = write_report(args.html, suggestion_page(suggestion, args.by, read_lines, text))
    unconfirmed = bool(suggestion.refuse_keys) and not suggestion.confirmed
    rulebook_line = _write(args.write, suggestion, text, unconfirmed=unconfirmed)
    written = args.write is not None and not unconfirmed
    logs = [log_document(summary) for summary in reader.summaries]
    document = {"logs": logs} | suggestion_document(suggestion) | {"rulebook": text, "written": written}
    lines = [*read_lines, "", *_lines(suggestion, table), rulebook_line, *report]
    return Output(document, lines, NEGATIVE if unconfirmed else DONE)


def _check_targets(args: argparse.Namespace) -> None:
    """Raises Misuse for files that must not be written: before a long log is read."""
    check_target(args.html, args.logs)
    check_target(args.write, args.logs)
    if args.write is None:
        if args.force:
            raise Misuse("--force lets --write replace a file: say which, by --write FILE.")
        if args.lockout:
            raise Misuse("--lockout is for the rulebook that --write writes: say which, by --write FILE.")
        return
    path = Path(args.write)
    if path.suffix.lower() not in _SUFFIXES:
        raise Misuse(f"{path}: --write writes YAML, with the reasons as comments: name it {path.stem}.yaml.")
    if path.exists() and not args.force:
        raise Misuse(f"{path} exists: write to another file, or say --force to replace it.")


def _write(target: str | None, suggestion: Suggestion, text: str, *, unconfirmed: bool) -> str:
    """Writes the rulebook if that is wanted and its bound is confirmed; returns the line that says so."""
    if target is None:
        return "--write FILE writes it as a rulebook in shadow mode"
    if unconfirmed:
        return f"{target} was not written: the bound of {suggestion.refuse_keys:.2%} is not confirmed."
    atomic_file.write(Path(target), text.encode())
    return f"wrote {target}: in shadow mode, it refuses nobody"


Line = str | tuple[str, str] | TextTable


def _lines(suggestion: Suggestion, table: CallTable) -> list[Line]:
    lines: list[Line] = [
        TextTable(
            (
                f"most {'units' if suggestion.has_costs else 'calls'} of a key per",
                "p50",
                "p90",
                "p99",
                "p99.9",
                "max",
            ),
            [tuple(row) for row in suggestion.demand],
            right_aligned=("p50", "p90", "p99", "p99.9", "max"),
        ),
        "",
        "the smallest burst that refuses none of so many keys, by rate:",
        _frontier(suggestion),
        "",
    ]
    if suggestion.heavy_keys:
        lines += [*_heavy(suggestion), ""]
    if suggestion.day_parts:
        titles = ("", "hours", "calls", "keys", "p99/min", "max/min")
        lines += [TextTable(titles, [tuple(part) for part in suggestion.day_parts], right_aligned=titles[2:]), ""]
    if suggestion.sampled > 1:
        lines.append(
            f"sampled: of the light keys one in {suggestion.sampled} was looked at ({table.dropped:,} calls less)"
        )
    if table.without_key:
        lines.append(f"{table.without_key:,} calls have no key, and were left out")
    return [*lines, *_conclusion(suggestion)]


def _frontier(suggestion: Suggestion) -> TextTable:
    """Returns the frontier, with a bar for the burst that refuses no key; of many rates some."""
    points = _spread(suggestion.frontier, lambda point: point.rate == suggestion.rate)
    most = max(point.all_keys for point in points)
    block = "█" if Style.on(sys.stdout).blocks else "#"
    rows: list[tuple[Value, ...]] = []
    for point in points:
        bar = block * max(1, round(_BAR_WIDTH * point.all_keys / most))
        chosen = point.rate == suggestion.rate
        rows.append(
            (
                Cell(str(point.rate), "bold") if chosen else str(point.rate),
                *point[1:],
                Cell(f"{bar} <- suggested", "green") if chosen else bar,
            )
        )
    titles = ("rate", "50 %", "90 %", "99 %", "99.9 %", "all keys", "")
    return TextTable(titles, rows, right_aligned=titles[1:6])


def _spread(points: Sequence[FrontierPoint], is_chosen: Callable[[FrontierPoint], bool]) -> list[FrontierPoint]:
    """Returns some points of the whole range, and the chosen one."""
    step = max(1, (len(points) - 1) / (_MAX_SHOWN_RATES - 2))
    shown = {round(number * step) for number in range(_MAX_SHOWN_RATES)}
    return [point for index, point in enumerate(points) if index in shown or is_chosen(point)]


def _heavy(suggestion: Suggestion) -> list[Line]:
    rows: list[tuple[Value, ...]] = [
        (
            each.key,
            each.calls,
            each.per_minute,
            each.paths,
            None if each.errors is None else f"{each.errors:.0%}",
            f"{each.irregularity:.1f}",
            each.looks_like,
        )
        for each in suggestion.heavy_keys[:_MAX_SHOWN_KEYS]
    ]
    titles = ("heavy keys, set apart", "calls", "max/min", "paths", "errors", "jitter", "looks like")
    more = len(suggestion.heavy_keys) - _MAX_SHOWN_KEYS
    return [TextTable(titles, rows, right_aligned=titles[1:6]), *([f"and {more:,} more"] if more > 0 else [])]


def _conclusion(suggestion: Suggestion) -> list[Line]:
    expected = suggestion.expected
    lines: list[Line] = [
        (f"suggested: {suggestion.limit} (a burst of {suggestion.needed_burst}, and headroom)", "green"),
        *_confirmation(suggestion),
    ]
    lines.append(
        f"whole log, if enforced: {expected.refused_calls:,} of {expected.calls:,} calls refused, of "
        f"{expected.refused_keys:,} of {expected.keys:,} keys"
    )
    if not suggestion.confirmed:
        lines.append("run it in shadow mode, and replay a longer log, before you enforce it")
    return lines


def _confirmation(suggestion: Suggestion) -> list[Line]:
    confirmation = suggestion.confirmation
    ordinary = confirmation.ordinary
    refused = f"{ordinary.refused_keys:,} of {ordinary.keys:,} keys refused ({ordinary.key_share:.2%})"
    if suggestion.chosen_again and not confirmation.enough:
        return [
            f"too few ordinary keys to confirm anything ({confirmation.choosing_keys:,} in the first two thirds, "
            f"{ordinary.keys:,} in the last),",
            "so the whole log chose",
        ]
    if suggestion.chosen_again:
        return [
            f"the first two thirds chose {confirmation.limit}; on the last third: {refused}",
            "so the whole log chose again, and nothing is left to confirm it",
        ]
    lines: list[Line] = [f"last third, not used to choose: {refused}; {_verdict(suggestion)}"]
    if confirmation.new_heavy_keys:
        lines.append(f"and {confirmation.new_heavy_keys:,} heavy keys there, which were not set apart before")
    largest = ordinary.largest_key_share
    if suggestion.confirmed and largest > max(suggestion.refuse_keys, MAX_REFUSED_SHARE):
        lines.append(f"with so few keys, as many as {largest:.1%} of others may be refused (95% confidence)")
    return lines


def _verdict(suggestion: Suggestion) -> str:
    """Returns in a word whether the last third of the log confirms the limit."""
    if not suggestion.confirmation.enough:
        return "too few"
    verdict = "confirmed" if suggestion.confirmed else "not confirmed"
    return f"the bound of {suggestion.refuse_keys:.2%} is {verdict}" if suggestion.refuse_keys else verdict
