"""Several charges decided together in this process: the twin of lua/commands/take_all.lua.

Part by part. A part is one rule's charges, or plain ones. All charges of the live parts are kept, or none; a part
aside is kept by its own verdict, whatever the others say. First everything is judged, then everything is kept.

Laws (tests/parity/test_lockout_together.py, tests/engines/test_charge_options.py):
  - a part aside changes nothing for the live ones, and they change nothing for it;
  - a part that its own limits refuse counts one refusal, whatever the others say; a peek counts none;
  - a part that is locked out is refused without a look at its counts, and so is the call that reaches `after`;
  - what is only told leaves no trace at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.algorithms import lockout
from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
)
from headgate.algorithms.limit import Limit
from headgate.engines.charge_options import ChargeOptions, all_silent, parts
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import Limits, instead


class Hand(Protocol):
    """A meter that can judge without keeping; `own` is a limit that decides in place of its own."""

    limit: Limit
    terms: ChargeOptions | None

    def judge(
        self, key: str, now_us: int, cost: int, patience_us: int | None, own: Limit | None = None
    ) -> tuple[Outcome, Any]: ...
    def save(self, key: str, state: Any, now_us: int, own: Limit | None = None) -> None: ...


class Desk(Protocol):
    """What an engine keeps beside its counts."""

    def lockouts(self, rule: str) -> StateTable[lockout.State]: ...
    def own_limits(self, rule: str, key: str, now_us: int) -> Limits: ...


Charged = tuple[Hand, str, int]


def decide(
    desk: Desk, charges: Sequence[Charged], now_us: int, patience_us: int | None, commit: bool
) -> list[Outcome]:
    """The caller holds the lock."""
    if all_silent(charges):
        return _plain(charges, now_us, patience_us, commit)
    judged = [_Part(desk, part, now_us, patience_us) for part in parts(charges)]
    passed = all(part.passed for part in judged if not part.aside)
    return [facts for part in judged for facts in part.kept(part.passed if part.aside else passed, commit)]


def _plain(charges: Sequence[Charged], now_us: int, patience_us: int | None, commit: bool) -> list[Outcome]:
    """The same for charges that are no more than takes, which are most: in half the time."""
    judged = [hand.judge(key, now_us, cost, patience_us) for hand, key, cost in charges]
    taken = commit and all(facts[ALLOWED] for facts, _ in judged)
    answers = []
    for (hand, key, _), (facts, after) in zip(charges, judged, strict=True):
        if not taken and facts[ALLOWED]:
            facts, after = _uncharged(hand.judge(key, now_us, 0, None))
        if commit:
            hand.save(key, after, now_us)
        answers.append(facts)
    return answers


class _Part:
    """One rule's charges, or plain ones: judged when it is made, then kept."""

    def __init__(self, desk: Desk, charges: Sequence[Charged], now_us: int, patience_us: int | None) -> None:
        hand, key, _ = charges[0]
        terms = hand.terms
        self._charges, self._now_us = charges, now_us
        self.aside = terms is not None and terms.aside
        self._lock = None if terms is None or terms.lockout is None else _Lock(desk, terms, key, now_us)
        self.passed = self._lock is None or not self._lock.left_us
        if not self.passed:
            return
        limits = desk.own_limits(terms.rule, key, now_us) if terms is not None and terms.overrides else ()
        self._own: list[Limit | None] = [None] * len(charges)
        for place, (limit, (hand, _, _)) in enumerate(zip(limits, charges, strict=False)):
            self._own[place] = instead(hand.limit, limit)
        self._judged = [
            hand.judge(key, now_us, cost, patience_us, own)
            for (hand, key, cost), own in zip(charges, self._own, strict=True)
        ]
        self.passed = all(facts[ALLOWED] for facts, _ in self._judged)

    def kept(self, passed: bool, commit: bool) -> list[Outcome]:
        """The answer, and what was judged is kept, if it is to be."""
        lock = self._lock
        answers = [] if lock is not None and lock.left_us else list(self._settled(passed, commit))
        if lock is None:
            return answers
        if commit:
            lock.keep(refused=any(cost and not facts[ALLOWED] for (_, _, cost), facts in self._with(answers)))
        return [lock.facts] * len(self._charges) if lock.left_us else answers

    def _with(self, answers: Sequence[Outcome]) -> Sequence[tuple[Charged, Outcome]]:
        return list(zip(self._charges, answers, strict=False))

    def _settled(self, passed: bool, commit: bool) -> Sequence[Outcome]:
        answers: list[Outcome] = []
        for (hand, key, _), own, (facts, after) in zip(self._charges, self._own, self._judged, strict=True):
            if not (passed and commit) and facts[ALLOWED]:
                facts, after = _uncharged(hand.judge(key, self._now_us, 0, None, own))
            if commit:
                hand.save(key, after, self._now_us, own)
            if own is not None:
                facts = OverriddenOutcome(facts)
                facts.limit = own
            answers.append(facts)
        return answers


class _Lock:
    """A rule's lockout of one key, as it stands."""

    def __init__(self, desk: Desk, terms: ChargeOptions, key: str, now_us: int) -> None:
        assert terms.lockout is not None
        self._numbers, self._key, self._now_us = terms.lockout, key, now_us
        self._table = desk.lockouts(terms.rule)
        self._state = lockout.settled(self._numbers, self._table.states.get(key), now_us)
        self.left_us = lockout.left_us(self._state, now_us)

    def keep(self, refused: bool) -> None:
        if refused:
            self._state = lockout.refused(self._numbers, self._state, self._now_us)
            self.left_us = lockout.left_us(self._state, self._now_us)
        if self._state is not None:
            self._table.put(self._key, self._state, lambda _, old: lockout.dead_at_us(old) <= self._now_us)

    @property
    def facts(self) -> Outcome:
        return LockedOutcome((False, 0, self.left_us, self.left_us, 0, self._now_us, 0))


def _uncharged(judged: tuple[Outcome, Any]) -> tuple[Outcome, Any]:
    """A charge that would have passed had not another one refused: nothing was taken."""
    facts, after = judged
    as_it_stands = facts[REMAINING], 0, facts[RESET_AFTER_US], facts[DELAY_US], facts[AT_US], facts[MARK]
    return (True, *as_it_stands), after
