"""Limits that an application writes in code: limit("5/s", key="user").

A limit in code is a rule without a rulebook. It takes every field that a rule of a rulebook takes, as keywords,
and is checked by the same parser. Beyond that, `key`, `cost` and `exempt` may be functions of the framework's
request (coroutines where the framework is async), `refund` says after which responses the charge is given back,
and `cost_after` what the request really cost.

    key      the name of an attribute, several of them, or a function; None: one counter for all callers.
             Callers without an address (of a socket file, of a test client) are counted together. A function
             that returns None exempts the request, unless `missing` says otherwise; "" is an error then
    cost     a number, the name of an attribute, or a function that returns a number; 0 does not count the request
    name     without a name each route is counted by itself, under "GET /items/{id}"; with a name, all routes that
             use a limit of that name share one counter
    exempt   a function: requests for which it returns true are not limited; or a condition as in `except`
    refund   statuses: 404, "2xx", "2xx, 3xx", [200, "5xx"]; or a function of the response.
             "2xx, 3xx" counts failures only
    cost_after
             a function of the RequestRecord, called when the response has ended, that returns what the request
             really cost, such as record.bytes_sent; None keeps `cost`, the estimate. It is not called after a
             refund, nor if the application has called record.settle(cost)

A mistake is reported when the limit is made, with the file and line of that call.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.errors import InvalidCharge, InvalidRule, InvalidRulebook, InvalidSetting
from headgate.integrations.request_parts import KEY_ATTRIBUTE
from headgate.integrations.unknown_settings import reject_unknown
from headgate.rules import load
from headgate.rules.matching.compile_rule import Match, RuleMatcher, compile_rule
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.parsing.attribute_typos import intended_name
from headgate.rules.rule import Rule

LimitText = str | Limit | Sequence[str | Limit] | Mapping[str, Any]
RequestFunction = Callable[[Any], Any]
Key = str | Sequence[str] | RequestFunction | None
Refund = int | str | Collection[int | str] | Callable[[Any], object]

_PLACEHOLDER = "limit"
_LIST_HINT = " If your application passes it, list it in the rulebook's attributes."

_rulebook_location = re.compile(rf'\brules\[0\]\.?|rule 1: |rule "{_PLACEHOLDER}": ')
_status_text = re.compile(r"([1-5])xx|([1-5][0-9][0-9])")


class CodeLimitFields(TypedDict, total=False):
    """The fields of a rule that any limit in code may have as well. docs/reference/rulebook.md describes them."""

    when: Mapping[str, Any]
    missing: Literal["skip", "deny", "one"]
    mode: str | Mapping[str, Any]
    candidate: LimitText
    lockout: Mapping[str, Any]
    overrides: bool
    pausable: bool | str
    fallback: Literal["allow", "deny", "local"]
    deadline: str


class RuleFields(CodeLimitFields, total=False):
    """The fields of a rule that a limit of requests may have: also those of a refusal, and of processes."""

    refuse: Mapping[str, Any]
    where: Literal["cluster", "node", "split"]
    nodes: int
    prefetch: Any
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
        cost_after: RequestFunction | None = None,
        **fields: Unpack[RuleFields],
    ) -> None:
        self.location: str = _caller_location()
        _check_keywords(fields, self.location)
        self.name: str | None = name
        self._check_arguments(limit, key, exempt, name)
        _check_functions(self.location, key=key, cost=cost, exempt=exempt, refund=refund, cost_after=cost_after)
        self.key_function: RequestFunction | None = key if callable(key) else None
        self.cost_function: RequestFunction | None = cost if callable(cost) else None
        self.exempt_function: RequestFunction | None = exempt if callable(exempt) else None
        self.cost_after: RequestFunction | None = cost_after
        self.states_cost: bool = cost is not None or cost_after is not None
        mapping: dict[str, Any] = {"name": _PLACEHOLDER, "limit": limit, **fields}
        if self.key_function is not None:
            mapping = {"key": KEY_ATTRIBUTE, "missing": "skip", **mapping}
        elif key is not None and not callable(key):
            dimensions = [key] if isinstance(key, str) else list(key)
            if all(dimension.startswith("param.") for dimension in dimensions):
                mapping.setdefault("missing", "deny")  # a route always has its parameters
            elif all(
                dimension == "route" or dimension.startswith(("address", "param.")) for dimension in dimensions
            ):
                # Clients of a socket file have no address, and requests that no route matches have no route.
                mapping.setdefault("missing", "one")
            elif any(map(_is_misspelled, dimensions)):
                mapping.setdefault("missing", "one")  # so that a misspelled name is the problem that is reported
            mapping["key"] = dimensions
        if cost is not None and self.cost_function is None:
            mapping["cost"] = cost
        if exempt is not None and self.exempt_function is None:
            mapping["except"] = exempt
        try:
            self.rule: Rule = load.from_mapping({"rules": [mapping]}).strict().rules[0]
            _check_cost(self.rule)
            self.refunds: Callable[[int, Any], object] | None = _refund_predicate(refund)
            _check_cost_after(cost_after, self.rule)
            if name is not None:
                load.from_mapping({"rules": [{"name": name, "limit": "unlimited"}]})
        except InvalidRule as error:
            raise InvalidRule(f"{self.location}: {_plain(error)}") from None
        captured = self.rule.when.captures if self.rule.when is not None else frozenset()
        self.uses: frozenset[str] = frozenset(used_attributes(self.rule)) - captured

    def _check_arguments(self, limit: Any, key: Any, exempt: Any, name: Any) -> None:
        """Raises InvalidRule for arguments of a kind that no rule has."""
        if callable(limit):
            raise InvalidRule(f'{self.location}: A limit lacks its text: write @limit("5/s"), with brackets.')
        names = [key] if isinstance(key, str) else key
        if not (key is None or callable(key) or (_is_list_of_texts(names) and all(names) and names)):
            raise InvalidRule(
                f"{self.location}: A key is the name of an attribute, a list of names, a function of the "
                f"request, or None for one counter of all callers; not {key!r}."
            )
        if not (name is None or isinstance(name, str)):
            raise InvalidRule(f"{self.location}: The name of a limit is a text, not {name!r}.")
        if not (exempt is None or callable(exempt) or isinstance(exempt, Mapping)):
            raise InvalidRule(
                f"{self.location}: exempt is a function of the request, or a condition such as "
                f'{{"address": "192.0.2.7"}}, not {exempt!r}.'
            )

    def bind(self, name: str) -> BoundLimit:
        """Returns the limit under the name of its counters."""
        rule = replace(self.rule, name=name)
        return BoundLimit(self, rule, compile_rule(rule))

    def check_returned_cost(self, cost: object) -> None:
        """Raises InvalidCharge unless this is a cost that `cost` or `cost_after` may return."""
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 0:
            raise InvalidCharge(f"{self.location}: A cost is a whole number of at least 0, not {cost!r}.")

    @property
    def holds_slots(self) -> bool:
        """Returns whether requests hold slots, in one of its cases."""
        return any(isinstance(limit, Slots) for limit in _all_limits(self.rule))

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


# Python names the function in the error of a wrong number of arguments; users know it as limit().
CodeLimit.__init__.__qualname__ = "limit"

_KEYWORDS = ("key", "cost", "name", "exempt", "refund", "cost_after", *RuleFields.__optional_keys__)


def _check_keywords(fields: Iterable[str], location: str) -> None:
    """Raises InvalidRule for a keyword that no limit in code has."""
    try:
        reject_unknown(fields, _KEYWORDS, "a limit in code")
    except InvalidSetting as error:
        raise InvalidRule(f"{location}: {error}") from None


def _check_functions(location: str, **functions: object) -> None:
    """Raises InvalidRule for a function that cannot be called as each of them is: with one argument."""
    for name, function in functions.items():
        parameters = misfitting_parameters(function) if callable(function) else None
        if parameters is not None:
            of = {"refund": "response", "cost_after": "record"}.get(name, "request")
            raise InvalidRule(
                f"{location}: The function of {name}= receives the {of}, and cannot: its parameters are "
                f"{parameters}. Write lambda {of}: ..."
            )


def misfitting_parameters(function: Callable[..., Any]) -> str | None:
    """Returns the parameters of a function that cannot be called with one argument; None if it can, or may."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, RuntimeError):  # of a builtin; of a proxy that needs a request
        return None
    try:
        signature.bind(None)
    except TypeError:
        return str(signature)
    return None


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) for each in value)


