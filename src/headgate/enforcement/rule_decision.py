"""The decision of a rulebook for a call: the deciding rule, the verdict of each rule, the shadow verdicts.

rule       the rule that refused: of several the one that refuses longest, of those the first in the rulebook.
           If the call passed, the rule that is nearest to its limit
verdicts   one for each charge of each rule that was decided, in the order of the rulebook
shadow_verdicts
           the same for shadows and candidates, which never refuse a call and count separately
nearest    the verdict with the least remaining share of its limit
refusal    the response if the call was refused: the rule's status, body, content type or redirect
why        the reason if a rule refused without its limit: a dimension was missing, the key is locked out
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    AdaptiveOutcome,
    Decision,
    DetachedLimit,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
    Verdict,
    longest_delay,
    most_restrictive,
)
from headgate.algorithms.limit import EXACT, UNLIMITED, Limit
from headgate.lazy_property import lazy_property
from headgate.rules.match import Match
from headgate.rules.rule import Refusal, Rulebook

SHADOW, CANDIDATE = "shadow", "candidate"

Charged = tuple[Any, str, int]  # a meter, a key, a cost
ChargeLabel = tuple[
    str, "str | None"
]  # the label of a charge: its rule, and whether it is a shadow or a candidate
Denied = tuple[int, Match]  # a rule that refuses without a charge, and how many charges come before it


class RefusalSource(Protocol):
    """The parts of a compiled rulebook that its decisions need."""

    @property
    def refusals(self) -> dict[str, Refusal]: ...
    @property
    def rules_with_cost(self) -> frozenset[str]: ...

    def override_meter(self, charge: Charged, limit: Limit) -> Any: ...


class _DetachedRulebook(NamedTuple):
    """The rulebook of a decision that was copied or pickled."""

    refusals: dict[str, Refusal]
    rules_with_cost: frozenset[str] = frozenset()

    def override_meter(self, charge: Charged, limit: Limit) -> Any:
        return DetachedLimit(limit)


class _NoMeter(NamedTuple):
    limit: Limit = UNLIMITED


_new_tuple = tuple.__new__
_NO_METER = _NoMeter()
_DENIED: Outcome = False, 0, None, 0, 0, 0, 0
_FREE: Outcome = True, EXACT, 0, 0, 0, 0, 0


class RuleDecision(Decision):
    """The decision on a call by all rules that apply to it; true if it may pass.

    Every call creates one, so it only stores its arguments; everything else is computed when it is read.

    >>> decision = Limiter.from_rules(RULES).check({"user": "ann"})
    >>> decision.rule, decision.remaining, decision.refusal
    ('login', 1, None)
    """

    def __init__(
        self,
        book: RefusalSource,
        labels: Sequence[ChargeLabel],
        charges: Sequence[Charged],
        outcomes: Sequence[Outcome | None],
        denied_matches: Sequence[Denied],
        several_requests: bool = False,
    ) -> None:
        self._book = book
        self.labels: Sequence[ChargeLabel] = labels
        self.charges: Sequence[Charged] = charges
        self.outcomes: Sequence[Outcome | None] = outcomes
        self.denied_matches = denied_matches
        self._several_requests = several_requests

    def __reduce__(self) -> tuple[Any, ...]:
        refusal = self.refusal
        book = _DetachedRulebook({} if refusal is None or self.rule is None else {self.rule: refusal})
        charges = [(DetachedLimit(meter.limit), key, cost) for meter, key, cost in self.charges]
        return RuleDecision, (
            book,
            self.labels,
            charges,
            self.outcomes,
            self.denied_matches,
            self._several_requests,
        )

    def __bool__(self) -> bool:
        return self.allowed

    def only(self, rules: Collection[str]) -> RuleDecision:
        """Returns the part of these rules, to be refunded or settled by itself.

        >>> Limiter.from_rules(RULES).check({"user": "ann"}).only({"login"}).rule
        'login'
        """
        chosen = [index for index, (rule, _) in enumerate(self.labels) if rule in rules]
        heads, charges, answers = self.labels, self.charges, self.outcomes
        part = RuleDecision(
            self._book,
            [heads[index] for index in chosen],
            [charges[index] for index in chosen],
            [answers[index] for index in chosen],
            (),
            self._several_requests,
        )
        # The same parts, not copies: what is given back here is not given back again by the whole.
        part._all = [each for each in self._all if each.rule in rules and each.source is not _NO_METER]
        return part

    @property
    def rulebook(self) -> Rulebook | None:
        """The rulebook that decided; None for a decision that was copied or pickled."""
        return getattr(self._book, "book", None)

    @property
    def has_one_cost(self) -> bool:  # type: ignore[override]
        """Returns whether all its charges have the cost of the call: not if there are several rules, and one
        states a cost of its own.
        """
        rules = {rule for rule, _ in self.labels}
        return len(rules) < 2 or rules.isdisjoint(self._book.rules_with_cost)

    @lazy_property
    def allowed(self) -> bool:
        """Returns whether the call may pass."""
        for (_, shadow_kind), outcome in zip(self.labels, self.outcomes, strict=True):
            if shadow_kind is None and outcome is not None and not outcome[ALLOWED]:
                return False
        return all(match.shadow for _, match in self.denied_matches)

    @lazy_property
    def _single_part(self) -> Decision | None:
        """The only part, if one rule decided by one counter: most calls, so they skip the search."""
        if (
            len(self.labels) != 1
            or self.denied_matches
            or self.labels[0][1] is not None
            or self.outcomes[0] is None
        ):
            return None
        return self._all[0]

    @lazy_property
    def counter_decisions(self) -> tuple[Decision, ...]:
        """The decision of each counter, without shadows and candidates, in the order of the rulebook."""
        return tuple(part for part in self._all if part.shadow_kind is None)

    @lazy_property
    def shadow_decisions(self) -> tuple[Decision, ...]:
        """The decision of each counter of shadows and candidates, in the order of the rulebook."""
        return tuple(part for part in self._all if part.shadow_kind is not None)

    @lazy_property
    def _all(self) -> list[Decision]:
        """All parts in the order of the rulebook, without charges that were not sent."""
        parts: list[Decision | None] = []
        for (rule, shadow_kind), charge, outcome in zip(self.labels, self.charges, self.outcomes, strict=True):
            meter, key, cost = charge
            if isinstance(outcome, OverriddenOutcome):
                meter = self._book.override_meter(charge, outcome.limit)
            parts.append(
                None if outcome is None else _labelled(Decision(outcome, meter, key, cost), rule, shadow_kind)
            )
        for before, match in reversed(self.denied_matches):
            part = Decision(_DENIED, _NO_METER, match.key, match.cost)
            parts.insert(before, _labelled(part, match.rule.name, SHADOW if match.shadow else None))
        return [part for part in parts if part is not None]

    @lazy_property
    def _deciding_part(self) -> Decision:
        """The part that decides the call."""
        if self._single_part is not None:
            return self._single_part
        parts = self.counter_decisions
        return most_restrictive(parts) if parts else Decision(_FREE, _NO_METER, "", 0)

    @lazy_property
    def outcome(self) -> Outcome:  # type: ignore[override]
        """The outcome of the whole call: the least remaining, the longest wait."""
        deciding = self._deciding_part.outcome
        if self._single_part is not None:
            return deciding
        parts = self.counter_decisions or (self._deciding_part,)
        return (
            self.allowed,
            min(part.outcome[REMAINING] for part in parts),
            deciding[RETRY_AFTER_US],
            max(part.outcome[RESET_AFTER_US] for part in parts),
            max(part.outcome[DELAY_US] for part in parts) if self.allowed else 0,
            deciding[AT_US],
            deciding[MARK],
        )

    @property
    def limit(self) -> Limit | None:  # type: ignore[override]
        """The limit that decided; None if no rule applied, or if one refused without its limit."""
        limit = self._deciding_part.limit
        return None if limit is UNLIMITED else limit

    @property
    def remaining(self) -> int | None:  # type: ignore[override]
        """Whole units that could still be taken; None if no limit decided."""
        return None if self.limit is None else self.outcome[REMAINING]

    @property
    def rule(self) -> str | None:  # type: ignore[override]
        """The rule that refused, or the one nearest to its limit; None if no rule applied."""
        return self._deciding_part.rule

    @property
    def source(self) -> Any:  # type: ignore[override]
        """The meter of the counter that decided."""
        return self._deciding_part.source

    @property
    def key(self) -> str:  # type: ignore[override]
        """The key of the counter that decided."""
        return self._deciding_part.key

    @property
    def cost(self) -> int:  # type: ignore[override]
        """The cost at the counter that decided."""
        return self._deciding_part.cost

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self._verdicts(of_shadows=False)

    @property
    def shadow_verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts of shadows and candidates."""
        return self._verdicts(of_shadows=True)

    def _verdicts(self, of_shadows: bool) -> tuple[Verdict, ...]:
        """Returns the verdicts in the order of the rulebook: of shadows and candidates, or of all others."""
        verdicts: list[Verdict | None] = []
        for (rule, kind), (meter, key, cost), outcome in zip(
            self.labels, self.charges, self.outcomes, strict=True
        ):
            if outcome is None or (kind is not None) is not of_shadows:
                verdicts.append(None)
                continue
            limit = outcome.limit if isinstance(outcome, OverriddenOutcome) else meter.limit
            verdicts.append(_new_tuple(Verdict, (*outcome, limit, key, cost, rule, kind)))
        for before, match in reversed(self.denied_matches):
            if match.shadow is of_shadows:
                kind = SHADOW if match.shadow else None
                verdict = Verdict(*_DENIED, UNLIMITED, match.key, match.cost, match.rule.name, kind)
                verdicts.insert(before, verdict)
        return tuple([verdict for verdict in verdicts if verdict is not None])

    @property
    def refusal(self) -> Refusal | None:
        """The response that the rule wants, if the call was refused; else None."""
        return None if self.allowed or self.rule is None else self._book.refusals.get(self.rule, Refusal())

    @property
    def has_refusal(self) -> bool:
        """Returns whether the call was refused, or would have been by a shadow or a candidate."""
        for outcome in self.outcomes:
            if outcome is not None and not outcome[ALLOWED]:
                return True
        return bool(self.denied_matches)

    @property
    def atomic(self) -> bool:
        """Returns whether all charges were decided in one place, at one instant.

        False if some charges count in this process and others elsewhere, or if they lie on several nodes of a
        cluster. True or False, no charge is kept if one is refused.
        """
        return not self._several_requests and super().atomic

    @property
    def locked(self) -> bool:
        """Returns whether the rule that decided has locked the key out."""
        return isinstance(self._deciding_part.outcome, LockedOutcome)

    @property
    def why(self) -> str | None:
        """The reason why a rule refused without its limit, as part of a sentence."""
        if self.locked:
            return "it was refused too often and is locked out"
        if self._deciding_part.paused_for and not self._deciding_part.allowed:
            return "its key is paused"
        return next(
            (match.denial_reason for _, match in self.denied_matches if match.rule.name == self.rule), None
        )

    @property
    def described_decision(self) -> Decision:
        return longest_delay(self.counter_decisions, self._deciding_part) if self.allowed else self._deciding_part

    def __str__(self) -> str:
        part = self.described_decision
        if part.rule is None:
            return "allowed: no limit applies"
        source = f'rule "{part.rule}"' + ("" if part.limit is UNLIMITED else f" ({_described_limit(part)})")
        if self.allowed:
            wait = f" after {part.delay:g} s" if part.delay else ""
            return f"allowed{wait} by {source}, {part.remaining} remaining"
        why = f", because {self.why}" if self.why else ""
        if part.retry_after is None:
            return f"refused by {source}{why or f': {part._never}'}"
        return f"refused by {source}{why}: retry after {part.retry_after:g} s"


def _described_limit(part: Decision) -> str:
    outcome = part.outcome
    return f"{part.limit}, now {outcome.current}" if isinstance(outcome, AdaptiveOutcome) else str(part.limit)


def _labelled(part: Decision, rule: str, shadow_kind: str | None) -> Decision:
    part.rule, part.shadow_kind = rule, shadow_kind
    return part
