"""Writes the lines that an application needs, as a unified diff. No file is changed.

FastAPI, Flask, aiohttp, Starlette and Celery are limited right behind the statement that makes them; Quart,
Litestar and plain ASGI and WSGI applications are wrapped; Django needs three settings.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from io import StringIO
from typing import NamedTuple

from headgate.cli.project.application import FoundApplication
from headgate.cli.project.find_applications import assigned_lists
from headgate.cli.project.find_services import NginxFile, RedisAddress

_PRIVATE_NETWORKS = '["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]'
_LOOPBACK = '["127.0.0.1", "::1"]'
_DJANGO_APP = '"headgate.integrations.django"'
_DJANGO_MIDDLEWARE = '"headgate.integrations.django.HeadgateMiddleware"'
_lone_newline = re.compile(r"(?<!\r)\n")
_password = re.compile(r"\w+://[^\s/@'\"]*:[^\s/@'\"]+@")
_LOCAL_REDIS = '"redis://localhost:6379/0"'
EXTRAS = {"FastAPI": "fastapi", "Flask": "flask", "Django": "django", "aiohttp": "aiohttp", "Celery": "celery"}


class Wiring(NamedTuple):
    """The values that all lines share: the rulebook's name, Redis, nginx in front, and whether the rules are of
    tasks."""

    rulebook: str
    redis: RedisAddress | None
    nginx: NginxFile | None
    of_tasks: bool = False

    @property
    def engine(self) -> str | None:
        """The expression for the engine's URL, or None: count in memory."""
        if self.redis is None:
            return None
        if self.redis.variable is None and not self.redis.has_password:
            return f'"{self.redis.url}"'
        variable = self.redis.variable or "HEADGATE_ENGINE"
        if self.redis.has_password:
            return f'os.environ["{variable}"]'
        return f'os.environ.get("{variable}", "{self.redis.url}")'

    @property
    def proxies(self) -> str | None:
        """The networks of nginx, or None if there is no nginx."""
        if self.nginx is None or self.nginx.backend is None:
            return None
        backend = self.nginx.backend
        near = any(host in backend for host in ("127.0.0.1", "localhost", "unix:", "[::1]"))
        return _LOOPBACK if near else _PRIVATE_NETWORKS

    def arguments(self) -> str:
        """The arguments after the application."""
        given = {"engine": self.engine, "trusted_proxies": self.proxies}
        return "".join(f", {name}={value}" for name, value in given.items() if value is not None)


class _Lines(NamedTuple):
    module: str
    name: str
    line: str  # with the target {app}, and the arguments {rest}, which begin with the rulebook, or those of tasks
    at_end: bool = False


_ASGI = "asgi", "RateLimitMiddleware"
_FRAMEWORKS = {
    "FastAPI": _Lines("fastapi", "rate_limits", "rate_limits({app}, {rest})"),
    "aiohttp": _Lines("aiohttp", "rate_limits", "rate_limits({app}, {rest})"),
    "Flask": _Lines("flask", "RateLimiter", "RateLimiter({app}, {rest})"),
    "Starlette": _Lines(*_ASGI, "{app}.add_middleware(RateLimitMiddleware, rules={rest})"),
    "Quart": _Lines(*_ASGI, "{app}.asgi_app = RateLimitMiddleware({app}.asgi_app, {rest})"),
    "Litestar": _Lines(*_ASGI, "{app} = RateLimitMiddleware({app}, {rest})"),
    "ASGI": _Lines(*_ASGI, "{app} = RateLimitMiddleware({app}, {rest})", at_end=True),
    "WSGI": _Lines(
        "wsgi", "WSGIRateLimitMiddleware", "{app} = WSGIRateLimitMiddleware({app}, {rest})", at_end=True
    ),
    "Celery": _Lines("celery", "rate_limits", "rate_limits({app}, {task_rules}engine={engine})"),
}


def can_be_written(application: FoundApplication) -> bool:
    """Returns whether there are lines for it: it has a name, a framework that headgate knows, and no limits."""
    if application.limited or application.framework not in (*_FRAMEWORKS, "Django"):
        return False
    wrapped = application.framework in _FRAMEWORKS and _FRAMEWORKS[application.framework].at_end
    return bool(application.target) and not (wrapped and application.in_function)


