"""Parses an adaptive limit.

    {adaptive: concurrency, target: p99 200ms, between: [5, 500]}
    {adaptive: rate, target: p90 250ms, between: [10, 500], priority: {by: plan, order: [pro, free]}}

With priorities it is a choice: a limit for each class of calls, chosen by the attribute. The most important class
comes first; a call with a value that is not listed belongs to the last one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from headgate.algorithms.limit import HORIZON_US
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
FIRST_WORDS: Final = (ADAPTIVE, *ADAPTIVE_KINDS)  # of an adaptive limit that is written as a text
MAX_CLASSES: Final = 10

_FIELDS = (ADAPTIVE, "target", "between", "priority")
_PRIORITY_EXAMPLE = "Write priority: {by: plan, order: [pro, free]}."
_BOUND_FIELDS = ("min", "max", "floor", "ceiling", "least", "most", "bounds", "limits")

_target = re.compile(r"p([0-9]+(?:\.[0-9]+)?) +(\S.*)")
_number_and_span = re.compile(
    r"\b[pP]?([0-9]{1,3}(?:\.[0-9]+)?)(?:th)?[^0-9.]*?[^0-9.a-zA-Z]+([0-9.]+ ?[a-zA-Z]+)"
)
_span = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-zA-Z]*)")
_whole = re.compile(r"[0-9]+")


def is_adaptive(node: Node) -> bool:
    """Returns whether this mapping is meant as an adaptive limit."""
    return isinstance(node, MappingNode) and not {*_FIELDS}.isdisjoint(node.entries) and "by" not in node.entries


def adaptive_limit(node: MappingNode, uses: list[tuple[str, Position]]) -> Choice[Limits]:
    """Parses an adaptive limit; with priorities, a choice of its classes."""
    _check_fields(node)
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
    percentile = _nearest_percentile(match[1])
    if percentile != match[1]:
        raise Fault(
            node.position,
            f"A target is for a percentile from p{MIN_PERCENTILE} to p{MAX_PERCENTILE}, with at most one decimal; "
            f"not p{match[1]}.",
            f"Did you mean p{percentile} {match[2]}?",
        )
    try:
        us = at_node(node, parse_span, match[2])
    except Fault as fault:
        raise Fault(node.position, fault.sentence, _target_hint(text) if "<" in text else fault.hint) from None
    if us > HORIZON_US:
        raise Fault(node.position, f"A target is at most 366 days, not {match[2]}.", "Did you mean p99 200ms?")
    return ResponseTarget(float(percentile), us)


def _nearest_percentile(number: str) -> str:
    """Returns the percentile itself if it can be a target, or else the nearest one that can."""
    value = max(float(MIN_PERCENTILE), min(MAX_PERCENTILE, float(number)))
    valid = f"{value:.1f}".removesuffix(".0")
    return number if value == float(number) and float(valid) == value and len(number) < 5 else valid


def _target_hint(text: str) -> str:
    """Suggests the target that was meant."""
    both, span = _number_and_span.search(text), _span.fullmatch(text)
    proposal = ""
    if both:
        proposal = f"p{_nearest_percentile(both[1])} {both[2]}"
    elif span:
        proposal = f"p99 {text if span[2] else f'{text}s' if '.' in text else f'{text}ms'}"
    elif text.lower().startswith("median "):
        proposal = f"p50 {text.split(maxsplit=1)[1]}"
    with suppress(InvalidRule):
        if proposal:
            parse_span(proposal.split(maxsplit=1)[1])
            return f"Did you mean {proposal}?"
    return "Write a percentile and a length of time, such as p99 200ms."


def _check_fields(node: MappingNode) -> None:
    """Raises a fault for a field that an adaptive limit does not have."""
    for name, (key, _) in node.entries.items():
        if name in _BOUND_FIELDS:
            raise Fault(
                key.position, f"An adaptive limit has no field {quote(name)}.", "Write between: [5, 500] for both."
            )
    fields.table(node, "An adaptive limit", _FIELDS)


def _bounds(node: Node) -> tuple[int, int]:
    proposal = _proposed_bounds(node)
    example = f"Write {proposal}." if proposal else "Write the least and the most, such as between: [5, 500]."
    if not isinstance(node, ListNode):
        raise Fault(node.position, f"between is a list of two numbers, not {describe_node(node)}.", example)
    if len(node.nodes) != 2:
        raise Fault(node.position, f"between is a list of two numbers, not of {len(node.nodes)}.", example)

    def read_bound(item: Node) -> int:
        try:
            return fields.whole_number(item, "A bound", 1, MAX_BOUND)
        except Fault as fault:
            raise Fault(fault.position, fault.sentence, example) from None

    numbers = read_all(read_bound, node.nodes)
    low, high = numbers
    if low > high:
        raise Fault(node.position, f"between begins at {low}, above its end.", f"Write between: [{high}, {low}].")
    return low, high


def _proposed_bounds(node: Node) -> str:
    """Returns what was meant by other ways to write two numbers: 5-500, [5/s, 500/s], {min: 5, max: 500}."""
    inner: Sequence[Node] = [node]
    if isinstance(node, ListNode):
        inner = node.nodes
    elif isinstance(node, MappingNode):
        inner = [value for _, value in node.entries.values()]
    texts = " ".join(each.text for each in inner if isinstance(each, ScalarNode))
    numbers = [max(1, min(MAX_BOUND, int(each))) for each in _whole.findall(texts) if len(each) < 10]
    return f"between: {sorted(numbers)}" if len(numbers) == 2 and "." not in texts.replace("..", " ") else ""


def _classes(
    node: Node,
    uses: list[tuple[str, Position]],
    settings: tuple[AdaptiveKind, ResponseTarget | None, tuple[int, int]],
) -> Choice[Limits]:
    if not isinstance(node, MappingNode):
        raise Fault(node.position, f"priority is a mapping, not {describe_node(node)}.", _PRIORITY_EXAMPLE)
    table = fields.table(node, "priority", ("by", "order"))
    for name in ("by", "order"):
        if name not in table.entries:
            raise Fault(node.position, f"priority lacks the field {name}.", _PRIORITY_EXAMPLE)
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
