"""headgate pause: refuses a key for a while, in every process and gateway; headgate reset ends it."""

from __future__ import annotations

import argparse

from headgate.algorithms.limit import SECOND
from headgate.algorithms.pause import MAX_PAUSE_US
from headgate.cli.command_parser import Commands, command, duration_option
from headgate.cli.counter_options import add_counter_options, pausable_counters, rule_of
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output
from headgate.flow import run as run_flow
from headgate.operations import manual_calls
from headgate.operations.find_counters import CounterRef, pausable_counters_of_key


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "pause",
        run,
        "refuse a key for a while, in every process and gateway",
        "headgate pause address=203.0.113.9 10m --rule login",
        'headgate pause api.partner.example 30s --limit "10/s" --name partner',
        more="Callers that wait are served after it, in order. A pause never shortens a longer one. It lasts an "
        "hour at most, or as long as the rule's `pausable` says. headgate keys lists it, headgate reset ends it. "
        "A rule needs `pausable: true`, and a limiter pausable=True.",
    )
    add_counter_options(parser, attributes=False)
    parser.add_argument("span", type=duration_option, metavar="SPAN", help="how long, such as 30s, 10m or 1h")
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args) as engine:
        rule = rule_of(args, engine)
        counters: list[CounterRef]
        if rule is None:
            counters, max_us = pausable_counters(args), MAX_PAUSE_US
        else:
            counters, max_us = pausable_counters_of_key(rule, args.key)
        left = run_flow(manual_calls.pause(engine, args.key, counters, args.span, max_us / SECOND))
    name = counters[0].options.rule if counters[0].options else counters[0].name
    lines = [f"{name}: {args.key} is paused for {left:g} s"]
    if left < args.span:
        lines.append(f"A pause of {name} lasts {max_us / SECOND:g} s at most.")
    elif left > args.span:
        lines.append("A longer pause was under way: it stays.")
    return Output({"name": name, "key": args.key, "paused_for": left}, lines)
