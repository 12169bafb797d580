"""headgate rules history: the published rulebooks that are kept, newest first."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from headgate.algorithms.limit import SECOND
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output
from headgate.cli.parser import Commands, command
from headgate.cli.rulebook_option import editions_of
from headgate.cli.table import Cell, Table, Value
from headgate.operations.publish_rulebook import told
from headgate.rules.distribution.version import RulebookVersion


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "history",
        run,
        "the published rulebooks that are kept, newest first",
        "headgate rules history --engine redis://host:6379/0",
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "no rulebook can be pushed there") as engine:
        editions = editions_of(engine)
        found, in_force = editions.history(), editions.version()
    document = {"in_force": in_force or None, "editions": [told(edition) for edition in found]}
    if not found:
        return Output(document, ["No rulebook was pushed to this engine yet."])
    rows = [_row(edition, edition.version == in_force) for edition in found]
    return Output(document, [Table(("edition", "", "published", "author", "note"), rows, right=("edition",))])


def _row(edition: RulebookVersion, in_force: bool) -> tuple[Value, ...]:
    at = datetime.fromtimestamp(edition.at_us // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    back = "" if edition.rolled_back_to is None else f"back to {edition.rolled_back_to}"
    note = "; ".join(part for part in (back, edition.note) if part)
    return edition.version, Cell("in force" if in_force else "", "green"), at, edition.author, note
