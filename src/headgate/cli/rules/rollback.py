"""headgate rules rollback: publish an earlier rulebook anew. History is never rewritten: it gets a number of its
own. What gateways are told of it is worked out anew: the scripts of then may be gone."""

from __future__ import annotations

import argparse

from headgate.cli.answer import Answer
from headgate.cli.book import editions_of, of_edition
from headgate.cli.engine import add_engine, server
from headgate.cli.parser import Commands, command, whole
from headgate.cli.rules import diff, plated
from headgate.cli.rules.compare import compared
from headgate.cli.rules.history import told
from headgate.cli.rules.push import add_author, author_of
from headgate.rules.living.edition import Edition
from headgate.rules.rule import Rulebook


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "rollback",
        run,
        "publish an earlier rulebook anew",
        "headgate rules rollback --engine redis://host:6379/0",
        'headgate rules rollback --to 3 --note "partners were refused"',
    )
    parser.add_argument("--to", type=whole(1), metavar="N", help="that edition (unless given, the one before)")
    add_author(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> Answer:
    author = author_of(args)
    with server(args, "no rulebook can be pushed there") as engine:
        editions = editions_of(engine)
        before = editions.current()

        def anew(old: Edition) -> str:
            return plated.document(engine, of_edition(old), as_json=args.json)

        edition = editions.rollback(args.to, author=author, note=args.note, anew=anew)
    found = compared(Rulebook() if before is None else of_edition(before), of_edition(edition))
    words = f"Edition {edition.version} is in force: the text of edition {edition.origin}."
    return Answer(told(edition) | diff.document(found), [*diff.shown(found), (words, "green")])
