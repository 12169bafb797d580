"""headgate rules compile: writes the bundle of a rulebook to a file, from which nginx reads it without Redis."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headgate.cli.command_parser import Commands, command
from headgate.cli.output import Output
from headgate.cli.rulebook_option import print_warnings
from headgate.clock import SystemClock
from headgate.enforcement.split_limits import check_split_limits
from headgate.gateway import bundle
from headgate.gateway.atomic_file import write
from headgate.rules import load
from headgate.rules.rule import Rulebook


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "compile",
        run,
        "compile a rulebook to a bundle for nginx",
        "headgate rules compile rules.yaml -o rules.bundle.json",
        more="For an nginx that follows a file, not the pushed rulebook. Compile again when the rules "
        "change, and from "
        "time to time: the bundle holds the time zones of the next thirty years, as they are known today.",
    )
    parser.add_argument("file", metavar="FILE", help="YAML, TOML or JSON")
    parser.add_argument("-o", "--output", metavar="BUNDLE", help="the file to write (default: stdout)")


def run(args: argparse.Namespace) -> Output:
    book = check_split_limits(load.read(args.file))
    print_warnings(book, as_json=args.json)
    if args.output is None:
        compiled = compile_bundle(book)
        return Output(compiled, [json.dumps(compiled)])
    size = compile_to(Path(args.output), book)
    message = f"{args.output}: {len(book)} rule{'' if len(book) == 1 else 's'}, {size:,} bytes"
    return Output({"file": args.output, "rules": len(book), "bytes": size}, [(message, "green")])


def compile_bundle(book: Rulebook) -> bundle.Bundle:
    """Returns the bundle of a rulebook, with the texts of its scripts."""
    compiled = bundle.compile_bundle(book, SystemClock().now_us())
    return compiled | {"texts": bundle.script_texts(compiled)}


def compile_to(path: Path, book: Rulebook) -> int:
    """Writes the bundle to a file, and returns its size in bytes."""
    data = json.dumps(compile_bundle(book), separators=(",", ":")).encode() + b"\n"
    write(path, data)
    return len(data)
