"""Spring Cloud Gateway: translates routes with a RequestRateLimiter into rules.

    - id: orders
      predicates: [Path=/orders/**]                        - name: orders
      filters:                                               when: {path: /orders/**}
        - name: RequestRateLimiter                           key: user
          args:                                              missing: deny
            redis-rate-limiter.replenishRate: 10             limit: 10/s burst 20
            redis-rate-limiter.burstCapacity: 20
            key-resolver: "#{@userKeyResolver}"

Spring sends a call to the first route that matches, with its limiter or without one. Here every rule whose
condition holds applies, so a rule excludes the calls of earlier routes (`except`), unless the two cannot overlap.
spring_predicates.py translates predicates. Spring lets calls pass while its Redis does not answer: fallback is
allow.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, NamedTuple

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.rules import load
from headgate.rules.imports.rulebook_draft import Document, Draft, Translation, attribute_name, one_or_all
from headgate.rules.imports.spring_predicates import disjoint, translate_predicate
from headgate.rules.imports.yaml_tree import (
    documents,
    find_path,
    fold_name,
    items,
    line_of,
    mapping,
    optional_number,
    optional_text,
)
from headgate.rules.parsing.document_tree import ListNode, MappingNode, Node, ScalarNode

_GATEWAYS = ("spring.cloud.gateway.server.webflux", "spring.cloud.gateway")
_LIMITER = "RequestRateLimiter"
_SHORT_FORM_ARGUMENTS = (
    "redisratelimiter.replenishrate",
    "redisratelimiter.burstcapacity",
    "redisratelimiter.requestedtokens",
)
_ARGUMENTS = {
    *_SHORT_FORM_ARGUMENTS,
    "keyresolver",
    "denyemptykey",
    "statuscode",
    "emptykeystatus",
    "emptykeystatuscode",
}
_placeholder = re.compile(r"\$\{[^:}]*(?::([^}]*))?\}")
_bean = re.compile(r"#\{\s*@(\w+)\s*\}")
_camel = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
_RESOLVER_HINTS = {
    "address": {"ip", "addr", "address", "remote"},
    "header.x-api-key": {"api", "apikey"},
    "user": {"user", "principal", "username"},
    "host": {"host", "hostname"},
    "path": {"path", "uri", "url"},
}


class _Limiter(NamedTuple):
    """The arguments of one RequestRateLimiter filter."""

    line: int | None
    arguments: dict[str, Node]


class _Route(NamedTuple):
    """A route with its condition and limiters."""

    line: int | None
    name: str
    order: int
    when: Document
    wider: bool  # some of its predicates have no exact equivalent
    limiters: list[_Limiter]


def translate(text: str, name: str | None = None) -> Translation:
    """Translates the limits of an application's routes."""
    return _SpringTranslator(text).build(name)


