"""Values of Python, such as a program or a TOML file holds, as a tree that knows their paths: rules[2].limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.rules.parsing.document_tree import Budget, Fault, Items, Node, Position, Scalar, Table, quote

Path = tuple[str | int, ...]
Locate = Callable[[Path], Position]

_simple = re.compile(r"[A-Za-z0-9_-]+")
_surrogate = re.compile("[\ud800-\udfff]")
_BIG = 2**64


class Written(str):
    """A number as it was written."""


def read(value: object, locate: Locate | None = None) -> Node:
    return _Reader(locate or (lambda path: Position(None, format_path(path)))).node(value, ())


def format_path(path: Path) -> str:
    """rules[2].limit, or conditions["a b"]; the top has no name but this."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _simple.fullmatch(step):
            text += f".{step}"
        else:
            text += f"[{quote(step)}]"
    return text.removeprefix(".") or "top"


class _Reader:
    def __init__(self, locate: Locate) -> None:
        self.locate = locate
        self.budget = Budget()

    def node(self, value: Any, path: Path) -> Node:
        place = self.locate(path)
        self.budget.spend(place, len(path) + 1)
        if isinstance(value, Mapping):
            table = Table(place, {})
            for name, inner in value.items():
                key = self.key(name, path)
                table.add(key, self.node(inner, (*path, key.text)))
            return table
        if isinstance(value, list | tuple):
            return Items(place, [self.node(inner, (*path, i)) for i, inner in enumerate(value)])
        return scalar(value, place)

    def key(self, name: object, path: Path) -> Scalar:
        where = self.locate((*path, name if isinstance(name, str) else str(type(name).__name__)))
        if isinstance(name, str | int):
            return scalar(name, where)
        raise Fault(where, f"A name in a mapping is a text, not of the type {type(name).__name__}.")


def scalar(value: object, place: Position) -> Scalar:
    if isinstance(value, str):
        if _surrogate.search(value):
            raise Fault(place, f"{quote(value)} holds half a character (a lone surrogate).")
        return Scalar(place, str(value), quoted=not isinstance(value, Written))
    if value is None or isinstance(value, bool):
        return Scalar(place, {None: "null", True: "true", False: "false"}[value], quoted=False)
    if isinstance(value, int) and abs(value) >= _BIG:
        raise Fault(place, "A number of 2^64 or more stands here; nothing in a rulebook is as big.")
    if isinstance(value, int | float):
        return Scalar(place, f"{value}", quoted=False)
    if isinstance(value, Limit):
        return Scalar(place, value.text, quoted=True)
    raise Fault(
        place,
        f"A value of the type {type(value).__name__} cannot stand in a rulebook.",
        "Write it as a text, in quotes.",
    )
