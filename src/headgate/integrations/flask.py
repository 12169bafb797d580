"""Limits a Flask application: per application, blueprint and view.

    app = Flask(__name__)
    RateLimiter(app, engine="redis://localhost:6379/0", default_limits=[limit("60/minute")])

    @app.get("/items")
    @limit("5/s", key="address")
    def items() -> list[str]: ...

    limit("100/hour", key=lambda request: current_user.get_id())(api)      # every route of a blueprint
    exempt(health)

A limit decorates a view, sync or async, a class of views or a method of one, or a blueprint. Functions (user,
attributes, key, cost, exempt) receive the flask.Request, and run inside its context. A function that decides about
refunds receives the flask.Response. Views read the RequestRecord at g.headgate.

The rulebook, the limits of the whole application and those of the route are one atomic decision, made in a
before_request function: those that were registered before init_app have run. A refusal is raised as
RateLimitExceeded, so that errorhandler(429) may answer in its own way. The header fields are added outside of the
application, so that every response to a request that a limit decided has them. A view below a decorator that hides
it (without functools.wraps) is decided when it is called.

Every setting may come from app.config instead: HEADGATE_ENGINE, HEADGATE_RULES, HEADGATE_TRUSTED_PROXIES. The
configuration wins. HEADGATE_ENABLED = False switches all limits off; it is read on each request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack, cast

from headgate.enforcement.open_rulebook import Rules
from headgate.enforcement.rule_decision import RuleDecision
from headgate.engines.port import Engine
from headgate.errors import InvalidRule, InvalidSetting
from headgate.extras import require
from headgate.integrations.application_settings import check_settings, read_limits
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.flask_routes import (
    find_routes,
    is_automatic_options,
    is_exempt,
    limits_of,
    mark_exempt,
    mark_limited,
    mark_wrapped,
    marked_limits,
    template_of,
)
from headgate.integrations.request_limits import LimitSettings, RequestLimits
from headgate.integrations.request_parts import EMPTY
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unknown_settings import reject_unknown
from headgate.integrations.wsgi import RECORD, WSGIRecordMiddleware, WSGIResponseStart, request_parts

require("headgate.integrations.flask", "flask", "flask")

from flask import Blueprint, Flask, Request, Response, current_app, g, has_request_context, request  # noqa: E402
from werkzeug.exceptions import HTTPException, ServiceUnavailable, TooManyRequests  # noqa: E402

from headgate.integrations.flask_commands import commands  # noqa: E402

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment
    from werkzeug.routing import Rule

__all__ = ["exempt", "limit", "RateLimiter", "RateLimitExceeded"]

T = TypeVar("T", bound=Callable[..., Any] | Blueprint)

_EXTENSION = "headgate"
_CONFIG, _ENABLED = "HEADGATE_", "HEADGATE_ENABLED"
_RESPONSE = "headgate.response"  # its name in the environ


class FlaskSettings(LimitSettings, total=False):
    """The settings of an application's limits, and default_limits: those of every route that has none."""

    default_limits: Sequence[CodeLimit | str]


class RateLimitExceeded(TooManyRequests):
    """Raised by a limit that refuses with 429. A handler of this class, or of 429, may answer in its own way.

    decision   the decision that refused: which rule, how long to wait
    record     the record of the request; its fields are added to whatever the handler returns
    """

    def __init__(self, record: RequestRecord, decision: RuleDecision, response: Response) -> None:
        super().__init__(str(decision), response)
        self.record: RequestRecord = record
        self.decision: RuleDecision = decision


class FlaskLimit(CodeLimit):
    """A limit in code, which decorates views, classes of views and blueprints. CodeLimit has the arguments."""

    def __call__(self, target: T) -> T:
        if isinstance(target, Blueprint) or inspect.isclass(target):
            mark_limited(target, self)
            return target
        if not callable(target):
            raise InvalidRule(f"{self.location}: A limit decorates a view or a blueprint, not {target!r}.")
        wrapper = _decide_when_called(target)
        mark_limited(wrapper, self)
        mark_wrapped(target, self, wrapper)
        return cast(T, wrapper)


limit = FlaskLimit


def exempt(target: T) -> T:
    """Exempts a view, a class of views or a blueprint from all limits, also from those of the rulebook."""
    mark_exempt(target)
    return target


