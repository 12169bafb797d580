"""Adds `flask headgate limits`: lists every route with its limits, and the rules that can match it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.flask_routes import is_exempt, limits_of
from headgate.integrations.request_parts import KEY_ATTRIBUTE
from headgate.integrations.unreachable_limits import may_match

import click  # isort: skip
from flask import current_app  # isort: skip
from flask.cli import AppGroup  # isort: skip

if TYPE_CHECKING:
    from werkzeug.routing import Rule as Route

    from headgate.integrations.flask import FlaskAppLimits

commands: AppGroup = AppGroup("headgate", help="Shows the limits of this application.")


@commands.command("limits")
def show_limits() -> None:
    """List every route with its limits, and the rules of the rulebook that can match it."""
    app_limits = cast("FlaskAppLimits", current_app.extensions["headgate"])
    app_limits.check()
    for line in _lines(app_limits):
        click.echo(line)


def _lines(app_limits: FlaskAppLimits) -> Iterator[str]:
    whole_app = [bound.limit for bound in app_limits.limits.app_limits]
    if whole_app:
        yield "all requests together"
        yield from map(_describe, whole_app)
    if app_limits.exempt_paths:
        yield "exempt paths"
        yield f"    {', '.join(app_limits.exempt_paths)}"
    routes = app_limits.app.url_map.iter_rules()
    for route in sorted(routes, key=lambda each: (each.rule, sorted(each.methods or ()))):
        yield from _route_lines(app_limits, route)


def _route_lines(app_limits: FlaskAppLimits, route: Route) -> Iterator[str]:
    """Describes a route, and below it the methods of its class that have limits of their own."""
    app = app_limits.app
    shared, *route_limits = limits_of(app, route, app_limits.default_limits)
    yield shared.name
    if is_exempt(app, route) or app_limits.limits.exempts_template(shared.template):
        yield "    exempt"
        return
    rules = [rule.name for rule in app_limits.limits.limiter.rulebook.rules if may_match(rule, shared)]
    yield from map(_describe, shared.limits)
    if rules:
        yield f"    rules: {', '.join(rules)}"
    if not (rules or shared.limits or route_limits):
        yield "    no limit of its own"
    for method in sorted(shared.methods):
        if is_exempt(app, route, method):
            yield f"    {method} is exempt"
    for each in route_limits:
        if each.limits and not is_exempt(app, route, *each.methods):
            yield each.name
            yield from map(_describe, each.limits)


def _describe(limit: CodeLimit) -> str:
    dimensions = ["a function" if each.name == KEY_ATTRIBUTE else str(each) for each in limit.rule.key]
    by = f" by {', '.join(dimensions)}" if dimensions else ""
    name = f' "{limit.name}"' if limit.name else ""
    path, _, line = limit.location.rpartition(":")
    return f"    {limit.text}{by}{name}  {os.path.relpath(path)}:{line}"
