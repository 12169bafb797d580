"""headgate stats: shows what each rule allowed and refused, over all processes and gateways."""

from __future__ import annotations

import argparse

from headgate.cli.command_parser import Commands, Misuse, command, whole_number
from headgate.cli.engine_option import add_engine, server_of, url_of
from headgate.cli.output import Output
from headgate.cli.text_table import TextTable, Value
from headgate.telemetry.decision_counts import NO_RULE, DecisionCounts
from headgate.telemetry.hot_keys import HotKey

TITLES = (
    *("rule", "calls", "refused", "shed", "delayed", "near limit"),
    *("shadow refused", "candidate refused", "degraded", "denial cache", "prefetch", "errors"),
)
MEMORY_ERROR = "its counts end with it; see Counts in docs/reference/telemetry.md"


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "stats",
        run,
        "show what each rule allowed and refused",
        "headgate stats --engine redis://host:6379/0 --minutes 60",
        "headgate stats --rule login --keys refused --mask",
        more="It reads the counts that services, programs and gateways have shared through Redis in the last 25 "
        "hours.",
    )
    span = parser.add_mutually_exclusive_group()
    span.add_argument("--seconds", type=whole_number(1, 120), metavar="N", help="the last N seconds, at most 120")
    span.add_argument(
        "--minutes",
        type=whole_number(1, 1500),
        default=5,
        metavar="N",
        help="the last N minutes, at most 1500 (5)",
    )
    parser.add_argument("--rule", metavar="RULE", help="only this rule")
    parser.add_argument(
        "--keys",
        choices=("calls", "refused", "shadow_refused", "candidate_refused"),
        metavar="KIND",
        help="also the hottest keys of --rule in the last minute, by calls, refused, shadow_refused or "
        "candidate_refused",
    )
    parser.add_argument("--mask", action="store_true", help="hide most of each key")
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    from headgate.telemetry.shared_counts import SharedCounts

    server_of(args, MEMORY_ERROR)
    if args.keys and not args.rule:
        raise Misuse("--keys shows the keys of one rule: add --rule RULE.")
    span = {"minutes": args.minutes} if args.seconds is None else {"seconds": args.seconds}
    with SharedCounts(url_of(args), prefix=args.prefix) as shared:
        counts = shared.last(**span, rules=None if args.rule is None else [args.rule])
        keys = shared.hot_keys(args.rule, args.keys, mask=args.mask) if args.keys else []
    return _output(counts, span, keys, args)


def _output(
    counts: dict[str, DecisionCounts], span: dict[str, int], keys: list[HotKey], args: argparse.Namespace
) -> Output:
    seconds = span.get("seconds") or span["minutes"] * 60
    document: dict[str, object] = {
        "seconds": seconds,
        "rules": [{"rule": rule, **each.as_dict()} for rule, each in sorted(counts.items())],
    }
    if args.keys:
        document["keys"] = {"kind": args.keys, "rows": [each._asdict() for each in keys]}
    if not counts:
        return Output(document, ["Nothing was counted in this time."])
    lines: list[str | tuple[str, str] | TextTable] = [_table(counts)]
    if keys:
        lines += ["", TextTable(("key", args.keys.replace("_", " ")), keys, (args.keys.replace("_", " "),))]
    return Output(document, lines)


def _table(counts: dict[str, DecisionCounts]) -> TextTable:
    """Returns a table without the columns that are zero for every rule."""
    rows = [_row(rule, each) for rule, each in sorted(counts.items())]
    used = [
        column for column in range(len(TITLES)) if column < 3 or any(row[column] not in (0, None) for row in rows)
    ]
    titles = [TITLES[column] for column in used]
    return TextTable(titles, [[row[column] for column in used] for row in rows], titles[1:])


def _row(rule: str, counts: DecisionCounts) -> tuple[Value, ...]:
    return (
        "(no rule)" if rule == NO_RULE else rule,
        counts.calls + counts.shadow_calls,
        counts.refused,
        counts.shed,
        counts.delayed,
        counts.near_limit,
        counts.shadow_refused,
        counts.candidate_refused,
        counts.degraded,
        counts.by_denial_cache,
        counts.by_prefetch,
        counts.errors,
    )
