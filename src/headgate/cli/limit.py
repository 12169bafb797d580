"""headgate limit: what a limit means, in words."""

from __future__ import annotations

import argparse
import shutil
from textwrap import fill

from headgate.cli.explain import explain
from headgate.text import parse_all

_LABEL = 12


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("limit", help='what a limit means: headgate limit "100/s burst 200"')
    parser.add_argument("text", help='such as "100/s", "600/minute sliding" or "10/s; 500/hour"')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    limits = parse_all(args.text)
    width = min(110, max(60, shutil.get_terminal_size((100, 24)).columns))
    for limit in limits:
        print(limit.text)
        for label, words in explain(limit):
            indent = " " * (_LABEL + 2)
            print(fill(words, width, initial_indent=f"  {label:<{_LABEL}}", subsequent_indent=indent))
        print()
    if len(limits) > 1:
        print("They are decided together: a call passes all of them, or is charged to none.")
    return 0
