"""A table of calls and what is expected of them: limits under test, without a server and without waiting.

    rules: rules.yaml                   beside this file, or a whole book in place
    cases:
      - name: the sixth attempt in a minute is refused
        start: 2026-03-01T00:00:00Z     for windows of the calendar; otherwise any instant will do
        calls:
          - {at: 0s, times: 5, request: {method: POST, path: /login, address: 192.0.2.7}, expect: allowed}
          - {at: 10s, request: {method: POST, path: /login, address: 192.0.2.7},
             expect: {refused: login, retry_after: 2s, status: 429}}
          - {at: 12s, attributes: {method: POST, path: /login, address: 192.0.2.7}, expect: {remaining: 0}}

`at` is the time since the case began; without it a call comes at the instant of the one before. Of calls made
several `times` each must pass, or each be refused, as expected; numbers are those of the last one. Spans are
exact, because the clock is: it moves only as the table says.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from headgate.cli.book import file_text
from headgate.clock import ManualClock
from headgate.explain import long
from headgate.model.limit import SECOND
from headgate.rules import load
from headgate.rules.attributes import Attributes, folded, named, request
from headgate.rules.reading import fields, read_json, read_toml, read_yaml
from headgate.rules.reading.document import Fault, Items, Node, Scalar, Table, kind
from headgate.rules.reading.problems import Problems, placed
from headgate.rules.reading.read_python import Written
from headgate.rules.rule import Rulebook

_READERS = {".yaml": read_yaml.read, ".yml": read_yaml.read, ".toml": read_toml.read, ".json": read_json.read}
_CALL = ("at", "times", "attributes", "request", "cost", "expect")
_EXPECT = ("allowed", "refused", "remaining", "retry_after", "delay", "status", "shadow", "candidate")
_VERDICTS = ("allowed", "refused")
_FILE = ("rules", "cases"), ("rules", "cases")


class Call(NamedTuple):
    line: int | None
    at_us: int
    times: int
    attributes: Attributes
    cost: int | None
    expected: dict[str, Any]


class Case(NamedTuple):
    name: str
    start_us: int
    calls: tuple[Call, ...]


def read(path: Path) -> tuple[Rulebook, list[Case]]:
    """The rulebook and the cases of a file; InvalidRulebook with every problem that it has."""
    problems, cases, book = Problems(), list[Case](), Rulebook()
    with problems.under(""):
        root = fields.table(_READERS.get(path.suffix.lower(), read_yaml.read)(file_text(path)), "A test", *_FILE)
        book = _book(root.entries["rules"][1], path)
        for number, node in enumerate(_items(root.entries["cases"][1], "cases"), 1):
            with problems.under(f"case {number}"):
                cases.append(_case(node, number))
    problems.raise_any(str(path))
    return book, cases


def _book(node: Node, path: Path) -> Rulebook:
    if isinstance(node, Table):
        return load.of_node(node, str(path))
    return load.read(path.parent / fields.text(node, "rules"))


def _case(node: Node, number: int) -> Case:
    table = fields.table(node, "A case", ("name", "start", "calls"), ("calls",))
    named, start = table.get("name"), table.get("start")
    calls: list[Call] = []
    for each in _items(table.entries["calls"][1], "calls"):
        calls.append(_call(each, calls[-1].at_us if calls else 0))
    name = f"case {number}" if named is None else fields.text(named, "name")
    return Case(name, ManualClock().now_us() if start is None else _instant(start), tuple(calls))


def _call(node: Node, earliest_us: int) -> Call:
    table = fields.table(node, "A call", _CALL, ("expect",))
    at, times, cost = table.get("at"), table.get("times"), table.get("cost")
    at_us = earliest_us if at is None else _span(at, "at")
    if at is not None and at_us < earliest_us:
        raise Fault(at.place, f"Time goes forward: this call comes at {long(at_us)}, the one before it later.")
    return Call(
        node.place.line,
        at_us,
        1 if times is None else fields.whole(times, "times", 1, 1_000_000),
        _attributes(table),
        None if cost is None else fields.whole(cost, "cost", 0),
        _expected(table.entries["expect"][1]),
    )


def _attributes(table: Table) -> Attributes:
    asked, others = table.get("request"), table.get("attributes")
    found = Attributes()
    if asked is not None:
        known = _mapping(asked, "request")
        headers = known.pop("headers", {})
        target = known.pop("url", None) or known.pop("path", "/")
        if not isinstance(headers, dict):
            raise Fault(asked.place, "headers is a mapping of names to texts.")
        found = request(known.pop("method", "GET"), target, headers, known.pop("address", None))
        found.update({placed(asked, named, name): value for name, value in known.items()})
    if others is not None:
        for name, value in _mapping(others, "attributes").items():
            found[folded(placed(others, named, name))] = value
    return found


def _expected(node: Node) -> dict[str, Any]:
    if isinstance(node, Scalar):
        return {"allowed": fields.word(node, "expect", _VERDICTS) == "allowed"}
    found: dict[str, Any] = {}
    for key, value in fields.table(node, "expect", _EXPECT).entries.values():
        name = key.text
        if name == "allowed":
            found["allowed"] = fields.flag(value, name)
        elif name == "refused":
            yes = fields.truth(value)
            found["allowed"] = False if yes is None else not yes
            found |= {"rule": fields.text(value, name)} if yes is None else {}
        elif name in ("retry_after", "delay"):
            never = isinstance(value, Scalar) and value.text == "never"
            found[name] = None if never else _span(value, name)
        elif name in ("remaining", "status"):
            found[name] = fields.whole(value, name, 0)
        else:
            inner = fields.table(value, name, tuple(value.entries) if isinstance(value, Table) else ())
            found[name] = {rule: fields.word(said, name, _VERDICTS) for rule, (_, said) in inner.entries.items()}
    return found


def plain(node: Node) -> Any:
    """A node as values of a program; what stood without quotes is what it looks like."""
    if isinstance(node, Items):
        return [plain(inner) for inner in node.nodes]
    if isinstance(node, Table):
        return {name: plain(inner) for name, (_, inner) in node.entries.items()}
    if node.empty:
        return None
    truth = fields.truth(node)
    if truth is not None:
        return truth
    return node.text if node.quoted or not node.text[:1].isdigit() else Written(node.text)


def _mapping(node: Node, what: str) -> dict[str, Any]:
    if not isinstance(node, Table):
        raise Fault(node.place, f"{what} is a mapping, not {kind(node)}.")
    found: dict[str, Any] = plain(node)
    return found


def _items(node: Node, what: str) -> list[Node]:
    if not isinstance(node, Items):
        raise Fault(node.place, f"{what} is a list, not {kind(node)}.")
    return node.nodes


def _span(node: Node, what: str) -> int:
    """A length of time, none too, in microseconds."""
    zero = isinstance(node, Scalar) and node.text in ("0", "0s", "0ms")
    return 0 if zero else fields.span(node, what)


def _instant(node: Node) -> int:
    text = fields.text(node, "start")
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise Fault(node.place, f"start is an instant, not {kind(node)}.", "Write 2026-03-01T00:00:00Z.")
    return round(found.timestamp() * SECOND)
