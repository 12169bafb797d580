"""Limits a FastAPI application: per application, router and route.

    app = FastAPI()
    rate_limits(app, engine="redis://localhost:6379/0")

    @app.get("/items", dependencies=[Depends(limit("5/s", key="address"))])
    async def items() -> list[str]: ...

    @app.post("/login")
    @limit("5/minute", refund="2xx")              # the same as a decorator, below the route's
    async def login() -> str: ...

A limit is a dependency wherever FastAPI takes one: of a route, a router, an include_router, the application. It
needs no parameter in the function. All limits of a route are one atomic decision, made where the first of them
stands. Functions (user, attributes, key, cost, exempt) receive a Starlette Request, or a WebSocket.

The rulebook and the limits of the whole application are decided in a middleware inside of all others, so that a
refusal has CORS fields and a user resolver sees the session; the header fields are added outside of all others, so
that every response to a request that a limit decided has them. If a route's limit refuses, what the
middleware charged is given back.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack, cast, overload

from headgate.enforcement.open_rulebook import Rules
from headgate.engines.port import AsyncEngine
from headgate.errors import InvalidRule, InvalidSetting
from headgate.extras import require
from headgate.integrations.application_settings import read_message_limits
from headgate.integrations.argument_removal import without_argument
from headgate.integrations.asgi import App, DecisionMiddleware, RecordMiddleware, Scope, send_refusal
from headgate.integrations.code_limit import BoundLimit, CodeLimit
from headgate.integrations.openapi_refusals import TOO_MANY_REQUESTS, add_refusals
from headgate.integrations.request_limits import AsyncRequestLimits, LimitSettings
from headgate.integrations.request_parts import EMPTY
from headgate.integrations.request_record import RequestRecord
from headgate.integrations.unknown_settings import reject_unknown
from headgate.integrations.unreachable_limits import RouteInfo, route_name

require("headgate.integrations.fastapi", "fastapi", "fastapi")

import anyio.from_thread  # noqa: E402
from fastapi import Depends, FastAPI, Request, Response, WebSocket, routing  # noqa: E402
from starlette.exceptions import HTTPException  # noqa: E402
from starlette.middleware import Middleware  # noqa: E402
from starlette.requests import HTTPConnection  # noqa: E402
from starlette.routing import BaseRoute, Host, Match, Mount  # noqa: E402

__all__ = ["exempt", "limit", "rate_limits", "RequestRefused"]

F = TypeVar("F", bound=Callable[..., Any])

MAX_CACHED_ROUTES = 10_000  # a mount with parameters has another root path for each
_LIMITED, _EXEMPT = "__headgate_limited__", "__headgate_exempt__"
_INSTALLED = "headgate"
_ROUTER_HINT = 'For a router, write APIRouter(dependencies=[Depends(limit("5/s"))]).'

_parameter = re.compile(r"\{[^{}]*\}")
_typed_parameter = re.compile(r"\{([^{}:]+):([^{}]+)\}")


class RequestRefused(HTTPException):
    """Raised by a limit that refuses. A handler of this class, or of its status, may answer in its own way.

    ``record``: what was decided; its fields are added to whatever the handler returns.
    """

    def __init__(self, record: RequestRecord) -> None:
        assert record.answer is not None
        super().__init__(record.answer.status, str(record.decision or "The request could not be decided."))
        self.record: RequestRecord = record


class _Dependency:
    """Shows FastAPI the coroutine function of a limit, whose parameters it fills in."""

    def __get__(self, instance: limit | None, owner: type[limit]) -> Any:
        return self if instance is None else instance._enforce

    @property
    def __signature__(self) -> Any:
        raise InvalidRule('A limit lacks its text: write Depends(limit("5/s")).')  # the class is the dependency


class limit(CodeLimit):  # noqa: N801 (it is written like a function)
    """A limit in code, as a dependency and as a decorator. CodeLimit describes the arguments."""

    __wrapped__: Any = _Dependency()

    @property
    def dependency(self) -> Any:
        """Raises InvalidRule: FastAPI reads it of a limit that stands without Depends in `dependencies`."""
        raise InvalidRule(
            f'{self.location}: Write Depends around the limit: dependencies=[Depends(limit("5/s"))].'
        )

    @overload
    def __call__(self, endpoint: F) -> F: ...

    @overload
    def __call__(self, *, connection: HTTPConnection) -> Coroutine[Any, Any, None] | None: ...

    def __call__(self, endpoint: Any = None, *, connection: HTTPConnection | None = None) -> Any:
        if connection is None:
            return self._decorate(endpoint)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a FastAPI that calls it in a thread
            return anyio.from_thread.run(self._enforce, connection)
        return self._enforce(connection)

    async def _enforce(self, connection: HTTPConnection) -> None:
        """Decides all limits of the route, unless that is done."""
        scope = connection.scope
        if _INSTALLED not in scope:
            raise InvalidSetting(f"{self.location}: The limit has no engine: write rate_limits(app) for this app.")
        limits, record = cast("tuple[_RoutedLimits, RequestRecord]", scope[_INSTALLED])
        if self in record.decided or hasattr(scope.get("endpoint"), _EXEMPT):
            return
        template, code_limits, bound = _bound_limits(limits, scope, record.parts.root_path)
        if self not in code_limits:  # solved without FastAPI
            code_limits, bound = (self,), limits.bind(template, (self,))
        record.decided = (*record.decided, *code_limits)
        record.parts.native = connection
        record.parts.route, record.parts.params = template, scope.get("path_params", EMPTY)
        if await limits.decide(record, bound, with_rules=False) is not None:
            # An application that is mounted has handlers of its own, and does not know this exception.
            scope.get("starlette.exception_handlers", ({}, {}))[0].setdefault(RequestRefused, _answer)
            raise RequestRefused(record)

    def _decorate(self, endpoint: F) -> F:
        """Adds the limit to a function as a parameter that only FastAPI sees."""
        if not inspect.isroutine(endpoint):
            raise InvalidRule(f"{self.location}: A limit decorates a function, not {endpoint!r}.")
        signature = inspect.signature(endpoint)
        parameters = list(signature.parameters.values())
        name = f"headgate_limit_{sum(each.name.startswith('headgate_limit_') for each in parameters)}"
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=Depends(self))
        variable = [each for each in parameters if each.kind is inspect.Parameter.VAR_KEYWORD]
        fixed = [each for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
        wrapper = without_argument(endpoint, name)
        wrapper.__signature__ = signature.replace(parameters=[*fixed, parameter, *variable])
        vars(endpoint)[_LIMITED] = self, wrapper  # for the check at start: is the wrapper what the route calls?
        return cast(F, wrapper)


# As a class and not as text: FastAPI looks for the names of an object's annotations where there are none.
limit._enforce.__annotations__ = {"connection": HTTPConnection, "return": None}


class _RoutedLimits(AsyncRequestLimits):
    """The limits of one application, and its routes."""

    routes: Sequence[BaseRoute] = ()


def exempt(endpoint: F) -> F:
    """Exempts a route from all limits, also those of its router and of the rulebook. Write it below the route."""
    vars(endpoint)[_EXEMPT] = True
    return endpoint


def rate_limits(
    app: FastAPI,
    rules: Rules | None = None,
    engine: str | AsyncEngine = "memory://",
    *,
    messages: Sequence[CodeLimit | str] = (),
    **settings: Unpack[LimitSettings],
) -> AsyncRequestLimits:
    """Limits an application. Call it once, before the first request; LimitSettings lists the settings.

    rules      a rulebook, decided for every request
    engine     where counts are kept: memory:// (this process), redis://host:port/db, or an engine
    messages   limits of the messages of WebSockets
    """
    if not isinstance(app, FastAPI):
        raise InvalidSetting(f"rate_limits(app) limits a FastAPI application, not {app!r}. {_ROUTER_HINT}")
    if app.middleware_stack is not None:
        raise InvalidSetting("rate_limits(app) comes too late: call it before the application starts.")
    if hasattr(app.state, _INSTALLED):
        raise InvalidSetting("rate_limits(app) was called before: an application has one engine and one rulebook.")
    reject_unknown(settings, ("rules", "engine", "messages", *LimitSettings.__optional_keys__))
    message_limits = read_message_limits(messages)
    limits = app.state.headgate = _RoutedLimits(rules, engine, **settings)
    limits.routes = app.routes
    bound_messages = limits.bind("messages", message_limits)
    decides = rules is not None or bool(limits.app_limits or messages)
    if decides:
        find_route = partial(_find_route, app.routes)
        # The last is the innermost: those that the application adds later come before it.
        app.user_middleware.append(
            Middleware(
                cast(Any, DecisionMiddleware), limits=limits, messages=bound_messages, find_route=find_route
            )
        )
    build_stack = app.build_middleware_stack

    def build_stack_with_record() -> App:
        native = _native if decides else None  # a limit of a route brings its own
        return RecordMiddleware(build_stack(), limits, native, partial(_start, app, limits))

    app.build_middleware_stack = build_stack_with_record  # type: ignore[method-assign]
    app.add_exception_handler(RequestRefused, cast(Any, _answer))
    make_schema, has_rules = app.openapi, rules is not None
    app.openapi = lambda: _add_refusals(make_schema(), limits, has_rules=has_rules)  # type: ignore[method-assign]
    return limits


def _native(scope: Scope) -> HTTPConnection:
    return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)


async def _answer(connection: HTTPConnection, error: Exception) -> Response | None:
    """Answers a refused request, or denies a refused WebSocket."""
    assert isinstance(error, RequestRefused)
    record = error.record
    if isinstance(connection, WebSocket):
        await send_refusal(record, connection.scope, connection._receive, connection._send)
        return None
    assert record.answer is not None
    status, headers, body = record.answer
    return Response(body, status, dict(headers))


class _RouteLimits(NamedTuple):
    """A route as a request reaches it: with the prefixes of routers and mounts."""

    template: str
    methods: Collection[str]
    dependant: Any
    endpoint: Any
    path: str | None  # as FastAPI's own schema has it


def _walk(routes: Sequence[BaseRoute], prefix: str = "") -> Iterator[_RouteLimits]:
    """Yields all routes, also those of included routers and mounted applications."""
    for route in _contexts(routes):
        effective = getattr(route, "_effective_route", route)
        if isinstance(effective, Mount | Host):
            mounted = prefix + _template(getattr(effective, "path", ""))
            yield from _walk(effective.routes or (), mounted)
            if not effective.routes:  # an application of another kind, or files
                yield _RouteLimits(f"{mounted}/{{path...}}", (), None, None, None)
        elif getattr(effective, "path", None) is not None:
            yield _RouteLimits(
                prefix + _template(effective.path),
                getattr(effective, "methods", None) or (),
                getattr(effective, "dependant", None),
                getattr(effective, "endpoint", None),
                None if prefix else getattr(effective, "path_format", None),
            )


def _contexts(routes: Sequence[BaseRoute]) -> Iterator[Any]:
    """Yields routes with the prefixes and dependencies of included routers, where FastAPI keeps them apart."""
    iterate = getattr(routing, "iter_route_contexts", iter)
    return cast(Iterator[Any], iterate(routes))


def _route_of(routes: Sequence[BaseRoute], scope: Scope, root_path: str) -> _RouteLimits:
    """Returns the route of a request that was routed, from the application that has this root path."""
    context = (scope.get("fastapi") or {}).get("effective_route_context")
    route = scope["route"] if context is None else context
    mounted = scope.get("root_path", "")[len(root_path) :] if "app_root_path" in scope else ""
    template = _mount_template(routes, mounted) + _template(getattr(route, "path", ""))
    methods = getattr(route, "methods", None) or ()
    return _RouteLimits(template, methods, getattr(route, "dependant", None), scope.get("endpoint"), None)


def _mount_template(routes: Sequence[BaseRoute], mounted: str) -> str:
    """Returns a path that led through mounts as their template: /tenants/acme is /tenants/{tenant}."""
    for route in _contexts(routes) if mounted else ():
        mount = getattr(route, "_effective_route", route)
        match = mount.path_regex.match(f"{mounted}/") if isinstance(mount, Mount) else None
        if match is not None:
            return _template(mount.path) + _mount_template(mount.routes or (), f"/{match['path']}".rstrip("/"))
    return mounted


def _bound_limits(
    limits: _RoutedLimits, scope: Scope, root_path: str
) -> tuple[str, tuple[limit, ...], tuple[BoundLimit, ...]]:
    """Returns the template and the limits of the route of a request; cached, unless limits are overridden."""
    overridden: Mapping[Any, Any] = getattr(scope.get("app"), "dependency_overrides", EMPTY)
    context = (scope.get("fastapi") or EMPTY).get("effective_route_context")
    cache_key = id(scope.get("route")), id(context), scope.get("root_path")
    cached = limits.bound_routes.get(cache_key)
    if cached is not None and not overridden:
        return cast("tuple[str, tuple[limit, ...], tuple[BoundLimit, ...]]", cached[0])
    route = _route_of(limits.routes, scope, root_path)
    code_limits = _limits_of(route.dependant, overridden)
    found = route.template, code_limits, limits.bind(route_name(route.methods, route.template), code_limits)
    if not overridden and len(limits.bound_routes) < MAX_CACHED_ROUTES:
        limits.bound_routes[cache_key] = found, scope.get("route"), context  # the objects keep their ids
    return found


def _find_route(
    routes: Sequence[BaseRoute], scope: Scope, prefix: str = ""
) -> tuple[str | None, Mapping[str, Any]]:
    """Returns the template and parameters of the route that a request will reach."""
    for route in _contexts(routes):
        match, child_scope = route.matches(scope)
        if match is Match.FULL:
            effective = getattr(route, "_effective_route", route)
            template = prefix + _template(getattr(effective, "path", ""))
            if isinstance(effective, Mount | Host):
                return _find_route(effective.routes or (), {**scope, **child_scope}, template)
            return template, child_scope.get("path_params", EMPTY)
    return None, scope.get("path_params", EMPTY)


def _template(path: str) -> str:
    """Returns a path of Starlette as a template: {rest:path} is {rest...}, {id:int} is {id}."""
    return _typed_parameter.sub(lambda match: f"{{{match[1]}{'...' if match[2] == 'path' else ''}}}", path)


def _limits_of(dependant: Any, overridden: Mapping[Any, Any]) -> tuple[limit, ...]:
    """Returns the limits among the dependencies of a route, in the order in which they are solved."""
    found: dict[limit, None] = {}

    def visit(each: Any) -> None:
        for dependency in getattr(each, "dependencies", ()):
            if dependency.call in overridden:
                continue
            visit(dependency)
            if isinstance(dependency.call, limit):
                found[dependency.call] = None

    visit(dependant)
    return tuple(found)


def _start(app: FastAPI, limits: AsyncRequestLimits) -> list[RouteInfo]:
    """Returns all routes with their limits; exempts marked ones, and raises InvalidRule for misplaced limits."""
    routes = list(_walk(app.routes))
    endpoints = {id(route.endpoint) for route in routes}
    for route in routes:
        misplaced = getattr(route.endpoint, "__dict__", {}).get(_LIMITED)
        if misplaced is not None and id(misplaced[1]) not in endpoints:
            name = route_name(route.methods, route.template)
            raise InvalidRule(
                f"{misplaced[0].location}: The limit {misplaced[0].text} of {name} can never match: it is written "
                "above the decorator of the route, which does not see it. Write it below."
            )
        if hasattr(route.endpoint, _EXEMPT):
            limits.exempt_path(_parameter.sub(lambda match: "**" if "..." in match[0] else "*", route.template))
    return find_routes(app)


def find_routes(app: FastAPI) -> list[RouteInfo]:
    """Returns all routes of an application with their limits."""
    return [RouteInfo(each.template, each.methods, _limits_of(each.dependant, {})) for each in _walk(app.routes)]


def _add_refusals(schema: dict[str, Any], limits: _RoutedLimits, *, has_rules: bool) -> dict[str, Any]:
    """Adds refusals to the operations that have a limit: the 429, or the status that a limit in code sets."""
    of_all = {bound.rule.refuse.status for bound in limits.app_limits} | (
        {TOO_MANY_REQUESTS} if has_rules else set()
    )
    for route in _walk(limits.routes):
        if not (hasattr(route.endpoint, _EXEMPT) or limits.exempts_template(route.template)):
            statuses = {each.rule.refuse.status for each in _limits_of(route.dependant, {})}
            add_refusals(schema, route.path, route.methods, statuses | of_all)
    return schema
