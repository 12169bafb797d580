"""A fast path for several charges that their limits alone decide, without lockouts, overrides and shadows.

Gain: a check by two rules in memory needs a fifth less time than by take_all.py.

Law (tests/engines/memory/test_fast_paths.py): outcomes and states are those of the plain path.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.algorithms.decision import ALLOWED, Outcome
from headgate.engines.memory.take_all import MeterCharge, without_charge


def decide(charges: Sequence[MeterCharge], now_us: int, patience_us: int | None, commit: bool) -> list[Outcome]:
    """Decides the charges and stores the result. The caller holds the lock."""
    results = [meter.judge(key, now_us, cost, patience_us) for meter, key, cost in charges]
    taken = commit and all(outcome[ALLOWED] for outcome, _ in results)
    answers = []
    for (meter, key, _), (outcome, after) in zip(charges, results, strict=True):
        if not taken and outcome[ALLOWED]:
            outcome, after = without_charge(meter.judge(key, now_us, 0, None))
        if commit:
            meter.save(key, after, now_us)
        answers.append(outcome)
    return answers
