"""headgate keys: lists the counters by rule, and the keys that use most of their limit.

operations/scan_counters.py describes the order.
"""

from __future__ import annotations

import argparse

from headgate.algorithms.decision import REMAINING, RESET_AFTER_US
from headgate.algorithms.durations import in_words
from headgate.cli.command_parser import Commands, command, whole_number
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output, warn
from headgate.cli.rulebook_option import add_rules_option, optional_rulebook
from headgate.cli.text_table import TextTable, Value
from headgate.operations.scan_counters import (
    SCAN_LIMIT,
    KeyUsage,
    UsageReport,
    check_rule,
    report_usage,
    scan_keys,
)


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "keys",
        run,
        "show the counters, busiest first",
        "headgate keys --engine redis://host:6379/0 --top 10",
        "headgate keys --rule login --rules rules.yaml --json",
        more="It finds them by SCAN, a thousand keys at a time, so that no other client waits. It changes "
        "nothing.",
    )
    parser.add_argument("--rule", metavar="RULE", help="only the counters of this rule, or of this name")
    parser.add_argument("--top", type=whole_number(1), default=20, metavar="N", help="how many keys to show (20)")
    parser.add_argument(
        "--scan-limit",
        type=whole_number(1),
        default=SCAN_LIMIT,
        metavar="N",
        help="stop after this many counters (100,000)",
    )
    add_rules_option(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "nothing is counted there between two commands") as engine:
        book, scan = optional_rulebook(args, engine), scan_keys(engine, args.rule, args.scan_limit)
        report = report_usage(engine, scan, book, args.rule, args.top)
    check_rule(report, book, args.rule)
    if not report.complete:
        message = f"Stopped at {args.scan_limit:,}; there are more. Raise --scan-limit to see all of them."
        warn(message, as_json=args.json)
    return _output(report)


def _output(report: UsageReport) -> Output:
    document, paused = report.document(), _paused_table(report)
    if not report.counts:
        return Output(document, ["Nothing is counted.", *paused])
    rules = [(name, report.tallies[name].counts, report.tallies[name].bytes) for name in report.names]
    titles = ("rule", "key", "used", "of", "remaining", "reset", "limit")
    rows = [_row(usage) for usage in report.busiest]
    right = ("used", "of", "remaining", "reset", "counts", "bytes")
    return Output(
        document,
        [TextTable(("rule", "counts", "bytes"), rules, right), "", TextTable(titles, rows, right), *paused],
    )


def _paused_table(report: UsageReport) -> list[str | TextTable]:
    """Returns the keys that are paused, if there are any."""
    rows = [(paused.name, paused.key, in_words(paused.left_us)) for paused in report.pauses]
    return ["", TextTable(("paused", "key", "for"), rows, ("for",))] if rows else []


def _row(usage: KeyUsage) -> tuple[Value, ...]:
    scanned, limit, outcome = usage
    key = scanned.key if scanned.is_readable else f"{scanned.key[:14]}…"
    reset_us = (scanned.ttl_ms or 0) * 1000 if outcome is None else outcome[RESET_AFTER_US]
    return (
        scanned.name,
        key,
        usage.used,
        usage.capacity,
        None if outcome is None else outcome[REMAINING],
        in_words(reset_us) if reset_us else None,
        None if limit is None else limit.text,
    )
