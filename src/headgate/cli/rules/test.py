"""headgate rules test: tests a rulebook by tables of calls. case_format.py describes the tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headgate.cli.command_parser import Commands, command
from headgate.cli.output import DONE, NEGATIVE, Output
from headgate.cli.rulebook_option import print_warnings
from headgate.cli.rules import case_format, run_cases
from headgate.cli.rules.case_format import RuleCase
from headgate.cli.rules.run_cases import Mismatch


def add(verbs: Commands) -> None:
    parser = command(
        verbs,
        "test",
        run,
        "run tables of calls against a rulebook, without a server and without waiting",
        "headgate rules test limits_test.yaml",
    )
    parser.description = case_format.__doc__
    parser.add_argument("files", nargs="+", metavar="FILE", help="tables of calls, in YAML, TOML or JSON")


def run(args: argparse.Namespace) -> Output:
    lines: list[str | tuple[str, str]] = []
    files, failed, count = [], 0, 0
    for file in args.files:
        book, cases = case_format.read(Path(file))
        book = print_warnings(book, as_json=args.json)
        results: list[dict[str, Any]] = []
        for case in cases:
            mismatch = run_cases.run_case(book, case)
            failed, count = failed + (mismatch is not None), count + 1
            results.append(_document(case, mismatch))
            lines += _case_lines(file, case, mismatch)
        files.append({"file": file, "cases": results})
    lines.append(f"{count - failed} of {count} cases passed")
    return Output(
        {"passed": count - failed, "failed": failed, "files": files}, lines, NEGATIVE if failed else DONE
    )


def _document(case: RuleCase, mismatch: Mismatch | None) -> dict[str, Any]:
    document: dict[str, Any] = {"name": case.name, "passed": mismatch is None}
    if mismatch is not None:
        document |= {"line": mismatch.call.line, "time": mismatch.time}
        document |= {"expected": mismatch.expected, "found": mismatch.actual}
    return document


def _case_lines(file: str, case: RuleCase, mismatch: Mismatch | None) -> list[str | tuple[str, str]]:
    if mismatch is None:
        return [(f"ok      {case.name}", "green")]
    call, time, expected, actual = mismatch
    repetition = f", time {time} of {call.times}" if call.times > 1 else ""
    return [
        (f"failed  {case.name}", "red"),
        f"        {file}:{call.line}{repetition}: expected {expected}",
        f"        found {actual}",
    ]
