"""Parses limits and costs: a value, or a choice by an attribute.

    10/minute        "10/s; 500/hour"        [10/s, 500/hour]        unlimited
    {by: plan, cases: {free: 10/s, "pro-*": 100/s}, otherwise: 5/s}
    {adaptive: concurrency, target: p99 200ms, between: [5, 500]}     in parse_adaptive.py

The name of a case is a text, in every format: a case called true is the text "true".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.limit_syntax import parse_all
from headgate.rules.attributes import parse_attribute_name
from headgate.rules.condition import Test
from headgate.rules.parsing import fields, parse_adaptive
from headgate.rules.parsing.document_tree import (
    Fault,
    ListNode,
    MappingNode,
    Node,
    Position,
    ScalarNode,
    describe_node,
    quote,
)
from headgate.rules.parsing.impossible_conditions import covering_case
from headgate.rules.parsing.problems import at_node, read_all
from headgate.rules.rule import Choice, Limits

T = TypeVar("T")
Uses = list[tuple[str, Position]]

UNLIMITED = "unlimited"
_CHOICE = ("by", "cases", "otherwise")


def limits(node: Node, uses: Uses) -> Choice[Limits]:
    """Parses a limit, a list of limits, a choice of them, or an adaptive limit."""
    if isinstance(node, MappingNode) and parse_adaptive.is_adaptive(node):
        return parse_adaptive.adaptive_limit(node, uses)
    return _choice(node, "A limit", _limits, uses)


def cost(node: Node, uses: Uses) -> Choice[int | str]:
    """Parses a cost: a number, an attribute, or a choice of them."""
    choice = _choice(node, "A cost", lambda value: _cost(value, uses), uses)
    if not any((choice.otherwise, *(value for _, value in choice.cases))):
        raise Fault(
            node.position, "A cost of 0 charges nothing: the rule would never apply.", "Write mode: off instead."
        )
    return choice


def _choice(node: Node, what: str, read: Callable[[Node], T], uses: Uses) -> Choice[T]:
    if not isinstance(node, MappingNode):
        return Choice(read(node))
    fields.table(node, f"{what} by choice", _CHOICE)
    for name, meaning in (
        ("by", "the attribute that decides"),
        ("cases", "what it may be"),
        ("otherwise", "what holds else"),
    ):
        if name not in node.entries:
            raise Fault(
                node.position,
                f"{what} by choice lacks {name}: {meaning}.",
                "Write {by: plan, cases: {...}, otherwise: ...}.",
            )
    attribute_node, cases, otherwise = (node.entries[name][1] for name in _CHOICE)
    attribute = at_node(attribute_node, parse_attribute_name, fields.text(attribute_node, "by"))
    uses.append((attribute, attribute_node.position))
    if not isinstance(cases, MappingNode) or not cases.entries:
        description = describe_node(cases) if not isinstance(cases, MappingNode) else "an empty one"
        raise Fault(cases.position, f"cases is a mapping of texts to values, not {description}.")
    tests: list[Test] = []

    def read_case(name: str | None) -> T:
        if name is None:
            return read(otherwise)
        key, value = cases.entries[name]
        tests.append(_case(key, attribute, tests))
        return read(value)

    *values, last = read_all(read_case, [*cases.entries, None])
    return Choice(last, tuple(zip(tests, values, strict=True)))


def _case(key: ScalarNode, attribute: str, earlier_cases: list[Test]) -> Test:
    text = fields.text(ScalarNode(key.position, key.text, quoted=True), "The name of a case")
    test = at_node(key, Test, attribute, (text,))
    if test.captures:
        raise Fault(key.position, f"The case {quote(key.text)} captures nothing.", "Write * for the segment.")
    if covering := covering_case(test, earlier_cases):
        raise Fault(
            key.position, f"The case {quote(key.text)} is never reached: {quote(covering)} comes before it."
        )
    return test


def _limits(node: Node) -> Limits:
    """Returns a new tuple each time, also for the same text: its identity keeps the cases' counters apart."""
    if isinstance(node, ListNode) and not node.nodes:
        raise Fault(node.position, "An empty list is not a limit.", f"Write {UNLIMITED} if none is meant.")
    if isinstance(node, ScalarNode) and node.text == UNLIMITED:
        return ()
    inner = node.nodes if isinstance(node, ListNode) else [node]
    if any(map(parse_adaptive.is_adaptive, inner)):
        raise Fault(
            node.position,
            "An adaptive limit stands alone: it is no case of a choice, and not one of several limits.",
            "Write it without brackets." if len(inner) == 1 else "Make it a rule of its own, with when.",
        )
    if isinstance(node, ScalarNode) and node.text.partition(" ")[0] in parse_adaptive.FIRST_WORDS:
        raise Fault(node.position, f"{quote(node.text)} is not a limit.", f"Write {parse_adaptive.EXAMPLE}.")
    parsed = read_all(
        lambda item: at_node(item, parse_all, " ".join(item.text.split())), fields.texts(node, "A limit")
    )
    return tuple(limit for limits in parsed for limit in limits)


def _cost(node: Node, uses: Uses) -> int | str:
    number = fields.number(node)
    if number is not None:
        return fields.whole_number(node, "A cost", least=0)
    if isinstance(node, ScalarNode) and not node.empty and not node.text[:1].isalpha():
        raise Fault(
            node.position,
            f"{quote(node.text)} is not a cost.",
            "Write a whole number from 0 to 2^53, or an attribute.",
        )
    attribute = at_node(node, parse_attribute_name, fields.text(node, "A cost"))
    uses.append((attribute, node.position))
    return attribute
