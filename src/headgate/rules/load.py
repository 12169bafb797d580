"""A rulebook is read: from a file, a text, or values of a program.

The format only says how the tree is written (document.py); what it says is read here and in load_*.py, once for
all. A book is taken whole or not at all: InvalidRulebook carries every problem that could be found, and each has
its line.

Laws (tests/rules/parsing/test_load.py): whatever the bytes are, only a Rulebook or an InvalidRule comes out, in
bounded time; a book that is written (write.py) and read again is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules.attributes import named
from headgate.rules.parsing import (
    attribute_typos,
    consistency,
    fields,
    parse_rule,
    read_json,
    read_python,
    read_toml,
    read_yaml,
)
from headgate.rules.parsing.document_tree import (
    MAX_BYTES,
    Fault,
    Items,
    Node,
    Position,
    Table,
    decode,
    empty_rulebook,
    kind,
    quote,
)
from headgate.rules.parsing.parse_condition import Conditions
from headgate.rules.parsing.parse_rule import Field
from headgate.rules.parsing.problems import Problems, placed
from headgate.rules.rule import HEADERS, Rule, Rulebook

_READERS = {"yaml": read_yaml.read, "yml": read_yaml.read, "toml": read_toml.read, "json": read_json.read}
_underscored = re.compile(r"header\.[\w-]*_[\w-]*", re.A)
_BOOK = ("name", "headers", "attributes", "defaults", "conditions", "rules")


def read(path: str | PathLike[str]) -> Rulebook:
    """The rulebook in a file; its suffix says how it is written: .yaml, .yml, .toml or .json."""
    return parse(_data(path), format=_format(path), source=fspath(path))


def underscored_headers(path: str | PathLike[str]) -> list[str]:
    """The headers that a rulebook in a file spells with an underscore: api_key of header.api_key.

    In a Rulebook it is header.api-key, but nginx drops the field that is spelled so."""
    found = (name.removeprefix("header.") for name in _texts(_READERS[_format(path)](decode(_data(path)))))
    return list(dict.fromkeys(found))


def _texts(node: Node) -> Iterator[str]:
    """All texts in a document that can be the name of such a header."""
    if isinstance(node, Table):
        for key, inner in node.entries.values():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(node, Items):
        for inner in node.nodes:
            yield from _texts(inner)
    elif _underscored.fullmatch(node.text):
        yield node.text


def _format(path: str | PathLike[str]) -> str:
    return Path(path).suffix[1:].lower()


def _data(path: str | PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: no file can be called so
        why = getattr(error, "strerror", None) or error
        raise InvalidRulebook([(None, f"The rulebook cannot be read: {why}.")], fspath(path)) from error


def parse(text: str | bytes, *, format: str = "yaml", source: str | None = None) -> Rulebook:  # noqa: A002
    """The rulebook in a text. `source` names it in sentences."""
    if format not in _READERS:
        at = f"{source}: " if source else ""
        raise InvalidRule(f'{at}"{format}" is no format of a rulebook: write yaml, toml or json.')
    problems = Problems()
    with problems.under(""):
        whole = decode(text)
        root = _READERS[format](whole)
        return _Book(root, source, whole, problems).rulebook()
    raise problems.error(source)


def of(mapping: Mapping[str, Any], source: str | None = None) -> Rulebook:
    """The rulebook that values of a program say; sentences name paths in it, such as rules[2].limit."""
    problems = Problems()
    with problems.under(""):
        return _Book(read_python.read(mapping), source, None, problems).rulebook()
    raise problems.error(source)


def of_node(node: Node, source: str | None = None) -> Rulebook:
    """The rulebook that is a part of another document."""
    problems = Problems()
    with problems.under(""):
        return _Book(node, source, None, problems).rulebook()
    raise problems.error(source)


class _Book:
    def __init__(self, root: Node, source: str | None, text: str | None, problems: Problems) -> None:
        self.source, self.text, self.problems = source, text, problems
        self.warnings = Problems()
        if isinstance(root, Table) and not root.entries:
            raise empty_rulebook(root.place)
        if not isinstance(root, Table):
            raise Fault(
                root.place, f"A rulebook is a mapping, not {kind(root)}.", "Begin with rules: and a list of them."
            )
        self.root = root

    def rulebook(self) -> Rulebook:
        known: dict[str, Any] = {}
        for key, node in self.root.entries.values():
            with self.problems.under(""):
                if key.text not in _BOOK:
                    raise Fault(
                        key.place,
                        f"A rulebook has no field {quote(key.text)}.",
                        fields.did_you_mean(key.text, _BOOK),
                    )
                if key.text == "name":
                    known["name"] = fields.name(node, "the name of a rulebook")
                elif key.text == "headers":
                    known["headers"] = fields.word(node, "headers", HEADERS)
                elif key.text == "attributes":
                    known["attributes"] = _attributes(node)
        rules: list[Rule] = []
        with self.problems.under(""):
            rules = self.rules(known.get("attributes"))
        self.problems.raise_any(self.source)
        warnings = tuple(self.warnings.in_order())
        return Rulebook(rules=tuple(rules), source=self.source, text=self.text, warnings=warnings, **known)

    def rules(self, supplied: tuple[str, ...] | None) -> list[Rule]:
        conditions = Conditions(self.root.get("conditions"), self.problems)
        defaults = self.defaults(conditions)
        node = self.root.get("rules")
        if node is None:
            raise Fault(self.root.place, "The rulebook lacks rules.", "One without rules is written: rules: []")
        if not isinstance(node, Items):
            raise Fault(node.place, f"rules is a list, not {kind(node)}.", "Begin each rule with - name: ...")
        return _Rules(conditions, defaults, supplied, self.problems, self.warnings).read(node)

    def defaults(self, conditions: Conditions) -> dict[str, Field] | None:
        """What rules say unless they say otherwise; None if that cannot be known."""
        node = self.root.get("defaults")
        if node is None:
            return {}
        with self.problems.under(""):
            if not isinstance(node, Table):
                raise Fault(node.place, f"defaults is a mapping, not {kind(node)}.")
            found = parse_rule.read(node, parse_rule.DEFAULT_FIELDS, "defaults", conditions, self.problems)
            for field in found.values():
                field.own = False
            return found if len(found) == len(node.entries) else None
        return None


class _Rules:
    """The list of rules, one after the other; each may be at fault by itself."""

    def __init__(
        self,
        conditions: Conditions,
        defaults: dict[str, Field] | None,
        supplied: tuple[str, ...] | None,
        problems: Problems,
        warnings: Problems,
    ) -> None:
        self.conditions, self.defaults, self.supplied, self.problems = conditions, defaults, supplied, problems
        self.warnings = warnings
        self.nodes: dict[str, Node] = {}
        self.replaced: consistency.ReplacedRules = {}
        self.told: set[tuple[Position, str]] = set()

    def read(self, node: Items) -> list[Rule]:
        rules = [self.rule(inner, f"rule {number}") for number, inner in enumerate(node.nodes, 1)]
        for name, fault in consistency.check_replaces(self.replaced, self.nodes):
            self.problems.add(fault, f'rule "{name}"')
        return [rule for rule in rules if rule]

    def rule(self, node: Node, subject: str) -> Rule | None:
        with self.problems.under(subject):
            if not isinstance(node, Table):
                raise Fault(
                    node.place, f"A rule is a mapping, not {kind(node)}.", "Write - name: ... and limit: ..."
                )
            name = self.name(node, subject)
            if name is not None:
                return self.named(node, name, f'rule "{name}"')
            self.fields(node, subject)
        return None

    def name(self, node: Table, subject: str) -> str | None:
        """The rule's name; None if it has none, or none that can be: then that is added to the problems."""
        entry = node.entries.get("name")
        if entry is None:
            fault = Fault(node.place, "The rule lacks a name.", "Write name: and a name of its own.")
            self.problems.add(fault, subject)
            return None
        with suppress(Fault):  # the fields are read below, the name with them
            return fields.name(entry[1], "the name of a rule")
        return None

    def fields(self, node: Table, subject: str) -> dict[str, Field]:
        found = parse_rule.read(node, parse_rule.FIELDS, subject, self.conditions, self.problems)
        if "limit" not in node.entries:
            self.problems.add(
                Fault(node.place, "The rule lacks a limit.", "Write limit: 10/minute, or unlimited."), subject
            )
        return found

    def named(self, node: Table, name: str, subject: str) -> Rule | None:
        before = len(self.problems.found)
        with self.problems.under(subject):
            self.unique(name, node.entries["name"][1])
        found = self.fields(node, subject)
        self.replaced[name] = found["replaces"].value if "replaces" in found else ()
        if self.defaults is None or len(found) < len(node.entries) or len(self.problems.found) > before:
            return None
        found = {**self.defaults, **found}
        for fault in consistency.check_rule(found, self.supplied):
            if (fault.place, fault.sentence) not in self.told:  # many rules may use the same condition
                self.told.add((fault.place, fault.sentence))
                self.problems.add(fault, subject)
        if self.supplied is None:
            self.warn_of_typos(found, subject)
        return _made(found, node)

    def warn_of_typos(self, found: dict[str, Field], subject: str) -> None:
        captured = found["when"].value.captures if "when" in found else ()
        for name, fault in attribute_typos.find_typos(found, captured):
            if (fault.place, name) not in self.told:  # once, also where many rules use the same condition
                self.told.add((fault.place, name))
                self.warnings.add(fault, subject)

    def unique(self, name: str, node: Node) -> None:
        if first := self.nodes.get(name):
            where = f"in line {first.place.line}" if first.place.line else f"at {first.place.path}"
            raise Fault(node.place, "Another rule has the same name.", f"The first one is {where}.")
        self.nodes[name] = node


def _made(found: dict[str, Field], node: Table) -> Rule:
    said = {name: field.value for name, field in found.items()}
    said["unless"] = said.pop("except", None)
    said["replaces"] = tuple(name for name, _ in said.get("replaces", ()))
    if said.get("where") != "split":
        said.pop("nodes", None)  # a default is meant for those that are split
    return Rule(**said, line=node.place.line)


def _attributes(node: Node) -> tuple[str, ...]:
    if not isinstance(node, Items):
        raise Fault(
            node.place, f"attributes is a list of names, not {kind(node)}.", "Write attributes: [sku, tenant]."
        )
    found: list[str] = []
    for one in fields.texts(node, "An attribute"):
        name = placed(one, named, one.text)
        if name in found:
            raise Fault(one.place, f"{quote(name)} stands twice in the list of attributes.", "Once is enough.")
        found.append(name)
    return tuple(found)
