"""headgate rules pull: a published rulebook, as it was written."""

from __future__ import annotations

import argparse

from headgate.cli.answer import Answer
from headgate.cli.book import editions_of
from headgate.cli.engine import add_engine, server
from headgate.cli.parser import Commands, command, whole
from headgate.errors import InvalidRule
from headgate.operating.publishing import told


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


def run(args: argparse.Namespace) -> Answer:
    with server(args, "no rulebook can be pushed there") as engine:
        editions = editions_of(engine)
        edition = editions.current() if args.version is None else editions.get(args.version)
    if edition is None:
        which = (
            "rulebook was pushed to this engine yet" if args.version is None else f"edition {args.version} is kept"
        )
        raise InvalidRule(f"No {which}. See headgate rules history.")
    return Answer(
        told(edition) | {"format": edition.format, "text": edition.text}, [edition.text.removesuffix("\n")]
    )
