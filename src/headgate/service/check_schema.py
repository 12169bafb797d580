"""The JSON of the check API: what is accepted and answered, and what the OpenAPI description says.

Times are seconds, as everywhere at the edge. Of an answer, `allowed` is what was decided; `rule` is the rule that
spoke: the one that refused, or the one nearest to its limit. Of a name that stands twice in an object, the last
counts. A whole number may be written 3.0.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_ATTRIBUTES = 256  # in one question
MAX_NAME_CHARS = 256  # characters of an attribute's name
MAX_VALUE_CHARS = 8192  # characters of its value
MAX_RECEIPT_CHARS = 61_440  # characters: with what stands around it, it fits into a body of 64 KiB

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Value = Annotated[str, Meta(max_length=MAX_VALUE_CHARS)] | int | float | bool | None
Attributes = Annotated[
    dict[Name, Value],
    Meta(max_length=MAX_ATTRIBUTES, description="What is known of the call: method, path, address, user, ..."),
]
_MOST = 2**53 - 1
Units = Annotated[
    int,
    Meta(
        ge=0,
        le=_MOST,
        description="How many units the call spends: 1 unless given, times what a rule states.",
    ),
]
Span = Annotated[float, Meta(ge=0, le=31_622_400, description="Seconds.")]
Token = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARS, description="What an answer gave as its receipt.")]


class Check(Struct, forbid_unknown_fields=True):
    """A call: may it pass?"""

    attributes: Attributes
    cost: Units | None = None
    receipt: Annotated[bool, Meta(description="Answer with a receipt, so that it can be given back.")] = False
    verdicts: Annotated[bool, Meta(description="Tell how every rule stands, not only the one that spoke.")] = False


class Peek(Struct, forbid_unknown_fields=True):
    """A call: would it pass?"""

    attributes: Attributes
    cost: Units | None = None
    verdicts: Annotated[bool, Meta(description="Tell how every rule stands, not only the one that spoke.")] = False


class Checks(Struct, forbid_unknown_fields=True):
    """Several calls."""

    checks: Annotated[list[Check], Meta(min_length=1)]
    together: Annotated[bool, Meta(description="All of them pass and are charged, or none is.")] = False


class Reserve(Struct, forbid_unknown_fields=True):
    """A place to be taken now and served later."""

    attributes: Attributes
    cost: Units | None = None
    timeout: Annotated[Span | None, Meta(description="How long the caller would wait at most.")] = None
    verdicts: bool = False


class Redeem(Struct, forbid_unknown_fields=True):
    """A receipt that is shown again."""

    receipt: Token


class Refund(Struct, forbid_unknown_fields=True):
    """A receipt to be given back."""

    receipt: Token
    cost: Annotated[
        Annotated[int, Meta(ge=1, le=_MOST)] | None, Meta(description="Units to give back. Unless given, all.")
    ] = None


class Commit(Struct, forbid_unknown_fields=True):
    """A receipt of something that was done."""

    receipt: Token
    cost: Annotated[
        Annotated[int, Meta(ge=0, le=_MOST)] | None, Meta(description="Units that were used. Unless given, all.")
    ] = None


class Verdict(Struct):
    """How one count of one rule stands."""

    rule: str
    limit: Annotated[str | None, Meta(description="Null where a rule refuses without one.")]
    allowed: bool
    remaining: int
    retry_after: float | None
    reset_after: float
    delay: float
    cost: int
    aside: Annotated[
        str | None, Meta(description="shadow or candidate: decided beside the call, and refuses nobody.")
    ]


class Refusal(Struct):
    """What the rule wants to be answered to the client."""

    status: int
    body: str | None
    type: str | None
    redirect: str | None


class Answer(Struct):
    """What was decided."""

    allowed: bool
    rule: str | None
    limit: str | None
    remaining: Annotated[int | None, Meta(description="Units left; null where no limit applies.")]
    retry_after: Annotated[float | None, Meta(description="0 if it passed; null if no wait can help.")]
    reset_after: float
    delay: Annotated[float, Meta(description="Seconds that the call must wait before it goes on.")]
    degraded: Annotated[bool, Meta(description="Decided by a fallback, because the engine gave no answer.")]
    why: Annotated[
        str | UnsetType | None, Meta(description="Why a rule refused without its limit; null if by its limit.")
    ] = UNSET
    refusal: Refusal | UnsetType = UNSET
    verdicts: list[Verdict] | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    expires_after: Annotated[
        float | UnsetType,
        Meta(description="Seconds until the slots of the receipt end, unless renewed or released before."),
    ] = UNSET


class Answers(Struct):
    """What was decided of several; in the order in which they were asked."""

    allowed: Annotated[bool, Meta(description="Whether all of them pass.")]
    answers: list[Answer]


class Given(Struct):
    """What became of a receipt."""

    done: bool
    receipt: Annotated[
        str | UnsetType, Meta(description="A receipt of the rest, if something is left to be given back.")
    ] = UNSET
    degraded: Annotated[
        bool | UnsetType,
        Meta(
            description="True if a fallback answered for the engine, and some of it may not have been given back."
        ),
    ] = UNSET


class Released(Struct):
    """What became of slots."""

    done: bool
    held: Annotated[bool, Meta(description="Whether all of them were held until now; false: one was lost.")]


class Held(Struct):
    """Whether slots are held on."""

    held: bool
    expires_after: Annotated[float | None, Meta(description="Seconds; null if a slot was lost.")]


class Trouble(Struct):
    """Why there is no answer (RFC 9457)."""

    type: str
    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong, and what to do about it.")]
