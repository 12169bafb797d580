"""What was decided: facts for one charge, a Decision for the call.

A model answers with plain Outcome, because a named tuple would cost a third of a decision in memory; the
names are given back here, at the edge, where people read them. Inside, time is whole microseconds and None
means that no wait can help; outside it is seconds, as people and HTTP speak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from headgate.errors import RateLimited

if TYPE_CHECKING:
    from headgate.algorithms.limit import Limit

# allowed, remaining, retry_after_us, reset_after_us, delay_us, at_us, mark: the fields of Verdict, unnamed.
Outcome = tuple[bool, int, "int | None", int, int, int, int]


class DegradedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """Outcome of a fallback: decided without the engine that was asked, because it gave no answer."""

    __slots__ = ()


class CrossSlotOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """Outcome of a charge that was decided together with others in several places: taken back if one of them
    refused, but not atomic."""

    __slots__ = ()


class LockedOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """Outcome of a charge whose rule is locked out: refused for longer, because it was refused too often."""

    __slots__ = ()


class OverriddenOutcome(tuple[bool, int, "int | None", int, int, int, int]):
    """Outcome by a limit of the key's own, in place of the rule's."""

    limit: Limit


ALLOWED: Final = 0
REMAINING: Final = 1
RETRY_AFTER_US: Final = 2
RESET_AFTER_US: Final = 3
DELAY_US: Final = 4
AT_US: Final = 5
MARK: Final = 6

_SECOND = 1_000_000
_EXACT = 2**53


def with_remaining(facts: Outcome, remaining: int) -> Outcome:
    """The same facts, of the same kind, with another number of units left."""
    kind: Any = type(facts)
    changed: Outcome = kind((*facts[:REMAINING], remaining, *facts[REMAINING + 1 :]))
    if isinstance(changed, OverriddenOutcome):
        changed.limit = facts.limit  # type: ignore[attr-defined]
    return changed


class Limited(Protocol):
    """Whatever stands for one limit: an engine's meter, for the model just its limit."""

    @property
    def limit(self) -> Limit: ...


class Unbound(NamedTuple):
    """A limit without an engine: what a decision knows of its meter once it was copied or pickled."""

    limit: Limit


class Held(Protocol):
    """Slots that are held for a decision."""

    @property
    def lost(self) -> bool: ...
    def answered(self, asked_at: float, ends_us: int | None) -> bool: ...
    def ended(self) -> None: ...


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
    """What a charge left behind when it was allowed: enough to give it back exactly."""

    cost: int
    at_us: int
    reset_after_us: int
    delay_us: int
    mark: int
    returned: int = 0  # units that were given back before

    @classmethod
    def of(cls, facts: Outcome, cost: int, returned: int = 0) -> Receipt:
        return cls(cost, facts[AT_US], facts[RESET_AFTER_US], facts[DELAY_US], facts[MARK], returned)

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
    aside            "shadow" or "candidate" if it was decided beside the call, and could not refuse it

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
    aside: str | None = None

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same charge would pass if nothing else came: 0 now, None never."""
        return None if self.retry_after_us is None else self.retry_after_us / _SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the count is as if never used."""
        return self.reset_after_us / _SECOND

    @property
    def delay(self) -> float:
        """Seconds that an allowed charge must wait before it is served."""
        return self.delay_us / _SECOND


