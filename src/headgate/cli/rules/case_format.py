"""Tables of calls with expected results, which test limits without a server and without waiting.

    rules: rules.yaml                   in the folder of this file; or a whole rulebook
    cases:
      - name: the sixth attempt in a minute is refused
        start: 2026-03-01T00:00:00Z     for windows of the calendar; otherwise any instant will do
        calls:
          - {at: 0s, times: 5, request: {method: POST, path: /login, address: 192.0.2.7}, expect: allowed}
          - {at: 10s, request: {method: POST, path: /login, address: 192.0.2.7},
             expect: {refused: login, retry_after: 2s, status: 429}}
          - {at: 12s, attributes: {method: POST, path: /login, address: 192.0.2.7}, expect: {remaining: 0}}

`at` is the time since the case began; without it a call comes at the instant of the one before. Of a call made
several `times`, each must be allowed, or each refused, as expected; numbers are those of the last one. Spans are
exact, because the clock is: it moves only to the times in the table.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from headgate.algorithms.durations import in_words
from headgate.algorithms.limit import SECOND
from headgate.cli.rulebook_option import file_text
from headgate.clock import ManualClock
from headgate.rules import load
from headgate.rules.attributes import Attributes, normalize_name, parse_attribute_name, request
from headgate.rules.parsing import fields, read_json, read_toml, read_yaml
from headgate.rules.parsing.document_tree import Fault, ListNode, MappingNode, Node, ScalarNode, describe_node
from headgate.rules.parsing.problems import Problems, at_node, read_all, read_entries
from headgate.rules.parsing.read_python_values import NumberText
from headgate.rules.rule import Rulebook

_READERS = {".yaml": read_yaml.read, ".yml": read_yaml.read, ".toml": read_toml.read, ".json": read_json.read}
_CALL_FIELDS = ("at", "times", "attributes", "request", "cost", "expect")
_EXPECT_FIELDS = ("allowed", "refused", "remaining", "retry_after", "delay", "status", "shadow", "candidate")
_VERDICTS = ("allowed", "refused")
_FILE_FIELDS = ("rules", "cases"), ("rules", "cases")


class CaseCall(NamedTuple):
    line: int | None
    at_us: int
    times: int
    attributes: Attributes
    cost: int | None
    expected: dict[str, Any]


class RuleCase(NamedTuple):
    name: str
    start_us: int
    calls: tuple[CaseCall, ...]


def read(path: Path) -> tuple[Rulebook, list[RuleCase]]:
    """Parses the rulebook and the cases of a file; raises InvalidRulebook with all problems."""
    problems, cases, book = Problems(), list[RuleCase](), Rulebook()
    with problems.under(""):
        root = fields.table(
            _READERS.get(path.suffix.lower(), read_yaml.read)(file_text(path)), "A test", *_FILE_FIELDS
        )
        book = _book(root.entries["rules"][1], path)
        for number, node in enumerate(_items(root.entries["cases"][1], "cases", "A table"), 1):
            with problems.under(f"case {number}"):
                cases.append(_case(node, number))
    problems.raise_any(str(path))
    return book, cases


def _book(node: Node, path: Path) -> Rulebook:
    if isinstance(node, MappingNode):
        return load.from_node(node, str(path))
    return load.read(path.parent / fields.text(node, "rules"))


def _case(node: Node, number: int) -> RuleCase:
    table = fields.table(node, "A case", ("name", "start", "calls"), ("calls",))
    values = read_entries(table, {"name": fields.text, "start": _instant, "calls": lambda inner, _: _calls(inner)})
    start_us = values["start"] if "start" in values else ManualClock().now_us()
    return RuleCase(values.get("name", f"case {number}"), start_us, values["calls"])


def _calls(node: Node) -> tuple[CaseCall, ...]:
    earliest_us = 0

    def read_call(each: Node) -> CaseCall:
        nonlocal earliest_us
        call = _call(each, earliest_us)
        earliest_us = call.at_us
        return call

    return tuple(read_all(read_call, _items(node, "calls", "A case")))


def _call(node: Node, earliest_us: int) -> CaseCall:
    table = fields.table(node, "A call", _CALL_FIELDS, ("expect",))
    values = read_entries(
        table,
        {
            "at": lambda inner, _: _call_time(inner, earliest_us),
            "times": lambda inner, name: fields.whole_number(inner, name, 1, 1_000_000),
            "attributes": lambda inner, _: _attributes(inner),
            "request": lambda inner, _: _request(inner),
            "cost": lambda inner, name: fields.whole_number(inner, name, 0),
            "expect": lambda inner, _: _expected(inner),
        },
    )
    attributes: Attributes = values.get("request", Attributes())
    for name, value in values.get("attributes", {}).items():
        attributes[name] = value
    at_us = values.get("at", earliest_us)
    return CaseCall(
        node.position.line, at_us, values.get("times", 1), attributes, values.get("cost"), values["expect"]
    )


def _call_time(node: Node, earliest_us: int) -> int:
    at_us = _span(node, "at")
    if at_us < earliest_us:
        raise Fault(
            node.position,
            f"Time goes forward: this call comes at {in_words(at_us)}, the one before it later.",
        )
    return at_us


def _request(node: Node) -> Attributes:
    values = _mapping(node, "request")
    headers = values.pop("headers", {})
    target = values.pop("url", None) or values.pop("path", "/")
    if not isinstance(headers, dict):
        raise Fault(node.position, "headers is a mapping of names to texts.")
    attributes = request(values.pop("method", "GET"), target, headers, values.pop("address", None))
    names = read_all(lambda name: at_node(node, parse_attribute_name, name), values)
    attributes.update(dict(zip(names, values.values(), strict=True)))
    return attributes


def _attributes(node: Node) -> dict[str, Any]:
    values = _mapping(node, "attributes")
    names = read_all(lambda name: normalize_name(at_node(node, parse_attribute_name, name)), values)
    return dict(zip(names, values.values(), strict=True))


def _expected(node: Node) -> dict[str, Any]:
    if isinstance(node, ScalarNode):
        return {"allowed": fields.word(node, "expect", _VERDICTS) == "allowed"}
    table = fields.table(node, "expect", _EXPECT_FIELDS)
    expected: dict[str, Any] = {}
    for part in read_entries(table, dict.fromkeys(_EXPECT_FIELDS, _expectation)).values():
        expected |= part
    return expected


def _expectation(node: Node, name: str) -> dict[str, Any]:
    """Parses one expected value; `refused` may also name the rule."""
    if name == "allowed":
        return {"allowed": fields.flag(node, name)}
    if name == "refused":
        flag = fields.plain_flag(node)
        return {"allowed": False, "rule": fields.text(node, name)} if flag is None else {"allowed": not flag}
    if name in ("retry_after", "delay"):
        never = isinstance(node, ScalarNode) and node.text == "never"
        return {name: None if never else _span(node, name)}
    if name in ("remaining", "status"):
        return {name: fields.whole_number(node, name, 0)}
    table = fields.table(node, name, tuple(node.entries) if isinstance(node, MappingNode) else ())
    rules = dict.fromkeys(table.entries, lambda inner, _: fields.word(inner, name, _VERDICTS))
    return {name: read_entries(table, rules)}


def python_value(node: Node) -> Any:
    """Converts a node to Python values; unquoted scalars become what they look like."""
    if isinstance(node, ListNode):
        return [python_value(inner) for inner in node.nodes]
    if isinstance(node, MappingNode):
        return {name: python_value(inner) for name, (_, inner) in node.entries.items()}
    if node.empty:
        return None
    truth = fields.plain_flag(node)
    if truth is not None:
        return truth
    return node.text if node.quoted or not node.text[:1].isdigit() else NumberText(node.text)


def _mapping(node: Node, field: str) -> dict[str, Any]:
    if not isinstance(node, MappingNode):
        raise Fault(node.position, f"{field} is a mapping, not {describe_node(node)}.")
    mapping: dict[str, Any] = python_value(node)
    return mapping


def _items(node: Node, field: str, owner: str) -> list[Node]:
    if not isinstance(node, ListNode):
        raise Fault(node.position, f"{field} is a list, not {describe_node(node)}.")
    if not node.nodes:
        raise Fault(node.position, f"{owner} without {field} tests nothing.")
    return node.nodes


def _span(node: Node, field: str) -> int:
    """Parses a length of time, which may be 0, to microseconds."""
    zero = isinstance(node, ScalarNode) and node.text in ("0", "0s", "0ms")
    return 0 if zero else fields.span(node, field)


def _instant(node: Node, name: str) -> int:
    text = fields.text(node, name)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise Fault(
            node.position, f"start is an instant, not {describe_node(node)}.", "Write 2026-03-01T00:00:00Z."
        )
    return round(instant.timestamp() * SECOND)
