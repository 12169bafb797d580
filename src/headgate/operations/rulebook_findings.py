"""Finds rules that decide nothing: switched off, without a limit, or without a call that they apply to."""

from __future__ import annotations

from collections.abc import Callable, Collection

from headgate.errors import InvalidRulebook
from headgate.operations.finding import ERROR, OK, WARNING, Finding
from headgate.rules.rule import Rule, Rulebook


def invalid_rulebook_findings(error: InvalidRulebook, source: str) -> list[Finding]:
    """Returns a finding for each problem of a rulebook that cannot be read."""
    return [
        Finding(
            "rulebook", ERROR, problem, "correct this line" if line else "--rules FILE", _position(source, line)
        )
        for line, problem in error.problems
    ]


def rulebook_findings(book: Rulebook, source: str) -> list[Finding]:
    """Judges a rulebook by itself."""
    findings = [
        Finding("rulebook", WARNING, sentence, "correct this line", _position(source, line))
        for line, sentence in book.warnings
    ]
    for rule in book.rules:
        if not rule.mode.enforce + rule.mode.shadow:
            message = f'The rule "{rule.name}" is off: it decides nothing.'
            findings.append(Finding("unused rule", WARNING, message, "mode: shadow", _position(source, rule.line)))
    if not book.rules:
        findings.append(
            Finding("rulebook", WARNING, "The rulebook has no rules: every call passes.", "rules:", source)
        )
    if not findings:
        rules = f"{len(book)} rule{'' if len(book) == 1 else 's'}"
        findings.append(Finding("rulebook", OK, f"{rules}, valid and switched on", where=source))
    return findings


def unused_rule_findings(book: Rulebook, source: str, decided: Collection[str], seen_in: str) -> list[Finding]:
    """Returns a finding for each rule that decided none of the calls seen, unless it cannot decide anyway."""
    unused = [rule for rule in book.rules if rule.name not in decided and can_decide(rule)]
    if not unused:
        return [Finding("unused rules", OK, f"Every rule decided calls, by {seen_in}.", where=source)]
    return [
        Finding(
            "unused rule",
            WARNING,
            f'The rule "{rule.name}" decided no call, by {seen_in}.',
            *_condition_line(book, rule, source),
        )
        for rule in unused
    ]


def unmatched_rule_findings(
    book: Rulebook, source: str, app: str, matches: Callable[[Rule], bool]
) -> list[Finding]:
    """Returns a finding for each rule that matches no route of an application."""
    unmatched = [rule for rule in book.rules if not matches(rule)]
    if not unmatched:
        return [Finding("unmatched rules", OK, f"Every rule matches a route of {app}.", where=source)]
    return [
        Finding(
            "unmatched rule",
            WARNING,
            f'The rule "{rule.name}" matches no route of {app}.',
            *_condition_line(book, rule, source),
        )
        for rule in unmatched
    ]


def can_decide(rule: Rule) -> bool:
    """Returns whether a rule is on and has a limit."""
    limits = [rule.limit.otherwise, *(limit for _, limit in rule.limit.cases)]
    return bool(rule.mode.enforce + rule.mode.shadow) and any(limits)


def _condition_line(book: Rulebook, rule: Rule, source: str) -> tuple[str, str]:
    """Returns the line of a rule's condition as it is in the file, and its position; else the line of the rule."""
    lines, begin = (book.text or "").splitlines(), rule.line or 0
    later = [other.line for other in book.rules if other.line is not None and other.line > begin]
    for number in range(begin, min([len(lines) + 1, *later]) if begin else 0):
        text = lines[number - 1].lstrip(" -")
        if text.startswith(("when:", "when ", '"when"')):
            return text.rstrip(), _position(source, number)
    condition = f"when: {rule.when}" if rule.when is not None else f"name: {rule.name}"
    return condition, _position(source, rule.line)


def _position(source: str, line: int | None) -> str:
    return source if line is None else f"{source}:{line}"
