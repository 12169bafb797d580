"""Loads a rulebook from a file, a text, or Python values.

The format decides only how the tree is written (document_tree.py); its meaning is read here and in parsing/, the
same for all formats. A book is accepted as a whole or not at all: InvalidRulebook carries every problem that could
be found, each with its line.

Laws (tests/rules/parsing/test_load.py): whatever the bytes are, only a Rulebook or an InvalidRule comes out, in
bounded time; a book that is written (serialization.py) and loaded again is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules.attributes import parse_attribute_name
from headgate.rules.parsing import (
    attribute_typos,
    consistency,
    fields,
    parse_rule,
    read_json,
    read_python_values,
    read_toml,
    read_yaml,
)
from headgate.rules.parsing.document_tree import (
    MAX_BYTES,
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    decode,
    describe_node,
    empty_rulebook,
    quote,
)
from headgate.rules.parsing.parse_condition import Conditions
from headgate.rules.parsing.parse_rule import RuleField
from headgate.rules.parsing.problems import Problems, at_node
from headgate.rules.rule import HEADERS, OVERLOAD_REFUSAL, Rule, Rulebook

_READERS = {"yaml": read_yaml.read, "yml": read_yaml.read, "toml": read_toml.read, "json": read_json.read}
_underscored_header = re.compile(r"header\.[\w-]*_[\w-]*", re.A)
_BOOK_FIELDS = ("name", "headers", "attributes", "defaults", "conditions", "rules")


def read(path: str | PathLike[str]) -> Rulebook:
    """Reads the rulebook in a file; the suffix is its format: .yaml, .yml, .toml or .json."""
    return parse(_read_file(path), format=_format(path), source=fspath(path))


def underscored_headers(path: str | PathLike[str]) -> list[str]:
    """Returns the headers whose names have an underscore in a rulebook file: api_key of header.api_key.

    In a Rulebook it is header.api-key, but nginx drops a field with an underscore.
    """
    names = (
        name.removeprefix("header.")
        for name in _underscored_names(_READERS[_format(path)](decode(_read_file(path))))
    )
    return list(dict.fromkeys(names))


def _underscored_names(node: Node) -> Iterator[str]:
    """Yields all texts of a document that may name such a header."""
    if isinstance(node, MappingNode):
        for key, inner in node.entries.values():
            yield from _underscored_names(key)
            yield from _underscored_names(inner)
    elif isinstance(node, ListNode):
        for inner in node.nodes:
            yield from _underscored_names(inner)
    elif _underscored_header.fullmatch(node.text):
        yield node.text


def _format(path: str | PathLike[str]) -> str:
    return Path(path).suffix[1:].lower()


def _read_file(path: str | PathLike[str]) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        reason = getattr(error, "strerror", None) or error
        raise InvalidRulebook([(None, f"The rulebook cannot be read: {reason}.")], fspath(path)) from error


def parse(text: str | bytes, *, format: str = "yaml", source: str | None = None) -> Rulebook:  # noqa: A002
    """Parses the rulebook in a text. Messages name it `source`."""
    if format not in _READERS:
        location = f"{source}: " if source else ""
        raise InvalidRule(f'{location}"{format}" is no format of a rulebook: write yaml, toml or json.')
    problems = Problems()
    with problems.under(""):
        decoded_text = decode(text)
        root = _READERS[format](decoded_text)
        return _BookParser(root, source, decoded_text, problems).rulebook()
    raise problems.error(source)


def from_mapping(mapping: Mapping[str, Any], source: str | None = None) -> Rulebook:
    """Returns the rulebook in Python values; messages name paths in it, such as rules[2].limit."""
    problems = Problems()
    with problems.under(""):
        return _BookParser(read_python_values.read(mapping), source, None, problems).rulebook()
    raise problems.error(source)


def from_node(node: Node, source: str | None = None) -> Rulebook:
    """Returns the rulebook that is a part of another document."""
    problems = Problems()
    with problems.under(""):
        return _BookParser(node, source, None, problems).rulebook()
    raise problems.error(source)


class _BookParser:
    """Parses the fields of a rulebook."""

    def __init__(self, root: Node, source: str | None, text: str | None, problems: Problems) -> None:
        self.source, self.text, self.problems = source, text, problems
        self.warnings = Problems()
        if isinstance(root, MappingNode) and not root.entries:
            raise empty_rulebook(root.position)
        if not isinstance(root, MappingNode):
            raise Fault(
                root.position,
                f"A rulebook is a mapping, not {describe_node(root)}.",
                "Begin with rules: and a list of them.",
            )
        self.root = root

    def rulebook(self) -> Rulebook:
        book_fields: dict[str, Any] = {}
        for key, node in self.root.entries.values():
            with self.problems.under(""):
                if key.text not in _BOOK_FIELDS:
                    raise Fault(
                        key.position,
                        f"A rulebook has no field {quote(key.text)}.",
                        fields.did_you_mean(key.text, _BOOK_FIELDS),
                    )
                if key.text == "name":
                    book_fields["name"] = fields.name(node, "the name of a rulebook")
                elif key.text == "headers":
                    book_fields["headers"] = fields.word(node, "headers", HEADERS)
                elif key.text == "attributes":
                    book_fields["attributes"] = _attributes(node)
        rules: list[Rule] = []
        with self.problems.under(""):
            rules = self.rules(book_fields.get("attributes"))
        self.problems.raise_any(self.source)
        warnings = tuple(self.warnings.in_order())
        return Rulebook(rules=tuple(rules), source=self.source, text=self.text, warnings=warnings, **book_fields)

    def rules(self, supplied: tuple[str, ...] | None) -> list[Rule]:
        conditions = Conditions(self.root.get("conditions"), self.problems)
        defaults = self.defaults(conditions)
        node = self.root.get("rules")
        if node is None:
            raise Fault(self.root.position, "The rulebook lacks rules.", "One without rules is written: rules: []")
        if not isinstance(node, ListNode):
            raise Fault(
                node.position, f"rules is a list, not {describe_node(node)}.", "Begin each rule with - name: ..."
            )
        return _RuleListParser(conditions, defaults, supplied, self.problems, self.warnings).read(node)

    def defaults(self, conditions: Conditions) -> dict[str, RuleField] | None:
        """Parses the defaults of all rules; None if some are invalid."""
        node = self.root.get("defaults")
        if node is None:
            return {}
        with self.problems.under(""):
            if not isinstance(node, MappingNode):
                raise Fault(node.position, f"defaults is a mapping, not {describe_node(node)}.")
            default_fields = parse_rule.read(
                node, parse_rule.DEFAULT_FIELDS, "defaults", conditions, self.problems
            )
            for field in default_fields.values():
                field.explicit = False
            return default_fields if len(default_fields) == len(node.entries) else None
        return None


class _RuleListParser:
    """Parses the list of rules; the problems of one rule do not hide those of another."""

    def __init__(
        self,
        conditions: Conditions,
        defaults: dict[str, RuleField] | None,
        supplied: tuple[str, ...] | None,
        problems: Problems,
        warnings: Problems,
    ) -> None:
        self.conditions, self.defaults, self.supplied, self.problems = conditions, defaults, supplied, problems
        self.warnings = warnings
        self.nodes: dict[str, Node] = {}
        self.replaced: consistency.ReplacedRules = {}
        self.reported: set[tuple[Position, str]] = set()

    def read(self, node: ListNode) -> list[Rule]:
        rules = [self.rule(inner, f"rule {number}") for number, inner in enumerate(node.nodes, 1)]
        for name, fault in consistency.check_replaces(self.replaced, self.nodes):
            self.problems.add(fault, f'rule "{name}"')
        return [rule for rule in rules if rule]

    def rule(self, node: Node, subject: str) -> Rule | None:
        with self.problems.under(subject):
            if not isinstance(node, MappingNode):
                raise Fault(
                    node.position,
                    f"A rule is a mapping, not {describe_node(node)}.",
                    "Write - name: ... and limit: ...",
                )
            name = self.name(node, subject)
            if name is not None:
                return self.named_rule(node, name, f'rule "{name}"')
            self.fields(node, subject)
        return None

    def name(self, node: MappingNode, subject: str) -> str | None:
        """Returns the rule's name; None if it is missing (then a problem is added) or invalid."""
        entry = node.entries.get("name")
        if entry is None:
            fault = Fault(node.position, "The rule lacks a name.", "Write name: and a name of its own.")
            self.problems.add(fault, subject)
            return None
        with suppress(Fault):  # the name is read again with the other fields, which reports it
            return fields.name(entry[1], "the name of a rule")
        return None

    def fields(self, node: MappingNode, subject: str) -> dict[str, RuleField]:
        rule_fields = parse_rule.read(node, parse_rule.FIELDS, subject, self.conditions, self.problems)
        if "limit" not in node.entries:
            self.problems.add(
                Fault(node.position, "The rule lacks a limit.", "Write limit: 10/minute, or unlimited."), subject
            )
        return rule_fields

    def named_rule(self, node: MappingNode, name: str, subject: str) -> Rule | None:
        problems_before = len(self.problems.messages)
        with self.problems.under(subject):
            self.unique(name, node.entries["name"][1])
        rule_fields = self.fields(node, subject)
        self.replaced[name] = rule_fields["replaces"].value if "replaces" in rule_fields else ()
        if (
            self.defaults is None
            or len(rule_fields) < len(node.entries)
            or len(self.problems.messages) > problems_before
        ):
            return None
        rule_fields = {**self.defaults, **rule_fields}
        for fault in consistency.check_rule(rule_fields, self.supplied):
            # Once, although many rules may use the same condition.
            if (fault.position, fault.sentence) not in self.reported:
                self.reported.add((fault.position, fault.sentence))
                self.problems.add(fault, subject)
        if self.supplied is None:
            self.warn_of_typos(rule_fields, subject)
        return _make_rule(rule_fields, node)

    def warn_of_typos(self, rule_fields: dict[str, RuleField], subject: str) -> None:
        captured = rule_fields["when"].value.captures if "when" in rule_fields else ()
        for name, fault in attribute_typos.find_typos(rule_fields, captured):
            if (fault.position, name) not in self.reported:  # once, although many rules may use the same condition
                self.reported.add((fault.position, name))
                self.warnings.add(fault, subject)

    def unique(self, name: str, node: Node) -> None:
        if first_node := self.nodes.get(name):
            where = (
                f"in line {first_node.position.line}"
                if first_node.position.line
                else f"at {first_node.position.path}"
            )
            raise Fault(node.position, "Another rule has the same name.", f"The first one is {where}.")
        self.nodes[name] = node