class RateLimiter:
    """The extension: limits applications by a rulebook, by limits in code, or both.

    rules      a rulebook, decided for every request
    engine     where counts are kept: memory:// (this process), redis://host:port/db, or an engine
    """

    def __init__(
        self,
        app: Flask | None = None,
        rules: Rules | None = None,
        engine: str | Engine = "memory://",
        **settings: Unpack[FlaskSettings],
    ) -> None:
        self._settings: dict[str, Any] = {"rules": rules, "engine": engine, **settings}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> RequestLimits:
        """Limits an application. Its routes may be added before or after."""
        if not isinstance(app, Flask):
            raise InvalidSetting(f"RateLimiter(app) limits a Flask application, not {app!r}.")
        if _EXTENSION in app.extensions:
            raise InvalidSetting("The application has limits already: an application has one RateLimiter.")
        settings = {**self._settings, **_read_config(app.config)}
        _is_enabled(app.config)  # a wrong value is found now
        reject_unknown(settings, ("rules", "engine", *FlaskSettings.__optional_keys__))
        check_settings(settings)
        default_limits = read_limits("default_limits", settings.pop("default_limits", ()), FlaskLimit)
        exempt_paths = settings["exempt"] = tuple(settings.get("exempt", ()))
        limits = RequestLimits(**settings)
        app_limits = FlaskAppLimits(app, limits, default_limits, exempt_paths)
        app.extensions[_EXTENSION] = app_limits
        app.wsgi_app = WSGIRecordMiddleware(  # type: ignore[method-assign]
            app.wsgi_app, limits, _find_response, _is_complete, answer_exceptions=False
        )
        app.before_request(app_limits.decide)
        app.after_request(_save_response)
        app_limits.check_each_new_route()
        app.cli.add_command(commands)
        return limits

    def check_routes(self, app: Flask) -> None:
        """Checks all limits against the routes, as the first request does: for the end of an app factory."""
        cast(FlaskAppLimits, app.extensions[_EXTENSION]).check()


class _LimitedRoute(NamedTuple):
    """A limited route. `bound` are all limits of its requests: its own and those of the application."""

    template: str
    exempt: bool
    bound: tuple[BoundLimit, ...]
    decided: frozenset[CodeLimit]


class FlaskAppLimits:
    """The limits of one application, at app.extensions["headgate"]."""

    def __init__(
        self, app: Flask, limits: RequestLimits, default_limits: Sequence[CodeLimit], exempt_paths: Sequence[str]
    ) -> None:
        self.app: Flask = app
        self.limits: RequestLimits = limits
        self.default_limits: Sequence[CodeLimit] = default_limits
        self.exempt_paths: Sequence[str] = exempt_paths
        self._routes: dict[tuple[int, str, Any], _LimitedRoute] = {}
        self._checked = False

    def check(self) -> None:
        """Raises InvalidRule for limits that can never match, and warns of rules that match no route."""
        self.limits.check_routes(find_routes(self.app, self.default_limits))
        self._checked = True

    def check_each_new_route(self) -> None:
        """Checks the limits of routes that exist, and of each new one where it is added."""
        app, add = self.app, self.app.add_url_rule

        def check(rules: Iterable[Rule]) -> None:
            self.limits.check_code_limits(
                [route for rule in rules for route in limits_of(app, rule, self.default_limits)]
            )

        @wraps(add)
        def add_and_check(
            rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **options: Any
        ) -> None:
            add(rule, endpoint, view_func, *args, **options)
            check(app.url_map.iter_rules(endpoint or view_func.__name__))

        check(app.url_map.iter_rules())
        app.add_url_rule = add_and_check  # type: ignore[method-assign]

    def decide(self) -> None:
        """Decides the request, before it reaches its view; raises an HTTPException if it is refused."""
        current: Request = request._get_current_object()  # type: ignore[attr-defined]
        record = g.headgate = _record(self.limits, current.environ)
        if not self.enabled:
            return
        if not self._checked:
            self.check()
        parts, rule = record.parts, current.url_rule
        parts.native = current
        parts.peer = current.environ.get("REMOTE_ADDR") or None  # ProxyFix may have stood in between
        bound = self.limits.app_limits
        if rule is not None:
            route = self._route(rule, current.method)
            parts.route, parts.params = route.template, current.view_args or EMPTY
            record.exempt |= route.exempt
            record.decided = route.decided
            bound = route.bound
        if self.limits.decide(record, bound) is not None:
            raise _refusal(record)

    def decide_call(self, view: Callable[..., Any]) -> None:
        """Decides the limits of a view that is called, unless that is done: no route shows them."""
        record = _record(self.limits, request.environ)
        undecided = [each for each in marked_limits(view) if each not in record.decided]
        if not undecided or not self.enabled:
            return
        record.decided = (*record.decided, *undecided)
        bound = self.limits.bind(f"{view.__module__}.{view.__qualname__}", undecided)
        if self.limits.decide(record, bound, with_rules=False) is not None:
            raise _refusal(record)

    @property
    def enabled(self) -> bool:
        """Returns whether the limits are switched on."""
        return _is_enabled(self.app.config)

    def _route(self, rule: Rule, method: str) -> _LimitedRoute:
        app = self.app
        cache_key = id(rule), method, app.view_functions.get(rule.endpoint)
        route = self._routes.get(cache_key)
        if route is None:
            automatic = method == "OPTIONS" and is_automatic_options(rule)
            shared, *route_limits = limits_of(app, rule, self.default_limits)
            applied = (
                [] if automatic else [shared, *(each for each in route_limits if _answers(each.methods, method))]
            )
            bound = [each for info in applied for each in self.limits.bind(info.name, info.limits)]
            bound = [*self.limits.app_limits, *bound]
            decided = frozenset(each.limit for each in bound)
            unique = {each.rule.name: each for each in bound}  # what has one name counts once
            exempted = is_exempt(app, rule, method)
            route = _LimitedRoute(template_of(app, rule), exempted, tuple(unique.values()), decided)
            self._routes[cache_key] = route
        return route


