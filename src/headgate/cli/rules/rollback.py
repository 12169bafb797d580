"""headgate rules rollback: publishes an earlier rulebook again.

History is never rewritten: a rollback is a new version. Its bundle is compiled again, because the scripts of the
earlier one may be gone.
"""

from __future__ import annotations

import argparse

from headgate import flow
from headgate.cli.command_parser import Commands, command, whole_number
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output, warn
from headgate.cli.rulebook_option import versions_of
from headgate.cli.rules.diff import comparison_lines
from headgate.cli.rules.push import add_author, author_of
from headgate.operations.compare_rulebooks import document
from headgate.operations.publish_rulebook import roll_back, version_document


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "rollback",
        run,
        "publish an earlier version of the rulebook again",
        "headgate rules rollback --engine redis://host:6379/0",
        'headgate rules rollback --to 3 --note "partners were refused"',
    )
    parser.add_argument(
        "--to", type=whole_number(1), metavar="N", help="the version to publish again (default: the previous one)"
    )
    add_author(parser)
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    author = author_of(args)
    with server(args, "no rulebook can be pushed there") as engine:
        rollback_flow = roll_back(engine, versions_of(engine), args.to, author=author, note=args.note)
        version, _, _, comparison, warnings = flow.run(rollback_flow)
    for warning in warnings:
        warn(warning, as_json=args.json)
    message = f"Version {version.version} is in force: the text of version {version.origin}."
    return Output(
        version_document(version) | document(comparison), [*comparison_lines(comparison), (message, "green")]
    )