def proposed_diff(source: str, applications: Sequence[FoundApplication], wiring: Wiring, folder: str = "") -> str:
    """Returns the lines to add to one file, as a unified diff that git applies; empty if there are none.

    source   the text of the file as it is, with its line ends
    folder   in front of the file's name in the diff: services/api/
    """
    mark, text = ("\ufeff", source[1:]) if source.startswith("\ufeff") else ("", source)
    old = StringIO(text, newline="").readlines()  # as Python counts lines: not at a form feed
    changed = list(old)
    if changed and not changed[-1].endswith("\n"):
        changed[-1] += "\n"
    tree = ast.parse(text)
    additions: list[tuple[int, str]] = []  # after which line, and what
    for application in applications:
        if application.framework == "Django":
            additions += _django_lines(tree, changed, wiring)
        else:
            additions += _application_lines(tree, old, application, wiring)
    if "os.environ" in (wiring.engine or "") and not _imports_os(tree):
        additions.insert(0, (_last_import(tree, before=applications[0].place.line), "import os\n"))
    new, added_at = list(changed), {after for after, _ in additions}
    if old and not old[-1].endswith("\n") and len(old) not in added_at:
        new[-1] = new[-1].removesuffix("\n")
    for after in sorted(added_at, reverse=True):
        new[after:after] = dict.fromkeys(each for line, each in additions if line == after)
    whole = "".join(new)
    if "\r\n" in text and not _lone_newline.search(text):
        whole = _lone_newline.sub("\r\n", whole)
    file = folder + applications[0].place.file
    new = StringIO(mark + whole, newline="").readlines()
    old = StringIO(source, newline="").readlines()
    lines = difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def shows_password(diff: str) -> bool:
    """Returns whether a diff shows a line of the file that has a URL with a password."""
    return any(_password.search(line) for line in diff.splitlines() if not line.startswith("+"))


def added_lines(diff: str) -> list[str]:
    """Returns the lines that a diff adds."""
    return [line[1:].strip() for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]


def _application_lines(
    tree: ast.Module, old: Sequence[str], application: FoundApplication, wiring: Wiring
) -> list[tuple[int, str]]:
    lines = _FRAMEWORKS[application.framework]
    imported = f"from headgate.integrations.{lines.module} import {lines.name}\n"
    rest = f'"{wiring.rulebook}"{wiring.arguments()}'
    task_rules = f'"{wiring.rulebook}", ' if wiring.of_tasks else ""
    call = lines.line.format(
        app=application.target, rest=rest, task_rules=task_rules, engine=wiring.engine or _LOCAL_REDIS
    )
    after = _end(tree, len(old)) if lines.at_end else application.end_line
    first = _last_import(tree, before=application.place.line)
    return [(first, imported), (after, f"{' ' * application.indent}{call}\n")]


def _django_lines(tree: ast.Module, changed: list[str], wiring: Wiring) -> list[tuple[int, str]]:
    """Returns the setting HEADGATE, and puts the application and the middleware first in their lists."""
    lists = assigned_lists(tree)
    for name, item in sorted(
        (("INSTALLED_APPS", _DJANGO_APP), ("MIDDLEWARE", _DJANGO_MIDDLEWARE)),
        key=lambda each: -lists[each[0]].lineno,
    ):
        _put_first(changed, lists[name], item)
    given = {"rules": f'"{wiring.rulebook}"', "engine": wiring.engine, "trusted_proxies": wiring.proxies}
    setting = ", ".join(f'"{name}": {value}' for name, value in given.items() if value is not None)
    return [(len(changed), f"\nHEADGATE = {{{setting}}}\n")]


def _put_first(changed: list[str], values: ast.List | ast.Tuple, item: str) -> None:
    """Puts an item before the first of a list: on a line of its own if the first one has that."""
    first = values.elts[0] if values.elts else None
    if first is not None and first.lineno > values.lineno:
        line = changed[first.lineno - 1]
        changed[first.lineno - 1] = f"{line[: len(line) - len(line.lstrip())]}{item},\n{line}"
        return
    index = values.lineno - 1
    at = len(changed[index].encode()[: values.col_offset].decode()) + 1
    changed[index] = f"{changed[index][:at]}{item}, {changed[index][at:]}"


def _imports_os(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Import) and any(alias.name == "os" and not alias.asname for alias in node.names)
        for node in tree.body
    )


def _last_import(tree: ast.Module, before: int) -> int:
    """Returns the last line of the imports at the top level before a line, or of the docstring; 0 if neither."""
    line = 0
    for node in tree.body:
        end = node.end_lineno or node.lineno
        is_docstring = node is tree.body[0] and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if end < before and (isinstance(node, ast.Import | ast.ImportFrom) or is_docstring):
            line = end
    return line


def _end(tree: ast.Module, last_line: int) -> int:
    """Returns the line before `if __name__ == "__main__":`, or the last one."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            return node.lineno - 1
    return last_line
