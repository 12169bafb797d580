"""Decides several charges together in this process: the twin of lua/commands/take_all.lua.

It goes group by group: a group is the charges of one rule, or consecutive charges without options. All charges of
the live groups are stored, or none; a shadow group is stored by its own verdict, whatever the others decide. First
everything is judged, then everything is stored.

Laws (tests/parity/test_lockout_together.py, tests/engines/test_charges_across_slots.py):
  - a shadow group changes nothing for the live ones, and they change nothing for it;
  - a group that its own limits refuse counts one refusal, whatever the others decide; a peek counts none;
  - a group that is locked out is refused without a look at its counts, and so is the call that reaches `after`;
  - a preview leaves no trace at all;
  - a group whose key is paused is decided by the key's clock (algorithms/pause.py): refused, or served after it.

Most charges go by fast_take_all.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headgate.algorithms import lockout, pause
from headgate.algorithms.decision import (
    ALLOWED,
    AT_US,
    DELAY_US,
    MARK,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
    PausedOutcome,
)
from headgate.algorithms.limit import Limit
from headgate.engines.charge_options import ChargeOptions, group_by_rule
from headgate.engines.memory.state_table import StateTable
from headgate.engines.overrides import Limits


class JudgingMeter(Protocol):
    """A meter that can judge without storing; `override` is a limit that decides in place of its own."""

    limit: Limit
    options: ChargeOptions | None

    def judge(
        self, key: str, now_us: int, cost: int, patience_us: int | None, override: Limit | None = None
    ) -> tuple[Outcome, Any]: ...
    def save(self, key: str, state: Any, now_us: int, override: Limit | None = None) -> None: ...


class RuleTables(Protocol):
    """The tables that an engine stores in addition to its counts."""

    def lockouts(self, rule: str) -> StateTable[lockout.State]: ...
    def override_limits(self, rule: str, key: str, now_us: int) -> Limits: ...
    def pause_of(self, options: ChargeOptions | None, key: str, now_us: int) -> pause.State | None: ...


MeterCharge = tuple[JudgingMeter, str, int]


def decide(
    tables: RuleTables, charges: Sequence[MeterCharge], now_us: int, patience_us: int | None, commit: bool
) -> list[Outcome]:
    """Decides the charges and stores the result. The caller holds the lock."""
    groups = [_RuleCharges(tables, group, now_us, patience_us) for group in group_by_rule(charges)]
    allowed = all(group.allowed for group in groups if not group.is_shadow)
    return [
        outcome
        for group in groups
        for outcome in group.store(group.allowed if group.is_shadow else allowed, commit)
    ]


class _RuleCharges:
    """The charges of one rule, or consecutive ones without options: judged when it is made, then stored."""

    def __init__(
        self, tables: RuleTables, charges: Sequence[MeterCharge], now_us: int, patience_us: int | None
    ) -> None:
        meter, key, _ = charges[0]
        options = meter.options
        self._charges, self._now_us = charges, now_us
        self.is_shadow = options is not None and options.is_shadow
        self._lockout = (
            None if options is None or options.lockout is None else _KeyLockout(tables, options, key, now_us)
        )
        pause_state = tables.pause_of(options, key, now_us)  # also if locked out: a clock set back is put right
        self.allowed = self._lockout is None or not self._lockout.left_us
        if not self.allowed:
            return
        limits = (
            tables.override_limits(options.rule, key, now_us) if options is not None and options.overrides else ()
        )
        self._overrides: list[Limit | None] = [None] * len(charges)
        for index, (limit, (meter, _, _)) in enumerate(zip(limits, charges, strict=False)):
            self._overrides[index] = meter.limit.with_override(limit)
        self._paused_us = 0 if pause_state is None else max(0, pause_state[0] - now_us)
        self._serves_later = patience_us is not None and patience_us >= self._paused_us
        if self._paused_us:
            patience_us = patience_us - self._paused_us if patience_us is not None and self._serves_later else None
        self._clocks = [now_us] * len(charges)
        if pause_state is not None:
            self._clocks = [pause.clock_us(pause_state, now_us, meter.limit.has_edges) for meter, _, _ in charges]
        self._results = [
            meter.judge(key, at_us, cost, patience_us, override)
            for (meter, key, cost), at_us, override in zip(charges, self._clocks, self._overrides, strict=True)
        ]
        self.allowed = all(outcome[ALLOWED] for outcome, _ in self._results)
        if self._paused_us and not self._serves_later:
            self.allowed = False

    def store(self, allowed: bool, commit: bool) -> list[Outcome]:
        """Returns the outcomes, and with `commit` stores what was judged."""
        key_lockout = self._lockout
        answers = (
            [] if key_lockout is not None and key_lockout.left_us else list(self._store_results(allowed, commit))
        )
        if key_lockout is None:
            return answers
        if commit:
            key_lockout.store(
                refused=bool(answers)
                and any(
                    cost and not outcome[ALLOWED]
                    for (_, _, cost), (outcome, _) in zip(self._charges, self._results, strict=True)
                )
            )
        return [key_lockout.outcome] * len(self._charges) if key_lockout.left_us else answers

    def _store_results(self, allowed: bool, commit: bool) -> Sequence[Outcome]:
        answers: list[Outcome] = []
        for (meter, key, _), at_us, override, (outcome, after) in zip(
            self._charges, self._clocks, self._overrides, self._results, strict=True
        ):
            if not (allowed and commit) and outcome[ALLOWED]:
                outcome, after = without_charge(meter.judge(key, at_us, 0, None, override))
            if commit:
                meter.save(key, after, self._now_us, override)
            if override is not None:
                outcome = OverriddenOutcome(outcome)
                outcome.limit = override
            answers.append(self._paused(outcome) if self._paused_us else outcome)
        return answers

    def _paused(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of a paused key, by the real clock: refused for as long as the pause lasts, or
        served after it."""
        paused_us, serves_later = self._paused_us, self._serves_later and outcome[ALLOWED]
        retry_us = outcome[RETRY_AFTER_US]
        if retry_us is not None and not serves_later:
            retry_us += paused_us
        delay_us = outcome[DELAY_US] + paused_us if serves_later else outcome[DELAY_US]
        reset_us = outcome[RESET_AFTER_US] + paused_us
        numbers = outcome[REMAINING], retry_us, reset_us, delay_us, outcome[AT_US], outcome[MARK]
        return PausedOutcome.wrap((serves_later, *numbers), paused_us)


