"""Writes a rulebook: as a document for programs, or as YAML for people.

`document` holds all fields of the book, with defaults and named conditions resolved and default values left out.
`yaml_text` writes any such document in the small part of YAML that every reader understands alike: texts that
could be read as anything else are in double quotes.

Laws (tests/rules/test_serialization.py): load.from_mapping(document(book)) == book; a document written as YAML and
read by any YAML reader is the same document; read by load, the same book.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from headgate.adaptive.adaptive_limit import AdaptiveLimit
from headgate.algorithms.durations import format_period
from headgate.algorithms.limit import SECOND
from headgate.algorithms.pause import MAX_PAUSE_US
from headgate.rules.condition import All, AnyOf, Condition, Test
from headgate.rules.rule import (
    OVERLOAD_REFUSAL,
    Choice,
    Limits,
    Modes,
    Prefetch,
    Refusal,
    Rule,
    Rulebook,
    adaptive_limit_of,
)

_DEFAULTS = Rule(name="plain", limit=Choice(()))
_MAX_LINE_WIDTH = 100
_MAX_SIMPLE_KEY_LENGTH = 1000  # characters; YAML writes longer keys after a question mark

# Words, and texts such as 10/minute or /items, that no YAML reader takes for another type.
_plain_scalar = re.compile(r"(?:[A-Za-z/]|[0-9]+/)[A-Za-z0-9_./ *-]*(?<! )|[0-9]+[a-z]{1,2}")
_ambiguous = re.compile(r"(?i:true|false|null|yes|no|on|off|y|n|~)|[0-9_.]+(?:e[0-9]+)?")
_escaped_characters = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")


def document(rulebook: Rulebook) -> dict[str, Any]:
    """Returns all fields of the book as texts, numbers, lists and mappings."""
    fields: dict[str, Any] = {}
    if rulebook.name is not None:
        fields["name"] = rulebook.name
    if rulebook.headers != Rulebook().headers:
        fields["headers"] = rulebook.headers
    if rulebook.attributes is not None:
        fields["attributes"] = list(rulebook.attributes)
    fields["rules"] = [dict(_rule(rule)) for rule in rulebook.rules]
    return fields


def _rule(rule: Rule) -> Iterator[tuple[str, Any]]:
    yield "name", rule.name
    if rule.label is not None:
        yield "label", rule.label
    if rule.when is not None:
        yield "when", condition(rule.when)
    if rule.unless is not None:
        yield "except", condition(rule.unless)
    if rule.key:
        yield "key", str(rule.key[0]) if len(rule.key) == 1 else [str(dimension) for dimension in rule.key]
    if rule.key or rule.cost or rule.missing != _DEFAULTS.missing:
        yield "missing", rule.missing
    adaptive = adaptive_limit_of(rule)
    yield "limit", _choice(rule.limit) if adaptive is None else _adaptive(rule.limit, adaptive)
    if rule.candidate is not None:
        yield "candidate", _choice(rule.candidate)
    if rule.cost is not None:
        yield "cost", _choice(rule.cost)
    if rule.mode != _DEFAULTS.mode:
        yield "mode", _mode(rule.mode)
    if rule.quota_mode:
        yield "quota_mode", True
    if rule.lockout is not None:
        after, within_us, for_us = rule.lockout
        yield "lockout", {"after": after, "within": format_period(within_us), "for": format_period(for_us)}
    if rule.overrides:
        yield "overrides", True
    if rule.max_pause_us is not None:
        yield "pausable", True if rule.max_pause_us == MAX_PAUSE_US else format_period(rule.max_pause_us)
    if rule.replaces:
        yield "replaces", list(rule.replaces)
    for name in ("where", "nodes", "fallback"):
        default = "node" if name == "where" and adaptive is not None else getattr(_DEFAULTS, name)
        if getattr(rule, name) != default:
            yield name, getattr(rule, name)
    if rule.prefetch is not None:
        yield "prefetch", _prefetch(rule.prefetch)
    if rule.deadline is not None:
        yield "deadline", format_period(round(rule.deadline * SECOND))
    if rule.initial_share:
        yield "initial_share", _percentage(rule.initial_share)
    if rule.refuse != (_DEFAULTS.refuse if adaptive is None else OVERLOAD_REFUSAL):
        yield "refuse", _refusal(rule.refuse)


def condition(value: Condition) -> dict[str, Any]:
    """Returns a condition as a mapping."""
    if isinstance(value, Test):
        return {value.attribute: _test_value(value)}
    if isinstance(value, All):
        tests = {part.attribute: _test_value(part) for part in value.parts if isinstance(part, Test)}
        return tests if len(tests) == len(value.parts) else {"all": [condition(part) for part in value.parts]}
    if isinstance(value, AnyOf):
        return {"any": [condition(part) for part in value.parts]}
    return {"not": condition(value.part)}


def _test_value(test: Test) -> Any:
    if isinstance(test.expected, bool):
        return test.expected
    return test.expected[0] if len(test.expected) == 1 else list(test.expected)


def case_texts(choice: Choice[Any]) -> list[Any]:
    """Returns the cases of a choice in their order, as its document names them."""
    return [_test_value(test) for test, _ in choice.cases]


def _choice(choice: Choice[Limits] | Choice[int | str]) -> Any:
    if not choice.cases:
        return _value(choice.otherwise)
    return {
        "by": choice.cases[0][0].attribute,
        "cases": {_test_value(test): _value(value) for test, value in choice.cases},
        "otherwise": _value(choice.otherwise),
    }


def _adaptive(choice: Choice[Limits], limit: AdaptiveLimit) -> dict[str, Any]:
    """Returns an adaptive limit as a mapping, with the classes of calls that its cases stand for."""
    settings: dict[str, Any] = {"adaptive": limit.kind}
    if limit.target is not None:
        settings["target"] = str(limit.target)
    settings["between"] = list(limit.bounds)
    if choice.cases:
        settings["priority"] = {"by": choice.cases[0][0].attribute, "order": case_texts(choice)}
    return settings


def _value(value: Limits | int | str) -> Any:
    if not isinstance(value, tuple):
        return value
    return [limit.text for limit in value] if len(value) > 1 else value[0].text if value else "unlimited"


def _mode(mode: Modes) -> Any:
    for word, modes in (("enforce", Modes()), ("shadow", Modes(0, 10_000)), ("off", Modes(0, 0))):
        if mode == modes:
            return word
    return {"enforce": _percentage(mode.enforce), "shadow": _percentage(mode.shadow)}


def _percentage(hundredths: int) -> int | float:
    return hundredths / 100 if hundredths % 100 else hundredths // 100


def _prefetch(prefetch: Prefetch) -> Any:
    return (
        format_period(prefetch.hold_us)
        if prefetch.units is None
        else {"for": format_period(prefetch.hold_us), "units": prefetch.units}
    )


def _refusal(refusal: Refusal) -> dict[str, Any]:
    fields = {name: getattr(refusal, name) for name in ("status", "body", "type", "redirect")}
    return {name: value for name, value in fields.items() if value is not None}


def yaml_text(document_fields: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """Writes a document as YAML. `comments` go above the rule of that name; "" goes above everything."""
    rule_comments = comments or {}
    lines = list(_comment(rule_comments.get("", ""), ""))
    for name, value in document_fields.items():
        if name == "rules" and isinstance(value, list) and value:
            lines.append("rules:")
            for number, rule in enumerate(value):
                rule_name = str(rule.get("name")) if isinstance(rule, Mapping) else ""
                comment = _comment(rule_comments.get(rule_name, "") if rule_name else "", "  ")
                lines += [*([""] if number else []), *comment, *_item(rule, "  ")]
        else:
            lines += _entry(name, value, "")
    return "\n".join(lines) + "\n" if lines else "{}\n"


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        printable = "".join(c if c.isprintable() else " " for c in line)
        yield f"{indent}# {printable}".rstrip()


def _entry(name: str, value: Any, indent: str) -> list[str]:
    name_text = _scalar(name)
    head = (
        f"{indent}{name_text}:" if len(name_text) < _MAX_SIMPLE_KEY_LENGTH else f"{indent}? {name_text}\n{indent}:"
    )
    flow = _flow(value)
    if not isinstance(value, Mapping | list) or not value or len(head) + len(flow) < _MAX_LINE_WIDTH:
        return [f"{head} {flow}"]
    if isinstance(value, list):
        return [head, *(line for inner in value for line in _item(inner, indent + "  "))]
    return [head, *(line for key, inner in value.items() for line in _entry(key, inner, indent + "  "))]


def _item(value: Any, indent: str) -> list[str]:
    if not isinstance(value, Mapping) or not value:
        return [f"{indent}- {_flow(value)}"]
    lines = [line for key, inner in value.items() for line in _entry(key, inner, indent + "  ")]
    return [f"{indent}- {lines[0].lstrip()}", *lines[1:]]


def _flow(value: Any) -> str:
    """Writes a value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow_name(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    return _scalar(value)


def _flow_name(name: str) -> str:
    name_text = _scalar(name)
    return name_text if len(name_text) < _MAX_SIMPLE_KEY_LENGTH else f"? {name_text} "


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if _plain_scalar.fullmatch(value) and not _ambiguous.fullmatch(value) and len(value) < _MAX_LINE_WIDTH:
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return _escaped_characters.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
