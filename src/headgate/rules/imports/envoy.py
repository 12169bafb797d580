"""envoyproxy/ratelimit: descriptors as rules.

The service looks a descriptor up: for its entries, one after the other, first the one with that value is taken,
then the first wildcard that fits, then the one without a value; and only a limit at the depth of the last entry
counts. So at most one is for a descriptor. Here every rule whose condition holds applies, so each says it all:

    - key: message_type               - name: message_type_marketing.to_number
      value: marketing                  when: {message_type: marketing}
      descriptors:                      key: [message_type, to_number]
        - key: to_number                limit: 5/day fixed
          rate_limit: ...
    - key: to_number                  - name: to_number
      rate_limit: ...                   when: {message_type: false}        (another depth)
                                        key: to_number
                                        limit: 100/day fixed

Values that other entries beside it are for are left out by `not`. A count is kept for every descriptor: its
entries are the key, and one that lacks an entry is none of the rule's (missing: skip). Windows are the service's:
of the clock, a month of 30 days.

Law (tests/rules/imports/test_envoy_law.py): to any descriptor of the file's keys, in the file's order, exactly the
rule applies that the service would have found.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.errors import InvalidRule
from headgate.rules.imports.draft import Document, Draft, Translated, attribute_name, one_or_all
from headgate.rules.imports.tree import items, line_of, mapping, read, whole, word, yes
from headgate.rules.pattern import Glob
from headgate.rules.reading.document import Node, Scalar, Table

_UNITS = {
    "second": "s", "minute": "minute", "hour": "hour", "day": "day", "week": "7d", "month": "30d", "year": "365d",
}  # fmt: skip
_ODD_UNITS = {
    "week": "its weeks begin on Thursdays",
    "month": "its months are 30 days long, counted from 1970",
    "year": "its years are 365 days long, counted from 1970",
}
_KNOWN = {"key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "share_threshold"}
_METRICS = {"detailed_metric", "value_to_metric", "metadata"}
# What means something of its own in a condition.
_TAKEN = {"method", "path", "host", "address", "all", "any", "not", "is", "header", "argument", "cookie", "domain"}
_FEW = 4


class _Step(NamedTuple):
    """One entry on the way to a limit."""

    attribute: str
    value: str | None
    shared: bool
    unless: list[str]  # values that other entries are for

    @property
    def label(self) -> str:
        return self.attribute if self.value is None else f"{self.attribute}_{self.value}"


def attribute(key: str) -> str:
    """The attribute that an entry's key becomes, in a book and in a call."""
    name = attribute_name(key, "key")
    return f"descriptor_{name}" if name in _TAKEN else name


def translate(text: str, name: str | None = None, domain: bool = False) -> Translated:
    """The limits of one domain. With `domain`, rules are for calls with this attribute `domain` only."""
    return _Reading(read(text), domain).translated(name)


