"""FoundApplication and Route: what was found in a project's Python files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Place(NamedTuple):
    """A line of a file; the file relative to the project's folder."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Route(NamedTuple):
    """A route that a decorator or a call adds; `path` is a pattern of rulebooks."""

    place: Place
    path: str
    methods: tuple[str, ...]  # empty: not known


@dataclass(frozen=True)
class FoundApplication:
    """An application of a framework.

    target       the expression that it is assigned to: `app`, `self.app`; "" if it has no name
    end_line     the last line of that statement
    indent       its indentation
    in_function  the statement is inside a function, such as an application factory
    limited      the file uses headgate already
    authenticates_users
                 requests have a user (Django's AuthenticationMiddleware)
    """

    framework: str
    place: Place
    target: str = ""
    end_line: int = 0
    indent: int = 0
    in_function: bool = False
    limited: bool = False
    authenticates_users: bool = False


@dataclass
class PythonFindings:
    """Findings in the Python files of a project."""

    applications: list[FoundApplication] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    redis_urls: list[tuple[Place, str]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
