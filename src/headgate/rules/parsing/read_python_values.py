"""Reads Python values, from a program or a TOML file, as a tree with their paths: rules[2].limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.rules.parsing.document_tree import (
    Budget,
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    quote,
)

Path = tuple[str | int, ...]
Locate = Callable[[Path], Position]

_bare_name = re.compile(r"[A-Za-z0-9_-]+")
_surrogate = re.compile("[\ud800-\udfff]")
_NUMBER_BOUND = 2**64


class NumberText(str):
    """A number as it is written."""


def read(value: object, locate: Locate | None = None) -> Node:
    """Reads Python values into a tree; `locate` returns the position of a path."""
    return _PythonReader(locate or (lambda path: Position(None, format_path(path)))).node(value, ())


def format_path(path: Path) -> str:
    """Returns a path as text: rules[2].limit, conditions["a b"], or "top" if it is empty."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _bare_name.fullmatch(step):
            text += f".{step}"
        else:
            text += f"[{quote(step)}]"
    return text.removeprefix(".") or "top"


class _PythonReader:
    """Builds the tree of a value."""

    def __init__(self, locate: Locate) -> None:
        self.locate = locate
        self.budget = Budget()

    def node(self, value: Any, path: Path) -> Node:
        position = self.locate(path)
        self.budget.spend(position, len(path) + 1)
        if isinstance(value, Mapping):
            table = MappingNode(position, {})
            for name, inner in value.items():
                key = self.key(name, path)
                table.add(key, self.node(inner, (*path, key.text)))
            return table
        if isinstance(value, list | tuple):
            return ListNode(position, [self.node(inner, (*path, i)) for i, inner in enumerate(value)])
        return scalar(value, position)

    def key(self, name: object, path: Path) -> ScalarNode:
        position = self.locate((*path, name if isinstance(name, str) else str(type(name).__name__)))
        if isinstance(name, str | int):
            return scalar(name, position)
        raise Fault(position, f"A name in a mapping is a text, not of the type {type(name).__name__}.")


def scalar(value: object, position: Position) -> ScalarNode:
    """Returns a plain value as a scalar."""
    if isinstance(value, str):
        if _surrogate.search(value):
            raise Fault(position, f"{quote(value)} holds half a character (a lone surrogate).")
        return ScalarNode(position, str(value), quoted=not isinstance(value, NumberText))
    if value is None or isinstance(value, bool):
        return ScalarNode(position, {None: "null", True: "true", False: "false"}[value], quoted=False)
    if isinstance(value, int) and abs(value) >= _NUMBER_BOUND:
        raise Fault(position, "This number is 2^64 or more; nothing in a rulebook is as big.")
    if isinstance(value, int | float):
        return ScalarNode(position, f"{value}", quoted=False)
    if isinstance(value, Limit):
        return ScalarNode(position, value.text, quoted=True)
    raise Fault(
        position,
        f"A value of the type {type(value).__name__} is not allowed in a rulebook.",
        "Write it as a text, in quotes.",
    )
