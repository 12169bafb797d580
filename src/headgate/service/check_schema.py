"""The JSON of the check API: the requests, the answers and their OpenAPI descriptions.

Times are seconds, as in all public interfaces. Of an answer, `allowed` is the decision; `rule` is the deciding
rule: the one that refused, or the one nearest to its limit. If a name comes twice in an object, the last counts. A
whole number may be written 3.0.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_ATTRIBUTES = 256  # in one call
MAX_NAME_CHARS = 256  # of an attribute
MAX_VALUE_CHARS = 8192  # of an attribute
MAX_RECEIPT_CHARS = 61_440  # so that its JSON fits into a body of 64 KiB

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
Value = Annotated[str, Meta(max_length=MAX_VALUE_CHARS)] | int | float | bool | None
Attributes = Annotated[
    dict[Name, Value],
    Meta(max_length=MAX_ATTRIBUTES, description="The attributes of the call: method, path, address, user, ..."),
]
_MAX_INTEGER = 2**53 - 1
Units = Annotated[
    int,
    Meta(
        ge=0,
        le=_MAX_INTEGER,
        description="How many units the call spends: 1 unless given, times what a rule states.",
    ),
]
Span = Annotated[float, Meta(ge=0, le=31_622_400, description="Seconds.")]
Token = Annotated[str, Meta(max_length=MAX_RECEIPT_CHARS, description="What an answer gave as its receipt.")]


class CheckBody(Struct, forbid_unknown_fields=True):
    """A call: may it pass?"""

    attributes: Attributes
    cost: Units | None = None
    receipt: Annotated[bool, Meta(description="Answer with a receipt, so that it can be given back.")] = False
    verdicts: Annotated[
        bool, Meta(description="Return the verdict of every rule, not only of the deciding one.")
    ] = False


class PeekBody(Struct, forbid_unknown_fields=True):
    """A call: would it pass?"""

    attributes: Attributes
    cost: Units | None = None
    verdicts: Annotated[
        bool, Meta(description="Return the verdict of every rule, not only of the deciding one.")
    ] = False


class ChecksBody(Struct, forbid_unknown_fields=True):
    """Several calls."""

    checks: Annotated[list[CheckBody], Meta(min_length=1)]
    together: Annotated[bool, Meta(description="All of them pass and are charged, or none is.")] = False


class ReserveBody(Struct, forbid_unknown_fields=True):
    """A place to be taken now and served later."""

    attributes: Attributes
    cost: Units | None = None
    timeout: Annotated[Span | None, Meta(description="How long the caller would wait at most.")] = None
    verdicts: bool = False


class ReceiptBody(Struct, forbid_unknown_fields=True):
    """A receipt."""

    receipt: Token


class RefundBody(Struct, forbid_unknown_fields=True):
    """A receipt to be given back."""

    receipt: Token
    cost: Annotated[
        Annotated[int, Meta(ge=1, le=_MAX_INTEGER)] | None,
        Meta(description="Units to give back. Unless given, all."),
    ] = None


class SettleBody(Struct, forbid_unknown_fields=True):
    """A receipt of a call that is done."""

    receipt: Token
    cost: Annotated[
        Annotated[int, Meta(ge=0, le=_MAX_INTEGER)] | None,
        Meta(description="Units that the call really cost. Unless given, what was charged."),
    ] = None
    rule: Annotated[
        str | None, Meta(description="The rule that is settled. Unless given, all rules that charged the call.")
    ] = None


class FinishBody(Struct, forbid_unknown_fields=True):
    """The end of a call that an adaptive rule let pass."""

    receipt: Token
    outcome: Annotated[
        Literal["success", "dropped", "ignored"],
        Meta(
            description="success: it was answered, and its time counts. dropped: it timed out, or the service "
            "turned it away. ignored: it says nothing about the service."
        ),
    ] = "success"


class VerdictBody(Struct):
    """The verdict of one limit of one rule."""

    rule: str
    limit: Annotated[str | None, Meta(description="Null where a rule refuses without one.")]
    allowed: bool
    remaining: int
    retry_after: float | None
    reset_after: float
    delay: float
    cost: int
    shadow_kind: Annotated[
        str | None, Meta(description="shadow or candidate: decided in addition, and never refuses the call.")
    ]


class RefusalBody(Struct):
    """The response that the rule configures for the client."""

    status: int
    body: str | None
    type: str | None
    redirect: str | None


class DecisionBody(Struct):
    """The decision on a call."""

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
    refusal: RefusalBody | UnsetType = UNSET
    verdicts: list[VerdictBody] | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    expires_after: Annotated[
        float | UnsetType,
        Meta(description="Seconds until the slots of the receipt end, unless renewed or released before."),
    ] = UNSET

    finish_within: Annotated[
        float | UnsetType,
        Meta(
            description="Seconds within which the call's end is to be reported to /v1/finish, because an adaptive "
            "rule let it pass. A call that is not reported counts as dropped."
        ),
    ] = UNSET


class DecisionsBody(Struct):
    """The decisions on several calls, in the order of the request."""

    allowed: Annotated[bool, Meta(description="Whether all of them pass.")]
    answers: list[DecisionBody]


class RefundResultBody(Struct):
    """The result of giving back."""

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


class ReleaseResultBody(Struct):
    """The result of releasing slots."""

    done: bool
    held: Annotated[bool, Meta(description="Whether all of them were held until now; false: one was lost.")]


class HeldSlotsBody(Struct):
    """The result of a renewal: are the slots still held?"""

    held: bool
    expires_after: Annotated[float | None, Meta(description="Seconds; null if a slot was lost.")]


class ErrorBody(Struct):
    """An error (RFC 9457)."""

    type: str
    title: Annotated[str, Meta(description="The reason phrase of the status.")]
    status: int
    detail: Annotated[str, Meta(description="What is wrong, and what to do about it.")]
