"""Outcomes of charges, and the Decision that a call gets.

A model returns an Outcome, a bare tuple: a named tuple would cost a third of an in-memory decision. Verdict and
Decision name its fields for programs and people. Inside, time is whole microseconds, and None means that no wait
can help; outside it is seconds, as people and HTTP use them.

The file is long for one reason: every kind of outcome and decision is here, and each room needs several of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeGuard, TypeVar

from headgate.errors import RateLimited
from headgate.lazy_property import lazy_property

if TYPE_CHECKING:
    from headgate.algorithms.limit import Limit

# allowed, remaining, retry_after_us, reset_after_us, delay_us, at_us, mark: the fields of Verdict, unnamed.
Outcome = tuple[bool, int, "int | None", int, int, int, int]


class DegradedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of a fallback: decided without the engine, because that did not reply."""

    __slots__ = ()


class CrossSlotOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of a charge that was decided together with others in several slots of a cluster: taken back if
    one of them refused, but not atomic."""

    __slots__ = ()


class LockedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of a charge whose rule is locked out: refused for longer, because it was refused too often."""

    __slots__ = ()


class PausedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of a charge on a paused key: refused until the pause ends, or served after it."""

    paused_us: int  # how long the pause still lasts; part of the outcome's times

    @classmethod
    def wrap(cls, outcome: Outcome, paused_us: int) -> PausedOutcome:
        """Returns these numbers as the outcome of a paused key."""
        paused = cls(outcome)
        paused.paused_us = paused_us
        return paused


class CachedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of the denial cache: a refusal that it repeated."""

    __slots__ = ()


class PrefetchedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of prefetched units: decided in this process."""

    __slots__ = ()


class ShedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of a call that was shed: refused because the service is overloaded, without asking a limit."""

    __slots__ = ()


class CallInFlight(Protocol):
    """A call that an adaptive limit counts until it ends."""

    def end(self, outcome: str) -> None: ...
    def cancel(self) -> None: ...
    def restart(self) -> None: ...


class AdaptiveOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of an adaptive limit: with the limit at that moment, its reason, and the call in flight."""

    current: int
    reason: str
    call: CallInFlight | None  # None if refused, or of a copy: a call ends once

    @classmethod
    def wrap(
        cls, outcome: Outcome, current: int, reason: str, call: CallInFlight | None = None
    ) -> AdaptiveOutcome:
        """Returns these numbers as the outcome of an adaptive limit."""
        wrapped = cls(outcome)
        wrapped.current, wrapped.reason, wrapped.call = current, reason, call
        return wrapped

    def __reduce__(self) -> tuple[Any, ...]:
        return AdaptiveOutcome.wrap, (tuple(self), self.current, self.reason)


class OverriddenOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """The outcome of an override: decided by a limit of this key, in place of the rule's."""

    limit: Limit


ALLOWED: Final = 0
REMAINING: Final = 1
RETRY_AFTER_US: Final = 2
RESET_AFTER_US: Final = 3
DELAY_US: Final = 4
AT_US: Final = 5
MARK: Final = 6

_MICROSECONDS_PER_SECOND = 1_000_000
_MAX_EXACT = 2**53


def is_plain(outcome: Outcome | None) -> TypeGuard[Outcome]:
    """Returns whether an outcome reports nothing but its numbers: no fallback, lockout or override."""
    return type(outcome) is tuple or type(outcome) is PrefetchedOutcome


def with_remaining(outcome: Outcome, remaining: int) -> Outcome:
    """Returns the same outcome, of the same class, with another number of remaining units."""
    kind: Any = type(outcome)
    copied: Outcome = kind((*outcome[:REMAINING], remaining, *outcome[REMAINING + 1 :]))
    if isinstance(copied, OverriddenOutcome):
        copied.limit = outcome.limit  # type: ignore[attr-defined]
    if isinstance(copied, PausedOutcome):
        copied.paused_us = outcome.paused_us  # type: ignore[attr-defined]
    return copied


class HasLimit(Protocol):
    """Anything that has a limit: an engine's meter, or a bare limit."""

    @property
    def limit(self) -> Limit: ...


class DetachedLimit(NamedTuple):
    """A limit without an engine: the source of a decision that was copied or pickled."""

    limit: Limit


