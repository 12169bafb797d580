"""headgate rules report: shows a rule live against its shadow and its candidate. Is it safe to enforce?"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime

from headgate.cli.command_parser import Commands, Misuse, command, whole_number
from headgate.cli.engine_option import add_engine, server_of, url_of
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.operations.rule_report import (
    DEFAULT_HOURS,
    MIN_CALLS,
    NO,
    YES,
    ReportRow,
    RuleReport,
    report_rule,
)

_COLORS = {YES: "green", NO: "red"}


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "report",
        run,
        "show a rule against its shadow and its candidate: is it safe to enforce?",
        "headgate rules report login --engine redis://host:6379/0",
        "headgate rules report login --hours 2 --max-refused 0.5% --mask",
        more="It is safe if the candidate (or the rule in shadow mode) refuses at most 0.1 % of the keys that "
        f"called; below {MIN_CALLS:,} calls there is not enough data. The exit code is 0 if it is safe, or if "
        "nothing is tried, and 3 if not.",
    )
    parser.add_argument("rule", metavar="RULE", help="the name of the rule")
    parser.add_argument(
        "--hours",
        type=whole_number(1, 25),
        default=DEFAULT_HOURS,
        metavar="N",
        help="the last N hours, of which the current one is the last (24)",
    )
    parser.add_argument(
        "--max-refused", type=_share, default="0.1%", metavar="SHARE", help="the keys that may be refused (0.1%%)"
    )
    parser.add_argument("--mask", action="store_true", help="hide most of each key")
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    from headgate.telemetry.shared_counts import SharedCounts

    server_of(args, "its counts end with it; ask the admin API of its service instead")
    with SharedCounts(url_of(args), prefix=args.prefix) as shared:
        report = report_rule(shared, args.rule, args.hours, args.max_refused, args.mask)
    return _output(report)


def _output(report: RuleReport) -> Output:
    since = datetime.fromtimestamp(report.since_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if not report.rows:
        return Output(report.document(), [f'Rule "{report.rule}" was not called since {since}.'])
    titles = (report.rule, "calls", "refused", "of calls", "keys refused", "of keys", "safe to enforce?")
    table = TextTable(titles, [_row(row) for row in report.rows], titles[1:6])
    lines: list[str | tuple[str, str] | TextTable] = [f"Since {since}", "", table]
    lines += ["", *(f"{row.kind.capitalize()}: {row.safe}, because {row.why}." for row in report.trials)]
    if not report.trials:
        lines.append("Nothing is tried: the rule has no candidate, and is not in shadow mode.")
    if report.suffering:
        title = "would be refused" if report.trials else "refused"
        lines += ["", TextTable(("key", title), report.suffering, (title,))]
    safe = all(row.safe == YES for row in report.trials)
    return Output(report.document(), lines, DONE if safe else NEGATIVE)


def _row(row: ReportRow) -> tuple[Value, ...]:
    share = row.keys_refused / row.keys if row.keys else 0.0
    return (
        row.kind,
        row.calls,
        row.refused,
        f"{row.refused / row.calls:.2%}",
        row.keys_refused,
        None if row.keys is None else f"{min(1.0, share):.2%}",
        None if row.safe is None else Cell(row.safe, _COLORS.get(row.safe, "yellow")),
    )


def _share(text: str) -> float:
    """Parses 0.1% or 0.001."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)(%?)", text)
    share = -1.0 if match is None else float(match[1]) / (100 if match[2] else 1)
    if not 0 <= share <= 1:
        raise Misuse(f'"{text[:40]}" is no share of the keys. Write a percentage, such as 0.1%.')
    return share
