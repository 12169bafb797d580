"""Finds the routes that a Python file adds, and sorts out those that deserve a rule of their own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence, Set

from headgate.cli.project.application import Place, Route
from headgate.cli.project.python_names import full_name, keyword, text, texts

LOGIN = "login"
ACCOUNT = "account"
HEALTH = "health"
_KINDS = {
    LOGIN: "login signin logon auth authenticate token obtaintoken authtoken otp totp 2fa mfa twofactor "
    "verifycode",
    ACCOUNT: "register signup registration forgotpassword resetpassword passwordreset passwordforgot "
    "resendverification",
    HEALTH: "health healthz healthcheck live livez ready readyz readiness liveness ping metrics",
}
_WORDS = {word: kind for kind, words in _KINDS.items() for word in words.split()}
_METHODS = ("get", "post", "put", "patch", "delete")
_READING = {"GET", "HEAD", "OPTIONS"}
_ROUTERS = {"fastapi.APIRouter": "prefix", "flask.Blueprint": "url_prefix", "quart.Blueprint": "url_prefix"}
_parameter = re.compile(r"<[^<>]*>|\{[^{}]*\}")

# Routes about passwords that these included modules of Django add.
_DJANGO_INCLUDES = {
    "django.contrib.auth.urls": ("login/", "password_reset/"),
    "admin.site.urls": ("login/",),
}


def kind_of(route: Route) -> str | None:
    """Returns LOGIN, ACCOUNT or HEALTH by the route's last words; None for any other route."""
    words = [part for part in route.path.split("/") if part and "*" not in part]
    kind = _WORDS.get(re.sub(r"[-_.]", "", words[-1]).lower()) if words else None
    if kind in (LOGIN, ACCOUNT) and route.methods and _READING.issuperset(route.methods):
        return None  # a form, or a redirect to somebody else's
    return kind


def find_routes(tree: ast.Module, names: dict[str, str], file: str, applications: Set[str]) -> list[Route]:
    """Finds routes by decorators and calls.

    A route of the application itself has a whole path. That of a router, or of Django's urls, may be included
    below another one, so its pattern begins with any segments: /**/login.
    """
    prefixes = dict.fromkeys(applications, "")
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            option = _ROUTERS.get(full_name(node.value.func, names))
            if option is not None:
                prefixes[ast.unparse(node.targets[0])] = "/**" + (text(keyword(node.value, option)) or "")
    return [
        Route(Place(file, line), _pattern(prefixes.get(owner, "/**"), path), methods)
        for line, owner, path, methods in (*_decorated(tree), *_called(tree, names))
    ]


_Found = tuple[int, str, str, tuple[str, ...]]


def _decorated(tree: ast.Module) -> Iterator[_Found]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for call in node.decorator_list:
            if isinstance(call, ast.Call) and (path := _first_text(call)) is not None:
                owner, _, name = ast.unparse(call.func).rpartition(".")
                if name in _METHODS:
                    yield call.lineno, owner, path, (name.upper(),)
                elif name in ("route", "api_route"):
                    yield call.lineno, owner, path, _declared(call) or ("GET",)


def _called(tree: ast.Module, names: dict[str, str]) -> Iterator[_Found]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or (path := _first_text(call)) is None:
            continue
        owner, _, name = ast.unparse(call.func).rpartition(".")
        if full_name(call.func, names) == "django.urls.path":
            yield from ((call.lineno, "", path + end, ()) for end in _included(call))
        elif name == "Route" or name in ("add_url_rule", "add_api_route"):
            yield call.lineno, owner, path, _declared(call)
        elif name.startswith("add_") and name[4:] in _METHODS:
            yield call.lineno, "", path, (name[4:].upper(),)
        elif full_name(call.func, names) in {f"aiohttp.web.{method}" for method in _METHODS}:
            yield call.lineno, "", path, (name.upper(),)


def _first_text(call: ast.Call) -> str | None:
    return text(call.args[0]) if call.args else text(keyword(call, "path", "rule"))


def _declared(call: ast.Call) -> tuple[str, ...]:
    return tuple(method.upper() for method in texts(keyword(call, "methods")))


def _included(call: ast.Call) -> Sequence[str]:
    """Returns the ends of a Django path: several if it includes a module of Django itself."""
    view = call.args[1] if len(call.args) > 1 else None
    if isinstance(view, ast.Call) and ast.unparse(view.func) == "include" and view.args:
        return _DJANGO_INCLUDES.get(text(view.args[0]) or "", ())
    return _DJANGO_INCLUDES.get("" if view is None else ast.unparse(view), ("",))


def _pattern(prefix: str, path: str) -> str:
    """Returns the pattern of a rulebook, in which parameters are `*`."""
    whole = f"{prefix}/{path}" if path and not path.startswith("/") else prefix + path
    return "/" + "/".join(_parameter.sub("*", part) for part in whole.split("/") if part)
