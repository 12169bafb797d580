"""headgate rules validate: checks whether files are valid rulebooks, and prints every problem.

The problems are the result, so they are printed on stdout, as by linters; the exit code is 2 if there is any.
Warnings are printed there too, and change the exit code only with --strict.
"""

from __future__ import annotations

import argparse
from typing import Any

from headgate.cli.command_parser import Commands, command
from headgate.cli.output import DONE, INVALID, Output
from headgate.operations.publish_rulebook import RulebookProblem, validate_rulebook
from headgate.rules import load


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "validate",
        run,
        "check rulebooks, and report every wrong line",
        "headgate rules validate rules.yaml",
        "headgate rules validate config/*.toml --json",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML, TOML or JSON")
    add_strict(parser)


def add_strict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict",
        action="store_true",
        help="treat warnings as errors, such as those about attributes that look misspelled",
    )


def run(args: argparse.Namespace) -> Output:
    results = [_validate(file, args.strict) for file in args.files]
    valid = all(file["valid"] for file in results)
    lines: list[str | tuple[str, str]] = []
    for file in results:
        if file["valid"]:
            lines.append((f"{file['file']}: {file['rules']} rule{'' if file['rules'] == 1 else 's'}", "green"))
        lines += [(problem["message"], "red") for problem in file["problems"]]
        lines += [(f"warning: {warning['message']}", "yellow") for warning in file["warnings"]]
    return Output({"valid": valid, "files": results}, lines, DONE if valid else INVALID)


def _validate(file: str, strict: bool) -> dict[str, Any]:
    result = validate_rulebook(lambda: load.read(file).strict() if strict else load.read(file))
    if isinstance(result, list):
        problems = [problem._asdict() for problem in result]
        return {"file": file, "valid": False, "rules": None, "problems": problems, "warnings": []}
    warnings = [
        RulebookProblem(line, sentence, located)._asdict()
        for (line, sentence), located in zip(result.warnings, result.located_warnings, strict=True)
    ]
    return {"file": file, "valid": True, "rules": len(result), "problems": [], "warnings": warnings}