def _make_rule(rule_fields: dict[str, RuleField], node: MappingNode) -> Rule:
    values = {name: field.value for name, field in rule_fields.items()}
    values["unless"] = values.pop("except", None)
    values["max_pause_us"] = values.pop("pausable", None)
    values["replaces"] = tuple(name for name, _ in values.get("replaces", ()))
    if consistency.holds_adaptive(rule_fields["limit"]):
        for name in ("nodes", "fallback", "deadline", "initial_share"):
            values.pop(name, None)  # a default applies to rules that an engine decides only
        where = rule_fields.get("where")
        values["where"] = where.value if where is not None and where.explicit else "node"
        values.setdefault("refuse", OVERLOAD_REFUSAL)
    if values.get("where") != "split":
        values.pop("nodes", None)  # a default applies to split rules only
    return Rule(**values, line=node.position.line)


def _attributes(node: Node) -> tuple[str, ...]:
    if not isinstance(node, ListNode):
        raise Fault(
            node.position,
            f"attributes is a list of names, not {describe_node(node)}.",
            "Write attributes: [sku, tenant].",
        )
    names: list[str] = []
    for item in fields.texts(node, "An attribute"):
        name = at_node(item, parse_attribute_name, item.text)
        if name in names:
            raise Fault(
                item.position, f"{quote(name)} appears twice in the list of attributes.", "Once is enough."
            )
        names.append(name)
    return tuple(names)
