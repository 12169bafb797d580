"""headgate rules pull: a published rulebook, as it was written."""

from __future__ import annotations

import argparse

from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output
from headgate.cli.parser import Commands, command, whole
from headgate.cli.rulebook_option import editions_of
from headgate.errors import InvalidRule
from headgate.operations.publish_rulebook import told
from headgate.rules.distribution.watcher import PUSH_ONE


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "pull",
        run,
        "a published rulebook, as it was written",
        "headgate rules pull --engine redis://host:6379/0 > rules.yaml",
        "headgate rules pull --version 3",
    )
    parser.add_argument(
        "--version", type=whole(1), metavar="N", help="an earlier edition (unless given, that in force)"
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "no rulebook can be pushed there") as engine:
        editions = editions_of(engine)
        edition = editions.current() if args.version is None else editions.get(args.version)
        empty = edition is None and editions.current() is None
    if empty:
        raise InvalidRule(f"No rulebook was pushed to this engine yet. {PUSH_ONE}")
    if edition is None:
        raise InvalidRule(f"No edition {args.version} is kept. See headgate rules history.")
    return Output(
        told(edition) | {"format": edition.format, "text": edition.text}, [edition.text.removesuffix("\n")]
    )
