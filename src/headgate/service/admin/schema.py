"""The JSON of the admin API: requests and responses. Times are seconds, as in all public interfaces."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from headgate.service.check_schema import MAX_NAME_CHARS, MAX_VALUE_CHARS, Attributes

_MAX_INTEGER = 2**53 - 1
Key = Annotated[
    str, Meta(min_length=1, max_length=MAX_VALUE_CHARS, description="A rule's key text: user=ann|sku=7.")
]
RuleName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Note = Annotated[str, Meta(max_length=500, description="Why, in a line.")]


class VersionInfo(Struct):
    """One published version of the rulebook."""

    version: int
    at: Annotated[float, Meta(description="When, in seconds since 1970.")]
    author: str
    note: str
    rolled_back_to: Annotated[int | None, Meta(description="Where this text was published first, if not here.")]


class RulebookInfo(Struct):
    """The rulebook in force."""

    text: Annotated[str, Meta(description="As it was published; JSON, if it comes from a program.")]
    format: str
    rules: int
    source: Annotated[str, Meta(description="Where it comes from.")]
    version: Annotated[VersionInfo | None, Meta(description="Null unless it was pushed.")]
    followed: Annotated[
        int | None,
        Meta(description="The version that this worker follows: for a moment it may be the one before."),
    ]


class StoredVersion(Struct):
    """One published version, with its text."""

    version: VersionInfo
    in_force: bool
    format: str
    text: str


class VersionHistory(Struct):
    """The published versions that are kept, newest first."""

    in_force: int | None
    versions: list[VersionInfo]


class FieldChange(Struct):
    """A field that differs; null where it is not set."""

    name: str
    old: str | None
    new: str | None


class RuleChange(Struct):
    """The change of one rule."""

    rule: str
    change: Annotated[str, Meta(description="added, removed, renamed or changed")]
    counts_start_anew: Annotated[str | None, Meta(description="Why they do; null if they go on.")]
    fields: list[FieldChange]


class RulebookChanges(Struct):
    """The differences between two rulebooks, by meaning."""

    same: bool
    book: list[FieldChange]
    rules: list[RuleChange]


class ValidationResult(Struct):
    """A rulebook that can be published, and what it would change."""

    rules: int
    changes: RulebookChanges
    warnings: Annotated[list[str], Meta(description="Such as of attributes that look misspelled.")]


class PublicationResult(Struct):
    """The result of publishing."""

    published: Annotated[bool, Meta(description="False if this was in force already.")]
    before: Annotated[int | None, Meta(description="The version that was in force.")]
    version: VersionInfo
    changes: RulebookChanges
    warnings: list[str]


class RollbackRequest(Struct, forbid_unknown_fields=True):
    """A rollback: publishes an earlier version anew."""

    to: Annotated[
        Annotated[int, Meta(ge=1, le=_MAX_INTEGER)] | None,
        Meta(description="That version; if null, the one before."),
    ] = None
    note: Note = ""


class OverrideRequest(Struct, forbid_unknown_fields=True):
    """An override: limits for one key."""

    limits: Annotated[str, Meta(min_length=1, max_length=1000, description='Such as "20/s; 500/hour".')]
    ttl: Annotated[
        Annotated[float, Meta(ge=0.001, le=31_622_400)] | None, Meta(description="For so many seconds.")
    ] = None
    absent: Annotated[bool, Meta(description="Only if the key has no override yet.")] = False


class KeyOverride(Struct):
    """The override of a key."""

    rule: str
    key: str
    limits: str


class RuleOverrideList(Struct):
    """The overrides of a rule."""

    rule: str
    complete: Annotated[bool, Meta(description="Whether these are all.")]
    overrides: list[KeyOverride]


class RemovedOverride(Struct):
    """A key whose override was removed, and the limits it had."""

    rule: str
    key: str
    had: str | None


class CounterTotals(Struct):
    """The number of counters of one name."""

    name: str
    counts: int
    bytes: int


class CounterUsage(Struct):
    """One counter and its use of the limit; null where that is not known."""

    name: str
    key: str
    algorithm: str
    limit: str | None
    used: int | None
    of: int | None
    remaining: int | None
    reset_after: float | None
    expires_after: float | None
    bytes: int | None


class KeyPause(Struct):
    """A key that is paused, under the name of its limiter, and for how many seconds still."""

    name: str
    key: str
    paused_for: float


class KeyUsageReport(Struct):
    """The counters, the busiest first."""

    counts: int
    complete: Annotated[bool, Meta(description="False if there are more counts than were looked at.")]
    rules: list[CounterTotals]
    keys: list[CounterUsage]
    pauses: Annotated[list[KeyPause], Meta(description="Keys that are paused, the longest first.")]


class ResetRequest(Struct, forbid_unknown_fields=True):
    """Selects counters: those of a call, or those of one key of a rule."""

    attributes: Annotated[
        Attributes | None,
        Meta(description="A call. With rule and key: the attributes by which the rule chooses its limit."),
    ] = None
    rule: RuleName | None = None
    key: Key | None = None


class AdminPeekRequest(ResetRequest, forbid_unknown_fields=True):
    """Selects counters, and the cost of a call."""

    cost: Annotated[
        Annotated[int, Meta(ge=0, le=_MAX_INTEGER)] | None, Meta(description="Units; 1 unless given.")
    ] = None


class AdminRefundRequest(ResetRequest, forbid_unknown_fields=True):
    """Selects counters, and the units to give back."""

    cost: Annotated[int, Meta(ge=1, le=10_000, description="Units.")] = 1


class PauseRequest(Struct, forbid_unknown_fields=True):
    """Selects a key of a rule, and says for how long it is paused."""

    rule: RuleName
    key: Key
    seconds: Annotated[
        Annotated[float, Meta(ge=0.001, le=31_622_400)],
        Meta(description="At most an hour, or what the rule's `pausable` says: a longer pause is cut."),
    ]


class AdminVerdict(Struct):
    """The verdict of one limit."""

    rule: str
    key: str
    limit: str | None
    allowed: bool
    remaining: int
    retry_after: float | None
    reset_after: float
    delay: float
    shadow_kind: Annotated[str | None, Meta(description="shadow or candidate, if it cannot refuse.")]


class PeekResult(Struct):
    """The result of a peek: would a call pass?"""

    allowed: bool
    degraded: Annotated[bool, Meta(description="Decided by a fallback, because the engine gave no answer.")]
    limits: list[AdminVerdict]


class DeletedCounters(Struct):
    """A key whose counters were deleted."""

    rule: str
    key: str
    counts: Annotated[list[str], Meta(description="The names that it was counted under.")]


class ResetResult(Struct):
    """The result of a reset."""

    forgotten: list[DeletedCounters]
    left_out: Annotated[list[str], Meta(description="Rules that apply, but are counted in each process.")]


class RemainingUnits(Struct):
    """The units that are left of one limit."""

    rule: str
    key: str
    name: str
    limit: str
    before: int
    remaining: int
    reset_after: float


class RefundResult(Struct):
    """The result of a refund."""

    limits: list[RemainingUnits]
    left_out: Annotated[list[str], Meta(description="Rules that apply, but got nothing back.")]


class DegradedShard(Struct):
    """A shard of the engine that does not answer, or has just begun to again."""

    shard: str
    state: str


class WorkerStatus(Struct):
    """The state of this worker."""

    version: str
    pid: int
    uptime: float
    engine: str
    rules: int
    source: str
    rulebook_version: int | None
    source_away: Annotated[bool, Meta(description="Whether the source of the rulebook cannot be read.")]
    refused_changes: Annotated[int, Meta(description="New rulebooks that could not be followed.")]
    refused_why: Annotated[
        str | None, Meta(description="Why the latest of them could not be followed; null once another was.")
    ]
    degraded: list[DegradedShard]
    degraded_decisions: int


class RulebookProblemBody(Struct):
    """A problem in a rulebook."""

    line: int | None
    problem: str


class AdminErrorBody(Struct):
    """An error (RFC 9457)."""

    type: str
    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong, and what to do about it.")]
    problems: Annotated[
        list[RulebookProblemBody] | UnsetType, Meta(description="All that is wrong in a rulebook.")
    ] = UNSET


class RuleStats(Struct):
    """The counts of one rule in a span of time."""

    rule: Annotated[str, Meta(description="Empty for calls that no rule applied to.")]
    calls: int
    allowed: int
    refused: int
    shed: int
    delayed: int
    near_limit: int
    shadow_allowed: int
    shadow_refused: int
    candidate_allowed: int
    candidate_refused: int
    by_denial_cache: int
    by_prefetch: int
    by_fallback: int
    errors: int
    by_engine: int
    degraded: int


class StatsResult(Struct):
    """Counts of calls by rule."""

    seconds: Annotated[int, Meta(description="The length of the span.")]
    rules: list[RuleStats]


class HotKeyRow(Struct):
    """A key, and its calls or refusals in the span."""

    key: str
    calls: int


class HotKeysResult(Struct):
    """The hottest keys of a rule in the last minute."""

    rule: str
    kind: str
    keys: list[HotKeyRow]


class RuleReportRow(Struct):
    """The counts of the live rule, of its shadow or of its candidate."""

    kind: Annotated[str, Meta(description="live, shadow or candidate")]
    calls: int
    refused: int
    keys_refused: Annotated[int, Meta(description="Different keys that were refused, within 3 %.")]
    keys: Annotated[int | None, Meta(description="Different keys that called, within 3 %; null for live.")]
    safe: Annotated[str | None, Meta(description="yes, no or not enough data; null for live.")]
    why: str | None


class RuleReportResult(Struct):
    """A rule against its shadow and its candidate."""

    rule: str
    hours: int
    since: Annotated[float, Meta(description="The beginning of the first hour, in seconds since 1970.")]
    max_refused: float
    rows: list[RuleReportRow]
    suffering: Annotated[list[HotKeyRow], Meta(description="The keys that are, or would be, refused most.")]
