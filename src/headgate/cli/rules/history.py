"""headgate rules history: lists the published rulebook versions, newest first."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from headgate.algorithms.limit import SECOND
from headgate.cli.command_parser import Commands, command
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import Output
from headgate.cli.rulebook_option import versions_of
from headgate.cli.text_table import Cell, TextTable, Value
from headgate.operations.publish_rulebook import version_document
from headgate.rules.distribution.rulebook_version import RulebookVersion


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "history",
        run,
        "list the published versions of the rulebook, newest first",
        "headgate rules history --engine redis://host:6379/0",
    )
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    with server(args, "no rulebook can be pushed there") as engine:
        store = versions_of(engine)
        versions, current = store.history(), store.version()
    document = {"in_force": current or None, "versions": [version_document(version) for version in versions]}
    if not versions:
        return Output(document, ["No rulebook was pushed to this engine yet."])
    rows = [_row(version, version.version == current) for version in versions]
    return Output(
        document, [TextTable(("version", "", "published", "author", "note"), rows, right_aligned=("version",))]
    )


def _row(version: RulebookVersion, current: bool) -> tuple[Value, ...]:
    published = datetime.fromtimestamp(version.at_us // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rollback_note = "" if version.rolled_back_to is None else f"back to {version.rolled_back_to}"
    note = "; ".join(part for part in (rollback_note, version.note) if part)
    return version.version, Cell("in force" if current else "", "green"), published, version.author, note
