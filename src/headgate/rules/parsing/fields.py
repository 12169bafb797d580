"""What a field asks of its node: a text, a word, a number, a span, a list, a mapping of known names.

Each function gives the value, or a Fault that says what was expected there and the nearest thing to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import TypeVar

from headgate import limit_syntax as words
from headgate.algorithms.limit import EXACT, HORIZON_US
from headgate.rules.parsing.document_tree import Fault, Faults, Items, Node, Scalar, Table, kind, quote
from headgate.rules.parsing.problems import every, placed

W = TypeVar("W", bound=str)

MAX_TEXT_LENGTH = 1_000  # of any text that is not a body

_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_whole = re.compile(r"[0-9][0-9_]{0,29}")
_percentage = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,2}))?")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")


def table(node: Node, what: str, known: Collection[str], required: Collection[str] = ()) -> Table:
    """A mapping in which only known names stand, and the required ones do."""
    if not isinstance(node, Table):
        raise Fault(node.place, f"{what} is a mapping, not {kind(node)}.", f"It may hold: {', '.join(known)}.")
    faults = [
        Fault(key.place, f"{what} has no field {quote(key.text)}.", did_you_mean(key.text, known))
        for key, _ in node.entries.values()
        if key.text not in known
    ]
    faults += [
        Fault(node.place, f"{what} lacks the field {name}.") for name in required if name not in node.entries
    ]
    if faults:
        raise Faults(faults)
    return node


def did_you_mean(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word.lower()[:MAX_TEXT_LENGTH], known, 1, 0.6)
    return f"Did you mean {near[0]}?" if near else f"Known here: {', '.join(known)}."


def text(node: Node, what: str, most: int = MAX_TEXT_LENGTH) -> str:
    """A text, as it stands there."""
    if not isinstance(node, Scalar):
        raise Fault(node.place, f"{what} is a text, not {kind(node)}.")
    if node.empty:
        hint = f'Leave it out, or write "{node.text}" in quotes if that text is meant.' if node.text else ""
        raise Fault(node.place, f"{what} has no value.", hint or "Write one, or leave it out.")
    if truth(node) is not None:
        raise Fault(
            node.place,
            f"{what} is a text, not {node.text}.",
            f'Write "{node.text}" in quotes if that text is meant.',
        )
    if len(node.text) > most:
        raise Fault(node.place, f"{what} is longer than {most:,} characters.")
    return node.text


def texts(node: Node, what: str) -> list[Scalar]:
    """One text, or a list of them."""
    if isinstance(node, Table):
        raise Fault(node.place, f"{what} is a text or a list of texts, not a mapping.")
    found = node.nodes if isinstance(node, Items) else [node]
    every(lambda one: text(one, what), found)
    return [one for one in found if isinstance(one, Scalar)]


def name(node: Node, what: str) -> str:
    """A name such as rules have."""
    found = text(node, what)
    if not _name.fullmatch(found):
        raise Fault(
            node.place,
            f"{quote(found)} cannot be {what}.",
            "Write letters, digits, _ . and -, at most 64, the first a letter or digit"
            + (f", such as {near}." if (near := _repaired(found)) else "."),
        )
    return found


def _repaired(found: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", found[:64]).strip("-_.")


def word(node: Node, what: str, known: Collection[W]) -> W:
    """One of these words."""
    found = text(node, what)
    for one in known:
        if one == found:
            return one
    raise Fault(node.place, f"{what} cannot be {quote(found)}.", did_you_mean(found, known))


def flag(node: Node, what: str) -> bool:
    found = truth(node)
    if found is None:
        raise Fault(
            node.place, f"{what} is true or false, not {kind(node)}.", "Write true or false, without quotes."
        )
    return found


def truth(node: Node) -> bool | None:
    """What a plain true or false says; None if it is anything else."""
    if isinstance(node, Scalar) and not node.quoted:
        return True if node.text in _TRUE else False if node.text in _FALSE else None
    return None


def number(node: Node) -> int | None:
    """A plain whole number; None if it is anything else."""
    if isinstance(node, Scalar) and not node.quoted and _whole.fullmatch(node.text):
        return int(node.text.replace("_", ""))
    return None


def whole(node: Node, what: str, least: int = 1, most: int = EXACT) -> int:
    found = number(node)
    if found is None or not least <= found <= most:
        upper = "2^53" if most == EXACT else f"{most:,}"
        hint = "Write it without quotes." if isinstance(node, Scalar) and node.quoted else ""
        raise Fault(node.place, f"{what} is a whole number from {least} to {upper}, not {kind(node)}.", hint)
    return found


def percentage(node: Node, what: str) -> int:
    """In hundredths of a percent."""
    found = _percentage.fullmatch(node.text) if isinstance(node, Scalar) and not node.quoted else None
    hundredths = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0")) if found else 10_001
    if hundredths > 10_000:
        raise Fault(
            node.place,
            f"{what} is a percentage, not {kind(node)}.",
            "Write a number from 0 to 100 with at most two decimals, such as 10 or 0.25.",
        )
    return hundredths


def span(node: Node, what: str) -> int:
    """A length of time, in microseconds."""
    us = placed(node, words.parse_span, text(node, what))
    if us > HORIZON_US:
        raise Fault(node.place, f"{what} is longer than 366 days.")
    return us
