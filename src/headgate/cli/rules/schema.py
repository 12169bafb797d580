"""headgate rules schema: prints the JSON Schema of rulebooks, for editors."""

from __future__ import annotations

import argparse

from headgate.cli.command_parser import Commands, command
from headgate.cli.output import Output
from headgate.rules import json_schema


def add(verbs: Commands) -> None:
    command(
        verbs,
        "schema",
        run,
        "print the JSON Schema of rulebooks, for editors",
        "headgate rules schema > rulebook.schema.json",
    )


def run(args: argparse.Namespace) -> Output:
    return Output(json_schema.schema(), [json_schema.text().removesuffix("\n")])
