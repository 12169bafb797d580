"""Which method and path is which verb.

A path is matched as it comes from the server, percent-decoded once. So a key may hold whatever it likes, also
slashes: {key} goes on to the end.
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
RULEBOOK_TEXT = "a rulebook"  # in place of a struct: the body is a text in one of these formats

_WHOLE = {"type": "integer", "minimum": 0}
QUERY_PARAMETERS: dict[str, tuple[dict[str, Any], str]] = {
    "expected": (_WHOLE, "Only if this edition is in force (0: none is). If-Match says the same."),
    "note": ({"type": "string", "maxLength": 500}, "Why, in a line."),
    "rule": ({"type": "string", "maxLength": 256}, "Only the counts of this rule, or of this name."),
    "top": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "How many are told."),
}


class Route(NamedTuple):
    method: str
    path: str
    verb: str
    about: str
    answered: type[msgspec.Struct]
    asked: type[msgspec.Struct] | str | None = None
    queries: tuple[str, ...] = ()
    changes: bool = False
    troubles: tuple[int, ...] = ()

    @property
    def pattern(self) -> re.Pattern[str]:
        within = self.path.replace("{key}", "(?P<key>.+)").replace("{rule}", "(?P<rule>[^/]+)")
        return re.compile(within.replace("{version}", r"(?P<version>\d{1,15})"), re.DOTALL)


_OVERRIDES = "/rules/{rule}/overrides"
_PUSHED = (409, 503)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/rules", "rules", "The rulebook in force.", schema.Book, troubles=(503,)),
    Route(
        "PUT",
        "/rules",
        "publish",
        "Publish a rulebook: every worker follows it within a second.",
        schema.Published,
        RULEBOOK_TEXT,
        ("expected", "note"),
        changes=True,
        troubles=(*_PUSHED, 412, 413, 415),
    ),
    Route(
        "POST",
        "/rules/validate",
        "validate",
        "Whether a rulebook could be published, and what it would change.",
        schema.Judged,
        RULEBOOK_TEXT,
        troubles=(413, 415, 503),
    ),
    Route(
        "GET",
        "/rules/history",
        "history",
        "The published rulebooks that are kept, newest first.",
        schema.History,
        troubles=_PUSHED,
    ),
    Route(
        "GET",
        "/rules/history/{version}",
        "edition",
        "One of them, as it was written.",
        schema.KeptEdition,
        troubles=(404, *_PUSHED),
    ),
    Route(
        "POST",
        "/rules/rollback",
        "rollback",
        "Publish an earlier rulebook anew, under a number of its own.",
        schema.Published,
        schema.Rollback,
        changes=True,
        troubles=(*_PUSHED, 412, 413),
    ),
    Route(
        "GET",
        _OVERRIDES,
        "overrides",
        "The keys of a rule that have limits of their own.",
        schema.AllOwnLimits,
        queries=("top",),
        troubles=(404, 503),
    ),
    Route(
        "GET",
        f"{_OVERRIDES}/{{key}}",
        "override",
        "The limits that a key has of its own.",
        schema.OwnLimits,
        troubles=(404, 503),
    ),
    Route(
        "PUT",
        f"{_OVERRIDES}/{{key}}",
        "set_override",
        "Give a key limits of its own: they hold from the next call on.",
        schema.OwnLimits,
        schema.Override,
        changes=True,
        troubles=(404, 409, 413, 503),
    ),
    Route(
        "DELETE",
        f"{_OVERRIDES}/{{key}}",
        "unset_override",
        "Let the rule decide for a key again.",
        schema.Unset,
        changes=True,
        troubles=(404, 503),
    ),
    Route(
        "GET",
        "/keys",
        "keys",
        "What is counted, the busiest first.",
        schema.Keys,
        queries=("rule", "top"),
        troubles=(404, 503),
    ),
    Route(
        "POST",
        "/peek",
        "peek",
        "Would a call pass? Charges nothing.",
        schema.Peeked,
        schema.Peek,
        troubles=(404, 413, 503),
    ),
    Route(
        "POST",
        "/reset",
        "reset",
        "Forget counts.",
        schema.WasReset,
        schema.Reset,
        changes=True,
        troubles=(404, 413, 503),
    ),
    Route(
        "POST",
        "/refund",
        "refund",
        "Give units back: the newest first, and at most what is counted now.",
        schema.WasRefunded,
        schema.Refund,
        changes=True,
        troubles=(404, 413, 503),
    ),
    Route("GET", "/status", "status", "How this worker stands.", schema.Status),
)