def _refusal(record: RequestRecord) -> HTTPException:
    """Returns the exception of a refused request. No handler replaces a status that a rule chose."""
    assert record.answer is not None
    status, headers, body = record.answer
    response = Response(body, status, dict(headers))
    if record.decision is None:
        return ServiceUnavailable("The request could not be decided.", response)
    return (
        RateLimitExceeded(record, record.decision, response) if status == 429 else HTTPException(response=response)
    )


def _answers(methods: Iterable[str], method: str) -> bool:
    return method in methods or (method == "HEAD" and "GET" in methods)


def _record(limits: RequestLimits, environ: WSGIEnvironment) -> RequestRecord:
    """Returns the record of the current request; starts it if the request did not come through the WSGI layer."""
    if RECORD not in environ:
        environ[RECORD] = limits.begin(request_parts(environ))
    return cast(RequestRecord, environ[RECORD])


def _decide_when_called(view: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the view, which decides its limits if they were not decided before; a coroutine stays one."""
    if inspect.iscoroutinefunction(view):

        @wraps(view)
        async def decide_then_await(*args: Any, **kwargs: Any) -> Any:
            _decide_current(decide_then_await)
            return await view(*args, **kwargs)

        return decide_then_await

    @wraps(view)
    def decide_then_call(*args: Any, **kwargs: Any) -> Any:
        _decide_current(decide_then_call)
        return view(*args, **kwargs)

    return decide_then_call


def _decide_current(view: Callable[..., Any]) -> None:
    if not has_request_context():
        return
    app_limits: FlaskAppLimits | None = current_app.extensions.get(_EXTENSION)
    if app_limits is None:
        location = marked_limits(view)[0].location
        raise InvalidSetting(f"{location}: The limit has no engine: write RateLimiter(app) for this app.")
    app_limits.decide_call(view)


def _save_response(response: Response) -> Response:
    request.environ[_RESPONSE] = response
    return response


def _find_response(environ: WSGIEnvironment, start: WSGIResponseStart) -> Response:
    """Returns the response of the application, or one like the server's if an exception left it without."""
    response: Response | None = environ.get(_RESPONSE)
    return Response(status=start.status, headers=start.headers) if response is None else response


def _is_complete(environ: WSGIEnvironment) -> bool:
    """Returns whether the application has made all of its response: it is no stream."""
    response: Response | None = environ.get(_RESPONSE)
    return response is not None and not response.is_streamed


def _is_enabled(config: Mapping[str, Any]) -> bool:
    enabled = config.get(_ENABLED, True)
    if not isinstance(enabled, bool):
        raise InvalidSetting(f"{_ENABLED} is True or False, not {enabled!r}.")
    return enabled


def _read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in the configuration of an application."""
    settings = ("rules", "engine", *FlaskSettings.__optional_keys__)
    found = {}
    for key, value in config.items():
        if key.startswith(_CONFIG) and key != _ENABLED:
            name = key.removeprefix(_CONFIG).lower()
            if name not in settings:
                names = [_ENABLED, *(_CONFIG + each.upper() for each in settings)]
                nearest = get_close_matches(key, names, 1, 0) or names
                raise InvalidSetting(f"{key} is not a setting of headgate. Did you mean {nearest[0]}?")
            found[name] = value
    return found