class Decision:
    """The answer to a call; true if it may pass.

    The hot path makes one of these per call, so it only keeps what it was given; every fact is a property. A copy,
    or one that was pickled, says the same and gives nothing back: units must not come back twice.

    >>> limiter = Limiter("1/minute", clock=ManualClock())
    >>> passed, refused = limiter.take("ann"), limiter.take("ann")
    >>> bool(passed), bool(refused), refused.retry_after
    (True, False, 60.0)
    """

    rule: str | None = None
    aside: str | None = None
    given_back: int = 0  # units already refunded, so that nothing is given back twice
    hold: Held | None = None  # the slots that a block holds for it

    def __init__(self, facts: Outcome, source: Limited, key: str, cost: int) -> None:
        self.facts = facts
        self.source = source
        self.key = key
        self.cost = cost

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in vars(self).items() if name in ("rule", "aside", "given_back")}
        return Decision, (self.facts, Unbound(self.limit), self.key, self.cost), kept

    def __bool__(self) -> bool:
        return self.facts[ALLOWED]

    @property
    def allowed(self) -> bool:
        """Whether the call may pass."""
        return self.facts[ALLOWED]

    @property
    def remaining(self) -> int:
        """Whole units that could still be taken at this instant."""
        return self.facts[REMAINING]

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same call would pass if nothing else came; 0 if it passed, None if never."""
        wait_us = self.facts[RETRY_AFTER_US]
        return None if wait_us is None else wait_us / _SECOND

    @property
    def reset_after(self) -> float:
        """Seconds until the count is as if never used."""
        return self.facts[RESET_AFTER_US] / _SECOND

    @property
    def delay(self) -> float:
        """Seconds that an allowed call must wait before it is served."""
        return self.facts[DELAY_US] / _SECOND

    @property
    def delay_us(self) -> int:
        """The delay in microseconds."""
        return self.facts[DELAY_US]

    @property
    def lost(self) -> bool:
        """Whether a slot that a block holds for it may be somebody else's by now."""
        return self.hold is not None and self.hold.lost

    @property
    def degraded(self) -> bool:
        """Whether a fallback decided, because the engine gave no answer."""
        return any(isinstance(part.facts, DegradedOutcome) for part in self.parts)

    @property
    def atomic(self) -> bool:
        """Whether all charges were decided in one place, at one instant. If not (keys of several slots of a
        cluster), none was kept where one refused, but for a moment some were."""
        return not any(isinstance(part.facts, CrossSlotOutcome) for part in self.parts)

    @property
    def limit(self) -> Limit:
        """The limit that spoke."""
        return self.source.limit

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each charge, in the order in which they were asked."""
        return (Verdict(*self.facts, self.source.limit, self.key, self.cost, self.rule, self.aside),)

    @property
    def parts(self) -> tuple[Decision, ...]:
        """The decision count by count: itself, unless several were decided together. What is given back is
        given back here, because charges on the same count were one to the engine."""
        return (self,)

    @property
    def beside(self) -> tuple[Decision, ...]:
        """Shadows and candidates of rules, count by count: decided beside the call, without refusing it."""
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
    def told(self) -> Decision:
        """The part that `str` tells of: one limit, with its own numbers."""
        return self

    @property
    def _never(self) -> str:
        """Why no wait can help, in words."""
        if self.cost <= self.source.limit.max_cost:
            return "no wait can help"
        cost = self.cost if self.cost <= _EXACT else "more than 2^53"
        return f"a cost of {cost} is too large, at most {self.source.limit.max_cost} can ever pass"

    def __str__(self) -> str:
        told = self.told
        if self.allowed:
            wait = f" after {told.delay:g} s" if told.delay else ""
            return f"allowed{wait} by {told.limit}, {told.remaining} remaining"
        if told.retry_after is None:
            return f"refused by {told.limit}: {told._never}"
        return f"refused by {told.limit}: retry after {told.retry_after:g} s"

    def __repr__(self) -> str:
        return f"<Decision {self}>"


class JointDecision(Decision):
    """Several charges decided together: all or none.

    `remaining` is the least, `delay` and `reset_after` the longest, `retry_after` the longest among those that
    refused; the limit that spoke is the one that refuses longest, or the one nearest to its end.
    """

    def __init__(self, parts: Sequence[Decision], charges: Sequence[tuple[Outcome, Limited, str, int]]) -> None:
        self._parts = tuple(parts)
        self._charges = charges
        refused = [part for part in parts if not part.allowed]
        if refused:
            spoke = max(refused, key=lambda part: _or_forever(part.facts[RETRY_AFTER_US]))
        else:
            spoke = min(parts, key=lambda part: part.facts[REMAINING])
        self._spoke = spoke
        facts = (
            not refused,
            min(part.facts[REMAINING] for part in parts),
            spoke.facts[RETRY_AFTER_US],
            max(part.facts[RESET_AFTER_US] for part in parts),
            max(part.facts[DELAY_US] for part in parts) if not refused else 0,
            spoke.facts[AT_US],
            spoke.facts[MARK],
        )
        super().__init__(facts, spoke.source, spoke.key, spoke.cost)

    def __reduce__(self) -> tuple[Any, ...]:
        charges = [(facts, Unbound(source.limit), key, cost) for facts, source, key, cost in self._charges]
        return JointDecision, ([copy(part) for part in self._parts], charges)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(Verdict(*facts, source.limit, key, cost) for facts, source, key, cost in self._charges)

    @property
    def parts(self) -> tuple[Decision, ...]:
        return self._parts

    @property
    def told(self) -> Decision:
        return longest_delay(self._parts, self._spoke) if self.allowed else self._spoke


def longest_delay(parts: Sequence[Decision], otherwise: Decision) -> Decision:
    """The part for which an allowed call waits; if it need not wait, the other one."""
    return max((part for part in parts if part.delay_us), key=lambda part: part.delay_us, default=otherwise)


def _or_forever(wait_us: int | None) -> float:
    return math.inf if wait_us is None else wait_us
