"""Sets up the limits of a project from its setting HEADGATE.

    engine            where counts are kept: memory:// (this process), redis://host:port/db
    rules             a rulebook, decided for every request: a path, a mapping, a Rulebook
    limits            limits of all requests, counted together: texts, or mappings of the arguments of limit
    user              a function that names the user of a request; the primary key of request.user unless set
    attributes        a function that returns other attributes: {"plan": "pro"}
    refusal           a function of request and record that answers refusals, in place of 429 and a body by Accept
    exempt            path patterns that are not limited: ["/health", "/static/**"]
    trusted_proxies   networks whose X-Forwarded-For names the client
    forwarded_field   the field that they write: "x-forwarded-for" or "forwarded"
    headers           the format of the header fields
    strict            whether a rule that matches no route is an error
    enabled           False switches all limits off
    observers         receive every decision and the status of its response: objects, or dotted paths of functions
                      that return one
    clock, prefix     as of a limiter

Functions may be dotted paths. Sync and async code decide on the same counts: in memory by one engine, on a server
by one connection each. A changed setting (override_settings) starts anew.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from threading import Lock
from typing import Any, get_args

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.urls import get_resolver
from django.utils.module_loading import import_string

from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.url import open_engine
from headgate.errors import HeadgateError, InvalidRule, InvalidSetting
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.django.http_requests import authenticated_user, call_anywhere, walk_routes
from headgate.integrations.django.view_marks import limits_of_handlers, limits_of_view
from headgate.integrations.request_limits import AsyncRequestLimits, RequestLimits
from headgate.integrations.unreachable_limits import RouteInfo
from headgate.rules.rule import Headers

SETTING = "HEADGATE"
MIDDLEWARE = "headgate.integrations.django.HeadgateMiddleware"
AUTHENTICATION = "AuthenticationMiddleware"
SETTING_NAMES = (
    *("engine", "rules", "limits", "user", "attributes", "refusal", "exempt", "trusted_proxies"),
    *("forwarded_field", "headers", "strict", "enabled", "observers", "clock", "prefix"),
)
_FUNCTIONS = ("user", "attributes", "refusal")
_MEMORY = "memory:"
_SUPPLY_HINTS = {
    "user": "write django.contrib.auth.middleware.AuthenticationMiddleware into MIDDLEWARE, "
    f'or set {SETTING}["user"], a function of the request',
    "attributes": f'set {SETTING}["attributes"], a function of the request that returns it',
}


class ApplicationLimits:
    """The limits of a project, for sync and async code; `templates`: the first route of each view."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        values = _checked(values)
        self.enabled: bool = values.pop("enabled", True)
        self.refusal: Callable[..., Any] | None = values.pop("refusal", None)
        rules, engine = values.pop("rules", None), values.pop("engine", "memory://")
        self.in_memory: bool = engine.startswith(_MEMORY)
        if "user" not in values and any(AUTHENTICATION in each for each in settings.MIDDLEWARE):
            values["user"] = authenticated_user
        values["limits"] = [_project_limit(index, each) for index, each in enumerate(values.get("limits", ()))]
        self.decides_all: bool = rules is not None or bool(values["limits"])
        async_engine: Any = engine
        if self.in_memory:
            engine = open_engine(engine, clock=values.get("clock"))
            async_engine = AsyncMemoryEngine(engine)
        self.sync: RequestLimits = RequestLimits(rules, engine, **values)
        self.asynchronous: AsyncRequestLimits = AsyncRequestLimits(rules, async_engine, **values)
        self.sync.supply_hints = self.asynchronous.supply_hints = _SUPPLY_HINTS
        self.templates: dict[int, str] = {}

    def routes(self) -> list[RouteInfo]:
        """Returns all routes with their limits, and notes the template of each view."""
        routes = []
        for template, view in walk_routes(get_resolver().url_patterns):
            first = self.templates.setdefault(id(view), template)
            routes.append(RouteInfo(template, (), limits_of_view(view) if first == template else ()))
            routes += [RouteInfo(first, [method], limits) for method, limits in limits_of_handlers(view)]
        return routes

    def close(self) -> None:
        """Closes the engine of sync code. (That of async code ends with its event loop.)"""
        self.sync.close()


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values, with functions in place of dotted paths; raises InvalidSetting for mistakes."""
    if not isinstance(values, Mapping):
        raise InvalidSetting(f'{SETTING} is a mapping such as {{"engine": "memory://"}}, not {values!r}.')
    for name in values:
        if name not in SETTING_NAMES:
            similar = get_close_matches(str(name).lower(), SETTING_NAMES, 1, 0.6)
            hint = f'Did you mean "{similar[0]}"?' if similar else f"Known: {', '.join(SETTING_NAMES)}."
            raise InvalidSetting(f'{SETTING} has no setting "{name}". {hint}')
    checked = dict(values)
    for name in _FUNCTIONS:
        if checked.get(name) is not None:
            checked[name] = call_anywhere(_function(name, checked[name]))
    if not isinstance(checked.get("engine", ""), str):
        raise InvalidSetting(f'{SETTING}["engine"] is a URL, such as redis://localhost:6379/0.')
    for name in ("enabled", "strict"):
        if not isinstance(checked.get(name, True), bool):
            raise InvalidSetting(f'{SETTING}["{name}"] is True or False, not {checked[name]!r}.')
    for name in ("limits", "exempt", "trusted_proxies", "observers"):
        if not isinstance(checked.get(name, ()), Sequence | set | frozenset) or isinstance(checked.get(name), str):
            raise InvalidSetting(f'{SETTING}["{name}"] is a list, not {checked[name]!r}.')
    if "observers" in checked:
        checked["observers"] = [
            _function("observers", each)() if isinstance(each, str) else each for each in checked["observers"]
        ]
    formats = get_args(Headers)
    if checked.get("headers") not in (None, *formats):
        raise InvalidSetting(f'{SETTING}["headers"] is one of {", ".join(formats)}, not {checked["headers"]!r}.')
    return checked


def _function(name: str, value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = import_string(value)
        except ImportError as error:
            raise InvalidSetting(f'{SETTING}["{name}"]: {error}.') from None
    if not callable(value):
        raise InvalidSetting(f'{SETTING}["{name}"] is a function or its dotted path, not {value!r}.')
    return value


def _project_limit(index: int, value: Any) -> CodeLimit:
    """Makes one of the limits of all requests from a text, a mapping or a limit."""
    if isinstance(value, CodeLimit):
        return value
    location = f'{SETTING}["limits"][{index}]'
    fields = dict(value) if isinstance(value, Mapping) else {"limit": value}
    for name in ("key", "cost", "exempt", "refund", "cost_after"):
        if callable(fields.get(name)):
            fields[name] = call_anywhere(fields[name])
    try:
        made = CodeLimit(**fields)
    except InvalidRule as error:
        raise InvalidRule(f"{location}: {str(error).partition(': ')[2]}") from None
    except TypeError as error:  # an argument is missing, or unknown
        form = '"5/s" or {"limit": "5/s", "key": "address"}'
        raise InvalidRule(f"{location} is {form}, not {value!r}: {error}.") from None
    made.location = location
    return made


_lock = Lock()
_current: list[ApplicationLimits] = []


def application_limits() -> ApplicationLimits:
    """Returns the limits of the project; raises ImproperlyConfigured if HEADGATE has a mistake."""
    if not _current:
        with _lock:
            if not _current:
                try:
                    _current.append(ApplicationLimits(getattr(settings, SETTING, {})))
                except HeadgateError as error:
                    raise ImproperlyConfigured(str(error)) from error
    return _current[0]


def is_installed() -> bool:
    """Returns whether the project uses our middleware."""
    return any("headgate" in each for each in settings.MIDDLEWARE)


def start_anew(setting: str | Iterable[str] = SETTING, **_: Any) -> None:
    """Forgets the limits and their counts in memory; the next request sets them up again."""
    if setting in (SETTING, "MIDDLEWARE", "ROOT_URLCONF"):
        with _lock:
            while _current:
                _current.pop().close()


setting_changed.connect(start_anew)
atexit.register(start_anew)
