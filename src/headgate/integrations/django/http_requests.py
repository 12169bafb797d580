"""Describes Django's requests, routes and addresses in headgate's words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any
from urllib.parse import quote

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.urls import URLPattern, URLResolver
from django.urls.resolvers import LocalePrefixPattern

from headgate.integrations.request_parts import RequestParts

_converter = re.compile(r"<(?:([^>:]+):)?([^>]+)>")
_group_start = re.compile(r"\((?:\?P<(\w+)>)?(\?:)?")
_LANGUAGE = "{language}/"


def in_event_loop() -> bool:
    """Returns whether this thread runs an event loop: nothing may block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def call_anywhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function as one that sync and async code may call: it never blocks an event loop."""
    if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004

        @wraps(function)
        def call_coroutine(*args: Any) -> Any:
            return function(*args) if in_event_loop() else async_to_sync(function)(*args)

        return call_coroutine

    @wraps(function)
    def call_function(*args: Any) -> Any:
        return sync_to_async(function)(*args) if in_event_loop() else function(*args)

    return call_function


def http_request(request: Any) -> HttpRequest:
    """Returns Django's request of a request; REST framework's has it inside."""
    return getattr(request, "_request", request)  # type: ignore[no-any-return]


def request_parts(request: HttpRequest) -> RequestParts:
    """Describes a request; its route is known only when the view is."""
    meta = request.META
    return RequestParts(
        request.method or "GET",
        quote(request.path, safe="/%:@!$&'()*+,;=~-._", errors="surrogatepass"),
        meta.get("QUERY_STRING", ""),
        list(request.headers.items()),
        meta.get("REMOTE_ADDR") or None,
        request,
    )


def authenticated_user(request: Any) -> Any:
    """Returns the primary key of the user who is logged in, or None; a coroutine of it in async code."""
    if in_event_loop() and hasattr(request, "auser"):
        return _authenticated_auser(request)
    return _key_of(getattr(request, "user", None))


async def _authenticated_auser(request: Any) -> Any:
    return _key_of(await request.auser())


def _key_of(user: Any) -> Any:
    return user.pk if user is not None and user.is_authenticated else None


def route_template(route: str) -> str:
    """Returns the route of a ResolverMatch as a template.

    >>> route_template("items/<int:pk>/"), route_template(r"^files/(?P<name>.+)/raw$")
    ('/items/{pk}/', '/files/{name...}/raw')
    """
    if "(" in route or route.startswith("^") or "\\" in route:
        route = _plain_regex(route)
    else:
        route = _converter.sub(lambda match: f"{{{match[2]}{'...' if match[1] == 'path' else ''}}}", route)
    return "/" + route.lstrip("/")


def _plain_regex(regex: str) -> str:
    """Replaces the groups of a regular expression by parameters, and drops its anchors."""
    text, start = "", 0
    while match := _group_start.search(regex, start):
        end = _group_end(regex, match.start())
        inside = regex[match.end() : end]
        depth = "..." if re.search(r"(?<!\\)\.[*+]|\^/\]|/", inside.replace("[^/]", "")) else ""
        text += regex[start : match.start()] + f"{{{match[1] or 'argument'}{depth}}}"
        start = end + 1
    text += regex[start:]
    text = re.sub(r"\\[AZzb]|[\^$]|(?<=/)\?", "", text)
    return re.sub(r"\\(.)", r"\1", text)


def _group_end(regex: str, start: int) -> int:
    depth = 0
    for index in range(start, len(regex)):
        if regex[index] in "()" and regex[index - 1 : index] != "\\":
            depth += 1 if regex[index] == "(" else -1
            if depth == 0:
                return index
    return len(regex)


def walk_routes(
    patterns: Sequence[URLPattern | URLResolver], prefix: str = ""
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yields the template and the view of every route, those of included URLconfs as well."""
    for each in patterns:
        text = _LANGUAGE if isinstance(each.pattern, LocalePrefixPattern) else str(each.pattern)
        if isinstance(each, URLResolver):
            yield from walk_routes(each.url_patterns, prefix + text)
        elif each.callback is not None:
            yield route_template(prefix + text), each.callback
