"""headgate doctor: checks the server, the rulebook and the application, and names the line to change.

It changes no count. Each result is a Finding (operations/finding.py). Errors make the exit code 3; warnings do so
with --strict. A server that does not answer makes it 1, an invalid rulebook 2; the other checks run all the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from headgate.cli.application_option import ApplicationInfo, add_application_option, read_application
from headgate.cli.command_parser import Commands, Misuse, command
from headgate.cli.doctor_checks import (
    check_application,
    check_counts,
    check_log,
    check_routes,
    check_server,
    unreachable_finding,
    unread_finding,
)
from headgate.cli.engine_option import VARIABLE, add_engine, server, url_of
from headgate.cli.output import DONE, ENGINE_UNAVAILABLE, INVALID, NEGATIVE, Output
from headgate.cli.rulebook_option import add_rules_option, optional_rulebook
from headgate.engines.url import parse_engine_url
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRulebook
from headgate.operations.finding import ERROR, OK, WARNING, Finding
from headgate.operations.rulebook_findings import invalid_rulebook_findings, rulebook_findings
from headgate.rules import load
from headgate.rules.rule import Rulebook

_COLORS = {OK: "green", WARNING: "yellow", ERROR: "red"}
_PROXY_SETTING = "trusted_proxies=[PROXIES]"


def add(commands: Commands) -> None:
    parser = command(
        commands,
        "doctor",
        run,
        "check the server, the rulebook and the application, and name the line to change",
        "headgate doctor --engine redis://host:6379/0 --rules rules.yaml",
        "headgate doctor --app main:app --log decisions.jsonl --strict --json",
        more="It checks the version, role, rights, eviction, clock, scripts and latency of Redis or Valkey; rules "
        "that decide nothing; and whether all clients share one key behind a proxy. It changes no count. The exit "
        "code is 3 if there is an error, 1 if the server does not answer, and 2 if the rulebook is invalid.",
    )
    add_rules_option(parser)
    add_application_option(parser)
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="FILE",
        help="a decision log, to find unused rules and shared keys in; repeatable",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 for warnings, too")
    add_engine(parser)


class Diagnosis(NamedTuple):
    """All findings, and what could not be checked at all."""

    findings: list[Finding]
    unreachable: bool
    invalid_rulebook: bool

    def exit_code(self, *, strict: bool) -> int:
        """Returns the exit code; a server that does not answer comes first."""
        if self.unreachable:
            return ENGINE_UNAVAILABLE
        if self.invalid_rulebook:
            return INVALID
        return NEGATIVE if self.number(ERROR) or (strict and self.number(WARNING)) else DONE

    def number(self, level: str) -> int:
        return sum(finding.level == level for finding in self.findings)


def run(args: argparse.Namespace) -> Output:
    app = None if args.app is None else read_application(args.app)
    url = url_of(args) or ("" if app is None else app.engine_url)
    if not url and args.rules is None and app is None and not args.log:
        raise Misuse(
            f"There is nothing to check. Write {args.called} --engine redis://host:6379/0 (or set {VARIABLE}), "
            "--rules FILE, --app MODULE:NAME or --log FILE."
        )
    if url:
        parse_engine_url(url)
    return _output(_diagnose(args, app, url), args)


def _diagnose(args: argparse.Namespace, app: ApplicationInfo | None, url: str) -> Diagnosis:
    findings: list[Finding] = []
    unreachable = invalid_rulebook = False
    book, source, on_server = None, "", url and not url.startswith("memory:")
    try:
        book, source = _rulebook_of_files(args, app)
    except InvalidRulebook as error:
        invalid_rulebook = True
        findings += invalid_rulebook_findings(error, error.source or args.rules)
    if url and not on_server:
        message = "memory:// counts in each process for itself: N processes let N times the limit pass."
        findings.append(Finding("engine", WARNING, message, "redis://localhost:6379/0", "the engine's URL"))
    if on_server:
        args.engine = url
        try:
            findings += check_server(args, url)
            if book is None and not invalid_rulebook:
                book, source = _pushed_rulebook(args, findings), "the pushed rulebook"
        except EngineUnavailable as error:
            unreachable = True
            findings.append(unreachable_finding(error, url))
    if book is not None:
        findings += rulebook_findings(book, source)
    if app is not None:
        findings += [*check_application(app, url), *(check_routes(app, book, source) if book is not None else ())]
    setting = _PROXY_SETTING if app is None else app.proxy_setting
    if args.log:
        findings += check_log(args.log, book, source, setting)
    if on_server and not unreachable:
        findings += check_counts(args, book, source, setting, quiet=bool(args.log))
    return Diagnosis(findings, unreachable, invalid_rulebook)


def _rulebook_of_files(args: argparse.Namespace, app: ApplicationInfo | None) -> tuple[Rulebook | None, str]:
    """Returns the rulebook of --rules, or that of the application if it is in a file or in its code."""
    if args.rules is not None:
        return load.read(args.rules), args.rules
    rules = None if app is None or app.limits is None else app.limits.rules
    if rules is None or rules == Rulebook() or app is None:
        return None, ""
    if isinstance(rules, Rulebook):
        return rules, rules.source or app.name
    if isinstance(rules, Mapping):
        return load.from_mapping(rules), app.name
    return load.read(rules), str(rules)


def _pushed_rulebook(args: argparse.Namespace, findings: list[Finding]) -> Rulebook | None:
    try:
        with server(args) as engine:
            return optional_rulebook(args, engine)
    except HeadgateError as error:  # a right that decisions do not need, or a pushed rulebook that is invalid
        findings.append(unread_finding("rulebook", "The pushed rulebook cannot be read", error, args.engine))
        return None


def _output(diagnosis: Diagnosis, args: argparse.Namespace) -> Output:
    errors, warnings = diagnosis.number(ERROR), diagnosis.number(WARNING)
    code = diagnosis.exit_code(strict=args.strict)
    document = {
        "healthy": code == DONE,
        "errors": errors,
        "warnings": warnings,
        "findings": [finding.document() for finding in diagnosis.findings],
    }
    lines = [line for finding in diagnosis.findings for line in _lines(finding)]
    return Output(document, [*lines, "", _summary(errors, warnings)], code)


def _lines(finding: Finding) -> Iterator[tuple[str, str] | str]:
    line = f"{finding.level:<8}{finding.check:<16}{finding.message}"
    yield (line, _COLORS[finding.level]) if finding.level != OK else line
    if finding.change is not None:
        place = f"{finding.where}: " if finding.where else ""
        yield f"{'':<8}-> {place}{finding.change}", "bold"


def _summary(errors: int, warnings: int) -> tuple[str, str]:
    if not errors and not warnings:
        return "nothing to change", "green"
    parts = [
        f"{number} {word}{'' if number == 1 else 's'}"
        for number, word in ((errors, "error"), (warnings, "warning"))
    ]
    return ", ".join(parts), "red" if errors else "yellow"
