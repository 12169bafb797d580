"""Reads the YAML of other programs with parsing/document_tree.py; every error has its line."""

from __future__ import annotations

import re

from headgate.errors import InvalidRule
from headgate.rules.parsing import read_yaml
from headgate.rules.parsing.document_tree import (
    Fault,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    decode,
    describe_node,
)

_document_separator = re.compile(r"^---(?=\s|$)[^\n]*", re.M)
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read(text: str) -> MappingNode:
    """Parses a YAML document whose root is a mapping."""
    try:
        root = read_yaml.read(decode(text))
    except Fault as fault:
        where = "" if fault.position.line is None else f"line {fault.position.line}: "
        raise InvalidRule(f"{where}{fault.sentence} {fault.hint}".strip()) from None
    return mapping(root, "The document")


def documents(text: str) -> list[MappingNode]:
    """Parses all documents of a text, with their lines in it."""
    starts = [0, *(separator.end() for separator in _document_separator.finditer(text))]
    stops = [*(separator.start() for separator in _document_separator.finditer(text)), len(text)]
    chunks = [(start, text[start:end]) for start, end in zip(starts, stops, strict=True)]
    nonempty = [(start, part) for start, part in chunks if re.search(r"^[^#\s]|^\s+[^#\s]", part, re.M)]
    return [read("\n" * text.count("\n", 0, start) + part) for start, part in nonempty or [(0, text)]]


def mapping(node: Node, what: str) -> MappingNode:
    """Returns the node if it is a mapping."""
    if isinstance(node, MappingNode):
        return node
    raise InvalidRule(f"line {line_of(node)}: {what} is a mapping of names and values, not {describe_node(node)}.")


def items(node: Node | None, what: str) -> list[Node]:
    """Returns the entries of a list; none if there is no node."""
    if node is None or (isinstance(node, ScalarNode) and node.empty):
        return []
    if isinstance(node, ListNode):
        return node.nodes
    raise InvalidRule(f"line {line_of(node)}: {what} is a list, not {describe_node(node)}.")


def optional_text(node: Node | None, what: str) -> str | None:
    """Returns a text; None if there is no node."""
    if node is None or (isinstance(node, ScalarNode) and node.empty):
        return None
    if isinstance(node, ScalarNode):
        return node.text
    raise InvalidRule(f"line {line_of(node)}: {what} is a text, not {describe_node(node)}.")


def flag(node: Node | None, what: str) -> bool:
    """Returns a flag; False if there is no node."""
    text = (optional_text(node, what) or "no").lower()
    if text not in _FLAGS:
        raise InvalidRule(f"line {line_of(node)}: {what} is true or false, not {text!r}.")
    return _FLAGS[text]


def optional_number(node: Node | None, what: str) -> int | None:
    """Returns a whole number; None if there is no node."""
    text = optional_text(node, what)
    if text is not None and not re.fullmatch(r"[0-9]{1,15}", text):
        raise InvalidRule(f'line {line_of(node)}: {what} is a whole number, not "{text[:40]}".')
    return None if text is None else int(text)


def line_of(node: Node | None) -> int | None:
    """Returns the line of a node; None if there is no node."""
    return None if node is None else node.position.line


def find_path(table: MappingNode, path: str) -> Node | None:
    """Finds the node under a path such as spring.cloud.gateway, however it is nested, dotted or spelled."""
    folded_path = fold_name(path)
    for name, (_, node) in table.entries.items():
        folded_name = fold_name(name)
        if folded_name == folded_path:
            return node
        if isinstance(node, MappingNode) and folded_path.startswith(f"{folded_name}."):
            node_below = find_path(node, folded_path.removeprefix(f"{folded_name}."))
            if node_below is not None:
                return node_below
    return None


def fold_name(name: str) -> str:
    """Normalizes a name: replenishRate, replenish-rate and replenish_rate are the same."""
    return re.sub(r"[-_]", "", name).lower()
