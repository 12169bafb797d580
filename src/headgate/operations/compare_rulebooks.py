"""Two rulebooks compared by what they mean: rules that came, went, were renamed, and what changed in the others.

How a book is written does not matter: defaults, named conditions and the file's format are resolved before.
Order is told by itself, for it decides little. What matters most to an operator is said of each change: whether
counts start anew, so that everybody has a fresh limit for a moment.

    renamed, key changed, where changed      the counts lie under other names, or elsewhere
    another algorithm in the same place      what one algorithm remembers means nothing to another
    a limit more                             it has counted nothing yet
    a case that came, went or was renamed    each has counts of its own, unless the key decides between them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.enforcement.call_plan import cases_of
from headgate.rules import serialization
from headgate.rules.rule import Rule, Rulebook

Kinds = list[set[str]]  # of each place, the algorithms that may stand there


class Field(NamedTuple):
    """Something that a rule, or the book, says differently now."""

    name: str
    old: str | None
    new: str | None


class Change(NamedTuple):
    """What became of one rule: added, removed, renamed or changed. `rule` is its name now."""

    rule: str
    kind: str
    fields: tuple[Field, ...] = ()
    anew: str | None = None  # why counts start anew, if they do


class Comparison(NamedTuple):
    book: tuple[Field, ...]
    rules: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.book or self.rules)


def compared(old: Rulebook, new: Rulebook) -> Comparison:
    """What is different, in the order of the new book; what is gone comes last."""
    was, now = serialization.document(old), serialization.document(new)
    written = {rule["name"]: rule for rule in was.pop("rules")}, {rule["name"]: rule for rule in now.pop("rules")}
    book = tuple(_fields(was, now))
    kept = [name for name in written[0] if name in written[1]]
    if kept != [name for name in written[1] if name in written[0]]:
        book = (*book, Field("order", ", ".join(written[0]), ", ".join(written[1])))
    return Comparison(book, tuple(_rules(old, new, *written)))


Documents = Mapping[str, Mapping[str, Any]]


def _rules(old: Rulebook, new: Rulebook, was: Documents, now: Documents) -> Iterator[Change]:
    before = {rule.name: rule for rule in old.rules}
    gone = [rule for rule in old.rules if rule.name not in now]
    for rule in new.rules:
        if rule.name in before:
            if rule != before[rule.name]:
                found = tuple(_fields(was[rule.name], now[rule.name]))
                yield Change(rule.name, "changed", found, _anew(before[rule.name], rule))
        elif other := next((other for other in gone if replace(other, name=rule.name) == rule), None):
            gone.remove(other)
            renamed = (Field("name", other.name, rule.name),)
            yield Change(rule.name, "renamed", renamed, f"they were kept under {other.name}")
        else:
            yield Change(rule.name, "added", tuple(_fields({"name": rule.name}, now[rule.name])))
    yield from (Change(rule.name, "removed") for rule in gone)


def _fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Field]:
    for name in dict.fromkeys([*new, *old]):
        if old.get(name) != new.get(name):
            yield Field(name, *(_said(side[name]) if name in side else None for side in (old, new)))


def _said(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_said(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_said, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _anew(old: Rule, new: Rule) -> str | None:
    """Why the counts of a rule start anew, if they do."""
    if old.key != new.key:
        return "the key is another one"
    if (old.where == "cluster") != (new.where == "cluster"):
        return "they are kept on the server now" if new.where == "cluster" else "each process counts by itself now"
    was, now = _kinds(old), _kinds(new)
    if not any(was.values()) or not any(now.values()):
        return None
    came = [f"case {case} is new" for case in now if now[case] and case not in was]
    gone = [f"case {case} is gone" for case in was if was[case] and case not in now]
    if came or gone:
        return ", ".join(came + gone)
    return next((why for case in now if (why := _other(case, was.get(case, []), now[case]))), None)


def _other(case: str, was: Kinds, now: Kinds) -> str | None:
    """Why the counts of one case start anew."""
    within = f" in case {case}" if case else ""
    for place, kinds in enumerate(now if was else ()):
        if place >= len(was):
            return f"limit {place + 1} is new{within}"
        if came := sorted(kinds - was[place]):
            words = f"a {' or a '.join(came)} cannot go on with the counts of a {' or '.join(sorted(was[place]))}"
            return words.replace("_", " ") + within
    return None


def _kinds(rule: Rule) -> dict[str, Kinds]:
    """By the case that has counts of its own."""
    found: dict[str, Kinds] = {}
    for case, limits in cases_of(rule):
        kinds = found.setdefault(case, [])
        for place, limit in enumerate(limits):
            if place == len(kinds):
                kinds.append(set())
            kinds[place].add(limit.algorithm)
    return found


def document(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON tells it."""
    return {
        "same": not found,
        "book": [field._asdict() for field in found.book],
        "rules": [
            {"rule": change.rule, "change": change.kind, "counts_start_anew": change.anew}
            | {"fields": [field._asdict() for field in change.fields]}
            for change in found.rules
        ],
    }
