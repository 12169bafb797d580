"""headgate rules diff: compares two rulebooks by their meaning, not by how they are written."""

from __future__ import annotations

import argparse

from headgate.cli.command_parser import Commands, command
from headgate.cli.engine_option import add_engine, server
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.rulebook_option import versions_of
from headgate.errors import InvalidRule
from headgate.operations.compare_rulebooks import Comparison, FieldDifference, RuleDifference, compare, document
from headgate.operations.publish_rulebook import book_of
from headgate.rules import load
from headgate.rules.rule import Rulebook

PUSHED = "pushed"

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "renamed": ("~", "yellow"), "changed": ("~", "yellow")}


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "diff",
        run,
        "show what changes in meaning between two rulebooks",
        "headgate rules diff old.yaml new.yaml",
        "headgate rules diff pushed rules.yaml --engine redis://host:6379/0 --exit-code",
    )
    parser.add_argument("old", metavar="OLD", help="a file, or `pushed`: the version in force on the engine")
    parser.add_argument("new", metavar="NEW", help="the same")
    parser.add_argument("--exit-code", action="store_true", help="exit with 3 if there is a difference")
    add_engine(parser)


def run(args: argparse.Namespace) -> Output:
    comparison = compare(_book(args, args.old), _book(args, args.new))
    return Output(
        document(comparison), comparison_lines(comparison), NEGATIVE if comparison and args.exit_code else DONE
    )


def _book(args: argparse.Namespace, source: str) -> Rulebook:
    if source != PUSHED:
        return load.read(source)
    with server(args, "no rulebook can be pushed there") as engine:
        version = versions_of(engine).current()
    if version is None:
        raise InvalidRule("No rulebook was pushed to this engine yet.")
    return book_of(version)


def comparison_lines(comparison: Comparison) -> list[str | tuple[str, str]]:
    if not comparison:
        return ["No difference in meaning."]
    lines: list[str | tuple[str, str]] = [_line(field) for field in comparison.book]
    for change in comparison.rules:
        lines += _change(change)
    return lines


def _change(change: RuleDifference) -> list[str | tuple[str, str]]:
    sign, color = _SIGNS[change.kind]
    lines: list[str | tuple[str, str]] = [(f"{sign} {change.rule}: {change.kind}", color)]
    lines += [f"    {_line(field)}" for field in change.fields]
    if change.restart_reason is not None:
        lines.append((f"    counts start anew: {change.restart_reason}", "yellow"))
    return lines


def _line(field: FieldDifference) -> str:
    name, old, new = field
    if old is None:
        return f"{name}: {new}"
    return f"{name}: {old} -> {new or 'not set'}"
