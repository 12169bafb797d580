"""Appends a rule to a rulebook's text, and changes nothing else: comments and order stay.

The lines are added below the last rule, and then checked: the new text must parse to the same rulebook with that
rule behind it. Text that is written too unusually for that is left alone, with a sentence that has the rule to add
by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from headgate.errors import HeadgateError, InvalidRule
from headgate.rules import load
from headgate.rules.rule import Rule, Rulebook
from headgate.rules.serialization import document, yaml_text

_rules_line = re.compile(r"rules:\s*(\[\s*\])?\s*(#.*)?")
_item_line = re.compile(r"(\s*)- ")


def with_appended_rule(text: str, kind: str, rule: Rule) -> str:
    """Returns the text with a rule behind all others; its name gets a number if the book has one of that name.

    >>> from headgate.rules.load import parse
    >>> [rule] = parse("rules: [{name: api, limit: 9/s, mode: shadow}]").rules
    >>> print(with_appended_rule("rules:\\n  - name: all\\n    limit: 99/s\\n", "yaml", rule), end="")
    rules:
      - name: all
        limit: 99/s
    <BLANKLINE>
      - name: api
        limit: 9/s
        mode: shadow
    """
    book = load.parse(text, format=kind)
    rule = replace(rule, name=free_name(book, rule.name))
    fields = document(Rulebook(rules=(rule,)))["rules"][0]
    edited = {"json": _append_json, "toml": _append_toml, "yaml": _append_yaml}[kind](text, fields)
    if edited is not None and _is_book_with(book, rule, edited, kind):
        return edited
    raise InvalidRule(f"The rule cannot be added to this text without help. Add it by hand: {json.dumps(fields)}")


def _is_book_with(book: Rulebook, rule: Rule, text: str, kind: str) -> bool:
    """Returns whether a text is the same book with this rule at its end, to which defaults of the book may add."""
    with suppress(HeadgateError):
        parsed = load.parse(text, format=kind)
        if parsed.rules and parsed == replace(book, rules=(*book.rules, parsed.rules[-1])):
            added = parsed.rules[-1]
            return (added.name, added.limit, added.mode, added.key) == (rule.name, rule.limit, rule.mode, rule.key)
    return False


def free_name(book: Rulebook, name: str) -> str:
    """Returns a name that no rule of the book has.

    >>> free_name(Rulebook(), "api")
    'api'
    """
    names = {rule.name for rule in book.rules}
    number, free = 1, name
    while free in names:
        number += 1
        free = f"{name}-{number}"
    return free


def _append_json(text: str, fields: Mapping[str, Any]) -> str:
    book = json.loads(text)
    book.setdefault("rules", []).append(fields)
    return json.dumps(book, indent=2, ensure_ascii=False) + "\n"


def _append_toml(text: str, fields: Mapping[str, Any]) -> str:
    lines = [f"{name} = {_toml_value(value)}" for name, value in fields.items()]
    return "\n".join([text.rstrip(), "", "[[rules]]", *lines, ""]).lstrip("\n")


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_toml_value(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _append_yaml(text: str, fields: Mapping[str, Any]) -> str | None:
    """Returns the text with the rule behind the last one; None if no line begins the list of rules."""
    added = yaml_text({"rules": [fields]}).split("\n")[1:-1]
    lines = text.split("\n")
    begin = next((index for index, line in enumerate(lines) if _rules_line.fullmatch(line)), None)
    if begin is None:
        return None
    if _rules_line.fullmatch(lines[begin])[1]:  # type: ignore[index]
        lines[begin] = "rules:"
    end = begin + 1
    for index in range(begin + 1, len(lines)):
        line = lines[index]
        if line and not line.startswith((" ", "-", "#", "\t", "\r")):
            break
        if line.strip() and not line.startswith("#"):
            end = index + 1
    items = (match for line in lines[begin + 1 : end] if (match := _item_line.match(line)))
    first = next(items, None)
    indent = "  " if first is None else first[1]
    added = [indent + line[2:] for line in added]
    between = [] if first is None else [""]
    return "\n".join([*lines[:end], *between, *added, *lines[end:]])
