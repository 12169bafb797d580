"""One rule as it is written: each field by itself, then all of them together (consistent.py)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headgate.model.limit import SECOND
from headgate.model.lockout import Lockout
from headgate.rules.keys import Dimension
from headgate.rules.reading import fields, load_choice
from headgate.rules.reading.document import Fault, Node, Place, Scalar, Table, shown
from headgate.rules.reading.load_condition import Conditions, Read
from headgate.rules.reading.problems import Problems, placed
from headgate.rules.rule import INSTEAD, MISSING, MODES, WHERE, Modes, Prefetch, Refusal

FIELDS = (
    "name", "label", "when", "except", "key", "missing", "limit", "candidate", "cost", "mode", "quota_mode",
    "lockout", "overrides", "replaces", "where", "nodes", "prefetch", "fallback", "deadline", "initial_share",
    "refuse",
)  # fmt: skip
NOT_BY_DEFAULT = ("name", "label", "when", "key", "limit", "candidate", "replaces")
BY_DEFAULT = tuple(name for name in FIELDS if name not in NOT_BY_DEFAULT)

# What people write for it.
_INSTEAD = {
    "lease": "Write prefetch: 100ms, or prefetch: {for: 100ms, units: 500}.",
    "timeout": "Write deadline: 50ms.",
    "fail_open": "Write fallback: allow.",
    **dict.fromkeys(
        ("memo", "denial_cache"), "It is for all rules: write ?denial_cache=on into the engine's URL."
    ),
}

_url = re.compile(r"https?://(?![/?#])[!-~]+|/(?!/)[!-~]*", re.I)
_type = re.compile(r"[!-~]+/[!-~]+(?:;? *[ -~]+)?")


class Field:
    """The value of a field, where it stands, and the attributes it uses."""

    __slots__ = ("own", "place", "uses", "value")

    def __init__(self, value: Any, place: Place, uses: load_choice.Uses) -> None:
        self.value: Any = value
        self.place: Place = place
        self.uses: load_choice.Uses = uses
        self.own: bool = True  # not by default


def read(
    node: Table, names: tuple[str, ...], subject: str, conditions: Conditions, problems: Problems
) -> dict[str, Field]:
    """Every field that can be read; the faults of the others are told."""
    found: dict[str, Field] = {}
    for key, inner in node.entries.values():
        with problems.under(subject):
            if key.text not in names:
                raise _unknown(key, names)
            uses: load_choice.Uses = []
            value = _READERS[key.text](inner, uses, conditions)
            found[key.text] = Field(value, inner.place, uses)
    return found


def _unknown(key: Scalar, names: tuple[str, ...]) -> Fault:
    if key.text in NOT_BY_DEFAULT:
        return Fault(
            key.place, f"{key.text} is each rule's own.", f"Defaults may be given for {', '.join(names)}."
        )
    what = "A rule has" if names is FIELDS else "Defaults have"
    hint = _INSTEAD.get(key.text) or fields.nearest(key.text, names)
    return Fault(key.place, f"{what} no field {shown(key.text)}.", hint)


def _label(node: Node) -> str:
    found = fields.text(node, "label")
    if not found:
        raise Fault(node.place, "label is empty.", "Leave it out to tell the name.")
    return found


def _condition(node: Node, uses: load_choice.Uses, conditions: Conditions) -> Any:
    found: Read = conditions.read(node)
    uses.extend(found.uses)
    return found.condition


def _key(node: Node, uses: load_choice.Uses) -> tuple[Dimension, ...]:
    found: dict[str, Dimension] = {}
    for one in fields.texts(node, "A key"):
        dimension = placed(one, Dimension.parse, one.text)
        if dimension.name in found:
            raise Fault(one.place, f"The key has {dimension.name} twice.", "Once is enough.")
        found[dimension.name] = dimension
        uses.append((dimension.name, one.place))
    return tuple(found.values())


def _mode(node: Node) -> Modes:
    if not isinstance(node, Table):
        word = fields.word(node, "mode", MODES)
        return Modes(10_000 if word == "enforce" else 0, 10_000 if word == "shadow" else 0)
    fields.table(node, "mode", ("enforce", "shadow"))
    if not node.entries:
        raise Fault(node.place, "mode has no value.", "Write enforce, shadow, off, or {enforce: 10, shadow: 50}.")
    enforce, shadow = (
        fields.percentage(inner, name) if (inner := node.get(name)) else 0 for name in ("enforce", "shadow")
    )
    if enforce + shadow > 10_000:
        raise Fault(node.place, "enforce and shadow are more than 100 % together.", "What is left of 100 is off.")
    return Modes(enforce, shadow)


def _lockout(node: Node) -> Lockout | None:
    if isinstance(node, Scalar) and node.text == "off":
        return None
    table = fields.table(node, "lockout", ("after", "within", "for"), required=("after", "for"))
    lasts_us = fields.span(table.entries["for"][1], "for")
    within = table.get("within")
    return Lockout(
        fields.whole(table.entries["after"][1], "after"),
        fields.span(within, "within") if within else lasts_us,
        lasts_us,
    )


def _prefetch(node: Node) -> Prefetch | None:
    if not isinstance(node, Table):
        return None if fields.text(node, "prefetch") == "exact" else Prefetch(fields.span(node, "prefetch"))
    fields.table(node, "prefetch", ("for", "units"), required=("for",))
    units = node.get("units")
    return Prefetch(fields.span(node.entries["for"][1], "for"), fields.whole(units, "units") if units else None)


def _refuse(node: Node) -> Refusal:
    table = fields.table(node, "refuse", ("status", "body", "type", "redirect"))
    status, body, kind, redirect = (table.get(name) for name in ("status", "body", "type", "redirect"))
    if redirect and (body or kind):
        raise Fault(node.place, "refuse has a redirect and a body.", "It is one or the other.")
    if kind and not body:
        raise Fault(node.place, "refuse has a type, but no body that is of it.", "Write body, or leave type out.")
    least, most = (300, 399) if redirect else (200, 599)
    return Refusal(
        fields.whole(status, "status", least, most) if status else 302 if redirect else 429,
        fields.text(body, "body", most=100_000) if body else None,
        _content_type(kind) if kind else None,
        _redirect(redirect) if redirect else None,
    )


def _content_type(node: Node) -> str:
    found = fields.text(node, "type")
    if not _type.fullmatch(found):
        raise Fault(
            node.place,
            f"{shown(found)} is not a content type.",
            "Write one such as text/plain or application/json.",
        )
    return found


def _redirect(node: Node) -> str:
    found = fields.text(node, "redirect")
    if not _url.fullmatch(found):
        raise Fault(
            node.place,
            f"{shown(found)} is no address to redirect to.",
            "Write https://host/path or /path, without blanks; other characters as %XX.",
        )
    return found


def _replaces(node: Node) -> tuple[tuple[str, Place], ...]:
    return tuple((fields.name(one, "the name of a rule"), one.place) for one in fields.texts(node, "replaces"))


_READERS: dict[str, Callable[[Node, load_choice.Uses, Conditions], Any]] = {
    "name": lambda node, uses, conditions: fields.name(node, "the name of a rule"),
    "label": lambda node, uses, conditions: _label(node),
    "when": _condition,
    "except": _condition,
    "key": lambda node, uses, conditions: _key(node, uses),
    "missing": lambda node, uses, conditions: fields.word(node, "missing", MISSING),
    "limit": lambda node, uses, conditions: load_choice.limits(node, uses),
    "candidate": lambda node, uses, conditions: load_choice.limits(node, uses),
    "cost": lambda node, uses, conditions: load_choice.cost(node, uses),
    "mode": lambda node, uses, conditions: _mode(node),
    "quota_mode": lambda node, uses, conditions: fields.flag(node, "quota_mode"),
    "lockout": lambda node, uses, conditions: _lockout(node),
    "overrides": lambda node, uses, conditions: fields.flag(node, "overrides"),
    "replaces": lambda node, uses, conditions: _replaces(node),
    "where": lambda node, uses, conditions: fields.word(node, "where", WHERE),
    "nodes": lambda node, uses, conditions: fields.whole(node, "nodes", most=1_000_000),
    "prefetch": lambda node, uses, conditions: _prefetch(node),
    "fallback": lambda node, uses, conditions: fields.word(node, "fallback", INSTEAD),
    "deadline": lambda node, uses, conditions: fields.span(node, "deadline") / SECOND,
    "initial_share": lambda node, uses, conditions: fields.percentage(node, "initial_share"),
    "refuse": lambda node, uses, conditions: _refuse(node),
}