class _SpringTranslator:
    """Translates one application's configuration."""

    def __init__(self, text: str) -> None:
        self.draft = Draft()
        self.documents = documents(text)
        self.deny = True
        self.fields = "spring"
        self.application: str | None = None

    def build(self, name: str | None) -> Translation:
        routes: list[_Route] = []
        everywhere: list[_Limiter] = []
        for document in self.documents:
            self._settings(document)
            for gateway in _GATEWAYS:
                everywhere += self._limiters(find_path(document, f"{gateway}.default-filters"))
                routes += self._routes(items(find_path(document, f"{gateway}.routes"), "routes"))
        routes.sort(key=lambda route: route.order)
        if everywhere and not routes:
            self.draft.note(
                everywhere[-1].line, "there are no routes that this filter could be for: it is left out."
            )
        for index, route in enumerate(routes):
            self._rules(route, routes[:index], everywhere)
        if self.draft.rules:
            self._general()
        return self.draft.build(
            name=name or self.application,
            headers=self.fields,
            defaults={"fallback": "allow"} if self.draft.rules else None,
        )

    def _settings(self, document: MappingNode) -> None:
        if profile := find_path(document, "spring.config.activate.on-profile") or find_path(
            document, "spring.profiles"
        ):
            self.draft.note(
                line_of(profile), "this part is for a profile only: its routes are taken as if it were on."
            )
        self.application = self.application or optional_text(
            find_path(document, "spring.application.name"), "the name"
        )
        for prefix in _GATEWAYS:
            empty = find_path(document, f"{prefix}.filter.request-rate-limiter.deny-empty-key")
            self.deny = self.deny if empty is None else optional_text(empty, "deny-empty-key") != "false"
            include_headers = find_path(document, f"{prefix}.redis-rate-limiter.include-headers")
            self.fields = (
                "off"
                if include_headers is not None and optional_text(include_headers, "include-headers") == "false"
                else self.fields
            )
            for setting in ("redis-rate-limiter.config", "server.webmvc.routes", "mvc.routes"):
                if (node := find_path(document, f"{prefix}.{setting}")) is not None:
                    self.draft.note(line_of(node), f"{setting} is not translated: it is left out.")

    def _routes(self, nodes: list[Node]) -> list[_Route]:
        routes = []
        for route in map(self._route, nodes):
            if _can_apply({"name": route.name, "when": route.when or None, "limit": "1/s"}, {}):
                routes.append(route)
            else:
                self.draft.note(route.line, f"{route.name} is left out: its predicates cannot all hold.")
        return routes

    def _route(self, node: Node) -> _Route:
        table = mapping(node, "A route")
        wider = False
        when: Document = {}
        for predicate in items(table.get("predicates"), "predicates"):
            tests, sentence, loose = translate_predicate(*_call(predicate))
            if sentence:
                self.draft.note(line_of(predicate), sentence)
            wider = wider or loose
            for attribute, test in tests.items():
                if attribute in when:
                    when.setdefault("all", []).append({attribute: _without_captures(test)})
                else:
                    when[attribute] = test
        order = optional_text(table.get("order"), "order") or "0"
        if not re.fullmatch(r"-?[0-9]{1,10}", order):
            raise InvalidRule(f'line {line_of(table.get("order"))}: order is a whole number, not "{order[:40]}".')
        name = self.draft.name(optional_text(table.get("id"), "id") or "route")
        return _Route(line_of(node), name, int(order), when, wider, self._limiters(table.get("filters")))

    def _limiters(self, filters: Node | None) -> list[_Limiter]:
        limiters = []
        for node in items(filters, "filters"):
            name, arguments = _call(node)
            if name != _LIMITER:
                continue
            if isinstance(arguments, list):
                self.draft.note(
                    line_of(node),
                    "Spring does not read the short form of this filter: it was taken for replenishRate, "
                    "burstCapacity, requestedTokens and key-resolver.",
                )
                numbers = [argument for argument in arguments if not _bean.search(argument.text)]
                short: dict[str, Node] = dict(zip(_SHORT_FORM_ARGUMENTS, numbers, strict=False))
                short.update(("keyresolver", argument) for argument in arguments if _bean.search(argument.text))
                limiters.append(_Limiter(line_of(node), short))
            else:
                limiters.append(_Limiter(line_of(node), _flatten(arguments)))
        return limiters

    def _rules(self, route: _Route, earlier_routes: list[_Route], everywhere: list[_Limiter]) -> None:
        limiters = route.limiters or everywhere
        if not limiters:
            return
        limiter = limiters[-1]
        for other in [*(everywhere if route.limiters else []), *limiters[:-1]]:
            self.draft.note(
                other.line,
                f"Spring keeps one setting for a route: for {route.name} it is the one of line {limiter.line}, "
                "this one is left out.",
            )
        text, cost = self._limit(limiter)
        if text is None:
            return
        status = optional_text(limiter.arguments.get("statuscode"), "status-code")
        deny = limiter.arguments.get("denyemptykey")
        rule = {
            "name": route.name,
            "when": route.when or None,
            "except": self._earlier(route, earlier_routes),
            "key": self._key(limiter),
            "missing": "deny"
            if (self.deny if deny is None else optional_text(deny, "deny-empty-key") != "false")
            else "skip",
            "limit": text,
            "cost": cost,
            "refuse": {"status": _status(limiter, status)} if status else None,
        }
        if not _can_apply(rule, self.draft.conditions) or {} in (
            other.when for other in earlier_routes if not other.wider
        ):
            self.draft.note(route.line, f"{route.name} is left out: earlier routes take all of its calls.")
            return
        if route.wider:
            self.draft.note(route.line, f"{route.name} applies to more calls than its route: see its predicates.")
        self.draft.rule(**rule)

    def _earlier(self, route: _Route, earlier_routes: list[_Route]) -> Any:
        exceptions = []
        for earlier in earlier_routes:
            if not earlier.when or disjoint(route.when, earlier.when):
                continue
            if earlier.wider:
                self.draft.note(
                    earlier.line,
                    f"calls that {earlier.name} takes before {route.name} are counted by {route.name} too.",
                )
            else:
                self.draft.conditions[earlier.name] = earlier.when
                exceptions.append(earlier.name)
        return one_or_all(exceptions) if exceptions else None

    def _limit(self, limiter: _Limiter) -> tuple[str | None, int | None]:
        for argument, node in limiter.arguments.items():
            if argument not in _ARGUMENTS:
                self.draft.note(line_of(node), f"{argument} is not translated: it is left out.")
        rate, burst, tokens = (self._number(limiter, argument) for argument in _SHORT_FORM_ARGUMENTS)
        if rate is None:
            self.draft.note(
                limiter.line, "this limiter has no replenishRate that can be read here: it is left out."
            )
            return None, None
        if burst is None:
            self.draft.note(limiter.line, "burstCapacity is not given: Spring takes 1.")
        if burst == 0:
            self.draft.note(
                limiter.line, "burstCapacity 0: every call is refused, because it costs 2 where 1 may pass."
            )
            return f"{rate}/s burst 1", 2
        most = 1 if burst is None else burst
        text = f"{rate}/s" if most == rate else f"{rate}/s burst {most}"
        return text, None if tokens in (None, 1) else tokens

    def _number(self, limiter: _Limiter, argument: str) -> int | None:
        node = limiter.arguments.get(argument)
        text = optional_text(node, argument)
        placeholder = _placeholder.fullmatch(text or "")
        if node is None or placeholder is None:
            return optional_number(node, argument)
        default = placeholder[1] or ""
        if default.isdecimal():
            self.draft.note(line_of(node), f"{text} is a placeholder: its default was taken, {default}.")
            return int(default)
        self.draft.note(line_of(node), f"{text} is a placeholder whose value is not known here.")
        return None

    def _key(self, limiter: _Limiter) -> str:
        node = limiter.arguments.get("keyresolver")
        text = optional_text(node, "key-resolver")
        bean = (match[1] if (match := _bean.search(text)) else text) if text else "principalNameKeyResolver"
        words = [part.lower() for part in _camel.findall(bean)]
        if words[:2] == ["principal", "name"]:
            return "user"
        while words and words[-1] in ("resolver", "key"):
            words.pop()
        hinted = next((attribute for attribute, hints in _RESOLVER_HINTS.items() if hints & set(words)), None)
        attribute = hinted or attribute_name("_".join(words) or bean, "key")
        self.draft.note(
            line_of(node), f"what {bean} does is not seen here: its key was taken for {attribute}. Please check."
        )
        return attribute

    def _general(self) -> None:
        self.draft.note(None, "Spring refills in whole seconds; here it is done all the time, at the same rate.")
        if any(rule["missing"] == "deny" for rule in self.draft.rules):
            self.draft.note(None, "Spring answers 403 to a call without a key; here it is refused like any other.")


