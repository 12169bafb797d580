"""Maps methods and paths of the admin API to handlers.

A path is matched as it comes from the server, percent-decoded once. So a key may contain any character, also
slashes: {key} matches to the end.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from headgate.service.admin import schema

RULEBOOK_FORMATS = {
    "application/yaml": "yaml",
    "application/x-yaml": "yaml",
    "text/yaml": "yaml",
    "text/x-yaml": "yaml",
    "application/toml": "toml",
    "text/toml": "toml",
    "text/x-toml": "toml",
    "application/json": "json",
    "text/json": "json",
}
RULEBOOK_TEXT = "a rulebook"  # instead of a struct: the body is a text in one of these formats

_WHOLE_NUMBER = {"type": "integer", "minimum": 0}
QUERY_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "expected": (_WHOLE_NUMBER, "Only if this version is in force (0: none is). If-Match does the same."),
    "note": ({"type": "string", "maxLength": 500}, "Why, in a line."),
    "rule": ({"type": "string", "maxLength": 256}, "Only the counts of this rule, or of this name."),
    "top": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "How many are returned."),
}


class Route(NamedTuple):
    """A method and a path, the name of its handler, and its OpenAPI description."""

    method: str
    path: str
    handler: str
    summary: str
    response_type: type[msgspec.Struct]
    request_type: type[msgspec.Struct] | str | None = None
    queries: tuple[str, ...] = ()
    is_change: bool = False
    errors: tuple[int, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        pattern = self.path.replace("{key}", "(?P<key>.+)").replace("{rule}", "(?P<rule>[^/]+)")
        return re.compile(pattern.replace("{version}", r"(?P<version>\d{1,15})"), re.DOTALL)


_OVERRIDES_PATH = "/rules/{rule}/overrides"
_VERSION_ERRORS = (409, 503)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/rules", "rules", "The rulebook in force.", schema.Book, errors=(503,)),
    Route(
        "PUT",
        "/rules",
        "publish",
        "Publish a rulebook: every worker follows it within a second.",
        schema.Published,
        RULEBOOK_TEXT,
        ("expected", "note"),
        is_change=True,
        errors=(*_VERSION_ERRORS, 412, 413, 415),
    ),
    Route(
        "POST",
        "/rules/validate",
        "validate",
        "Whether a rulebook could be published, and what it would change.",
        schema.Judged,
        RULEBOOK_TEXT,
        errors=(413, 415, 503),
    ),
    Route(
        "GET",
        "/rules/history",
        "history",
        "The published rulebooks that are kept, newest first.",
        schema.History,
        errors=_VERSION_ERRORS,
    ),
    Route(
        "GET",
        "/rules/history/{version}",
        "edition",
        "One of them, as it was written.",
        schema.KeptEdition,
        errors=(404, *_VERSION_ERRORS),
    ),
    Route(
        "POST",
        "/rules/rollback",
        "rollback",
        "Publish an earlier rulebook anew, under a number of its own.",
        schema.Published,
        schema.Rollback,
        is_change=True,
        errors=(*_VERSION_ERRORS, 412, 413),
    ),
    Route(
        "GET",
        _OVERRIDES_PATH,
        "overrides",
        "The keys of a rule that have overrides.",
        schema.AllOwnLimits,
        queries=("top",),
        errors=(404, 503),
    ),
    Route(
        "GET",
        f"{_OVERRIDES_PATH}/{{key}}",
        "override",
        "The override of a key.",
        schema.OwnLimits,
        errors=(404, 503),
    ),
    Route(
        "PUT",
        f"{_OVERRIDES_PATH}/{{key}}",
        "set_override",
        "Set the override of a key: it holds from the next call on.",
        schema.OwnLimits,
        schema.Override,
        is_change=True,
        errors=(404, 409, 413, 503),
    ),
    Route(
        "DELETE",
        f"{_OVERRIDES_PATH}/{{key}}",
        "unset_override",
        "Let the rule decide for a key again.",
        schema.Unset,
        is_change=True,
        errors=(404, 503),
    ),
    Route(
        "GET",
        "/keys",
        "keys",
        "The counters, the busiest first.",
        schema.Keys,
        queries=("rule", "top"),
        errors=(404, 503),
    ),
    Route(
        "POST",
        "/peek",
        "peek",
        "Would a call pass? Charges nothing.",
        schema.Peeked,
        schema.Peek,
        errors=(404, 413, 503),
    ),
    Route(
        "POST",
        "/reset",
        "reset",
        "Delete counters.",
        schema.WasReset,
        schema.Reset,
        is_change=True,
        errors=(404, 413, 503),
    ),
    Route(
        "POST",
        "/refund",
        "refund",
        "Give units back: the newest first, and at most what is counted now.",
        schema.WasRefunded,
        schema.Refund,
        is_change=True,
        errors=(404, 413, 503),
    ),
    Route("GET", "/status", "status", "The state of this worker.", schema.Status),
)
