"""The JSON of the admin API: what is accepted and answered. Times are seconds, as everywhere at the edge."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from headgate.service.check_schema import MAX_NAME_CHARS, MAX_VALUE_CHARS, Attributes

_MOST = 2**53 - 1
Key = Annotated[
    str, Meta(min_length=1, max_length=MAX_VALUE_CHARS, description="A rule's key text: user=ann|sku=7.")
]
RuleName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
Note = Annotated[str, Meta(max_length=500, description="Why, in a line.")]


class Edition(Struct):
    """One published rulebook."""

    version: int
    at: Annotated[float, Meta(description="When, in seconds since 1970.")]
    author: str
    note: str
    rolled_back_to: Annotated[int | None, Meta(description="Where this text was published first, if not here.")]


class Book(Struct):
    """The rulebook in force."""

    text: Annotated[str, Meta(description="As it was written; as JSON, if it never was.")]
    format: str
    rules: int
    source: Annotated[str, Meta(description="Where it comes from.")]
    edition: Annotated[Edition | None, Meta(description="Null unless it was pushed.")]
    followed: Annotated[
        int | None, Meta(description="What this worker follows: for a moment it may be the one before.")
    ]


class KeptEdition(Struct):
    """One published rulebook, with its text."""

    edition: Edition
    in_force: bool
    format: str
    text: str


class History(Struct):
    """The published rulebooks that are kept, newest first."""

    in_force: int | None
    editions: list[Edition]


class Field(Struct):
    """Something that is said differently now; null where it was not said."""

    name: str
    old: str | None
    new: str | None


class Change(Struct):
    """What became of one rule."""

    rule: str
    change: Annotated[str, Meta(description="added, removed, renamed or changed")]
    counts_start_anew: Annotated[str | None, Meta(description="Why they do; null if they go on.")]
    fields: list[Field]


class Changes(Struct):
    """What is different, by what it means."""

    same: bool
    book: list[Field]
    rules: list[Change]


class Judged(Struct):
    """A rulebook that can be published, and what it would change."""

    rules: int
    changes: Changes
    warnings: Annotated[list[str], Meta(description="Such as of attributes that look misspelled.")]


class Published(Struct):
    """What came of it."""

    published: Annotated[bool, Meta(description="False if this was in force already.")]
    before: Annotated[int | None, Meta(description="The edition that was in force.")]
    edition: Edition
    changes: Changes
    warnings: list[str]


class Rollback(Struct, forbid_unknown_fields=True):
    """Publish an earlier rulebook anew."""

    to: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None, Meta(description="That edition; if null, the one before.")
    ] = None
    note: Note = ""


class Override(Struct, forbid_unknown_fields=True):
    """A limit of a key's own."""

    limits: Annotated[str, Meta(min_length=1, max_length=1000, description='Such as "20/s; 500/hour".')]
    ttl: Annotated[
        Annotated[float, Meta(ge=0.001, le=31_622_400)] | None, Meta(description="For so many seconds.")
    ] = None
    absent: Annotated[bool, Meta(description="Only if the key has none yet.")] = False


class OwnLimits(Struct):
    """The limits that a key has of its own."""

    rule: str
    key: str
    limits: str


class AllOwnLimits(Struct):
    """The keys of a rule that have limits of their own."""

    rule: str
    complete: Annotated[bool, Meta(description="Whether these are all.")]
    overrides: list[OwnLimits]


class Unset(Struct):
    """A key that goes by its rule again, and what it had."""

    rule: str
    key: str
    had: str | None


class Tally(Struct):
    """How many counts there are under one name."""

    name: str
    counts: int
    bytes: int


class Standing(Struct):
    """One count, and how it stands under its limit; nulls where that is not known."""

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


class Keys(Struct):
    """What is counted, the busiest first."""

    counts: int
    complete: Annotated[bool, Meta(description="False if there are more counts than were looked at.")]
    rules: list[Tally]
    keys: list[Standing]


class Reset(Struct, forbid_unknown_fields=True):
    """Whose counts: those of a call, or those of one key of a rule."""

    attributes: Annotated[
        Attributes | None,
        Meta(description="A call; or beside rule and key, what the rule's limit is chosen by."),
    ] = None
    rule: RuleName | None = None
    key: Key | None = None


class Peek(Reset, forbid_unknown_fields=True):
    """Whose counts, and what a call would cost."""

    cost: Annotated[Annotated[int, Meta(ge=0, le=_MOST)] | None, Meta(description="Units; 1 unless given.")] = None


class Refund(Reset, forbid_unknown_fields=True):
    """Whose counts, and how many units they get back."""

    cost: Annotated[int, Meta(ge=1, le=10_000, description="Units.")] = 1


class Verdict(Struct):
    """How one count stands."""

    rule: str
    key: str
    limit: str | None
    allowed: bool
    remaining: int
    retry_after: float | None
    reset_after: float
    delay: float
    aside: Annotated[str | None, Meta(description="shadow or candidate, if it cannot refuse.")]


class Peeked(Struct):
    """Whether a call would pass."""

    allowed: bool
    degraded: Annotated[bool, Meta(description="Not by the engine, which gave no answer.")]
    limits: list[Verdict]


class Forgotten(Struct):
    """A key that was forgotten."""

    rule: str
    key: str
    counts: Annotated[list[str], Meta(description="The names that it was counted under.")]


class WasReset(Struct):
    """What was forgotten."""

    forgotten: list[Forgotten]
    left_out: Annotated[list[str], Meta(description="Rules that apply, but are counted in each process.")]


class Room(Struct):
    """What one count has left."""

    rule: str
    key: str
    name: str
    limit: str
    before: int
    remaining: int
    reset_after: float


class WasRefunded(Struct):
    """What was given back."""

    limits: list[Room]
    left_out: Annotated[list[str], Meta(description="Rules that apply, but were not given anything back.")]


class Degraded(Struct):
    """A part of the engine that does not answer, or has just begun to again."""

    shard: str
    state: str


class Status(Struct):
    """How this worker stands."""

    version: str
    pid: int
    uptime: float
    engine: str
    rules: int
    source: str
    edition: int | None
    source_away: Annotated[bool, Meta(description="Whether the rulebook cannot be looked at anew.")]
    refused_changes: Annotated[int, Meta(description="Rulebooks that came and could not be followed.")]
    refused_why: Annotated[str | None, Meta(description="Why the latest of them, if it still stands.")]
    degraded: list[Degraded]
    degraded_decisions: int


class Problem(Struct):
    """Something that is wrong in a rulebook."""

    line: int | None
    problem: str


class Trouble(Struct):
    """Why there is no answer (RFC 9457)."""

    type: str
    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong, and what to do about it.")]
    problems: Annotated[list[Problem] | UnsetType, Meta(description="All that is wrong in a rulebook.")] = UNSET
