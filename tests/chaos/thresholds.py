"""The thresholds that every row of the fault table must meet.

- no call waits longer than its deadline and 20 ms, beyond how late the control timer of its loop was;
- no exception reaches a caller who chose a fallback, and none but EngineUnavailable one who did not;
- while degraded: with allow nothing is refused, with deny nothing passes;
- while Redis decides alone, the limit holds exactly. With local at most twice the limit passes where an outage
  begins or is partial, and at most the limit and one share where all are cut off;
- two seconds after Redis is back, or a new master is in its place, it alone decides again;
- a fault that takes nothing away (resharding, forgotten scripts, clocks, an upgrade) leaves no caller without it
  for long: at most one call in a hundred is decided by the fallback.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from tests.chaos.call_record import DEADLINE, CallRecord
from tests.chaos.metrics import OverAdmission, longest_stall, over_admitted, recovery_seconds, worst_tick
from tests.chaos.run_load import ChaosLoad

MARGIN = 0.02
RECOVERED = 2.0
SELDOM = 0.01


class FaultResult(NamedTuple):
    """A row: what was measured, and which bars it fails."""

    fault: str
    fallback: str
    calls: int
    by_redis: int
    by_fallback: int
    errors: int
    stall: float
    timer: float
    over: OverAdmission | None
    recovery_seconds: float | None
    forgotten: tuple[int, int] | None
    failures: list[str]
    notes: list[str]


def judge_load(
    fault: str, load: ChaosLoad, *, harmless: bool = False, margin: float = MARGIN, within: float = RECOVERED
) -> FaultResult:
    """Compares what the load measured with the thresholds."""
    calls = [call for seen in load.seen for call in seen.calls]
    degraded = [call for call in calls if call.degraded]
    errors = [call for call in calls if call.error]
    epoch = time.time() - time.monotonic()
    over = over_admitted(load.seen, epoch, load.disturbed_us) if load.fallback != "allow" else None
    result = FaultResult(
        fault,
        (load.fallback or "none") + (", threads" if load.threads else ""),
        len(calls),
        len(calls) - len(degraded) - len(errors),
        len(degraded),
        len(errors),
        max(longest_stall(seen.calls, seen.ticks) for seen in load.seen),
        max(worst_tick(seen.ticks) for seen in load.seen),
        over,
        recovery_seconds(calls, load.back_at, load.ended),
        load.forgotten,
        [],
        load.notes,
    )
    failures = [*_waiting(result, margin), *_promises(load, degraded, errors), *_admission(result, load)]
    if result.recovery_seconds is None:
        failures.append("it did not recover")
    elif result.recovery_seconds > within:
        failures.append(f"recovered after {result.recovery_seconds:.2f} s, not within {within:g} s")
    if harmless and len(degraded) + len(errors) > SELDOM * len(calls):
        failures.append(f"{len(degraded) + len(errors)} calls without Redis, which was there all the time")
    return result._replace(failures=failures)


def _waiting(result: FaultResult, margin: float) -> list[str]:
    if result.stall <= DEADLINE + margin:
        return []
    return [f"a call waited {result.stall * 1000:.0f} ms, more than {(DEADLINE + margin) * 1000:.0f} ms"]


def _promises(load: ChaosLoad, degraded: list[CallRecord], errors: list[CallRecord]) -> list[str]:
    kinds = {call.error for call in errors} - ({"unavailable"} if load.fallback is None else set())
    # The ledger has a fallback of its own: deny.
    ours = [call for call in degraded if call.limit != "ledger"]
    failures = [f"callers saw exceptions: {', '.join(sorted(kinds))}"] if kinds else []
    if load.fallback == "allow" and not all(call.allowed for call in ours):
        failures.append("allow refused a call")
    if load.fallback == "deny" and any(call.allowed for call in ours):
        failures.append("deny let a call pass")
    return failures


def _admission(result: FaultResult, load: ChaosLoad) -> list[str]:
    if result.over is None:
        return []
    share = 1 / load.workers + 0.05  # rounded up
    failures = []
    for words, part, most in (
        ("while Redis decided alone", result.over.quiet, 0.0),
        ("where an outage began or was partial", result.over.troubled, 1.0),
        ("while all were cut off", result.over.cut_off, share),
    ):
        if part > most + 1e-9:
            failures.append(f"{part:.0%} above the limit {words}, more than {most:.0%}")
    return failures
