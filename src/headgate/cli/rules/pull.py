"""headgate rules pull: prints a published rulebook as it was written."""

from __future__ import annotations

import argparse

from headgate.cli.command_parser import Commands, command, whole_number
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output
from headgate.cli.rulebook_option import versions_of
from headgate.errors import InvalidRule
from headgate.operations.publish_rulebook import version_document
from headgate.rules.distribution.watcher import PUSH_HINT


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "pull",
        run,
        "print a published rulebook, as it was written",
        "headgate rules pull --engine redis://host:6379/0 > rules.yaml",
        "headgate rules pull --version 3",
    )
    parser.add_argument(
        "--version", type=whole_number(1), metavar="N", help="an earlier version (default: the one in force)"
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "no rulebook can be pushed there") as engine:
        versions = versions_of(engine)
        version = versions.current() if args.version is None else versions.get(args.version)
        empty = version is None and versions.current() is None
    if empty:
        raise InvalidRule(f"No rulebook was pushed to this engine yet. {PUSH_HINT}")
    if version is None:
        raise InvalidRule(f"No version {args.version} is kept. See headgate rules history.")
    return Output(
        version_document(version) | {"format": version.format, "text": version.text},
        [version.text.removesuffix("\n")],
    )