class _KeyLockout:
    """The current lockout of one key by a rule."""

    def __init__(self, tables: RuleTables, options: ChargeOptions, key: str, now_us: int) -> None:
        assert options.lockout is not None
        self._settings, self._key, self._now_us = options.lockout, key, now_us
        self._table = tables.lockouts(options.rule)
        self._state = lockout.current_state(self._settings, self._table.states.get(key), now_us)
        self.left_us = lockout.left_us(self._state, now_us)

    def store(self, refused: bool) -> None:
        if refused:
            self._state = lockout.count_refusal(self._settings, self._state, self._now_us)
            self.left_us = lockout.left_us(self._state, self._now_us)
        if self._state is not None:
            self._table.put(self._key, self._state, lambda _, old: lockout.dead_at_us(old) <= self._now_us)

    @property
    def outcome(self) -> Outcome:
        return LockedOutcome((False, 0, self.left_us, self.left_us, 0, self._now_us, 0))


def without_charge(result: tuple[Outcome, Any]) -> tuple[Outcome, Any]:
    """Returns the result of a charge that would have passed, had not another one been refused: nothing is
    taken."""
    outcome, after = result
    unchanged = outcome[REMAINING], 0, outcome[RESET_AFTER_US], outcome[DELAY_US], outcome[AT_US], outcome[MARK]
    return (True, *unchanged), after