class SlotHolder(Protocol):
    """Slots that are held for a decision."""

    @property
    def lost(self) -> bool: ...
    def record_reply(self, requested_at: float, expires_us: int | None) -> bool: ...
    def mark_released(self) -> None: ...


class Charge(NamedTuple):
    """One cost on one key under one limit (the limiter's own, unless given).

    >>> Limiter("3/minute").take_all([Charge("ann", cost=2), Charge("everybody", "100/s")]).remaining
    1
    """

    key: str
    limit: Limit | str | None = None
    cost: int = 1
    name: str | None = None


class Receipt(NamedTuple):
    """The receipt of an allowed charge: enough to refund it, or to settle it, exactly."""

    cost: int
    at_us: int
    reset_after_us: int
    delay_us: int
    mark: int
    refunded_units: int = 0  # units that were refunded before

    @classmethod
    def from_outcome(cls, outcome: Outcome, cost: int, refunded_units: int = 0) -> Receipt:
        # The times of a receipt are by the key's clock, which stands while it is paused.
        paused_us = outcome.paused_us if isinstance(outcome, PausedOutcome) else 0
        reset_after_us, delay_us = outcome[RESET_AFTER_US] - paused_us, outcome[DELAY_US] - paused_us
        return cls(cost, outcome[AT_US], reset_after_us, delay_us, outcome[MARK], refunded_units)

    @property
    def served_us(self) -> int:
        """The instant at which the charge was, or would have been, served."""
        return self.at_us + self.delay_us


class Verdict(NamedTuple):
    """The outcome of one charge.

    allowed          the charge passes (at once, or after ``delay``)
    remaining        whole units that could still be taken at this instant
    retry_after_us   when the same charge would pass if nothing else came: 0 now, None never
    reset_after_us   when the count would be as if never used
    delay_us         how long an allowed charge must wait before it is served
    at_us            the engine's clock when it decided
    mark             the algorithm's own receipt (nginx's excess, a window's end, a lease's fence)
    rule             the rule whose charge it was, where rules decide
    shadow_kind      "shadow" or "candidate" if it could not refuse the call

    >>> [verdict] = Limiter("3/minute").take("ann").verdicts
    >>> verdict.allowed, verdict.remaining, str(verdict.limit), verdict.key, verdict.cost
    (True, 2, '3/minute', 'ann', 1)
    """

    allowed: bool
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    at_us: int
    mark: int
    limit: Limit
    key: str
    cost: int
    rule: str | None = None
    shadow_kind: str | None = None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same charge would pass if nothing else came: 0 now, None never."""
        return None if self.retry_after_us is None else self.retry_after_us / _MICROSECONDS_PER_SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the count is as if never used."""
        return self.reset_after_us / _MICROSECONDS_PER_SECOND

    @property
    def delay(self) -> float:
        """Seconds that an allowed charge must wait before it is served."""
        return self.delay_us / _MICROSECONDS_PER_SECOND


