"""nginx's limit_req is a LeakyBucket, to the millisecond: its status, its excess and its delay.

Several limit_req in one place are several charges decided together. nginx then logs the excess of the first that
rejects, or of the one that delays longest (the last of equals), and so do we look for it. A limit whose key is
empty does not apply: that is nginx's rule for keys, not a count, so ours is not asked.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headgate import Charge, Decision, LeakyBucket, Limiter, Verdict
from tests.recorded.driven_engines import ReplayEngine
from tests.recorded.step_result import (
    NEGATIVE,
    ComparedFact,
    StepResult,
    compared_step,
    equal_fact,
    rest_not_compared,
)
from tests.recorded.uncharged_costs import uncharged_result
from tests.recorded.vectors import RecordedFields, UnreadableVector, VectorCase, VectorStep
from tests.servers import BASE_US

_KEY = "key"
_RATE = re.compile(r"([1-9][0-9]*)r/([sm])")


class _RecordedZone(NamedTuple):
    """One limit_req: whose key it counts by, and how much it lets through."""

    name: str
    key: str | None
    limit: LeakyBucket


class _ZoneAnswer(NamedTuple):
    status: str
    excess_milli: int
    wait_ms: float


_NOT_LIMITED = _ZoneAnswer("PASSED", 0, 0)


def replay(case: VectorCase, engine: ReplayEngine) -> Iterator[StepResult]:
    several = "limits" in case.config
    zones = [_zone(engine.fresh_name(), one) for one in (_limits(case.config) if several else [case.config])]
    with engine.limiter(zones[0].limit) as limiter:
        for index, step in enumerate(case.steps):
            engine.at(BASE_US + step.at_us)
            outcome = uncharged_result(limiter, _KEY, step.cost)
            yield outcome or _compare(step, _charge_zones(limiter, zones, step, several))
            if outcome is not None and outcome.apart == NEGATIVE:
                yield from rest_not_compared(NEGATIVE, case.steps[index + 1 :])
                return


def _limits(config: RecordedFields) -> list[RecordedFields]:
    limits = [RecordedFields(f"limit {i} of {config.what}", one) for i, one in enumerate(config.list("limits"), 1)]
    if not limits:
        raise UnreadableVector(f"{config.what} has no limits at all.")
    return limits


def _zone(name: str, config: RecordedFields) -> _RecordedZone:
    burst = config.whole("burst", 0)
    delay = None if config.raw.get("delay") == "nodelay" else config.whole("delay", 0)
    key = config.text("key") if "key" in config else None
    if "rate" not in config:
        return _RecordedZone(name, key, LeakyBucket(config.whole("rate_milli_per_s"), 1000, burst, delay))
    match = _RATE.fullmatch(config.text("rate"))
    if match is None:
        raise UnreadableVector(f"The rate of {config.what} is not one of nginx's, such as 10r/m.")
    return _RecordedZone(name, key, LeakyBucket(int(match[1]), 1 if match[2] == "s" else 60, burst, delay))


def _charge_zones(
    limiter: Limiter, zones: Sequence[_RecordedZone], step: VectorStep, several: bool
) -> _ZoneAnswer:
    if not several:
        key = "" if zones[0].key == "" else step.text("key", _KEY)
        return _of(limiter.take(key, step.cost)) if key else _NOT_LIMITED
    charges = [Charge(key, zone.limit, step.cost, zone.name) for zone in zones if (key := _key_of(zone, step))]
    return _of(limiter.take_all(charges)) if charges else _NOT_LIMITED


def _key_of(zone: _RecordedZone, step: VectorStep) -> str:
    """`user` counts by the step's own key; any other name is one count for all."""
    if zone.key is None or zone.key == "user":
        return step.text("key", _KEY)
    return zone.key


def _of(decision: Decision) -> _ZoneAnswer:
    verdicts = decision.verdicts
    if not decision.allowed:
        return _ZoneAnswer("REJECTED", next(one.mark for one in verdicts if not one.allowed), 0)
    longest = verdicts[-1]
    for one in reversed(verdicts):
        if one.delay_us > longest.delay_us:
            longest = one
    return _ZoneAnswer("DELAYED" if longest.delay_us else "PASSED", longest.mark, _milliseconds(longest))


def _milliseconds(verdict: Verdict) -> float:
    return verdict.delay_us / 1000


def _compare(step: VectorStep, answer: _ZoneAnswer) -> StepResult:
    facts: list[ComparedFact] = []
    if "nginx_status" in step.expect:
        facts.append(equal_fact("status", step.expect.text("nginx_status"), answer.status))
    if "allowed" in step.expect:
        facts.append(equal_fact("allowed", step.expect.flag("allowed"), answer.status != "REJECTED"))
    if "excess_milli" in step.expect:
        facts.append(equal_fact("excess", step.expect.whole("excess_milli"), answer.excess_milli))
    if "wait_ms" in step.expect:
        facts.append(equal_fact("wait in ms", step.expect.number("wait_ms"), answer.wait_ms))
    return compared_step(*facts)
