"""What a rulebook decided for a call: which rule spoke, how each stands, what was decided beside.

rule       the rule that refused: of several the one that refuses longest, of those the first in the book.
           Of a call that passed, the rule that is nearest to its limit
verdicts   one for each charge of each rule that was asked, in the order of the book
asides     the same for shadows and candidates, which never refuse a call and are counted apart
nearest    the verdict with the least left of its limit
refusal    what to answer, if the call was refused: the rule's status, body, content type or redirect
why        a sentence, where a rule refused without its limit: a dimension was missing, the key is locked out
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Decision,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
    Unbound,
    Verdict,
    longest_delay,
)
from headgate.algorithms.limit import EXACT, UNLIMITED, Limit
from headgate.engines.layers.fallback.limit_share import fresh
from headgate.lazy import lazy_property
from headgate.rules.match import Match
from headgate.rules.rule import Refusal

SHADOW, CANDIDATE = "shadow", "candidate"

Charged = tuple[Any, str, int]  # a meter, a key, a cost
Head = tuple[str, "str | None"]  # of a charge: its rule, and whether it is a shadow or a candidate
Denied = tuple[int, Match]  # who refuses without being asked, and how many charges come before it


class Book(Protocol):
    """What a decision asks of the rulebook that made it."""

    @property
    def refusals(self) -> dict[str, Refusal]: ...

    def own_meter(self, charge: Charged, limit: Limit) -> Any: ...


class _Copied(NamedTuple):
    """The same for a decision that was copied or pickled."""

    refusals: dict[str, Refusal]

    def own_meter(self, charge: Charged, limit: Limit) -> Any:
        return Unbound(limit)


class _Nobody(NamedTuple):
    limit: Limit = UNLIMITED


_NOBODY = _Nobody()
_DENIED: Outcome = False, 0, None, 0, 0, 0, 0
_FREE: Outcome = True, EXACT, 0, 0, 0, 0, 0


class RuleDecision(Decision):
    """The answer to a call by all rules that apply to it; true if it may pass.

    A call makes one of these, so it only keeps what it was given; whatever is asked of it is worked out then.

    >>> decision = Limiter.from_rules(RULES).check({"user": "ann"})
    >>> decision.rule, decision.remaining, decision.refusal
    ('login', 1, None)
    """

    def __init__(
        self,
        book: Book,
        heads: Sequence[Head],
        charges: Sequence[Charged],
        answers: Sequence[Outcome | None],
        denied: Sequence[Denied],
        apart: bool = False,
    ) -> None:
        self._book = book
        self.heads: Sequence[Head] = heads
        self.charges: Sequence[Charged] = charges
        self.answers: Sequence[Outcome | None] = answers
        self.denied = denied
        self._apart = apart

    def __reduce__(self) -> tuple[Any, ...]:
        refusal = self.refusal
        book = _Copied({} if refusal is None or self.rule is None else {self.rule: refusal})
        charges = [(Unbound(meter.limit), key, cost) for meter, key, cost in self.charges]
        return RuleDecision, (book, self.heads, charges, self.answers, self.denied, self._apart)

    def __bool__(self) -> bool:
        return self.allowed

    @lazy_property
    def allowed(self) -> bool:
        """Whether the call may pass."""
        for (_, aside), facts in zip(self.heads, self.answers, strict=True):
            if aside is None and facts is not None and not facts[ALLOWED]:
                return False
        return all(match.shadow for _, match in self.denied)

    @lazy_property
    def _lone(self) -> Decision | None:
        """The only part, where one rule was asked about one count: most calls, so nothing is searched there."""
        if len(self.heads) != 1 or self.denied or self.heads[0][1] is not None or self.answers[0] is None:
            return None
        return self._all[0]

    @lazy_property
    def parts(self) -> tuple[Decision, ...]:
        """The decision count by count, without shadows and candidates, in the order of the book."""
        return tuple(part for part in self._all if part.aside is None)

    @lazy_property
    def beside(self) -> tuple[Decision, ...]:
        """Shadows and candidates, count by count, in the order of the book."""
        return tuple(part for part in self._all if part.aside is not None)

    @lazy_property
    def _all(self) -> list[Decision]:
        """In the order of the book; who was not asked is left out."""
        row: list[Decision | None] = []
        for (rule, aside), charge, facts in zip(self.heads, self.charges, self.answers, strict=True):
            meter, key, cost = charge
            if isinstance(facts, OverriddenOutcome):
                meter = self._book.own_meter(charge, facts.limit)
            row.append(None if facts is None else _part(Decision(facts, meter, key, cost), rule, aside))
        for before, match in reversed(self.denied):
            part = Decision(_DENIED, _NOBODY, match.key, match.cost)
            row.insert(before, _part(part, match.rule.name, SHADOW if match.shadow else None))
        return [part for part in row if part is not None]

    @lazy_property
    def _spoke(self) -> Decision:
        """Who refuses longest, of equals the first; or who is nearest to its limit."""
        if self._lone is not None:
            return self._lone
        refused = [part for part in self.parts if not part.allowed]
        if refused:
            return max(refused, key=_wait)
        return min(self.parts, key=_left) if self.parts else Decision(_FREE, _NOBODY, "", 0)

    @lazy_property
    def facts(self) -> Outcome:  # type: ignore[override]
        """The numbers of the decision: the least left, the longest wait."""
        spoke = self._spoke.facts
        if self._lone is not None:
            return spoke
        parts = self.parts or (self._spoke,)
        return (
            self.allowed,
            min(part.facts[REMAINING] for part in parts),
            spoke[RETRY_AFTER_US],
            max(part.facts[RESET_AFTER_US] for part in parts),
            max(part.facts[DELAY_US] for part in parts) if self.allowed else 0,
            spoke[AT_US],
            spoke[MARK],
        )

    @property
    def limit(self) -> Limit | None:  # type: ignore[override]
        """The limit that spoke; None if there is none: no rule applied, or one refused without its limit."""
        limit = self._spoke.limit
        return None if limit is UNLIMITED else limit

    @property
    def remaining(self) -> int | None:  # type: ignore[override]
        """Whole units that could still be taken; None if there is no limit of which they could be left."""
        return None if self.limit is None else self.facts[REMAINING]

    @property
    def rule(self) -> str | None:  # type: ignore[override]
        """The rule that spoke: the one that refused, or the one nearest to its limit; None if none did."""
        return self._spoke.rule

    @property
    def source(self) -> Any:  # type: ignore[override]
        """The meter of the count that spoke."""
        return self._spoke.source

    @property
    def key(self) -> str:  # type: ignore[override]
        """The key of the count that spoke."""
        return self._spoke.key

    @property
    def cost(self) -> int:  # type: ignore[override]
        """The cost that the count that spoke was charged."""
        return self._spoke.cost

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(part.verdicts[0] for part in self.parts)

    @property
    def asides(self) -> tuple[Verdict, ...]:
        """The verdicts of shadows and candidates."""
        return tuple(part.verdicts[0] for part in self.beside)

    @property
    def nearest(self) -> Verdict | None:
        """The verdict with the least left of its limit; None if no rule applied."""
        return min(self.parts, key=_left).verdicts[0] if self.parts else None

    @property
    def refusal(self) -> Refusal | None:
        """The response that the rule wants, if the call was refused; else None."""
        return None if self.allowed or self.rule is None else self._book.refusals.get(self.rule, Refusal())

    @property
    def atomic(self) -> bool:
        """Whether all charges were decided in one place, at one instant: not if some count in this process and
        some elsewhere, nor on several nodes of a cluster. None is kept where one refuses all the same."""
        return not self._apart and super().atomic

    @property
    def locked(self) -> bool:
        """Whether the rule that spoke has locked the key out."""
        return isinstance(self._spoke.facts, LockedOutcome)

    @property
    def why(self) -> str | None:
        """Why a rule refused without its limit, in words."""
        if self.locked:
            return "it was refused too often and is locked out"
        return next((match.denied for _, match in self.denied if match.rule.name == self.rule), None)

    @property
    def told(self) -> Decision:
        return longest_delay(self.parts, self._spoke) if self.allowed else self._spoke

    def __str__(self) -> str:
        told = self.told
        if told.rule is None:
            return "allowed: no limit applies"
        spoke = f'rule "{told.rule}"' + ("" if told.limit is UNLIMITED else f" ({told.limit})")
        if self.allowed:
            wait = f" after {told.delay:g} s" if told.delay else ""
            return f"allowed{wait} by {spoke}, {told.remaining} remaining"
        why = f", because {self.why}" if self.why else ""
        if told.retry_after is None:
            return f"refused by {spoke}{why or f': {told._never}'}"
        return f"refused by {spoke}{why}: retry after {told.retry_after:g} s"


def _part(part: Decision, rule: str, aside: str | None) -> Decision:
    part.rule, part.aside = rule, aside
    return part


def _wait(part: Decision) -> float:
    wait_us = part.facts[RETRY_AFTER_US]
    return inf if wait_us is None else wait_us


def _left(part: Decision) -> float:
    """What is left of a limit, as a share of it."""
    limit = part.source.limit
    return inf if limit is UNLIMITED else part.facts[REMAINING] / fresh(limit)