class Decision:
    """The answer to a call; true if it may pass.

    The hot path makes one of these per call, so it only stores its arguments; everything else is a property. A
    copy, or one that was pickled, has the same values but refunds nothing: units must not come back twice.

    >>> limiter = Limiter("1/minute", clock=ManualClock())
    >>> passed, refused = limiter.take("ann"), limiter.take("ann")
    >>> bool(passed), bool(refused), refused.retry_after
    (True, False, 60.0)
    """

    rule: str | None = None
    shadow_kind: str | None = None
    refunded_units: int = 0  # units already refunded, so that nothing is refunded twice
    surcharged_units: int = 0  # units charged beyond its cost when it was settled
    settled: bool = False  # whether its real cost was charged: then nothing more is refunded, cancelled or charged
    has_one_cost: bool = True  # whether all its charges have the cost of the call
    hold: SlotHolder | None = None  # the slots that a block holds for it
    # What the caller stated, for observers; only if there are some.
    attributes: Mapping[str, Any] | None = None  # what a rulebook decided it by
    stated_cost: int | None = None
    patience_us: int | None = None  # how long the call would have waited; None: it was to be decided at once
    together: tuple[int, int] | None = None  # which of how many calls that were decided together
    together_at_us: int = 0  # when they were decided

    def __init__(self, outcome: Outcome, source: HasLimit, key: str, cost: int) -> None:
        self.outcome = outcome
        self.source = source
        self.key = key
        self.cost = cost

    def __reduce__(self) -> tuple[Any, ...]:
        kept = "rule", "shadow_kind", "refunded_units", "settled"
        state = {name: value for name, value in vars(self).items() if name in kept}
        return Decision, (self.outcome, DetachedLimit(self.limit), self.key, self.cost), state

    def __bool__(self) -> bool:
        return self.outcome[ALLOWED]

    @property
    def allowed(self) -> bool:
        """Returns whether the call may pass."""
        return self.outcome[ALLOWED]

    @property
    def remaining(self) -> int:
        """Whole units that could still be taken at this instant."""
        return self.outcome[REMAINING]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same call would pass if nothing else came; 0 if it passed, None if never."""
        wait_us = self.outcome[RETRY_AFTER_US]
        return None if wait_us is None else wait_us / _MICROSECONDS_PER_SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the count is as if never used."""
        return self.outcome[RESET_AFTER_US] / _MICROSECONDS_PER_SECOND

    @property
    def delay(self) -> float:
        """Seconds that an allowed call must wait before it is served."""
        return self.outcome[DELAY_US] / _MICROSECONDS_PER_SECOND

    @property
    def delay_us(self) -> int:
        """The delay in microseconds."""
        return self.outcome[DELAY_US]

    @property
    def lost(self) -> bool:
        """Returns whether somebody else may hold a slot that a block holds for this decision."""
        return self.hold is not None and self.hold.lost

    @property
    def paused_for(self) -> float:
        """Seconds that the key is still paused; 0 if it is not.

        >>> limiter = Limiter("3/minute", clock=ManualClock(), pausable=True)
        >>> limiter.pause("ann", 20), limiter.peek("ann").paused_for
        (20.0, 20.0)
        """
        parts = (part.outcome for part in self.counter_decisions)
        paused_us = max((each.paused_us for each in parts if isinstance(each, PausedOutcome)), default=0)
        return paused_us / _MICROSECONDS_PER_SECOND

    @property
    def degraded(self) -> bool:
        """Returns whether a fallback decided, because the engine did not reply."""
        return any(isinstance(part.outcome, DegradedOutcome) for part in self.counter_decisions)

    @property
    def has_refusal(self) -> bool:
        """Returns whether the call was refused, or would have been by a shadow or a candidate."""
        return not self.outcome[ALLOWED]

    @property
    def atomic(self) -> bool:
        """Returns whether all charges were decided at one instant. If not (keys of several slots of a cluster),
        all were taken back where one refused, but for a moment some were charged.
        """
        return not any(isinstance(part.outcome, CrossSlotOutcome) for part in self.counter_decisions)

    @property
    def limit(self) -> Limit:
        """The limit that decided: the one that refuses longest, or the one nearest to its end."""
        return self.source.limit

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict for each charge, in the order of the call."""
        return (Verdict(*self.outcome, self.source.limit, self.key, self.cost, self.rule, self.shadow_kind),)

    @property
    def counter_decisions(self) -> tuple[Decision, ...]:
        """One decision for each counter: itself, unless several were decided together. Refunds go by these parts,
        because the engine saw charges on the same counter as one."""
        return (self,)

    @property
    def shadow_decisions(self) -> tuple[Decision, ...]:
        """One decision for each counter of shadow and candidate rules, which cannot refuse the call."""
        return ()

    def or_raise(self) -> Self:
        """Returns itself if allowed; raises RateLimited if not.

        >>> Limiter("3/minute").take("ann").or_raise().remaining
        2
        """
        if not self.allowed:
            raise RateLimited(self)
        return self

    @property
    def described_decision(self) -> Decision:
        """The part that `str` describes: one limit, with its own numbers."""
        return self

    @property
    def _never(self) -> str:
        """Returns why no wait can help, as text."""
        if self.cost <= self.source.limit.max_cost:
            return "no wait can help"
        cost = self.cost if self.cost <= _MAX_EXACT else "more than 2^53"
        return f"a cost of {cost} is too large, at most {self.source.limit.max_cost} can ever pass"

    def __str__(self) -> str:
        part = self.described_decision
        if self.allowed:
            wait = f" after {part.delay:g} s" if part.delay else ""
            return f"allowed{wait} by {part.limit}, {part.remaining} remaining"
        if part.retry_after is None:
            return f"refused by {part.limit}: {part._never}"
        if part.paused_for:
            return f"refused while paused: retry after {part.retry_after:g} s"
        return f"refused by {part.limit}: retry after {part.retry_after:g} s"

    def __repr__(self) -> str:
        return f"<Decision {self}>"


class JointDecision(Decision):
    """Several charges decided together: all or none.

    `remaining` is the least, `delay` and `reset_after` the longest, `retry_after` the longest among those that
    refused; the limit that decided is the one that refuses longest, or the one nearest to its end. It only
    stores its arguments; everything else is computed when it is read.
    """

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        counters: Sequence[tuple[HasLimit, str, int]],
        charges: Sequence[tuple[HasLimit, str, int]],
        indexes: Sequence[int],
    ) -> None:
        self._outcomes, self._counters = outcomes, counters  # one for each counter
        self._charges, self._indexes = charges, indexes  # as they were stated, and the counter of each

    def __reduce__(self) -> tuple[Any, ...]:
        counters, charges = (
            [(DetachedLimit(source.limit), key, cost) for source, key, cost in several]
            for several in (self._counters, self._charges)
        )
        parts = tuple(copy(part) for part in self._parts)
        return JointDecision, (self._outcomes, counters, charges, self._indexes), {"_parts": parts}

    @property
    def allowed(self) -> bool:
        for outcome in self._outcomes:  # noqa: SIM110 (all() with a generator takes three times as long)
            if not outcome[ALLOWED]:
                return False
        return True

    def __bool__(self) -> bool:
        return self.allowed

    @lazy_property
    def _parts(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(outcome, *counter) for outcome, counter in zip(self._outcomes, self._counters, strict=True)
        )

    @lazy_property
    def _decisive_part(self) -> Decision:
        return most_restrictive(self._parts)

    @lazy_property
    def outcome(self) -> Outcome:  # type: ignore[override]
        """The outcome of all charges together."""
        parts, decisive = self._outcomes, self._decisive_part.outcome
        allowed = decisive[ALLOWED]
        return (
            allowed,
            min(outcome[REMAINING] for outcome in parts),
            decisive[RETRY_AFTER_US],
            max(outcome[RESET_AFTER_US] for outcome in parts),
            max(outcome[DELAY_US] for outcome in parts) if allowed else 0,
            decisive[AT_US],
            decisive[MARK],
        )

    @property
    def source(self) -> HasLimit:  # type: ignore[override]
        """The source of the part that decided."""
        return self._decisive_part.source

    @property
    def key(self) -> str:  # type: ignore[override]
        """The key of the part that decided."""
        return self._decisive_part.key

    @property
    def cost(self) -> int:  # type: ignore[override]
        """The cost of the part that decided."""
        return self._decisive_part.cost

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(
            Verdict(*self._outcomes[index], source.limit, key, cost)
            for index, (source, key, cost) in zip(self._indexes, self._charges, strict=True)
        )

    @property
    def counter_decisions(self) -> tuple[Decision, ...]:
        return self._parts

    @property
    def described_decision(self) -> Decision:
        return longest_delay(self._parts, self._decisive_part) if self.allowed else self._decisive_part


def longest_delay(parts: Sequence[Decision], otherwise: Decision) -> Decision:
    """Returns the part that an allowed call waits for longest; `otherwise` if it need not wait."""
    return max((part for part in parts if part.delay_us), key=lambda part: part.delay_us, default=otherwise)


def restriction(part: Decision | Verdict) -> tuple[bool, float]:
    """Returns how restrictive a part is; the least value decides a call, and is what headers state.

    A refusal comes before what passes. Of refusals the longest comes first, of what passes the one with the
    smallest share of its quota left.
    """
    outcome: Outcome | Verdict = part if isinstance(part, Verdict) else part.outcome
    if outcome[ALLOWED]:
        quota = outcome.current if isinstance(outcome, AdaptiveOutcome) else part.limit.quota
        return True, outcome[REMAINING] / quota
    retry_after_us = outcome[RETRY_AFTER_US]
    return False, -math.inf if retry_after_us is None else -retry_after_us


PartT = TypeVar("PartT", "Decision", Verdict)


def most_restrictive(parts: Sequence[PartT]) -> PartT:
    """Returns the part that decides the call: a decision on one charge, or a verdict; of equals the first."""
    return min(parts, key=restriction)
