"""Limits that an application writes in code: limit("5/s", key="user").

A limit in code is a rule without a rulebook. It takes every field that a rule of a rulebook takes, as keywords,
and is checked by the same parser. Beyond that, `key`, `cost` and `exempt` may be functions of the framework's
request (coroutines where the framework is async), and `refund` says after which responses the charge is given
back.

    key      the name of an attribute, several of them, or a function; None: one counter for all callers.
             Callers without an address (of a socket file, of a test client) are counted together. A function
             that returns None exempts the request, unless `missing` says otherwise
    cost     a number, the name of an attribute, or a function that returns a number; 0 does not count the request
    name     without a name each route is counted by itself, under "GET /items/{id}"; with a name, all routes that
             use a limit of that name share one counter
    exempt   a function: requests for which it returns true are not limited; or a condition as in `except`
    refund   statuses: 404, "2xx", "2xx, 3xx", [200, "5xx"]; or a function of the response.
             "2xx, 3xx" counts failures only

A mistake is reported when the limit is made, with the file and line of that call.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from headgate.algorithms.limit import Limit
from headgate.errors import InvalidRule, InvalidRulebook
from headgate.integrations.request_parts import KEY_ATTRIBUTE
from headgate.rules import load
from headgate.rules.matching.compile_rule import Match, RuleMatcher, compile_rule
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rule

LimitText = str | Limit | Sequence[str | Limit] | Mapping[str, Any]
RequestFunction = Callable[[Any], Any]
Key = str | Sequence[str] | RequestFunction | None
Refund = int | str | Collection[int | str] | Callable[[Any], object]

_PLACEHOLDER = "limit"

_rulebook_location = re.compile(rf'\brules\[0\]\.?|rule 1: |rule "{_PLACEHOLDER}": ')
_status_text = re.compile(r"([1-5])xx|([1-5][0-9][0-9])")


class RuleFields(TypedDict, total=False):
    """The fields of a rule that a limit in code may have as well. docs/reference/rulebook.md describes them."""

    when: Mapping[str, Any]
    missing: Literal["skip", "deny", "one"]
    mode: str | Mapping[str, Any]
    candidate: LimitText
    lockout: Mapping[str, Any]
    overrides: bool
    refuse: Mapping[str, Any]
    where: Literal["cluster", "node", "split"]
    nodes: int
    prefetch: Any
    fallback: Literal["allow", "deny", "local"]
    deadline: str
    initial_share: str


class CodeLimit:
    """A limit in code: a rule that is not named yet, and functions of the request."""

    def __init__(
        self,
        limit: LimitText,
        key: Key = "address",
        *,
        cost: int | str | RequestFunction | None = None,
        name: str | None = None,
        exempt: RequestFunction | Mapping[str, Any] | None = None,
        refund: Refund | None = None,
        **fields: Unpack[RuleFields],
    ) -> None:
        self.location: str = _caller_location()
        self.name: str | None = name
        self.key_function: RequestFunction | None = key if callable(key) else None
        self.cost_function: RequestFunction | None = cost if callable(cost) else None
        self.exempt_function: RequestFunction | None = exempt if callable(exempt) else None
        mapping: dict[str, Any] = {"name": _PLACEHOLDER, "limit": limit, **fields}
        if self.key_function is not None:
            mapping = {"key": KEY_ATTRIBUTE, "missing": "skip", **mapping}
        elif key is not None and not callable(key) and len(key) > 0:
            dimensions = [key] if isinstance(key, str) else list(key)
            if all(dimension.startswith("param.") or dimension == "route" for dimension in dimensions):
                mapping.setdefault("missing", "deny")  # a route always has its parameters
            elif all(dimension.startswith("address") for dimension in dimensions):
                mapping.setdefault("missing", "one")  # clients of a socket file have no address
            mapping["key"] = dimensions
        if cost is not None and self.cost_function is None:
            mapping["cost"] = cost
        if exempt is not None and self.exempt_function is None:
            mapping["except"] = exempt
        try:
            self.rule: Rule = load.from_mapping({"rules": [mapping]}).strict().rules[0]
            self.refunds: Callable[[int, Any], object] | None = _refund_predicate(refund)
            if name is not None:
                load.from_mapping({"rules": [{"name": name, "limit": "unlimited"}]})
        except InvalidRule as error:
            raise InvalidRule(f"{self.location}: {_plain(error)}") from None
        captured = self.rule.when.captures if self.rule.when is not None else frozenset()
        self.uses: frozenset[str] = frozenset(used_attributes(self.rule)) - captured

    def bind(self, name: str) -> BoundLimit:
        """Returns the limit under the name of its counters."""
        rule = replace(self.rule, name=name)
        return BoundLimit(self, rule, compile_rule(rule))

    def __repr__(self) -> str:
        return f"<limit {self.text} at {self.location}>"

    @property
    def text(self) -> str:
        """The limit in words, such as 5/s; 1000/day."""
        return "; ".join(str(limit) for limit in self.rule.limit.otherwise) or "unlimited"


class BoundLimit(NamedTuple):
    """A limit in code, as a rule with a name."""

    limit: CodeLimit
    rule: Rule
    match_rule: RuleMatcher

    def match(self, values: Mapping[str, str], cost: int) -> Match | None:
        """Applies the rule to a request; None if it does not apply."""
        when = self.rule.when
        if when is not None:
            bound_values = when.bind(values)
            if bound_values is None:
                return None
            values = bound_values
        return self.match_rule(values, cost)


def _refund_predicate(refund: Refund | None) -> Callable[[int, Any], object] | None:
    """Returns a function of status and response that says whether the charge is given back."""
    if refund is None:
        return None
    if callable(refund):
        decide = refund
        return lambda status, response: decide(response)
    items = refund.split(",") if isinstance(refund, str) else [refund] if isinstance(refund, int) else list(refund)
    statuses: set[int] = set()
    for item in items:
        match = _status_text.fullmatch(str(item).strip().lower())
        if match is None:
            raise InvalidRule(
                f'refund: "{item}" is no status: write 404, "2xx", "2xx, 3xx", or a function of the response.'
            )
        statuses.update(range(int(match[1]) * 100, int(match[1]) * 100 + 100) if match[1] else (int(match[2]),))
    if not statuses:
        raise InvalidRule('refund: no status is given: write 404, "2xx", or leave it out.')
    return lambda status, response: status in statuses


def _plain(error: InvalidRule) -> str:
    """Returns the problems without the name and path of the rulebook, which the caller did not write."""
    messages = error.messages if isinstance(error, InvalidRulebook) else (str(error),)
    return "\n".join(_rulebook_location.sub("", message) for message in messages)


def _caller_location() -> str:
    """Returns file and line of the first caller outside headgate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "headgate":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
