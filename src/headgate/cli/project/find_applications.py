"""Finds applications of web frameworks, settings of Django, and Celery, in a project's Python files."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from headgate.cli.project.application import FoundApplication, Place, PythonFindings
from headgate.cli.project.files import read_text
from headgate.cli.project.find_routes import find_routes
from headgate.cli.project.python_names import full_name, imported_names, texts

_FRAMEWORKS = {
    "fastapi.FastAPI": "FastAPI",
    "flask.Flask": "Flask",
    "aiohttp.web.Application": "aiohttp",
    "starlette.applications.Starlette": "Starlette",
    "quart.Quart": "Quart",
    "litestar.Litestar": "Litestar",
    "falcon.App": "WSGI",
    "falcon.asgi.App": "ASGI",
    "bottle.Bottle": "WSGI",
    "celery.Celery": "Celery",
}
_ASGI_ARGUMENTS = ("scope", "receive", "send")
_WSGI_ARGUMENTS = ("environ", "start_response")
_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
_redis_url = re.compile(r"(rediss?|valkeys?)://[^\s\"']+")


def read_python_files(folder: Path, paths: Sequence[Path]) -> PythonFindings:
    """Parses every file, and collects applications, routes and URLs of Redis."""
    findings = PythonFindings()
    for path in paths:
        file = path.relative_to(folder).as_posix()
        source = read_text(path)
        try:
            with warnings.catch_warnings(action="ignore"):  # of invalid escapes in the project's texts
                tree = None if source is None else ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            tree = None
        if tree is None:
            findings.unreadable.append(file)
            continue
        names = imported_names(tree)
        applications = list(_applications(tree, names, file))
        findings.applications += applications
        findings.routes += find_routes(tree, names, file, {each.target for each in applications})
        findings.redis_urls += [
            (Place(file, node.lineno), node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _redis_url.fullmatch(node.value)
        ]
    return findings


def _applications(tree: ast.Module, names: dict[str, str], file: str) -> Iterator[FoundApplication]:
    limited = any(origin.partition(".")[0] == "headgate" for origin in names.values())
    yield from _constructed(tree, names, file, limited=limited)
    django = _django_settings(tree, file)
    if django is not None:
        yield django
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = tuple(each.arg for each in node.args.args)
            is_async = isinstance(node, ast.AsyncFunctionDef)
            if arguments == (_ASGI_ARGUMENTS if is_async else _WSGI_ARGUMENTS):
                kind, place = "ASGI" if is_async else "WSGI", Place(file, node.lineno)
                yield FoundApplication(kind, place, node.name, node.end_lineno or node.lineno, 0, False, limited)


def _constructed(
    tree: ast.Module, names: dict[str, str], file: str, *, limited: bool
) -> Iterator[FoundApplication]:
    """Yields what is made by a call, such as `app = FastAPI()`; also where the call is given no name."""
    assigned: dict[int, tuple[ast.stmt, str]] = {}
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            to = node.targets[0] if isinstance(node, ast.Assign) else node.target
            assigned[id(node.value)] = node, ast.unparse(to)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= {id(each) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (framework := _FRAMEWORKS.get(full_name(node.func, names))) is None:
            continue
        statement, target = assigned.get(id(node), (None, ""))
        if statement is None:
            yield FoundApplication(framework, Place(file, node.lineno), limited=limited)
            continue
        end = statement.end_lineno or statement.lineno
        place, in_function = Place(file, statement.lineno), id(node) in inside
        yield FoundApplication(framework, place, target, end, statement.col_offset, in_function, limited)


def assigned_lists(tree: ast.Module) -> dict[str, ast.List | ast.Tuple]:
    """Returns the lists that a module assigns to names, such as MIDDLEWARE."""
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List | ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _django_settings(tree: ast.Module, file: str) -> FoundApplication | None:
    lists = assigned_lists(tree)
    if "MIDDLEWARE" not in lists or "INSTALLED_APPS" not in lists:
        return None
    middleware = texts(lists["MIDDLEWARE"])
    return FoundApplication(
        "Django",
        Place(file, lists["MIDDLEWARE"].lineno),
        "MIDDLEWARE",
        limited=any(name.startswith("headgate.") for name in middleware),
        authenticates_users=_AUTHENTICATION in middleware,
    )
