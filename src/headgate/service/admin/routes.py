"""Maps methods and paths of the admin API to handlers.

A path is matched as it comes from the server, percent-decoded once. So a key may contain any character, also
slashes: {key} matches to the end.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from headgate.service.admin import schema
from headgate.telemetry.key_estimates import HOT_KINDS

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
    "seconds": (_WHOLE_NUMBER | {"minimum": 1, "maximum": 120}, "The span: the last seconds."),
    "minutes": (_WHOLE_NUMBER | {"minimum": 1, "maximum": 1500}, "The span: the last minutes (5 unless given)."),
    "hours": (
        _WHOLE_NUMBER | {"minimum": 1, "maximum": 25},
        "The span: so many whole hours, the current one too.",
    ),
    "kind": (
        {"enum": list(HOT_KINDS)},
        "Which keys: with the most calls (the default), or the most refusals, enforced or not.",
    ),
    "mask": ({"type": "boolean"}, "Hides most of each key."),
    "max_refused": (
        {"type": "number", "minimum": 0, "maximum": 1},
        "The share of keys that may be refused (0.001).",
    ),
    "top": ({"type": "integer", "minimum": 1, "maximum": 10_000}, "How many are returned."),
}


class AdminRoute(NamedTuple):
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

ROUTES: tuple[AdminRoute, ...] = (
    AdminRoute("GET", "/rules", "rules", "The rulebook in force.", schema.RulebookInfo, errors=(503,)),
    AdminRoute(
        "PUT",
        "/rules",
        "publish",
        "Publish a rulebook: every worker follows it within a second.",
        schema.PublicationResult,
        RULEBOOK_TEXT,
        ("expected", "note"),
        is_change=True,
        errors=(*_VERSION_ERRORS, 412, 413, 415),
    ),
    AdminRoute(
        "POST",
        "/rules/validate",
        "validate",
        "Whether a rulebook could be published, and what it would change.",
        schema.ValidationResult,
        RULEBOOK_TEXT,
        errors=(413, 415, 503),
    ),
    AdminRoute(
        "GET",
        "/rules/history",
        "history",
        "The published rulebooks that are kept, newest first.",
        schema.VersionHistory,
        errors=_VERSION_ERRORS,
    ),
    AdminRoute(
        "GET",
        "/rules/history/{version}",
        "version",
        "One of them, as it was written.",
        schema.StoredVersion,
        errors=(404, *_VERSION_ERRORS),
    ),
    AdminRoute(
        "POST",
        "/rules/rollback",
        "rollback",
        "Publish an earlier rulebook anew, under a number of its own.",
        schema.PublicationResult,
        schema.RollbackRequest,
        is_change=True,
        errors=(*_VERSION_ERRORS, 412, 413),
    ),
    AdminRoute(
        "GET",
        _OVERRIDES_PATH,
        "overrides",
        "The keys of a rule that have overrides.",
        schema.RuleOverrideList,
        queries=("top",),
        errors=(404, 503),
    ),
    AdminRoute(
        "GET",
        f"{_OVERRIDES_PATH}/{{key}}",
        "override",
        "The override of a key.",
        schema.KeyOverride,
        errors=(404, 503),
    ),
    AdminRoute(
        "PUT",
        f"{_OVERRIDES_PATH}/{{key}}",
        "set_override",
        "Set the override of a key: it holds from the next call on.",
        schema.KeyOverride,
        schema.OverrideRequest,
        is_change=True,
        errors=(404, 409, 413, 503),
    ),
    AdminRoute(
        "DELETE",
        f"{_OVERRIDES_PATH}/{{key}}",
        "unset_override",
        "Let the rule decide for a key again.",
        schema.RemovedOverride,
        is_change=True,
        errors=(404, 503),
    ),
    AdminRoute(
        "GET",
        "/keys",
        "keys",
        "The counters, the busiest first.",
        schema.KeyUsageReport,
        queries=("rule", "top"),
        errors=(404, 503),
    ),
    AdminRoute(
        "POST",
        "/peek",
        "peek",
        "Would a call pass? Charges nothing.",
        schema.PeekResult,
        schema.AdminPeekRequest,
        errors=(404, 413, 503),
    ),
    AdminRoute(
        "POST",
        "/reset",
        "reset",
        "Delete counters.",
        schema.ResetResult,
        schema.ResetRequest,
        is_change=True,
        errors=(404, 413, 503),
    ),
    AdminRoute(
        "POST",
        "/pause",
        "pause",
        "Refuse a key of a rule for a while: callers that wait are served after it.",
        schema.KeyPause,
        schema.PauseRequest,
        is_change=True,
        errors=(404, 413, 503),
    ),
    AdminRoute(
        "POST",
        "/refund",
        "refund",
        "Give units back: the newest first, and at most what is counted now.",
        schema.RefundResult,
        schema.AdminRefundRequest,
        is_change=True,
        errors=(404, 413, 503),
    ),
    AdminRoute(
        "GET",
        "/stats",
        "stats",
        "Counts of calls by rule, of all workers and gateways.",
        schema.StatsResult,
        queries=("rule", "seconds", "minutes"),
        errors=(503,),
    ),
    AdminRoute(
        "GET",
        "/stats/{rule}/keys",
        "hot_keys",
        "The hottest keys of a rule in the last minute.",
        schema.HotKeysResult,
        queries=("kind", "top", "mask"),
        errors=(503,),
    ),
    AdminRoute(
        "GET",
        "/rules/{rule}/report",
        "rule_report",
        "A rule against its shadow and its candidate: who would suffer, and is it safe to enforce?",
        schema.RuleReportResult,
        queries=("hours", "max_refused", "mask"),
        errors=(404, 503),
    ),
    AdminRoute("GET", "/status", "status", "The state of this worker.", schema.WorkerStatus),
)
