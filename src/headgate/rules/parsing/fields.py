"""Reads single values: a text, a word, a number, a span, a list, a mapping with known names.

Each function returns the value, or raises a Fault with what was expected and a suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import TypeVar

from headgate import limit_syntax
from headgate.algorithms.limit import EXACT, HORIZON_US
from headgate.rules.parsing.document_tree import (
    Fault,
    Faults,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    describe_node,
    quote,
)
from headgate.rules.parsing.problems import at_node, read_all

W = TypeVar("W", bound=str)

MAX_TEXT_LENGTH = 1_000  # characters of any text that is not a body

_name_pattern = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_number_pattern = re.compile(r"[0-9][0-9_]{0,29}")
_percentage_pattern = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


def table(node: Node, what: str, allowed: Collection[str], required: Collection[str] = ()) -> MappingNode:
    """Returns a mapping that has only known names, and all required ones."""
    if not isinstance(node, MappingNode):
        raise Fault(
            node.position,
            f"{what} is a mapping, not {describe_node(node)}.",
            f"It may hold: {', '.join(allowed)}.",
        )
    faults = [
        Fault(key.position, f"{what} has no field {quote(key.text)}.", did_you_mean(key.text, allowed))
        for key, _ in node.entries.values()
        if key.text not in allowed
    ]
    faults += [
        Fault(node.position, f"{what} lacks the field {name}.") for name in required if name not in node.entries
    ]
    if faults:
        raise Faults(faults)
    return node


def did_you_mean(word: str, allowed: Collection[str]) -> str:
    """Suggests the most similar known word, or lists all."""
    similar = get_close_matches(word.lower()[:MAX_TEXT_LENGTH], allowed, 1, 0.6)
    return f"Did you mean {similar[0]}?" if similar else f"Known here: {', '.join(allowed)}."


def text(node: Node, what: str, most: int = MAX_TEXT_LENGTH) -> str:
    """Returns a text as it is written."""
    if not isinstance(node, ScalarNode):
        raise Fault(node.position, f"{what} is a text, not {describe_node(node)}.", _without_brackets(node))
    if node.empty:
        hint = f'Leave it out, or write "{node.text}" in quotes if that text is meant.' if node.text else ""
        raise Fault(node.position, f"{what} has no value.", hint or "Write one, or leave it out.")
    if plain_flag(node) is not None:
        raise Fault(
            node.position,
            f"{what} is a text, not {node.text}.",
            f'Write "{node.text}" in quotes if that text is meant.',
        )
    if len(node.text) > most:
        raise Fault(node.position, f"{what} is longer than {most:,} characters.")
    return node.text


def _without_brackets(node: Node) -> str:
    """Suggests the only value of a list."""
    only = node.nodes[0] if isinstance(node, ListNode) and len(node.nodes) == 1 else None
    return f"Write {only.text} without brackets." if isinstance(only, ScalarNode) and only.text else ""


def texts(node: Node, what: str) -> list[ScalarNode]:
    """Returns one text, or the texts of a list, as scalars."""
    if isinstance(node, MappingNode):
        raise Fault(node.position, f"{what} is a text or a list of texts, not a mapping.")
    nodes = node.nodes if isinstance(node, ListNode) else [node]
    read_all(lambda item: text(item, what), nodes)
    return [item for item in nodes if isinstance(item, ScalarNode)]


def name(node: Node, what: str) -> str:
    """Returns a name, such as that of a rule."""
    value = text(node, what)
    if not _name_pattern.fullmatch(value):
        raise Fault(
            node.position,
            f"{quote(value)} cannot be {what}.",
            "Write letters, digits, _ . and -, at most 64, the first a letter or digit"
            + (f", such as {repaired}." if (repaired := _repair_name(value)) else "."),
        )
    return value


def _repair_name(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", value[:64]).strip("-_.")


def word(node: Node, what: str, allowed: Collection[W]) -> W:
    """Returns one of these words."""
    if isinstance(node, ScalarNode) and (node.empty or plain_flag(node) is not None):
        found = "empty" if node.empty else node.text
        raise Fault(node.position, f"{what} cannot be {found}.", f"Known here: {', '.join(allowed)}.")
    value = text(node, what)
    for candidate in allowed:
        if candidate == value:
            return candidate
    raise Fault(node.position, f"{what} cannot be {quote(value)}.", did_you_mean(value, allowed))


def flag(node: Node, what: str) -> bool:
    """Returns a plain true or false."""
    value = plain_flag(node)
    if value is None:
        raise Fault(
            node.position,
            f"{what} is true or false, not {describe_node(node)}.",
            "Write true or false, without quotes.",
        )
    return value


def plain_flag(node: Node) -> bool | None:
    """Returns the value of a plain true or false; None for anything else."""
    if isinstance(node, ScalarNode) and not node.quoted:
        return True if node.text in _TRUE else False if node.text in _FALSE else None
    return None


def number(node: Node) -> int | None:
    """Returns a plain whole number; None for anything else."""
    if isinstance(node, ScalarNode) and not node.quoted and _number_pattern.fullmatch(node.text):
        return int(node.text.replace("_", ""))
    return None


def whole_number(node: Node, what: str, least: int = 1, most: int = EXACT) -> int:
    """Returns a whole number within bounds."""
    value = number(node)
    if value is None or not least <= value <= most:
        upper = "2^53" if most == EXACT else f"{most:,}"
        hint = "Write it without quotes." if isinstance(node, ScalarNode) and node.quoted else ""
        raise Fault(
            node.position, f"{what} is a whole number from {least} to {upper}, not {describe_node(node)}.", hint
        )
    return value


def percentage(node: Node, what: str) -> int:
    """Returns a percentage in hundredths of a percent."""
    match = _percentage_pattern.fullmatch(node.text) if isinstance(node, ScalarNode) and not node.quoted else None
    hundredths = int(match[1]) * 100 + int((match[2] or "").ljust(2, "0")) if match else 10_001
    if hundredths > 10_000:
        raise Fault(
            node.position,
            f"{what} is a percentage, not {describe_node(node)}.",
            "Write a number from 0 to 100 with at most two decimals, such as 10 or 0.25.",
        )
    return hundredths


def span(node: Node, what: str) -> int:
    """Returns a length of time in microseconds."""
    us = at_node(node, limit_syntax.parse_span, text(node, what))
    if us > HORIZON_US:
        raise Fault(node.position, f"{what} is longer than 366 days.")
    return us
