"""The --app option: an application as MODULE:NAME, with its routes and the limits that it was set up with.

The module is imported from the current folder, as by `uvicorn main:app`. No server is started.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.cli.command_parser import Misuse
from headgate.engines.memory.engine import MemoryEngine

if TYPE_CHECKING:
    from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
    from headgate.integrations.unreachable_limits import RouteInfo

_target = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)(\(\))?")

# Where each framework's limits are set up: with PROXIES for the addresses of proxies.
_PROXY_SETTINGS = {
    "fastapi": "rate_limits(app, ..., trusted_proxies=[PROXIES])",
    "aiohttp": "rate_limits(app, ..., trusted_proxies=[PROXIES])",
    "flask": "RateLimiter(app, ..., trusted_proxies=[PROXIES])",
    "django": 'HEADGATE = {..., "trusted_proxies": [PROXIES]}',
}
_SET_UP = {
    "fastapi": 'rate_limits(app, "rules.yaml", "redis://localhost:6379/0")',
    "aiohttp": 'rate_limits(app, "rules.yaml", "redis://localhost:6379/0")',
    "flask": 'RateLimiter(app, rules="rules.yaml", engine="redis://localhost:6379/0")',
    "django": 'HEADGATE = {"rules": "rules.yaml", "engine": "redis://localhost:6379/0"}',
}


class ApplicationInfo(NamedTuple):
    """An application: its framework, its routes, and its limits if it has any."""

    name: str
    framework: str
    routes: Sequence[RouteInfo]
    limits: RequestLimits | AsyncRequestLimits | None

    @property
    def engine_url(self) -> str:
        """The URL of its engine; empty if it has none, or was given an engine instead."""
        engine = None if self.limits is None else self.limits.engine_or_url
        if isinstance(engine, MemoryEngine):
            return "memory://"
        return engine if isinstance(engine, str) else ""

    @property
    def proxy_setting(self) -> str:
        """The line that names its proxies, with PROXIES in their place."""
        return _PROXY_SETTINGS[self.framework]

    @property
    def set_up_line(self) -> str:
        """The line that sets limits up."""
        return _SET_UP[self.framework]


def add_application_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--app",
        metavar="MODULE:NAME",
        help="the application of FastAPI, Flask, Django or aiohttp, such as main:app",
    )


def read_application(text: str) -> ApplicationInfo:
    """Imports an application; raises Misuse if there is none."""
    match = _target.fullmatch(text)
    if match is None:
        raise Misuse(f'"{text}" does not name an application. Write MODULE:NAME, such as main:app.')
    app = _import(match[1], match[2])
    if match[3]:
        app = _run(app, text)
    modules = {each.__module__.partition(".")[0] for each in type(app).__mro__}
    for framework, read in _READERS.items():
        if framework in modules:
            return ApplicationInfo(text, framework, *read(app))
    raise Misuse(
        f"{text} is a {type(app).__name__}, and not an application of FastAPI, Flask, Django or aiohttp. "
        "Name the application itself, before other middleware is put around it."
    )


def _import(module: str, name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module raises
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            raise Misuse(f"There is no module {error.name} in {os.getcwd()}.") from error
        raise Misuse(f"{module} cannot be imported: {type(error).__name__}: {error}.") from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise Misuse(f'"{part}" is not in {module}. Name the application, such as {module}:app.')
        value = getattr(value, part)
    return value


def _run(factory: Any, text: str) -> Any:
    try:
        return factory()
    except (Exception, SystemExit) as error:  # whatever the factory raises
        raise Misuse(f"{text} makes no application: {type(error).__name__}: {error}.") from error


_Read = tuple[Sequence["RouteInfo"], "RequestLimits | AsyncRequestLimits | None"]


def _read_fastapi(app: Any) -> _Read:
    from headgate.integrations.fastapi import find_routes

    return find_routes(app), getattr(app.state, "headgate", None)


def _read_flask(app: Any) -> _Read:
    from headgate.integrations.flask_routes import find_routes

    installed = app.extensions.get("headgate")
    return find_routes(app, ()), None if installed is None else installed.limits


def _read_aiohttp(app: Any) -> _Read:
    from headgate.integrations.aiohttp import find_routes, installed_limits

    return find_routes(app), installed_limits(app)


def _read_django(_app: Any) -> _Read:
    from headgate.integrations.django.project_limits import application_limits, is_installed

    limits = application_limits()
    return limits.routes(), limits.sync if is_installed() else None


_READERS = {"fastapi": _read_fastapi, "flask": _read_flask, "aiohttp": _read_aiohttp, "django": _read_django}