def _call(node: Node) -> tuple[str, MappingNode | list[ScalarNode]]:
    """Returns name and arguments of a predicate or filter, in its short form (Path=/a,/b) or its long one."""
    if isinstance(node, ScalarNode):
        name, _, rest = node.text.partition("=")
        return name.strip(), [
            ScalarNode(node.position, part.strip(), quoted=True) for part in rest.split(",") if part.strip()
        ]
    table = mapping(node, "A predicate or filter")
    arguments = table.get("args")
    if isinstance(arguments, ListNode):
        return optional_text(table.get("name"), "name") or "", [
            argument for argument in arguments.nodes if isinstance(argument, ScalarNode)
        ]
    empty = arguments is None or (isinstance(arguments, ScalarNode) and arguments.empty)
    return optional_text(table.get("name"), "name") or "", MappingNode(node.position, {}) if empty else mapping(
        arguments or node, "args"
    )


def _can_apply(rule: Document, conditions: Document) -> bool:
    """Returns whether the loader accepts the rule, so that it can apply at all."""
    rule_fields = {name: value for name, value in rule.items() if value is not None}
    try:
        load.from_mapping({"conditions": conditions, "rules": [rule_fields]})
    except InvalidRulebook:
        return False
    return True


def _without_captures(test: Any) -> Any:
    """Returns the test without captures: no name may be captured twice."""
    if isinstance(test, list):
        return [_without_captures(item) for item in test]
    return re.sub(r"\{\w+\}", "*", test) if isinstance(test, str) else test


def _flatten(table: MappingNode, prefix: str = "") -> dict[str, Node]:
    """Returns nested names joined by dots: redis-rate-limiter.replenishRate, whether dotted or nested."""
    flattened: dict[str, Node] = {}
    for name, (_, node) in table.entries.items():
        path = prefix + fold_name(name)
        flattened.update(_flatten(node, f"{path}.") if isinstance(node, MappingNode) else {path: node})
    return flattened


def _status(limiter: _Limiter, text: str) -> int:
    if text.isdecimal() and 100 <= int(text) <= 599:
        return int(text)
    if text.upper() in HTTPStatus.__members__:
        return HTTPStatus[text.upper()].value
    raise InvalidRule(f'line {limiter.line}: "{text[:40]}" is not a status of HTTP, such as TOO_MANY_REQUESTS.')
