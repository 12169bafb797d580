"""Adds the responses of refused requests to an OpenAPI schema."""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

TOO_MANY_REQUESTS = 429

_HEADERS = {
    "Retry-After": {"description": "Seconds to wait, if waiting helps.", "schema": {"type": "integer"}},
    "RateLimit": {"description": "What is left of each limit.", "schema": {"type": "string"}},
    "RateLimit-Policy": {"description": "The limits.", "schema": {"type": "string"}},
}
_PROBLEM = {"application/problem+json": {"schema": {"type": "object"}}}


def add_refusals(
    schema: dict[str, Any], path: str | None, methods: Iterable[str], statuses: Iterable[int]
) -> None:
    """Adds a response of each status to the operations of a path that have none of that status yet."""
    for method in methods:
        operation = schema.get("paths", {}).get(path, {}).get(method.lower())
        if operation is not None:
            responses = operation.setdefault("responses", {})
            for status in sorted(statuses):
                responses.setdefault(str(status), _refused_response(status))


def _refused_response(status: int) -> dict[str, Any]:
    """Describes the response of a refused request.

    Only a 429 is described with a body (application/problem+json): a rule that sets another status may also set
    another body.
    """
    phrase = HTTPStatus(status).phrase if status in _STATUSES else "Refused by a limit"
    response: dict[str, Any] = {"description": phrase, "headers": _HEADERS}
    return {**response, "content": _PROBLEM} if status == TOO_MANY_REQUESTS else response


_STATUSES = frozenset(HTTPStatus)
