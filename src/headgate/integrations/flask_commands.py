"""Adds `flask headgate limits`: lists every route with its limits, and the rules that can match it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from headgate.integrations.code_limit import KEY_ATTRIBUTE, CodeLimit
from headgate.integrations.flask_routes import is_exempt, limits_of
from headgate.integrations.route_checks import may_match

import click  # isort: skip
from flask import current_app  # isort: skip
from flask.cli import AppGroup  # isort: skip

if TYPE_CHECKING:
    from headgate.integrations.flask import FlaskAppLimits

commands = AppGroup("headgate", help="Shows the limits of this application.")


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
    rules = app_limits.limits.limiter.rulebook.rules
    for rule in sorted(
        app_limits.app.url_map.iter_rules(), key=lambda rule: (rule.rule, sorted(rule.methods or ()))
    ):
        for route in limits_of(app_limits.app, rule, app_limits.default_limits):
            yield route.name
            if is_exempt(app_limits.app, rule, next(iter(route.methods), "GET")):
                yield "    exempt"
                continue
            yield from map(_describe, route.limits)
            matching = [each.name for each in rules if may_match(each, route)]
            if matching:
                yield f"    rules: {', '.join(matching)}"
            if not (matching or route.limits):
                yield "    no limit" + (" of its own" if whole_app else "")


def _describe(limit: CodeLimit) -> str:
    dimensions = ["a function" if each.name == KEY_ATTRIBUTE else str(each) for each in limit.rule.key]
    by = f" by {', '.join(dimensions)}" if dimensions else ""
    name = f' "{limit.name}"' if limit.name else ""
    path, _, line = limit.location.rpartition(":")
    return f"    {limit.text}{by}{name}  {os.path.relpath(path)}:{line}"
