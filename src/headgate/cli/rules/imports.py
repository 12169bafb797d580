"""headgate rules import: prints the limits of another limiter as a rulebook, and notes on stderr what is lost."""

from __future__ import annotations

import argparse
from pathlib import Path

from headgate.cli.command_parser import Commands, command
from headgate.cli.output import Output, warn
from headgate.cli.rulebook_option import file_text
from headgate.rules import load, serialization
from headgate.rules.imports import KINDS, translate, with_location
from headgate.rules.imports.rate_strings import STRATEGIES


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "import",
        run,
        "translate the limits of another limiter into a rulebook",
        "headgate rules import ratelimit.yaml > rules.yaml",
        "headgate rules import nginx.conf --kind nginx",
        more="From the YAML of envoyproxy/ratelimit, routes of Spring Cloud Gateway, limit_req and limit_conn of "
        'nginx, and rates in words such as "5/second;100/hour". Everything without an equivalent is noted '
        "on stderr.",
    )
    parser.add_argument("file", metavar="FILE", help="what to translate")
    parser.add_argument("--kind", choices=KINDS, help=f"{', '.join(KINDS)} (default: guessed)")
    parser.add_argument(
        "--domain", action="store_true", help="envoy: rules apply only to calls with the domain of this file"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, help="limits: how it counts (default: fixed-window)")


def run(args: argparse.Namespace) -> Output:
    path = Path(args.file)
    options = {"domain": args.domain or None, "strategy": args.strategy}
    given_options = {name: value for name, value in options.items() if value is not None}
    translated = translate(file_text(path), args.kind, path.stem, source=args.file, **given_options)
    load.from_mapping(translated.document)  # checks that the result is a valid rulebook
    for note in () if args.json else translated.notes:
        warn(with_location(str(note), args.file), as_json=False)
    notes = [{"line": note.line, "note": note.sentence} for note in translated.notes]
    return Output(
        {"document": translated.document, "notes": notes},
        [serialization.yaml_text(translated.document).removesuffix("\n")],
    )
