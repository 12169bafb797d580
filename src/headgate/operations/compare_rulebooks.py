"""Compares two rulebooks by their meaning: rules added, removed, renamed, and changes in the others.

How a rulebook is written does not matter: defaults, named conditions and the file's format are resolved before.
The order of rules is reported separately, because it decides little. Each change states what matters most to an
operator: whether counters start at zero, so that everybody has a fresh limit for a moment.

    renamed, key changed, where changed          the counters are stored under other names, or elsewhere
    another algorithm at the same position       one algorithm cannot read the state of another
    a limit more                                 it has counted nothing yet
    a case that is new, removed or renamed       each has its own counters, unless the key decides between them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.enforcement.call_plan import limit_cases
from headgate.rules import serialization
from headgate.rules.rule import Rule, Rulebook

Algorithms = list[set[str]]  # by position, the algorithms that a limit may have there


class FieldDifference(NamedTuple):
    """A field that differs, of a rule or of the rulebook."""

    name: str
    old: str | None
    new: str | None


class RuleDifference(NamedTuple):
    """The change of one rule: added, removed, renamed or changed. `rule` is its new name."""

    rule: str
    kind: str
    fields: tuple[FieldDifference, ...] = ()
    restart_reason: str | None = None  # why counters start at zero; None if they carry over


class Comparison(NamedTuple):
    book: tuple[FieldDifference, ...]
    rules: tuple[RuleDifference, ...]

    def __bool__(self) -> bool:
        return bool(self.book or self.rules)


def compare(old: Rulebook, new: Rulebook) -> Comparison:
    """Compares two rulebooks; changes are in the order of the new one, removed rules come last."""
    old_document, new_document = serialization.document(old), serialization.document(new)
    rules_by_name = (
        {rule["name"]: rule for rule in old_document.pop("rules")},
        {rule["name"]: rule for rule in new_document.pop("rules")},
    )
    book = tuple(_fields(old_document, new_document))
    common = [name for name in rules_by_name[0] if name in rules_by_name[1]]
    if common != [name for name in rules_by_name[1] if name in rules_by_name[0]]:
        book = (*book, FieldDifference("order", ", ".join(rules_by_name[0]), ", ".join(rules_by_name[1])))
    return Comparison(book, tuple(_rules(old, new, *rules_by_name)))


Documents = Mapping[str, Mapping[str, Any]]


def _rules(
    old: Rulebook, new: Rulebook, old_documents: Documents, new_documents: Documents
) -> Iterator[RuleDifference]:
    old_rules = {rule.name: rule for rule in old.rules}
    removed = [rule for rule in old.rules if rule.name not in new_documents]
    for rule in new.rules:
        if rule.name in old_rules:
            if rule != old_rules[rule.name]:
                fields = tuple(_fields(old_documents[rule.name], new_documents[rule.name]))
                yield RuleDifference(rule.name, "changed", fields, _restart_reason(old_rules[rule.name], rule))
        elif renamed_from := next(
            (renamed_from for renamed_from in removed if replace(renamed_from, name=rule.name) == rule), None
        ):
            removed.remove(renamed_from)
            fields = (FieldDifference("name", renamed_from.name, rule.name),)
            yield RuleDifference(rule.name, "renamed", fields, f"they were kept under {renamed_from.name}")
        else:
            yield RuleDifference(rule.name, "added", tuple(_fields({"name": rule.name}, new_documents[rule.name])))
    yield from (RuleDifference(rule.name, "removed") for rule in removed)


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[FieldDifference]:
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            yield FieldDifference(name, *(_one_line(side[name]) if name in side else None for side in (old, new)))


def _one_line(value: Any) -> str:
    """Formats a value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_one_line(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_one_line, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _restart_reason(old: Rule, new: Rule) -> str | None:
    """Returns why the counters of a rule start at zero; None if they carry over."""
    if old.key != new.key:
        return "the key is another one"
    if (old.where == "cluster") != (new.where == "cluster"):
        return "they are kept on the server now" if new.where == "cluster" else "each process counts by itself now"
    old_algorithms, new_algorithms = _algorithms_by_case(old), _algorithms_by_case(new)
    if not any(old_algorithms.values()) or not any(new_algorithms.values()):
        return None
    added = [
        f"case {case} is new" for case in new_algorithms if new_algorithms[case] and case not in old_algorithms
    ]
    removed = [
        f"case {case} is gone" for case in old_algorithms if old_algorithms[case] and case not in new_algorithms
    ]
    if added or removed:
        return ", ".join(added + removed)
    return next(
        (
            reason
            for case in new_algorithms
            if (reason := _case_restart_reason(case, old_algorithms.get(case, []), new_algorithms[case]))
        ),
        None,
    )


def _case_restart_reason(case: str, old_algorithms: Algorithms, new_algorithms: Algorithms) -> str | None:
    """Returns why the counters of one case start at zero; None if they carry over."""
    suffix = f" in case {case}" if case else ""
    for position, algorithms in enumerate(new_algorithms if old_algorithms else ()):
        if position >= len(old_algorithms):
            return f"limit {position + 1} is new{suffix}"
        if added := sorted(algorithms - old_algorithms[position]):
            old = " or ".join(sorted(old_algorithms[position]))
            sentence = f"a {' or a '.join(added)} cannot go on with the counts of a {old}"
            return sentence.replace("_", " ") + suffix
    return None


def _algorithms_by_case(rule: Rule) -> dict[str, Algorithms]:
    """Returns the algorithms of a rule's limits, by the case that has its own counters."""
    by_case: dict[str, Algorithms] = {}
    for case, limits in limit_cases(rule):
        algorithms = by_case.setdefault(case, [])
        for position, limit in enumerate(limits):
            if position == len(algorithms):
                algorithms.append(set())
            algorithms[position].add(limit.algorithm)
    return by_case


def document(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison as a JSON document."""
    return {
        "same": not comparison,
        "book": [field._asdict() for field in comparison.book],
        "rules": [
            {"rule": change.rule, "change": change.kind, "counts_start_anew": change.restart_reason}
            | {"fields": [field._asdict() for field in change.fields]}
            for change in comparison.rules
        ],
    }
