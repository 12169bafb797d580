"""Other people's YAML: the tree of rules/document.py, asked for what is expected; every complaint has its line."""

from __future__ import annotations

import re

from headgate.errors import InvalidRule
from headgate.rules.parsing import read_yaml
from headgate.rules.parsing.document_tree import Fault, Items, Node, Scalar, Table, decode, kind

_next_document = re.compile(r"^---(?=\s|$)[^\n]*", re.M)
_YES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def read(text: str) -> Table:
    """The document as a mapping."""
    try:
        root = read_yaml.read(decode(text))
    except Fault as fault:
        where = "" if fault.place.line is None else f"line {fault.place.line}: "
        raise InvalidRule(f"{where}{fault.sentence} {fault.hint}".strip()) from None
    return mapping(root, "The document")


def documents(text: str) -> list[Table]:
    """The documents of a text that holds several, with the lines they have in it."""
    starts = [0, *(found.end() for found in _next_document.finditer(text))]
    ends = [*(found.start() for found in _next_document.finditer(text)), len(text)]
    parts = [(start, text[start:end]) for start, end in zip(starts, ends, strict=True)]
    wanted = [(start, part) for start, part in parts if re.search(r"^[^#\s]|^\s+[^#\s]", part, re.M)]
    return [read("\n" * text.count("\n", 0, start) + part) for start, part in wanted or [(0, text)]]


def mapping(node: Node, what: str) -> Table:
    if isinstance(node, Table):
        return node
    raise InvalidRule(f"line {line_of(node)}: {what} is a mapping of names and values, not {kind(node)}.")


def items(node: Node | None, what: str) -> list[Node]:
    """The entries of a list; none if there is nothing."""
    if node is None or (isinstance(node, Scalar) and node.empty):
        return []
    if isinstance(node, Items):
        return node.nodes
    raise InvalidRule(f"line {line_of(node)}: {what} is a list, not {kind(node)}.")


def optional_text(node: Node | None, what: str) -> str | None:
    """A text; None if there is nothing."""
    if node is None or (isinstance(node, Scalar) and node.empty):
        return None
    if isinstance(node, Scalar):
        return node.text
    raise InvalidRule(f"line {line_of(node)}: {what} is a text, not {kind(node)}.")


def flag(node: Node | None, what: str) -> bool:
    """Whether it says yes; nothing is no."""
    text = (optional_text(node, what) or "no").lower()
    if text not in _YES:
        raise InvalidRule(f"line {line_of(node)}: {what} is true or false, not {text!r}.")
    return _YES[text]


def optional_number(node: Node | None, what: str) -> int | None:
    """A whole number; None if there is nothing."""
    text = optional_text(node, what)
    if text is not None and not re.fullmatch(r"[0-9]{1,15}", text):
        raise InvalidRule(f'line {line_of(node)}: {what} is a whole number, not "{text[:40]}".')
    return None if text is None else int(text)


def line_of(node: Node | None) -> int | None:
    return None if node is None else node.place.line


def find_path(table: Table, path: str) -> Node | None:
    """What stands under a path such as spring.cloud.gateway, however it is nested, dotted or spelled."""
    wanted = fold_name(path)
    for name, (_, node) in table.entries.items():
        start = fold_name(name)
        if start == wanted:
            return node
        if isinstance(node, Table) and wanted.startswith(f"{start}."):
            found = find_path(node, wanted.removeprefix(f"{start}."))
            if found is not None:
                return found
    return None


def fold_name(name: str) -> str:
    """replenishRate, replenish-rate and replenish_rate are one name."""
    return re.sub(r"[-_]", "", name).lower()
