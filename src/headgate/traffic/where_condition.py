"""Parses the condition of --where, in the grammar of rulebooks."""

from __future__ import annotations

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules import load
from headgate.rules.condition import Condition


def parse_where(text: str) -> Condition:
    """Returns a condition; the braces of a mapping may be left out.

    >>> str(parse_where("method: POST, path: /login"))
    'method is POST and path is /login'
    """
    flow = " ".join(text.split())
    if not flow.startswith(("{", "[")):
        flow = f"{{{flow}}}"
    try:
        book = load.parse(f"rules: [{{name: where, limit: 1/s, when: {flow}}}]")
    except InvalidRulebook as error:
        problem = error.problems[0][1].partition("\n")[0].removeprefix('rule "where": ')
        raise InvalidRule(
            f'"{text}" is no condition: {problem} Write one as in a rulebook: "method: POST, path: /login".'
        ) from None
    condition = book.rules[0].when
    assert condition is not None
    return condition