class _Reading:
    def __init__(self, root: Table, domain: bool) -> None:
        self.draft = Draft()
        self.root = root
        self.domain = word(root.get("domain"), "domain")
        if not self.domain:
            raise InvalidRule("line 1: a domain was expected, such as domain: shop.")
        self.tests: Document = {"domain": self.domain} if domain else {}
        self.attributes: dict[str, str] = {}  # attribute: key
        self.orders: dict[frozenset[str], tuple[str, ...]] = {}
        self.named: dict[str, list[str]] = {}  # the service's name of a limit: our rules
        self.replacing: list[tuple[Document, Node, str]] = []

    def translated(self, name: str | None) -> Translated:
        for other in self.root.entries.values():
            if other[0].text not in ("domain", "descriptors"):
                self._left_out(other[0])
        top = items(self.root.get("descriptors"), "descriptors")
        self._learn(top)
        self._descriptors(top, ())
        self._replaces()
        if self.draft.rules:
            self.draft.note(
                None,
                "A descriptor is told by the keys of its entries: their order does not count, keys that this file "
                "does not name are not looked at, and an empty value counts as none.",
            )
        return self.draft.translated(name=name or self.domain, defaults={"missing": "skip"})

    def _learn(self, nodes: list[Node]) -> None:
        """Every key of the file."""
        for node in nodes:
            table = mapping(node, "A descriptor")
            key = word(table.get("key"), "key")
            if not key:
                raise InvalidRule(f"line {line_of(node)}: this descriptor has no key.")
            ours = attribute(key)
            before = self.attributes.setdefault(ours, key)
            if before != key:
                both = f'the keys "{before}" and "{key}" would both be called {ours} here'
                raise InvalidRule(f"line {line_of(node)}: {both}: rename one.")
            if ours != key:
                self.draft.note(line_of(table.get("key")), f'the key "{key}" became the attribute {ours}.')
            self._learn(items(table.get("descriptors"), "descriptors"))

    def _descriptors(self, nodes: list[Node], path: tuple[_Step, ...]) -> None:
        tables = [mapping(node, "A descriptor") for node in nodes]
        entries = [
            (attribute(word(t.get("key"), "key") or ""), word(t.get("value"), "value") or None) for t in tables
        ]
        for place, table in enumerate(tables):
            ours, value = entries[place]
            if entries[place] in entries[:place]:
                raise InvalidRule(f"line {line_of(table)}: this key and value stand twice in one list.")
            for key, (written, _) in table.entries.items():
                if key not in _KNOWN:
                    self._left_out(written)
            if any(step.attribute == ours for step in path):
                self.draft.note(
                    line_of(table),
                    f"the key {ours} stands twice on the way here, which cannot be said: it is left out.",
                )
                continue
            shared = yes(table.get("share_threshold"), "share_threshold")
            if shared and "*" not in (value or ""):
                raise InvalidRule(f"line {line_of(table)}: share_threshold is for values with a * only.")
            step = _Step(ours, value, shared, _more_specific(entries, place))
            self._limit(table, (*path, step))
            self._descriptors(items(table.get("descriptors"), "descriptors"), (*path, step))

    def _limit(self, table: Table, path: tuple[_Step, ...]) -> None:
        given = table.get("rate_limit")
        if given is None or (isinstance(given, Scalar) and given.empty):
            return
        limit = mapping(given, "rate_limit")
        for key, (written, _) in limit.entries.items():
            if key not in ("unit", "requests_per_unit", "unlimited", "name", "replaces"):
                self._left_out(written)
        wanted = word(limit.get("name"), "name")
        name = self.draft.name(wanted or ".".join(step.label for step in path))
        if wanted:
            self.named.setdefault(wanted, []).append(name)
            if name != wanted:
                self.draft.note(line_of(limit.get("name")), f'the limit "{wanted}" is the rule {name}.')
        self._order(table, path)
        text, cost = self._text(limit)
        shadow = yes(table.get("shadow_mode"), "shadow_mode")
        if yes(table.get("quota_mode"), "quota_mode"):
            self.draft.note(
                line_of(table.get("quota_mode")), "quota_mode has no equivalent: the rule is a shadow."
            )
            shadow = True
        counted = [step.attribute for step in path if not step.shared]
        self.draft.rule(
            name=name,
            when=self._when(path) or None,
            key=one_or_all(counted) if counted else None,
            limit=text,
            cost=cost,
            mode="shadow" if shadow else None,
        )
        for node in items(limit.get("replaces"), "replaces"):
            other = word(mapping(node, "What is replaced").get("name"), "name")
            if not other or other == wanted:
                raise InvalidRule(f"line {line_of(node)}: replaces takes the name of another limit.")
            self.replacing.append((self.draft.rules[-1], node, other))

    def _text(self, limit: Table) -> tuple[str, int | None]:
        unit = (word(limit.get("unit"), "unit") or "").lower()
        if yes(limit.get("unlimited"), "unlimited"):
            if unit:
                raise InvalidRule(f"line {line_of(limit)}: what is unlimited has no unit.")
            return "unlimited", None
        if unit not in _UNITS:
            raise InvalidRule(f'line {line_of(limit)}: "{unit}" is not a unit. Known are {", ".join(_UNITS)}.')
        amount = whole(limit.get("requests_per_unit"), "requests_per_unit") or 0
        if unit in _ODD_UNITS and amount:
            self.draft.note(
                line_of(limit.get("unit")),
                f"{_ODD_UNITS[unit]}, and so are these. Those of the calendar are {amount}/{unit} fixed.",
            )
        if amount:
            return f"{amount}/{_UNITS[unit]} fixed", None
        self.draft.note(line_of(limit), "0 requests: every call is refused, because it costs 2 where 1 may pass.")
        return f"1/{_UNITS[unit]} fixed", 2

    def _when(self, path: tuple[_Step, ...]) -> Document:
        when = {**self.tests, **{step.attribute: step.value for step in path if step.value is not None}}
        unless = [{step.attribute: one_or_all(step.unless)} for step in path if step.unless]
        if unless:
            when["not"] = one_or_all(unless)
        mine = {step.attribute for step in path}
        absent = {other: False for other in self.attributes if other not in mine}
        if len(absent) <= _FEW:
            return {**when, **absent}
        name = f"only-{'-'.join(other for other in self.attributes if other in mine)}"[:64]
        while self.draft.conditions.get(name, absent) != absent:
            name = f"{name[:60]}-{len(self.draft.conditions)}"
        self.draft.conditions[name] = absent
        return {"is": name, **when}

    def _order(self, table: Table, path: tuple[_Step, ...]) -> None:
        order = tuple(step.attribute for step in path)
        before = self.orders.setdefault(frozenset(order), order)
        if before != order:
            self.draft.note(
                line_of(table),
                f"{', '.join(order)} are also the keys of a limit that has them in another order: a descriptor "
                "with these keys meets both.",
            )

    def _replaces(self) -> None:
        graph: dict[str, set[str]] = {}
        for rule, node, wanted in self.replacing:
            if wanted not in self.named:
                self.draft.note(
                    line_of(node), f'no limit is called "{wanted}": it is left out of what is replaced.'
                )
            if rule.get("mode") == "shadow":
                self.draft.note(
                    line_of(node), "a shadow replaces nothing: what it was to replace applies as well."
                )
            for other in self.named.get(wanted, ()):
                if rule["name"] == other or _reaches(graph, other, rule["name"]):
                    self.draft.note(
                        line_of(node), f"{other} and {rule['name']} replace each other: {other} is not replaced."
                    )
                    continue
                graph.setdefault(rule["name"], set()).add(other)
                rule.setdefault("replaces", []).append(other)

    def _left_out(self, key: Scalar) -> None:
        why = "is about metrics" if key.text in _METRICS else "is not known"
        self.draft.note(line_of(key), f"{key.text} {why}: it is left out.")


def _more_specific(entries: list[tuple[str, str | None]], place: int) -> list[str]:
    """The values that are tried before this entry is."""
    ours, value = entries[place]
    if value is not None and "*" not in value:
        return []
    exact = [other for key, other in entries if key == ours and other is not None and "*" not in other]
    if value is None:
        return exact + [other for key, other in entries if key == ours and other is not None and "*" in other]
    glob = Glob(value)
    earlier = [other for key, other in entries[:place] if key == ours and other is not None and "*" in other]
    return [other for other in exact if glob.matches(other)] + earlier


def _reaches(graph: dict[str, set[str]], start: str, end: str) -> bool:
    seen: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name == end:
            return True
        if name not in seen:
            seen.add(name)
            todo += graph.get(name, set())
    return False
