"""headgate take, peek, refund, reset: calls a limit by hand, as a program would.

The commands change the counters that programs use: a take is charged, a refund gives units back. Each limit gets
its own verdict; all of them are decided together, as always.
"""

from __future__ import annotations

import argparse
from typing import Any

from headgate.algorithms.decision import Decision, Verdict
from headgate.algorithms.durations import in_words
from headgate.cli.command_parser import Commands, Parser, Run, command, whole_number
from headgate.cli.counter_options import add_counter_options, all_counters_of, counters_of
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.flow import run
from headgate.operations import manual_calls
from headgate.validation import check_key

_RIGHT_ALIGNED = ("remaining", "retry after", "reset after", "delay", "before", "after")


def add(commands: Commands) -> None:
    take_parser = _verb(
        commands,
        "take",
        _take,
        "decide a call on a key, and charge it if it passes",
        'headgate take ann --limit "10/minute"',
        "headgate take 'user=ann|sku=7' --rule items --rules rules.yaml --cost 3",
    )
    take_parser.add_argument(
        "--cost", type=whole_number(1), default=1, metavar="N", help="units that the call costs (1)"
    )
    peek_parser = _verb(
        commands,
        "peek",
        _peek,
        "decide a call on a key, and charge nothing",
        'headgate peek ann --limit "10/minute"',
        "headgate peek address=203.0.113.9 --rule login --json",
    )
    peek_parser.add_argument(
        "--cost", type=whole_number(1), default=1, metavar="N", help="units that the call would cost (1)"
    )
    refund_parser = _verb(
        commands,
        "refund",
        _refund,
        "give units back to a key",
        'headgate refund ann --limit "10/minute" --cost 5',
        more="It gives back the newest units first, and at most those that are counted now.",
    )
    refund_parser.add_argument(
        "--cost", type=whole_number(1), default=1, metavar="N", help="units to give back (1)"
    )
    reset_parser = command(
        commands, "reset", _reset, "delete the counters of a key", 'headgate reset ann --limit "10/minute"'
    )
    add_counter_options(reset_parser, attributes=False)
    add_engine(reset_parser)


def _verb(commands: Commands, name: str, run: Run, about: str, *examples: str, more: str | None = None) -> Parser:
    parser = command(commands, name, run, about, *examples, more=more)
    add_counter_options(parser)
    add_engine(parser)
    return parser


def _take(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        return _decision_output(run(manual_calls.take(engine, args.key, counters_of(args, engine), args.cost)))


def _peek(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        return _decision_output(run(manual_calls.peek(engine, args.key, counters_of(args, engine), args.cost)))


def _reset(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        check_key(args.key)
        names = run(manual_calls.reset(engine, args.key, all_counters_of(args, engine)))
    return Output(
        {"key": args.key, "reset": names}, [f"{name}: the counter of {args.key} is deleted" for name in names]
    )


def _refund(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        check_key(args.key)
        refunds = run(manual_calls.refund(engine, args.key, counters_of(args, engine), args.cost))
    rows = [(name, after.limit.text, before.remaining, after.remaining) for name, before, after in refunds]
    document = [
        {"name": name, "limit": after.limit.text}
        | {"before": before.remaining, "remaining": after.remaining, "reset_after": after.reset_after}
        for name, before, after in refunds
    ]
    table = TextTable(("count", "limit", "before", "after"), rows, _RIGHT_ALIGNED)
    return Output({"key": args.key, "cost": args.cost, "limits": document}, [table])


def _decision_output(decision: Decision) -> Output:
    """Returns a decision as a document and as a table, with the verdict of each limit."""
    parts = [(_name(part), part.verdicts[0]) for part in decision.counter_decisions]
    limits = [
        {"name": name, "limit": verdict.limit.text, "allowed": verdict.allowed} | _numbers(verdict)
        for name, verdict in parts
    ]
    document = {"allowed": decision.allowed, "key": decision.key} | _numbers(decision) | {"limits": limits}
    titles = ("count", "limit", "", "remaining", "retry after", "reset after", "delay")
    rows = [_row(name, verdict) for name, verdict in parts]
    headline = (str(decision), "green" if decision.allowed else "red")
    return Output(
        document, [headline, TextTable(titles, rows, _RIGHT_ALIGNED)], DONE if decision.allowed else NEGATIVE
    )


def _name(part: Decision) -> str:
    meter: Any = part.source
    name: str = meter.name
    return name


def _numbers(result: Decision | Verdict) -> dict[str, Any]:
    return {
        "remaining": result.remaining,
        "retry_after": result.retry_after,
        "reset_after": result.reset_after,
        "delay": result.delay,
    }


def _row(name: str, verdict: Verdict) -> tuple[Value, ...]:
    allowed = verdict.allowed
    return (
        name,
        verdict.limit.text,
        Cell("allowed" if allowed else "refused", "green" if allowed else "red"),
        verdict.remaining,
        "never" if verdict.retry_after_us is None else _duration(verdict.retry_after_us),
        _duration(verdict.reset_after_us),
        _duration(verdict.delay_us),
    )


def _duration(us: int) -> str | None:
    return in_words(us) if us else None
