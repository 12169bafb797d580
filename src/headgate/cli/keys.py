"""headgate keys: what is counted, by rule, and whose counts are fullest.

operations/key_usage.py says what that is.
"""

from __future__ import annotations

import argparse

from headgate.algorithms.decision import REMAINING, RESET_AFTER_US
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output, warn
from headgate.cli.parser import Commands, command, whole
from headgate.cli.rulebook_option import add_book, known_book
from headgate.cli.table import Table, Value
from headgate.explain import long
from headgate.operations.key_usage import SCAN_LIMIT, Standing, Surveyed, check_rule, surveyed, walk


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "keys",
        run,
        "what is counted, busiest first",
        "headgate keys --engine redis://host:6379/0 --top 10",
        "headgate keys --rule login --rules rules.yaml --json",
        more="Found by SCAN, a thousand keys at a time, so that nobody else waits. Nothing is changed.",
    )
    parser.add_argument("--rule", metavar="RULE", help="only the counts of this rule, or of this name")
    parser.add_argument("--top", type=whole(1), default=20, metavar="N", help="how many keys are shown (20)")
    parser.add_argument(
        "--scan-limit", type=whole(1), default=SCAN_LIMIT, metavar="N", help="stop after so many counts (100,000)"
    )
    add_book(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "nothing is counted there between two commands") as engine:
        book, survey = known_book(args, engine), walk(engine, args.rule, args.scan_limit)
        found = surveyed(engine, survey, book, args.rule, args.top)
    check_rule(found, book, args.rule)
    if not found.complete:
        told = f"Stopped at {args.scan_limit:,}; there are more. Raise --scan-limit to see all of them."
        warn(told, as_json=args.json)
    return _answer(found)


def _answer(found: Surveyed) -> Output:
    document = found.document()
    if not found.counts:
        return Output(document, ["Nothing is counted."])
    rules = [(name, found.tallies[name].counts, found.tallies[name].bytes) for name in found.names]
    titles = ("rule", "key", "used", "of", "remaining", "reset", "limit")
    rows = [_row(standing) for standing in found.busiest]
    right = ("used", "of", "remaining", "reset", "counts", "bytes")
    return Output(document, [Table(("rule", "counts", "bytes"), rules, right), "", Table(titles, rows, right)])


def _row(standing: Standing) -> tuple[Value, ...]:
    count, limit, facts = standing
    shown = count.key if count.told else f"{count.key[:14]}…"
    reset_us = (count.ttl_ms or 0) * 1000 if facts is None else facts[RESET_AFTER_US]
    return (
        count.name,
        shown,
        standing.used,
        standing.of,
        None if facts is None else facts[REMAINING],
        long(reset_us) if reset_us else None,
        None if limit is None else limit.text,
    )
