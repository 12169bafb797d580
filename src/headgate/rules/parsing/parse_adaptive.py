"""Parses an adaptive limit.

    {adaptive: concurrency, target: p99 200ms, between: [5, 500]}
    {adaptive: rate, target: p90 250ms, between: [10, 500], priority: {by: plan, order: [pro, free]}}

With priorities it is a choice: a limit for each class of calls, chosen by the attribute. The most important class
comes first; a call with a value that is not listed belongs to the last one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from headgate.adaptive.adaptive_limit import (
    ADAPTIVE_KINDS,
    DEFAULT_BOUNDS,
    MAX_BOUND,
    MAX_PERCENTILE,
    MIN_PERCENTILE,
    AdaptiveKind,
    AdaptiveLimit,
    ResponseTarget,
)
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse_span
from headgate.rules.attributes import parse_attribute_name
from headgate.rules.condition import Test
from headgate.rules.parsing import fields
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

ADAPTIVE: Final = "adaptive"
EXAMPLE: Final = "{adaptive: concurrency, target: p99 200ms, between: [5, 500]}"
MAX_CLASSES: Final = 10

_FIELDS = (ADAPTIVE, "target", "between", "priority")
_target = re.compile(r"p([0-9]{2}(?:\.[0-9])?) +(\S.*)")
_number_and_span = re.compile(r"([0-9]{2}(?:\.[0-9])?)\D{0,3}\b\W*([0-9.]+ ?[a-z]+)", re.I)
_span = re.compile(r"[0-9.]+ ?[a-z]+", re.I)


def is_adaptive(node: Node) -> bool:
    """Returns whether this mapping is meant as an adaptive limit."""
    return isinstance(node, MappingNode) and not {*_FIELDS}.isdisjoint(node.entries) and "by" not in node.entries


def adaptive_limit(node: MappingNode, uses: list[tuple[str, Position]]) -> Choice[Limits]:
    """Parses an adaptive limit; with priorities, a choice of its classes."""
    fields.table(node, "An adaptive limit", _FIELDS)
    entries = {name: inner for name, (_, inner) in node.entries.items()}
    if ADAPTIVE not in entries:
        raise Fault(node.position, "An adaptive limit lacks the field adaptive.", f"Write {EXAMPLE}.")
    kind = fields.word(entries[ADAPTIVE], "adaptive", ADAPTIVE_KINDS)
    target = _read_target(entries["target"]) if "target" in entries else None
    bounds = _bounds(entries["between"]) if "between" in entries else DEFAULT_BOUNDS
    if kind == "rate":
        for name, example in (("target", "target: p99 200ms"), ("between", "between: [10, 500]")):
            if name not in entries:
                raise Fault(node.position, f"An adaptive rate lacks {name}.", f"Write {example} as well.")
    if "priority" not in entries:
        return Choice((AdaptiveLimit(kind, target, bounds),))
    return _classes(entries["priority"], uses, (kind, target, bounds))


def _read_target(node: Node) -> ResponseTarget:
    text = " ".join(fields.text(node, "target").split())
    match = _target.fullmatch(text)
    if match is None:
        raise Fault(node.position, f"{quote(text)} is not a target.", _target_hint(text))
    us = at_node(node, parse_span, match[2])
    percentile = float(match[1])
    if not MIN_PERCENTILE <= percentile <= MAX_PERCENTILE:
        raise Fault(
            node.position,
            f"A target is for a percentile from p{MIN_PERCENTILE} to p{MAX_PERCENTILE}, not p{match[1]}.",
            "Write p50, p90, p95, p99 or p99.9.",
        )
    return ResponseTarget(percentile, us)


def _target_hint(text: str) -> str:
    both, span = _number_and_span.search(text), _span.fullmatch(text)
    proposal = f"p{both[1]} {both[2]}" if both else f"p99 {text}" if span else ""
    with suppress(InvalidRule):
        if proposal:
            parse_span(proposal.split(maxsplit=1)[1])
            return f"Did you mean {proposal}?"
    return "Write a percentile and a length of time, such as p99 200ms."


def _bounds(node: Node) -> tuple[int, int]:
    example = "Write the least and the most, such as between: [5, 500]."
    if not isinstance(node, ListNode):
        raise Fault(node.position, f"between is a list of two numbers, not {describe_node(node)}.", example)
    numbers = read_all(lambda item: fields.whole_number(item, "A bound", 1, MAX_BOUND), node.nodes)
    if len(numbers) != 2:
        raise Fault(node.position, f"between is a list of two numbers, not of {len(numbers)}.", example)
    low, high = numbers
    if low > high:
        raise Fault(node.position, f"between begins at {low}, above its end.", f"Write between: [{high}, {low}].")
    return low, high


def _classes(
    node: Node,
    uses: list[tuple[str, Position]],
    settings: tuple[AdaptiveKind, ResponseTarget | None, tuple[int, int]],
) -> Choice[Limits]:
    table = fields.table(node, "priority", ("by", "order"), required=("by", "order"))
    by, order = (table.entries[name][1] for name in ("by", "order"))
    attribute = at_node(by, parse_attribute_name, fields.text(by, "by"))
    uses.append((attribute, by.position))
    values = fields.texts(order, "order")
    if not 2 <= len(values) <= MAX_CLASSES:
        raise Fault(
            order.position,
            f"order has {len(values)} value{'' if len(values) == 1 else 's'}; it is a list of 2 to {MAX_CLASSES}.",
            "List what the attribute may be, the most important first: [checkout, browse, prefetch].",
        )
    tests: list[Test] = []

    def read_value(item: ScalarNode) -> None:
        test = at_node(item, Test, attribute, (item.text,))
        if test.captures:
            raise Fault(item.position, f"{quote(item.text)} captures nothing here.", "Write * for the segment.")
        if covering := covering_case(test, tests):
            raise Fault(item.position, f"{quote(item.text)} is never reached: {quote(covering)} comes before it.")
        tests.append(test)

    read_all(read_value, values)
    limits = [(AdaptiveLimit(*settings, number, len(tests)),) for number in range(len(tests))]
    return Choice((AdaptiveLimit(*settings, len(tests) - 1, len(tests)),), tuple(zip(tests, limits, strict=True)))
