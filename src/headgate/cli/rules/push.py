"""headgate rules push: publishes a rulebook on the engine's server, for all processes that follow it.

It validates the rulebook first, and prints what changes. operations/publish_rulebook.py describes when a push
takes effect, and what it stores.
"""

from __future__ import annotations

import argparse
import os
import pwd
import socket
from pathlib import Path

from headgate import flow
from headgate.cli.command_parser import Commands, command, whole_number
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output, warn
from headgate.cli.rulebook_option import versions_of
from headgate.cli.rules.diff import comparison_lines
from headgate.cli.rules.validate import add_strict
from headgate.enforcement.split_limits import check_split_limits
from headgate.operations.compare_rulebooks import document
from headgate.operations.publish_rulebook import push
from headgate.rules import load

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "push",
        run,
        "publish a rulebook on the engine's server, for all processes that follow it",
        'headgate rules push rules.yaml --note "more for partners" --engine redis://host:6379/0',
    )
    parser.add_argument("file", metavar="FILE", help="YAML, TOML or JSON")
    add_strict(parser)
    add_author(parser)
    parser.add_argument(
        "--if-version",
        type=whole_number(0),
        metavar="N",
        help="publish only if version N is in force (0: if none is)",
    )
    add_engine(parser)


def add_author(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--author", help="the author of this version (default: the user's name, or USER@HOST)")
    parser.add_argument("--note", default="", help="the reason, in one line")


def author_of(args: argparse.Namespace) -> str:
    """Returns the author: as given, or the user's name; without one (cron, containers) account and host."""
    names = (os.environ.get(name) for name in ("USER", "USERNAME", "LOGNAME"))
    return args.author or next(filter(None, names), None) or f"{_account()}@{socket.gethostname() or 'unknown'}"


def _account() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user often has no entry
        return f"uid{os.getuid()}"


def run(args: argparse.Namespace) -> Output:
    book, author = check_split_limits(load.read(args.file)), author_of(args)
    if args.strict:
        book.strict()
    rule_format = FORMATS[Path(args.file).suffix.lower()]
    with server(args, "no process can follow a rulebook there") as engine:
        push_flow = push(
            engine,
            versions_of(engine),
            book,
            format=rule_format,
            author=author,
            note=args.note,
            expected=args.if_version,
        )
        version, new, _, comparison, warnings = flow.run(push_flow)
    for warning in warnings:
        warn(warning, as_json=args.json)
    if not new:
        message = f"This is the text of version {version.version} already: nothing was pushed."
        return Output({"version": version.version, "pushed": False} | document(comparison), [message])
    result = {"version": version.version, "pushed": True, "author": author, "note": args.note}
    message = f"Version {version.version} is in force: {len(book)} rule{'' if len(book) == 1 else 's'}."
    return Output(result | document(comparison), [*comparison_lines(comparison), (message, "green")])
