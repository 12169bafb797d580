"""Reads the routes of an aiohttp application as templates: /items/{id:\\d+} is /items/{id}."""

from __future__ import annotations

import re
from typing import Any

ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")

_parameter = re.compile(r"\{([^{}]+)\}")
_SAMPLES = ("a/b", "1/2")  # of values with a slash


def template_of(resource: Any) -> str | None:
    """Returns the template of a resource; None if there is none, as for a path without a route."""
    if resource is None:
        return None
    canonical: str = resource.canonical
    info = resource.get_info()
    if "directory" in info:  # static files
        return f"{canonical}/{{path...}}"
    pattern = getattr(info.get("pattern"), "pattern", "")

    def write(match: re.Match[str]) -> str:
        group = _group(pattern, match[1])
        spans_segments = group is not None and any(re.fullmatch(group, sample) for sample in _SAMPLES)
        return f"{{{match[1]}...}}" if spans_segments else match[0]

    return _parameter.sub(write, canonical)


def _group(pattern: str, name: str) -> str | None:
    """Returns the expression of a named group, such as .* of (?P<tail>.*)."""
    _, found, rest = pattern.partition(f"(?P<{name}>")
    depth, index = 1, 0
    while found and index < len(rest):
        character = rest[index]
        if character == "\\":
            index += 1
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return rest[:index]
        index += 1
    return None
