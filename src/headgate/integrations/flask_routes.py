"""Finds the routes of a Flask application, and the limits in code of each.

A limit marks what it decorates. The limits of a route are those of its blueprints, from the outermost to the
innermost, of its class, and of its view; a route without any has the default limits. A method of a class that has
limits of its own is counted separately: "GET /items" and "GET|POST /items".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headgate.errors import InvalidRule
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.unreachable_limits import RouteInfo, route_name

if TYPE_CHECKING:
    from flask import Flask
    from werkzeug.routing import Rule

_LIMITS, _EXEMPT, _WRAPPED = "__headgate_limits__", "__headgate_exempt__", "__headgate_wrapped__"

_variable = re.compile(r"<(?:([a-zA-Z_]\w*)(?:\(.*?\))?:)?([a-zA-Z_]\w*)>")


def mark_limited(target: Any, limit: CodeLimit) -> None:
    """Adds a limit to a view, a class of views or a blueprint."""
    setattr(target, _LIMITS, (limit, *marked_limits(target)))


def mark_wrapped(view: Callable[..., Any], limit: CodeLimit, wrapper: Callable[..., Any]) -> None:
    """Notes which function is the limited one, for the check at start: is it what the route calls?"""
    if hasattr(view, "__dict__"):
        vars(view)[_WRAPPED] = limit, wrapper


def mark_exempt(target: Any) -> None:
    """Exempts a view, a class of views or a blueprint."""
    setattr(target, _EXEMPT, True)


def marked_limits(target: Any) -> tuple[CodeLimit, ...]:
    """Returns the limits that were added to a view, a class or a blueprint."""
    return getattr(target, _LIMITS, ())


def template_of(app: Flask, rule: Rule) -> str:
    """Returns the path of a route as a template: <int:id> is {id}, <path:rest> is {rest...}."""

    def write(match: re.Match[str]) -> str:
        converter = app.url_map.converters.get(match[1] or "default")
        return f"{{{match[2]}{'' if getattr(converter, 'part_isolating', True) else '...'}}}"

    return _variable.sub(write, rule.rule)


def is_automatic_options(rule: Rule) -> bool:
    """Returns whether Flask answers OPTIONS for this route, without its view."""
    return bool(getattr(rule, "provide_automatic_options", False))


def is_exempt(app: Flask, rule: Rule, method: str | None = None) -> bool:
    """Returns whether a route is exempt, by a mark on its blueprints, its class, its view, or this method of its
    class.
    """
    marked = [*_owners(app, rule), method and _method_of(_class_of(app, rule), method)]
    return any(getattr(each, _EXEMPT, False) for each in marked)


def limits_of(app: Flask, rule: Rule, default_limits: Sequence[CodeLimit]) -> list[RouteInfo]:
    """Returns the route with its limits, and once more each method of its class that has limits of its own."""
    template, methods = template_of(app, rule), _methods(rule)
    shared = list(dict.fromkeys(limit for owner in _owners(app, rule) for limit in marked_limits(owner)))
    view_class = _class_of(app, rule)
    by_method = {
        method: [limit for limit in marked_limits(_method_of(view_class, method)) if limit not in shared]
        for method in sorted(methods)
    }
    if not any(by_method.values()):
        return [RouteInfo(template, methods, shared or default_limits)]
    route_limits = [
        RouteInfo(template, (method,), limits or (() if shared else default_limits))
        for method, limits in by_method.items()
    ]
    if len(route_limits) == 1:  # then both have one name
        return [RouteInfo(template, methods, [*shared, *route_limits[0].limits])]
    return [RouteInfo(template, methods, shared), *route_limits]


def find_routes(app: Flask, default_limits: Sequence[CodeLimit]) -> list[RouteInfo]:
    """Returns all routes with their limits. Raises InvalidRule for a limit above the decorator of its route."""
    _check_wrapped(app)
    found = []
    for rule in app.url_map.iter_rules():
        found += limits_of(app, rule, default_limits)
        if is_automatic_options(rule):
            found.append(RouteInfo(template_of(app, rule), ("OPTIONS",)))
    return found


def _methods(rule: Rule) -> Collection[str]:
    """Returns the methods that reach the view, without HEAD where there is GET."""
    methods = set(rule.methods or ())
    return (
        methods
        - ({"HEAD"} if "GET" in methods else set())
        - ({"OPTIONS"} if is_automatic_options(rule) else set())
    )


def _owners(app: Flask, rule: Rule) -> Iterator[Any]:
    """Yields what may be marked for a route: its blueprints, from the outermost, its class, and its view."""
    parts = rule.endpoint.split(".")[:-1]
    for depth in range(len(parts)):
        yield app.blueprints.get(".".join(parts[: depth + 1]))
    yield _class_of(app, rule)
    yield app.view_functions.get(rule.endpoint)


def _class_of(app: Flask, rule: Rule) -> Any:
    return getattr(app.view_functions.get(rule.endpoint), "view_class", None)


def _method_of(view_class: Any, method: str) -> Any:
    """Returns the function of a class that answers a method: HEAD is answered by get, as Flask does."""
    function = getattr(view_class, method.lower(), None)
    return getattr(view_class, "get", None) if function is None and method == "HEAD" else function


def _check_wrapped(app: Flask) -> None:
    called = {id(each) for view in app.view_functions.values() for each in _unwrapped(view)}
    for rule in app.url_map.iter_rules():
        view = app.view_functions.get(rule.endpoint)
        limit, wrapper = getattr(view, "__dict__", {}).get(_WRAPPED, (None, None))
        if limit is not None and id(wrapper) not in called:
            name = route_name(_methods(rule), template_of(app, rule))
            raise InvalidRule(
                f"{limit.location}: The limit {limit.text} of {name} can never match: it is written above the "
                "decorator of the route, which does not see it. Write it below."
            )


def _unwrapped(view: Any) -> Iterator[Any]:
    while view is not None:
        yield view
        view = getattr(view, "__wrapped__", None)