def _is_misspelled(dimension: str) -> bool:
    name = dimension.partition("/")[0]
    return intended_name(name, frozenset()) not in (None, name)


def _all_limits(rule: Rule) -> list[Limit]:
    return [*rule.limit.otherwise, *(each for _, limits in rule.limit.cases for each in limits)]


def _check_cost(rule: Rule) -> None:
    """Raises InvalidRule if no request can ever pay the cost that is written in the limit."""
    cost = None if rule.cost is None else rule.cost.otherwise
    for limit in _all_limits(rule):
        if isinstance(cost, int) and not isinstance(limit, Slots) and cost > limit.max_cost:
            raise InvalidRule(
                f"cost: a request of cost {cost:,} never passes {limit}, whose greatest cost is "
                f"{limit.max_cost:,}: lower the cost, or raise the limit or its burst."
            )


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


def _check_cost_after(cost_after: object, rule: Rule) -> None:
    if cost_after is not None and not callable(cost_after):
        raise InvalidRule(
            f"cost_after: {cost_after!r} is no function: write one of the record, such as "
            "lambda record: record.bytes_sent."
        )
    if cost_after is not None and any(isinstance(limit, Slots) for limit in rule.limit.otherwise):
        raise InvalidRule("cost_after: slots are held, not charged, and have no cost.")


def _plain(error: InvalidRule) -> str:
    """Returns the problems without the name and path of the rulebook, which the caller did not write."""
    messages = error.messages if isinstance(error, InvalidRulebook) else (str(error),)
    without_location = (_rulebook_location.sub("", message) for message in messages)
    return "\n".join(
        each.replace(_LIST_HINT, "").replace("no gateway sets", "no request has") for each in without_location
    )


def _caller_location() -> str:
    """Returns file and line of the first caller outside headgate."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "headgate":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
