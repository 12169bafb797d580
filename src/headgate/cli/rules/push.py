"""headgate rules push: publish a rulebook to all who follow this engine's.

It is validated first, and shown what it changes. It is pushed only if the edition that it was compared with is
still in force: somebody who was faster is not overwritten unseen. The text that is in force already is pushed
again only if something else came of it: another version of headgate tells gateways other things.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from headgate.cli.answer import Answer
from headgate.cli.book import editions_of, of_edition
from headgate.cli.engine import add_engine, server
from headgate.cli.parser import Commands, command, whole
from headgate.cli.rules import diff, plated
from headgate.cli.rules.compare import compared
from headgate.errors import InvalidRule
from headgate.ruled.dividing import divisible
from headgate.rules import load
from headgate.rules.rule import Rulebook

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "push",
        run,
        "publish a rulebook to all who follow this engine's",
        'headgate rules push rules.yaml --note "more for partners" --engine redis://host:6379/0',
    )
    parser.add_argument("file", metavar="FILE", help="YAML, TOML or JSON")
    add_author(parser)
    parser.add_argument(
        "--if-version", type=whole(0), metavar="N", help="only if edition N is in force (0: none is)"
    )
    add_engine(parser)


def add_author(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--author", help="who publishes it (the user's name unless given)")
    parser.add_argument("--note", default="", help="why, in a line")


def author_of(args: argparse.Namespace) -> str:
    author: str = args.author or os.environ.get("USER") or os.environ.get("USERNAME") or ""
    if not author:
        raise InvalidRule("Who publishes this? Say it with --author NAME.")
    return author


def run(args: argparse.Namespace) -> Answer:
    book, author = divisible(load.read(args.file)), author_of(args)
    text = book.text or ""
    form = FORMATS[Path(args.file).suffix.lower()]
    with server(args, "nobody follows a rulebook there") as engine:
        editions = editions_of(engine)
        current = editions.current()
        seen = 0 if current is None else current.version
        found = compared(Rulebook() if current is None else of_edition(current), book)
        expected = seen if args.if_version is None else args.if_version
        document = plated.document(engine, book, as_json=args.json)
        same = current is not None and current.text == text and plated.says(current, book)
        if same and expected == seen:
            told = f"This is the text of edition {seen} already: nothing was pushed."
            return Answer({"version": seen, "pushed": False} | diff.document(found), [told])
        edition = editions.push(text, document, format=form, author=author, note=args.note, expected=expected)
    answer = {"version": edition.version, "pushed": True, "author": author, "note": args.note}
    told = f"Edition {edition.version} is in force: {len(book)} rule{'' if len(book) == 1 else 's'}."
    return Answer(answer | diff.document(found), [*diff.shown(found), (told, "green")])
