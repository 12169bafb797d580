"""Changes the mode of one rule in a rulebook's text, and nothing else: comments and order stay.

The edit is made in the lines of the rule, and then checked: the new text must parse to the same rulebook with that
mode. A text that is written too unusually for that is left alone, with a sentence that says what to write by hand.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from headgate.errors import HeadgateError, InvalidRule
from headgate.rules import load
from headgate.rules.find_rule import find_rule
from headgate.rules.rule import Modes

_name_line = {
    "yaml": re.compile(
        r"^(?P<head>(?:\s*-\s+)|(?:\s+))name:\s*(?P<quote>['\"]?)"
        r"(?P<name>[^'\"#]*?)(?P=quote)\s*(#.*)?$"
    ),
    "toml": re.compile(r"^(?P<head>\s*)name\s*=\s*(?P<quote>['\"])(?P<name>.*?)(?P=quote)\s*(#.*)?$"),
}
_mode_line = {
    "yaml": re.compile(r"^(?P<head>\s*(?:-\s+)?mode:\s*)(?:\{[^}]*\}|[\w]+)(?P<rest>.*)$"),
    "toml": re.compile(r"^(?P<head>\s*mode\s*=\s*)(?:\{[^}]*\}|\"\w+\"|'\w+')(?P<rest>.*)$"),
}


def with_rule_mode(text: str, kind: str, rule: str, enforce: int) -> str:
    """Returns the text with a rule that is enforced for so many hundredths of a percent of its keys, and shadowed
    for the rest.

    >>> with_rule_mode("rules:\\n  - name: api\\n    limit: 9/s\\n", "yaml", "api", 100)
    'rules:\\n  - name: api\\n    mode: {enforce: 1, shadow: 99}\\n    limit: 9/s\\n'
    """
    book = load.parse(text, format=kind)
    mode = Modes(enforce, 10_000 - enforce)
    old = find_rule(book, rule)
    wanted = replace(book, rules=tuple(replace(each, mode=mode) if each is old else each for each in book.rules))
    edited = _edit_json(text, rule, mode) if kind == "json" else _edit_lines(text, kind, rule, mode)
    try:
        if edited is not None and load.parse(edited, format=kind) == replace(wanted, text=edited):
            return edited
    except HeadgateError:
        pass
    raise InvalidRule(
        f'The mode of rule "{rule}" cannot be changed in this text without help. Write '
        f"mode: {{enforce: {enforce / 100:g}, shadow: {(10_000 - enforce) / 100:g}}} in it."
    )


def _edit_json(text: str, rule: str, mode: Modes) -> str:
    document = json.loads(text)
    for each in document["rules"]:
        if each.get("name") == rule:
            each["mode"] = {"enforce": mode.enforce / 100, "shadow": mode.shadow / 100}
    return json.dumps(document, indent=2, ensure_ascii=False)


def _edit_lines(text: str, kind: str, rule: str, mode: Modes) -> str | None:
    """Returns the text with the rule's `mode` line replaced, or added below its `name` line if it has none.

    Returns None if no `name` line has the name of the rule.
    """
    yaml = kind == "yaml"
    enforce, shadow = f"{mode.enforce / 100:g}", f"{mode.shadow / 100:g}"
    value = f"{{enforce: {enforce}, shadow: {shadow}}}" if yaml else f"{{enforce = {enforce}, shadow = {shadow}}}"
    lines = text.split("\n")
    names = [(index, match) for index, line in enumerate(lines) if (match := _name_line[kind].match(line))]
    for position, (index, match) in enumerate(names):
        if match["name"] != rule:
            continue
        end = names[position + 1][0] if position + 1 < len(names) else len(lines)
        for below in range(index + 1, end):
            if mode_line := _mode_line[kind].match(lines[below]):
                lines[below] = f"{mode_line['head']}{value}{mode_line['rest']}"
                return "\n".join(lines)
        indent = " " * len(match["head"]) if yaml else match["head"]
        lines.insert(index + 1, f"{indent}mode: {value}" if yaml else f"{indent}mode = {value}")
        return "\n".join(lines)
    return None
