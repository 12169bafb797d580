"""Parses the fields of one rule; consistency.py checks them together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from headgate.algorithms.limit import SECOND
from headgate.algorithms.lockout import Lockout
from headgate.algorithms.pause import MAX_PAUSE_US
from headgate.rules.keys import Dimension
from headgate.rules.parsing import fields, parse_choice
from headgate.rules.parsing.document_tree import (
    Fault,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    describe_node,
    quote,
)
from headgate.rules.parsing.parse_condition import Conditions, ParsedCondition
from headgate.rules.parsing.problems import Problems, at_node, read_all, read_entries
from headgate.rules.rule import FALLBACKS, MISSING, MODES, WHERE, Modes, Prefetch, Refusal

FIELDS = (
    "name", "label", "when", "except", "key", "missing", "limit", "candidate", "cost", "mode", "quota_mode",
    "lockout", "overrides", "pausable", "replaces", "where", "nodes", "prefetch", "fallback", "deadline",
    "initial_share", "refuse",
)  # fmt: skip
WITHOUT_DEFAULT = ("name", "label", "when", "key", "limit", "candidate", "replaces")
DEFAULT_FIELDS = tuple(name for name in FIELDS if name not in WITHOUT_DEFAULT)

# Fields of other names that people write.
_RENAMED_FIELD_HINTS = {
    "lease": "Write prefetch: 100ms, or prefetch: {for: 100ms, units: 500}.",
    "timeout": "Write deadline: 50ms.",
    "fail_open": "Write fallback: allow.",
    **dict.fromkeys(
        ("memo", "denial_cache"), "It is for all rules: write ?denial_cache=on into the engine's URL."
    ),
}

_redirect_target = re.compile(r"https?://(?![/?#])[!-~]+|/(?!/)[!-~]*", re.I)
_media_type = re.compile(r"[!-~]+/[!-~]+(?:;? *[ -~]+)?")


class RuleField:
    """The value of a field, its position, and the attributes that it uses."""

    __slots__ = ("explicit", "position", "uses", "value")

    def __init__(self, value: Any, place: Position, uses: parse_choice.Uses) -> None:
        self.value: Any = value
        self.position: Position = place
        self.uses: parse_choice.Uses = uses
        self.explicit: bool = True  # not from the defaults


def read(
    node: MappingNode, names: tuple[str, ...], subject: str, conditions: Conditions, problems: Problems
) -> dict[str, RuleField]:
    """Returns every field that can be read; adds the faults of the others to the problems."""
    read_fields: dict[str, RuleField] = {}
    for key, inner in node.entries.values():
        with problems.under(subject):
            if key.text not in names:
                raise _unknown_field(key, names)
            uses: parse_choice.Uses = []
            value = _READERS[key.text](inner, uses, conditions)
            read_fields[key.text] = RuleField(value, inner.position, uses)
    return read_fields


def _unknown_field(key: ScalarNode, names: tuple[str, ...]) -> Fault:
    if key.text in WITHOUT_DEFAULT:
        return Fault(
            key.position, f"{key.text} is each rule's own.", f"Defaults may be given for {', '.join(names)}."
        )
    what = "A rule has" if names is FIELDS else "Defaults have"
    hint = _RENAMED_FIELD_HINTS.get(key.text) or fields.did_you_mean(key.text, names)
    return Fault(key.position, f"{what} no field {quote(key.text)}.", hint)


def _label(node: Node) -> str:
    label = fields.text(node, "label")
    if not label:
        raise Fault(node.position, "label is empty.", "Leave it out to use the rule's name.")
    return label


def _condition(node: Node, uses: parse_choice.Uses, conditions: Conditions) -> Any:
    parsed: ParsedCondition = conditions.read(node)
    uses.extend(parsed.uses)
    return parsed.condition


def _key(node: Node, uses: parse_choice.Uses) -> tuple[Dimension, ...]:
    dimensions: dict[str, Dimension] = {}

    def read_dimension(item: ScalarNode) -> None:
        dimension = at_node(item, Dimension.parse, item.text)
        if dimension.name in dimensions:
            raise Fault(item.position, f"The key has {dimension.name} twice.", "Once is enough.")
        dimensions[dimension.name] = dimension
        uses.append((dimension.name, item.position))

    read_all(read_dimension, fields.texts(node, "A key"))
    return tuple(dimensions.values())


def _mode(node: Node) -> Modes:
    if not isinstance(node, MappingNode):
        word = fields.word(node, "mode", MODES)
        return Modes(10_000 if word == "enforce" else 0, 10_000 if word == "shadow" else 0)
    fields.table(node, "mode", ("enforce", "shadow"))
    if not node.entries:
        raise Fault(
            node.position, "mode has no value.", "Write enforce, shadow, off, or {enforce: 10, shadow: 50}."
        )
    percentages = read_entries(node, dict.fromkeys(("enforce", "shadow"), fields.percentage))
    enforce, shadow = percentages.get("enforce", 0), percentages.get("shadow", 0)
    if enforce + shadow > 10_000:
        raise Fault(
            node.position,
            "enforce and shadow are more than 100 % together.",
            "For the rest of its keys the rule is off.",
        )
    return Modes(enforce, shadow)


def _lockout(node: Node) -> Lockout | None:
    if isinstance(node, ScalarNode) and node.text == "off":
        return None
    table = fields.table(node, "lockout", ("after", "within", "for"), required=("after", "for"))
    values = read_entries(table, {"after": fields.whole_number, "within": fields.span, "for": fields.span})
    return Lockout(values["after"], values.get("within", values["for"]), values["for"])


def _prefetch(node: Node) -> Prefetch | None:
    if not isinstance(node, MappingNode):
        return None if fields.text(node, "prefetch") == "exact" else Prefetch(fields.span(node, "prefetch"))
    fields.table(node, "prefetch", ("for", "units"), required=("for",))
    values = read_entries(node, {"for": fields.span, "units": fields.whole_number})
    return Prefetch(values["for"], values.get("units"))


def _refuse(node: Node) -> Refusal:
    table = fields.table(node, "refuse", ("status", "body", "type", "redirect"))
    body, kind, redirect = (table.get(name) for name in ("body", "type", "redirect"))
    if redirect and (body or kind):
        raise Fault(node.position, "refuse has a redirect and a body.", "It is one or the other.")
    if kind and not body:
        raise Fault(node.position, "refuse has a type, but no body.", "Write body, or leave type out.")
    least, most, status = (300, 399, 302) if redirect else (200, 599, 429)
    values = read_entries(
        table,
        {
            "status": lambda inner, name: fields.whole_number(inner, name, least, most),
            "body": lambda inner, name: fields.text(inner, name, most=100_000),
            "type": _content_type,
            "redirect": _redirect,
        },
    )
    return Refusal(values.get("status", status), values.get("body"), values.get("type"), values.get("redirect"))


def _content_type(node: Node, name: str) -> str:
    value = fields.text(node, name)
    if not _media_type.fullmatch(value):
        raise Fault(
            node.position,
            f"{quote(value)} is not a content type.",
            "Write one such as text/plain or application/json.",
        )
    return value


def _redirect(node: Node, name: str) -> str:
    value = fields.text(node, name)
    if not _redirect_target.fullmatch(value):
        raise Fault(
            node.position,
            f"{quote(value)} is no address to redirect to.",
            "Write https://host/path or /path, without blanks; other characters as %XX.",
        )
    return value


def _pausable(node: Node) -> int | None:
    """Returns the longest pause; None if keys cannot be paused."""
    flag = fields.plain_flag(node)
    if flag is not None:
        return MAX_PAUSE_US if flag else None
    if isinstance(node, ScalarNode) and (node.empty or node.text[:1] in "0123456789"):
        return fields.span(node, "pausable")
    word = node.text.lower() if isinstance(node, ScalarNode) else ""
    if word in ("true", "false", "yes", "no", "on", "off"):
        hint = f"Write {'true' if word in ('true', 'yes', 'on') else 'false'}, without quotes."
    else:
        hint = "Write true, false, or a length of time such as 2h."
    raise Fault(node.position, f"pausable is true, false or the longest pause, not {describe_node(node)}.", hint)


def _replaces(node: Node) -> tuple[tuple[str, Position], ...]:
    names = fields.texts(node, "replaces")
    return tuple(read_all(lambda item: (fields.name(item, "the name of a rule"), item.position), names))


_READERS: dict[str, Callable[[Node, parse_choice.Uses, Conditions], Any]] = {
    "name": lambda node, uses, conditions: fields.name(node, "the name of a rule"),
    "label": lambda node, uses, conditions: _label(node),
    "when": _condition,
    "except": _condition,
    "key": lambda node, uses, conditions: _key(node, uses),
    "missing": lambda node, uses, conditions: fields.word(node, "missing", MISSING),
    "limit": lambda node, uses, conditions: parse_choice.limits(node, uses),
    "candidate": lambda node, uses, conditions: parse_choice.limits(node, uses),
    "cost": lambda node, uses, conditions: parse_choice.cost(node, uses),
    "mode": lambda node, uses, conditions: _mode(node),
    "quota_mode": lambda node, uses, conditions: fields.flag(node, "quota_mode"),
    "lockout": lambda node, uses, conditions: _lockout(node),
    "overrides": lambda node, uses, conditions: fields.flag(node, "overrides"),
    "pausable": lambda node, uses, conditions: _pausable(node),
    "replaces": lambda node, uses, conditions: _replaces(node),
    "where": lambda node, uses, conditions: fields.word(node, "where", WHERE),
    "nodes": lambda node, uses, conditions: fields.whole_number(node, "nodes", most=1_000_000),
    "prefetch": lambda node, uses, conditions: _prefetch(node),
    "fallback": lambda node, uses, conditions: fields.word(node, "fallback", FALLBACKS),
    "deadline": lambda node, uses, conditions: fields.span(node, "deadline") / SECOND,
    "initial_share": lambda node, uses, conditions: fields.percentage(node, "initial_share"),
    "refuse": lambda node, uses, conditions: _refuse(node),
}
