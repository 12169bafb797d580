"""Finds limits that can never apply, when an application starts.

A limit in code belongs to a route. It can never match if it uses a path parameter that the route does not have, an
attribute that nobody supplies (a user without a resolver), or a method or path that is not the route's: that is an
error, with the route and the file and line of the limit.

A rule of a rulebook may be for another application, so one that matches no route is a warning: an error only with
strict=True. The same holds for a limit of all requests whose condition no route meets. Templates and patterns are
compared by segments: {id} stands for any one, {rest...} for any number.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from headgate.errors import InvalidRule, InvalidRulebook
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.request_parts import is_unknown
from headgate.rules.attributes import ROUTE_PREFIX, ascii_upper, segments
from headgate.rules.condition import All, AnyOf, Condition, Not, Test
from headgate.rules.pattern import ANY_DEPTH, Glob, PathPattern
from headgate.rules.rule import Rule, Rulebook

_log = logging.getLogger("headgate")

_parameter = re.compile(r"\{([^{}:.]+)(?:\.\.\.)?\}")
_rest = re.compile(r"\{[^{}]*\.\.\.\}")


class RouteInfo(NamedTuple):
    """A route: its template, with {name} for one segment and {name...} for any number; its methods (none: all)."""

    template: str
    methods: Collection[str] = ()
    limits: Sequence[CodeLimit] = ()

    @property
    def name(self) -> str:
        """The name of its limits, such as GET /items/{id}."""
        return route_name(self.methods, self.template)


_ANY_ROUTE = RouteInfo("/{path...}")


def route_name(methods: Collection[str], template: str) -> str:
    """Returns the name under which the limits of a route are counted.

    >>> route_name(["HEAD", "GET"], "/items/{id}"), route_name((), "/items")
    ('GET /items/{id}', '/items')
    """
    listed = sorted(set(methods) - ({"HEAD"} if "GET" in methods else set()))
    return f"{'|'.join(listed)} {template}" if listed else template


def check_code_limits(
    routes: Iterable[RouteInfo], how_to_supply: Callable[[str], str | None], mount_params: Iterable[str] = ()
) -> None:
    """Raises InvalidRule for all limits that can never match.

    `how_to_supply` returns None for an attribute that the application has a value for, or else how to supply one.
    `mount_params` are the path parameters of the mounts that lead to the application.
    """
    _raise(
        (limit, route.name, _problem(limit, route, how_to_supply, mount_params))
        for route in routes
        for limit in route.limits
    )


def check_middleware_limits(
    limits: Iterable[BoundLimit], how_to_supply: Callable[[str], str | None], params: Iterable[str] | None
) -> None:
    """Raises InvalidRule for limits of a middleware, which knows no routes, that can never match.

    `params` are the path parameters that its requests have; None if only requests can tell.
    """
    _raise((limit, "all requests", _middleware_problem(limit, how_to_supply, params)) for limit, *_ in limits)


def _middleware_problem(
    limit: CodeLimit, how_to_supply: Callable[[str], str | None], params: Iterable[str] | None
) -> str | None:
    if "route" in limit.uses:
        return "a middleware knows no routes; use path"
    used = [name.removeprefix(ROUTE_PREFIX) for name in limit.uses if name.startswith(ROUTE_PREFIX)]
    return _problem(limit, _ANY_ROUTE, how_to_supply, used if params is None else params, ())


def _raise(found: Iterable[tuple[CodeLimit, str, str | None]]) -> None:
    """Raises InvalidRule for all limits that have a problem."""
    problems = [
        f"{limit.location}: The limit {limit.text} of {subject} can never match: {problem}."
        for limit, subject, problem in found
        if problem is not None
    ]
    if problems:
        raise InvalidRule("\n".join(dict.fromkeys(problems)))


def check_app_limits(
    limits: Iterable[BoundLimit],
    routes: Iterable[RouteInfo],
    how_to_supply: Callable[[str], str | None],
    mount_params: Iterable[str],
) -> None:
    """Raises InvalidRule for limits of all requests that can never match, on any route or without one."""
    anywhere = [*routes, _ANY_ROUTE]
    _raise(
        (each, "all requests", _app_problem(each, anywhere, how_to_supply, mount_params)) for each, *_ in limits
    )


def _app_problem(
    limit: CodeLimit,
    routes: Iterable[RouteInfo],
    how_to_supply: Callable[[str], str | None],
    mount_params: Iterable[str],
) -> str | None:
    for name in sorted(limit.uses):
        if name.startswith(ROUTE_PREFIX) and name.removeprefix(ROUTE_PREFIX) not in mount_params:
            return f"not all requests have the path parameter {name}; write the limit at the routes that have it"
    unsupplied = _unsupplied(limit, how_to_supply)
    if unsupplied is not None:
        return unsupplied
    if limit.rule.when is not None and not any(_may_hold(limit.rule.when, route) for route in routes):
        return f"no route of the application meets its condition, {limit.rule.when}"
    return None


def check_conditions(
    book: Rulebook, limits: Iterable[BoundLimit], routes: Sequence[RouteInfo], *, strict: bool
) -> None:
    """Warns of rules, and of limits of all requests, that match no route; raises InvalidRulebook if strict.

    Such a limit in code is no error: its requests, which are answered 404, may be what it is for.
    """
    sentence = "No route of the application matches its condition"
    in_book = [
        (rule.line, f'rule "{rule.name}": {sentence}: {rule.when}.')
        for rule in book.rules
        if not any(may_match(rule, route) for route in routes)
    ]
    in_code: list[tuple[int | None, str]] = [
        (None, f"{limit.location}: The limit {limit.text} of all requests: {sentence}: {rule.when}.")
        for limit, rule, _ in limits
        if not any(may_match(rule, route) for route in routes)
    ]
    for problems, source in ((in_book, book.source), (in_code, None)):
        if problems:
            error = InvalidRulebook(problems, source)
            if strict:
                raise error
            _log.warning("headgate: %s", "\n".join(error.messages))


def may_match(rule: Rule, route: RouteInfo) -> bool:
    """Returns whether a rule can apply to some request of a route."""
    return rule.when is None or _may_hold(rule.when, route)


def _problem(
    limit: CodeLimit,
    route: RouteInfo,
    how_to_supply: Callable[[str], str | None],
    mount_params: Iterable[str],
    route_params: Iterable[str] | None = None,
) -> str | None:
    if route_params is None:
        route_params = _parameter.findall(route.template)
    parameters = {*route_params, *mount_params}
    for name in sorted(limit.uses):
        if name.startswith(ROUTE_PREFIX) and name.removeprefix(ROUTE_PREFIX) not in parameters:
            listed = ", ".join(sorted(ROUTE_PREFIX + each for each in parameters)) or "none"
            return f"the route has no path parameter for {name}, but {listed}"
    unsupplied = _unsupplied(limit, how_to_supply)
    if unsupplied is not None:
        return unsupplied
    if limit.rule.when is not None and not _may_hold(limit.rule.when, route):
        return f"no request of the route meets its condition, {limit.rule.when}"
    return None


def _unsupplied(limit: CodeLimit, how_to_supply: Callable[[str], str | None]) -> str | None:
    for name in sorted(limit.uses):
        how = how_to_supply(name) if is_unknown(name) else None
        if how is not None:
            return f"nobody supplies the attribute {name}; {how}"
    return None


def _may_hold(condition: Condition, route: RouteInfo) -> bool:
    """Returns whether a condition can hold for some request; True where the route does not decide it."""
    match condition:
        case All(parts):
            return all(_may_hold(part, route) for part in parts)
        case AnyOf(parts):
            return any(_may_hold(part, route) for part in parts)
        case Not():
            return True
        case Test(attribute="path", expected=tuple()):
            return any(paths_overlap(pattern, route.template) for pattern in condition.patterns)
        case Test(attribute="route", expected=tuple()):
            return any(glob.matches(route.template) for glob in condition.globs)
        case Test(attribute="method", expected=tuple()) if route.methods:
            return any(glob.matches(ascii_upper(method)) for glob in condition.globs for method in route.methods)
        case _:
            return True


def paths_overlap(pattern: PathPattern, template: str) -> bool:
    """Returns whether some path matches both a rule's pattern and a route's template.

    >>> paths_overlap(PathPattern("/api/**"), "/api/items/{id}"), paths_overlap(PathPattern("/login"), "/logout")
    (True, False)
    """
    tail = () if pattern.tail is None else (ANY_DEPTH, *pattern.tail)
    return _overlap((*pattern.head, *tail), tuple(_template_segments(template)))


def _template_segments(template: str) -> Iterable[str | None]:
    """Yields the segments of a template: ** for any number, None for a parameter."""
    for segment in segments(template):
        yield ANY_DEPTH if _rest.search(segment) else None if "{" in segment else segment


def _overlap(pattern: Sequence[Glob | str | None], template: Sequence[str | None]) -> bool:
    if pattern and pattern[0] == ANY_DEPTH:
        return _overlap(pattern[1:], template) or (bool(template) and _overlap(pattern, template[1:]))
    if template and template[0] == ANY_DEPTH:
        return _overlap(pattern, template[1:]) or (bool(pattern) and _overlap(pattern[1:], template))
    if not pattern or not template:
        return not pattern and not template
    glob, segment = pattern[0], template[0]
    fits = not isinstance(glob, Glob) or segment is None or glob.matches(segment)
    return fits and _overlap(pattern[1:], template[1:])
