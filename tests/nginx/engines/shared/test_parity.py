"""One answer: the engine on a shared dict says what Python's says, at every step of the same random walks.

A gateway takes, it reserves nothing.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from zoneinfo import ZoneInfo

import pytest

from headgate.algorithms import ALGORITHMS, decision
from headgate.algorithms.decision import ALLOWED, LockedOutcome, Receipt
from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.limit import SECOND, Limit
from headgate.algorithms.lockout import Lockout
from headgate.algorithms.sliding_log import SlidingLog
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.memory.engine import MemoryEngine
from headgate.limit_syntax import parse, parse_all
from tests.nginx.engines.shared.shared_harness import SharedDictMeter, SharedDictNginx, WireOutcome
from tests.parity.walks import FIRST_US, LAST_US, Walker, WalkStep
from tests.servers import BASE_US

WALKS, STEPS = 25, 60
MOST_UNITS = 1000
DAY_S = 86_400

QUICK = Lockout(2, 2 * SECOND, 3 * SECOND)
SLOW = Lockout(3, 10 * SECOND, SECOND)
PLAIN = ChargeOptions("plain")
RULES = [
    (PLAIN, "4/s burst 3"),
    (ChargeOptions("silent"), "5/s log; 7/3s"),
    (ChargeOptions("shadow", is_shadow=True), "3/s; 4/2s fixed"),
    (ChargeOptions("login", lockout=QUICK), "2/s"),
    (ChargeOptions("both", lockout=SLOW), "3/s; 5/2s sliding"),
    (ChargeOptions("tenant"), "6/s queue 2; 7/day fixed in Asia/Shanghai; 9/s smooth"),
    (ChargeOptions("beside", is_shadow=True, lockout=QUICK), "2/s fixed; 3/s log"),
]


class GatewayWalker(Walker):
    """A walk of takes and refunds: a gateway reserves nothing and settles nothing."""

    def _decide(self) -> WalkStep:
        cost = self.kinds.costs(self.rng, self.limit)
        before = self._seen()
        outcome, after = self.model.decide(self._at_now(), before, self.now_us, cost, None)
        if after is not before:
            self._keep(after)
        if outcome[ALLOWED] and cost:
            self.receipts.append(Receipt.from_outcome(outcome, cost, 0))
        return self._step("decide", cost, outcome=outcome)

    def _refund(self) -> WalkStep:
        receipt = self.rng.choice((self.receipts[-1], self.rng.choice(self.receipts)))
        after = self.model.refund(self._at_now(), self._seen(), self.now_us, receipt.cost, receipt, False)
        if after is not None:
            self._keep(after)
        outcome, _ = self.model.decide(self._at_now(), self._seen(), self.now_us, 0, None)
        return self._step("refund", receipt.cost, None, receipt, False, outcome, after is not None)

    def _surcharge(self) -> WalkStep:
        return self._decide()


def walks(name: str) -> Iterator[list[WalkStep]]:
    for seed in range(WALKS):
        walker = GatewayWalker(name, random.Random(f"{name} {seed}"))
        if not any(isinstance(limit, SlidingLog) and limit.amount > MOST_UNITS for limit in walker.limits):
            yield list(walker.steps(STEPS))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_it_walks_with_python(name: str, nginx: SharedDictNginx) -> None:
    passed = refused = given = 0
    for number, walk in enumerate(walks(name)):
        use_zones(nginx, [step.limit for step in walk])
        for step in walk:
            nginx.at(step.now_us)
            meter = SharedDictMeter(unresolved(step.limit), f"walk {number}")
            if step.verb == "forget":
                nginx.forget(meter, "key")
            elif step.receipt is not None:
                cost, at_us, reset_after_us, delay_us, mark, _ = step.receipt
                taken = WireOutcome(1, 0, 0, reset_after_us, delay_us, at_us, mark)
                assert nginx.refund(meter, "key", cost, taken) == wire(step.outcome), step
                given += step.given
            else:
                assert nginx.take(meter, "key", step.cost) == wire(step.outcome), step
                passed += step.outcome[ALLOWED]
                refused += not step.outcome[ALLOWED]
    assert min(passed, refused, given) > 50


@pytest.mark.parametrize("seed", range(8))
def test_several_charges_are_decided_as_python_decides_them(seed: int, nginx: SharedDictNginx) -> None:
    rng = random.Random(seed)
    clock = ManualClock(BASE_US)
    local = MemoryEngine(clock)
    use_zones(nginx, [parse("7/day fixed in Asia/Shanghai")])
    seen: set[object] = set()
    keys = (f"user=anna{seed}", f"user=bob{seed}")  # a lockout is its rule's, and the rules are the same
    for _ in range(120):
        step_us = rng.choice((0, 0, 1, 1000, 50_000, rng.randrange(300_000), 1_500_000))
        # Not behind a state's death: there one may have forgotten what the other remembers.
        if rng.random() < 0.03:
            step_us = -rng.choice((1000, 5000))
        clock.set_us(clock.now_us() + step_us)
        nginx.at(clock.now_us())
        parts = [
            (which, rng.choice(keys), rng.choice((0, 1, 1, 2, 2, 3)))
            for which in rng.sample(range(len(RULES)), rng.choice((1, 2, 3, 4)))
        ]
        commit = rng.random() < 0.8
        charges = [
            (SharedDictMeter(limit, f"rule {seed} {which} {at}", RULES[which][0]), key, cost)
            for which, key, cost in parts
            for at, limit in enumerate(parse_all(RULES[which][1]))
        ]
        meters = [(local.meter(meter.limit, meter.name, meter.terms), key, cost) for meter, key, cost in charges]
        here = local.decide_all(meters, None, commit)
        assert nginx.decide(charges, commit=commit) == [wire(outcome) for outcome in here], parts
        seen.update((outcome[ALLOWED], type(outcome)) for outcome in here)
    assert {(False, LockedOutcome), (True, tuple), (False, tuple)} <= seen


@pytest.mark.parametrize(
    "key", ["", "%#", "a b", "{}", "%#" + "0" * 64, "x" * 200, "x" * 201, "x" * 60_000, "é|%25"]
)
def test_any_key_is_counted_by_itself(key: str, nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(parse("2/minute"), "keys")
    assert [nginx.take(meter, key).remaining for _ in range(2)] == [1, 0]
    assert nginx.take(meter, key + "'").remaining == 1


def test_a_name_is_bounded_and_no_key_looks_like_another(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(parse("2/minute"), "names")
    long = "x" * 201
    assert nginx.take(meter, long).remaining == 1
    assert nginx.take(meter, "%#" + sha256(long.encode()).hexdigest()).remaining == 1
    nginx.take(meter, "y" * 60_000)
    assert max(map(len, nginx.names())) < 240


def test_a_changed_limit_mints_no_units(nginx: SharedDictNginx) -> None:
    """The pace that a state was written at is kept with it, so units are carried over, and not time."""
    local = MemoryEngine(ManualClock(BASE_US))
    for text, cost in (
        ("4/minute", 3),
        ("8/hour", 0),
        ("8/hour", 1),
        ("4/minute", 0),
        ("7/s", 1),
        ("4/minute", 1),
    ):
        there = local.meter(parse(text), "changed").decide("key", cost)
        assert nginx.take(SharedDictMeter(parse(text), "changed"), cost=cost) == wire(there)
        assert there[decision.REMAINING] < 8


def use_zones(nginx: SharedDictNginx, limits: list[Limit]) -> None:
    zones = {limit.zone for limit in limits if isinstance(limit, FixedWindow) and limit.zone is not None}
    nginx.use(zones={zone: offsets(zone) for zone in zones})


@cache
def offsets(zone: str) -> list[tuple[int, int]]:
    """From which second on the zone is how far ahead of UTC, for all the years that a walk can come to."""

    def offset(second: int) -> int:
        utc_offset = datetime.fromtimestamp(second, UTC).astimezone(ZoneInfo(zone)).utcoffset()
        assert utc_offset is not None
        return int(utc_offset.total_seconds())

    first, last = FIRST_US // SECOND - 400 * DAY_S, LAST_US // SECOND + 2000 * DAY_S
    changes = [(0, offset(first))]
    for day in range(first, last, DAY_S):
        low, high = day, day + DAY_S
        if offset(high) == changes[-1][1]:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == changes[-1][1] else (low, middle)
        changes.append((high, offset(high)))
    return changes


def unresolved(limit: Limit) -> Limit:
    """The limit as a bundle has it: without the calendar around now."""
    return parse(limit.text) if limit.algorithm == "fixed_window" else limit


def wire(outcome: decision.Outcome) -> WireOutcome:
    allowed, remaining, retry_us, reset_us, delay_us, at_us, mark = outcome
    status = -3 if isinstance(outcome, LockedOutcome) else int(allowed)
    return WireOutcome(status, remaining, -1 if retry_us is None else retry_us, reset_us, delay_us, at_us, mark)
