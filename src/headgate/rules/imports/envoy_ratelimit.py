"""envoyproxy/ratelimit: translates descriptors into rules.

The service looks a descriptor up, entry by entry: it takes the node with that value, else the first wildcard that
matches, else the node without a value; and only a limit at the depth of the last entry counts. So at most one
limit is for a descriptor. Here every rule whose condition holds applies, so each condition is complete: the
attribute `descriptor` holds the keys of a call's entries, in their order, and no two paths of a file have the same
keys and values:

    - key: message_type               - name: message_type_marketing.to_number
      value: marketing                  when: {descriptor: message_type/to_number, message_type: marketing}
      descriptors:                      key: [message_type, to_number]
        - key: to_number                limit: 5/day fixed
          rate_limit: ...
    - key: to_number                  - name: to_number
      rate_limit: ...                   when: {descriptor: to_number}
                                        key: to_number
                                        limit: 100/day fixed

Values that other entries of the list are for are excluded by `not`. Every descriptor has its own counter: its
entries are the key. An empty attribute counts as missing here and as a value there; because `descriptor` shows
that the entry is present, it is counted as one more value (missing: one). Windows are those of the service: by the
clock, a month of 30 days. A limit of 0 requests becomes a cost of 2 where 1 may pass.

The service accepts a key that it knows anywhere, and refuses a file with an unknown key; so does this.

Law (tests/rules/imports/test_envoy_descriptor_law.py): to any descriptor exactly the rule applies that the service
would have found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from headgate.errors import InvalidRule
from headgate.rules.imports.rulebook_draft import Document, Draft, Translation, attribute_name, one_or_all
from headgate.rules.imports.yaml_tree import flag, items, line_of, mapping, optional_number, optional_text, read
from headgate.rules.parsing.document_tree import MappingNode, Node, ScalarNode
from headgate.rules.parsing.fields import did_you_mean
from headgate.rules.pattern import Glob

_UNITS = {
    "second": "s", "minute": "minute", "hour": "hour", "day": "day", "week": "7d", "month": "30d", "year": "365d",
}  # fmt: skip
_ODD_UNITS = {
    "week": "its weeks begin on Thursdays",
    "month": "its months are 30 days long, counted from 1970",
    "year": "its years are 365 days long, counted from 1970",
}
_UNTRANSLATED = {
    "detailed_metric": "is about metrics",
    "value_to_metric": "is about metrics",
    "metadata": "only adds dynamic metadata to answers; here that names the rules",
}
_ROOT_KEYS = ("domain", "descriptors")
_DESCRIPTOR_KEYS = ("key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "share_threshold")
_LIMIT_KEYS = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_REPLACED_KEYS = ("name",)
_KEYS_BY_OWNER = {
    "a descriptor": (*_DESCRIPTOR_KEYS, *_UNTRANSLATED),
    "a rate_limit": _LIMIT_KEYS,
    "the file": _ROOT_KEYS,
}
# Names that have a meaning in a condition or in a call.
_RESERVED_NAMES = {
    "method", "path", "host", "address", "all", "any", "not", "is", "header", "argument", "cookie", "domain",
    "descriptor",
}  # fmt: skip


class _Step(NamedTuple):
    """One entry on the path to a limit."""

    key: str
    value: str | None
    shared: bool
    unless: list[str]  # values that other entries match first

    @property
    def label(self) -> str:
        return self.key if self.value is None else f"{self.key}_{self.value}"


def descriptor_attribute(key: str) -> str:
    """Returns the attribute for the key of an entry, in a rulebook and in a call."""
    name = attribute_name(key, "key")
    return f"descriptor_{name}" if name in _RESERVED_NAMES else name


def attribute_names(keys: Iterable[str]) -> list[str]:
    """Returns the attributes for the keys of a descriptor, in their order. A repeated name is numbered."""
    names: dict[str, None] = {}
    for key in keys:
        name = numbered = descriptor_attribute(key)
        count = 1
        while numbered in names:
            count += 1
            numbered = f"{name}_{count}"
        names[numbered] = None
    return list(names)


def joined_keys(keys: Iterable[str]) -> str:
    """Returns the value of the attribute `descriptor`: all keys in their order, unique for each list of keys."""
    return "/".join(key.replace("%", "%25").replace("/", "%2F").replace("*", "%2A") for key in keys)


def translate(text: str, name: str | None = None, domain: bool = False) -> Translation:
    """Translates the limits of one domain. With `domain`, rules apply only to calls with this `domain`."""
    return _EnvoyTranslator(read(text), domain).build(name)


class _EnvoyTranslator:
    """Translates one file of envoyproxy/ratelimit."""

    def __init__(self, root: MappingNode, domain: bool) -> None:
        self.draft = Draft()
        self.root = root
        self._check(root, "the file", _ROOT_KEYS)
        self.domain = optional_text(root.get("domain"), "domain")
        if not self.domain:
            raise InvalidRule("line 1: a domain was expected, such as domain: shop.")
        if domain and "*" in self.domain:
            raise InvalidRule(f"line {line_of(root.get('domain'))}: a domain cannot have a * here: rename it.")
        self.tests: Document = {"domain": self.domain} if domain else {}
        self.rules_by_limit: dict[str, list[str]] = {}  # limit name in the service: names of our rules
        self.replacements: list[tuple[Document, Node, str]] = []

    def build(self, name: str | None) -> Translation:
        self._descriptors(items(self.root.get("descriptors"), "descriptors"), ())
        self._replaces()
        return self.draft.build(name=name or self.domain, defaults={"missing": "one"})

    def _check(self, table: MappingNode, what: str, valid_keys: Collection[str]) -> None:
        """Rejects keys that envoyproxy/ratelimit does not know; notes keys that it ignores in this place."""
        for key, _ in table.entries.values():
            if key.text in valid_keys:
                continue
            if key.text in _UNTRANSLATED and what == "a descriptor":
                self.draft.note(line_of(key), f"{key.text} {_UNTRANSLATED[key.text]}: it is left out.")
                continue
            owner = next((candidate for candidate, keys in _KEYS_BY_OWNER.items() if key.text in keys), None)
            if owner is None:
                hint = did_you_mean(key.text, valid_keys)
                raise InvalidRule(f'line {line_of(key)}: "{key.text}" is not a key of {what}. {hint}')
            self.draft.note(line_of(key), f"{key.text} is a key of {owner}: here it is left out.")

    def _descriptors(self, nodes: list[Node], path: tuple[_Step, ...]) -> None:
        tables = [mapping(node, "A descriptor") for node in nodes]
        for table in tables:
            self._check(table, "a descriptor", _DESCRIPTOR_KEYS)
        entries = [(_key(table), optional_text(table.get("value"), "value") or None) for table in tables]
        composite: set[str] = set()
        for index, table in enumerate(tables):
            key, value = entries[index]
            # The service joins key and value to one text, so a_b: c and a: b_c are the same entry.
            composite_key = key if value is None else f"{key}_{value}"
            if composite_key in composite:
                raise InvalidRule(f"line {line_of(table)}: this key and value appear twice in one list.")
            composite.add(composite_key)
            shared = flag(table.get("share_threshold"), "share_threshold")
            if shared and "*" not in (value or ""):
                raise InvalidRule(f"line {line_of(table)}: share_threshold is for values with a * only.")
            unless = _more_specific(entries, index)
            if unless is None:
                self.draft.note(
                    line_of(table), f'this is never reached: the value "*" of {key} fits first. It is left out.'
                )
                continue
            path_here = (*path, _Step(key, value, shared, unless))
            name = attribute_names(step.key for step in path_here)[-1]
            if name != key:
                self.draft.note(line_of(table.get("key")), f'the key "{key}" became the attribute {name}.')
            self._limit(table, path_here)
            self._descriptors(items(table.get("descriptors"), "descriptors"), path_here)

    def _limit(self, table: MappingNode, path: tuple[_Step, ...]) -> None:
        limit_node = table.get("rate_limit")
        if limit_node is None or (isinstance(limit_node, ScalarNode) and limit_node.empty):
            return
        limit = mapping(limit_node, "rate_limit")
        self._check(limit, "a rate_limit", _LIMIT_KEYS)
        limit_name = optional_text(limit.get("name"), "name")
        name = self.draft.name(limit_name or ".".join(step.label for step in path))
        if limit_name:
            self.rules_by_limit.setdefault(limit_name, []).append(name)
            if name != limit_name:
                self.draft.note(line_of(limit.get("name")), f'the limit "{limit_name}" is the rule {name}.')
        text, cost = self._limit_text(limit)
        names = attribute_names(step.key for step in path)
        dimensions = [name for name, step in zip(names, path, strict=True) if not step.shared]
        self.draft.rule(
            name=name,
            label=limit_name if limit_name and limit_name != name else None,
            when=self._when(path, names),
            key=one_or_all(dimensions) if dimensions else None,
            limit=text,
            cost=cost,
            mode="shadow" if flag(table.get("shadow_mode"), "shadow_mode") else None,
            quota_mode=flag(table.get("quota_mode"), "quota_mode") or None,
        )
        for node in items(limit.get("replaces"), "replaces"):
            replaced = mapping(node, "What is replaced")
            self._check(replaced, "what is replaced", _REPLACED_KEYS)
            replaced_name = optional_text(replaced.get("name"), "name")
            if not replaced_name or replaced_name == limit_name:
                raise InvalidRule(f"line {line_of(node)}: replaces takes the name of another limit.")
            self.replacements.append((self.draft.rules[-1], node, replaced_name))

    def _limit_text(self, limit: MappingNode) -> tuple[str, int | None]:
        unit = (optional_text(limit.get("unit"), "unit") or "").lower()
        if flag(limit.get("unlimited"), "unlimited"):
            if unit:
                raise InvalidRule(f"line {line_of(limit)}: an unlimited descriptor has no unit.")
            return "unlimited", None
        if unit not in _UNITS:
            raise InvalidRule(f'line {line_of(limit)}: "{unit}" is not a unit. Known are {", ".join(_UNITS)}.')
        amount = optional_number(limit.get("requests_per_unit"), "requests_per_unit")
        if unit in _ODD_UNITS and amount:
            self.draft.note(
                line_of(limit.get("unit")),
                f"{_ODD_UNITS[unit]}, and so are these. For those of the calendar, write {amount}/{unit} fixed.",
            )
        if amount:
            return f"{amount}/{_UNITS[unit]} fixed", None
        reason = "0 requests" if amount == 0 else "requests_per_unit is not given, and that is 0"
        self.draft.note(line_of(limit), f"{reason}: every call is refused, because it costs 2 where 1 may pass.")
        return f"1/{_UNITS[unit]} fixed", 2

    def _when(self, path: tuple[_Step, ...], names: list[str]) -> Document:
        named_steps = list(zip(names, path, strict=True))
        values = {
            name: step.value
            for name, step in named_steps
            if step.value is not None and not _matches_everything(step.value)
        }
        unless = [{name: one_or_all(step.unless)} for name, step in named_steps if step.unless]
        when = {**self.tests, "descriptor": joined_keys(step.key for step in path), **values}
        return {**when, "not": one_or_all(unless)} if unless else when

    def _replaces(self) -> None:
        graph: dict[str, set[str]] = {}
        for rule, node, limit_name in self.replacements:
            if limit_name not in self.rules_by_limit:
                self.draft.note(line_of(node), f'no limit is called "{limit_name}": it is left out of replaces.')
            if rule.get("mode") == "shadow":
                self.draft.note(
                    line_of(node), "a shadow rule replaces nothing: the limits that it names apply as well."
                )
            for replaced_name in self.rules_by_limit.get(limit_name, ()):
                if rule["name"] == replaced_name or _reaches(graph, replaced_name, rule["name"]):
                    self.draft.note(
                        line_of(node),
                        f"{replaced_name} and {rule['name']} replace each other: {replaced_name} is not replaced.",
                    )
                    continue
                graph.setdefault(rule["name"], set()).add(replaced_name)
                rule.setdefault("replaces", []).append(replaced_name)


def _key(table: MappingNode) -> str:
    key = optional_text(table.get("key"), "key")
    if not key:
        raise InvalidRule(f"line {line_of(table)}: this descriptor has no key.")
    if "*" in key:
        raise InvalidRule(
            f'line {line_of(table)}: "{key}" has a * in a key, which cannot be translated: put it into the value.'
        )
    return key


def _matches_everything(value: str) -> bool:
    """Returns whether a value is a wildcard for every value, also the empty one."""
    return not value.strip("*")


def _more_specific(entries: list[tuple[str, str | None]], index: int) -> list[str] | None:
    """Returns the values that are tried before this entry; None if one of them matches everything."""
    key, value = entries[index]
    if value is not None and "*" not in value:
        return []
    same_key = [
        (position, other_value)
        for position, (name, other_value) in enumerate(entries)
        if name == key and other_value is not None
    ]
    exact = [other_value for _, other_value in same_key if "*" not in other_value]
    earlier = [
        other_value
        for position, other_value in same_key
        if "*" in other_value and (value is None or position < index)
    ]
    if any(map(_matches_everything, earlier)):
        return None
    if value is None:
        return exact + earlier
    glob = Glob(value)
    return [other_value for other_value in exact if glob.matches(other_value)] + earlier


def _reaches(graph: dict[str, set[str]], start: str, end: str) -> bool:
    visited: set[str] = set()
    pending = [start]
    while pending:
        name = pending.pop()
        if name == end:
            return True
        if name not in visited:
            visited.add(name)
            pending += graph.get(name, set())
    return False
