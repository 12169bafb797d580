"""The denial cache repeats a refusal while it holds, and answers nothing else.

Two memos around one engine are two processes. What reaches that engine is written down, so a story can say both
what was answered and who answered it. Each story is told twice: to the memo that blocks and to its awaited twin.
The file is long for one reason: it is the law of memo.py, sentence by sentence.
"""

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.algorithms.decision import (
    RETRY_AFTER_US,
    Charge,
    CrossSlotOutcome,
    Decision,
    DegradedOutcome,
    Outcome,
    Receipt,
)
from headgate.algorithms.limit import Limit
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.denial_cache import AsyncDenialCacheEngine, DenialCacheEngine
from headgate.engines.layers.denial_cache.denial_table import _GENERATION_SLOTS, MAX_REPEAT_US, DenialTable
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine, MemoryMeter
from headgate.engines.port import Meter
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable, InvalidCharge, InvalidRule
from headgate.limit_syntax import parse
from headgate.limiter import Limiter
from headgate.testing import Story, SyncAdapter, engine_stories
from tests.servers import RedisServer

DRY = "1/s burst 5"


class RecordedCharge(NamedTuple):
    at_us: int
    key: str
    cost: int
    outcome: Outcome


class WatchedEngine(MemoryEngine):
    """The one engine behind all processes of a story; what a story wants to happen meanwhile, happens."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.charges: list[RecordedCharge] = []
        self.joint_calls = 0
        self.spoken: Callable[[Outcome], Outcome] = lambda outcome: outcome
        self.meanwhile: Callable[[], object] = lambda: None

    def meter(self, limit: Limit, name: str, options: ChargeOptions | None = None) -> Any:
        return WatchedMeter(self, super().meter(limit, name, options))

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        self.joint_calls += 1
        inner = [(meter.meter, key, cost) for meter, key, cost in charges if isinstance(meter, WatchedMeter)]
        outcomes = [self.spoken(outcome) for outcome in super().decide_all(inner, patience_us, commit)]
        self.meanwhile()
        return outcomes


class WatchedMeter:
    def __init__(self, engine: WatchedEngine, meter: MemoryMeter) -> None:
        self.engine, self.meter = engine, meter
        self.limit, self.name, self.options = meter.limit, meter.name, meter.options
        self.surcharge, self.retune, self.reset = meter.surcharge, meter.retune, meter.reset

    def decide(self, key: str, cost: int, patience_us: int | None = None) -> Outcome:
        outcome = self.engine.spoken(self.meter.decide(key, cost, patience_us))
        self.engine.charges.append(RecordedCharge(self.engine.clock.now_us(), key, cost, outcome))
        self.engine.meanwhile()
        return outcome

    def refund(self, key: str, units: int, receipt: Receipt, cancel: bool = False) -> Outcome:
        self.engine.meanwhile()
        return self.meter.refund(key, units, receipt, cancel)


class DenialCacheHarness:
    """One engine, a clock, and as many processes as the story needs."""

    def __init__(self, awaited: bool = False) -> None:
        self.awaited = awaited
        self.clock = ManualClock()
        self.engine = WatchedEngine(self.clock)
        self.limiters: list[Limiter] = []

    def process(self, limit: str = DRY, name: str | None = None, entries: int = 10_000) -> Limiter:
        memo: SyncAdapter | DenialCacheEngine = DenialCacheEngine(self.engine, entries=entries, clock=self.clock)
        if self.awaited:
            memo = SyncAdapter(
                AsyncDenialCacheEngine(AsyncMemoryEngine(self.engine), entries=entries, clock=self.clock)
            )
        self.limiters.append(Limiter(limit, memo, clock=self.clock, name=name))
        return self.limiters[-1]

    @property
    def questions(self) -> int:
        return len(self.engine.charges) + self.engine.joint_calls


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def harness(request: pytest.FixtureRequest) -> Iterator[DenialCacheHarness]:
    harness = DenialCacheHarness(request.param)
    yield harness
    for limiter in harness.limiters:
        limiter.close()


def memo_of(limiter: Limiter) -> DenialCacheEngine | AsyncDenialCacheEngine:
    memo = limiter.engine.engine if isinstance(limiter.engine, SyncAdapter) else limiter.engine
    assert isinstance(memo, DenialCacheEngine | AsyncDenialCacheEngine)
    return memo


def of_different_eras(*names: str) -> list[str]:
    """Keys by these names, of which none is asked again for another one's sake."""
    keys: dict[int, str] = {}
    for name in names:
        place, key = next(
            (i, key)
            for key in map(f"{name} {{}}".format, range(9))
            if (i := hash(key) % _GENERATION_SLOTS) not in keys
        )
        keys[place] = key
    return list(keys.values())


def done(work: object) -> None:
    """Done by now, or to be awaited; over an embedded engine that takes one step."""
    if isinstance(work, Coroutine):
        with suppress(StopIteration):
            work.send(None)


def lost() -> None:
    raise EngineUnavailable("The line went dead.")


# What is repeated.


def test_a_refusal_is_repeated_and_grows_old(harness: DenialCacheHarness) -> None:
    limiter, start_us = harness.process(), harness.clock.now_us()
    assert limiter.take("key", 5)
    assert limiter.take("key").outcome == (False, 0, 1_000_000, 5_000_000, 0, start_us, 0)
    harness.clock.advance(0.4)
    assert limiter.take("key").outcome == (False, 0, 600_000, 4_600_000, 0, start_us + 400_000, 0)
    assert (harness.questions, memo_of(limiter).hits) == (2, 1)
    harness.clock.advance(0.599999)
    assert limiter.take("key").outcome[RETRY_AFTER_US] == 1
    assert (harness.questions, memo_of(limiter).hits) == (2, 2)
    harness.clock.advance(0.000001)
    assert limiter.take("key")


def test_no_refusal_is_repeated_for_more_than_a_second(harness: DenialCacheHarness) -> None:
    limiter = harness.process("1/hour")
    limiter.take("key")
    assert limiter.take("key").retry_after == 3600
    harness.clock.advance(0.999999)
    limiter.take("key")
    assert harness.questions == 2
    harness.clock.advance(0.000001)
    assert limiter.take("key").retry_after == 3599
    assert harness.questions == 3


def test_a_cost_that_never_fits_is_cached_for_a_second(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    for _ in range(2):
        assert limiter.take("key", 6).retry_after is None
        harness.clock.advance(0.5)
        assert limiter.take("key", 7).retry_after is None
        harness.clock.advance(0.5)
    assert (harness.questions, memo_of(limiter).hits) == (2, 2)
    assert limiter.take("key", 5)


def test_the_time_of_the_question_counts_not_that_of_the_answer(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    harness.engine.meanwhile = lambda: harness.clock.advance(0.3)  # a slow answer
    assert limiter.take("key").retry_after == 1
    harness.clock.advance(0.3)
    assert limiter.take("key").retry_after == 0.4
    harness.clock.advance(0.4)
    assert limiter.take("key")


def test_a_clock_that_steps_back_ends_it(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    limiter.take("key")
    harness.clock.set_us(harness.clock.now_us() - 1)
    limiter.take("key")
    assert harness.questions == 3


def test_a_larger_cost_is_refused_from_the_cache_and_a_smaller_one_is_not(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 3)
    assert limiter.take("key", 3).retry_after == 1
    assert limiter.take("key", 4).retry_after == 1  # at least; it will be told more when it asks
    assert harness.questions == 2
    assert limiter.take("key", 2)
    assert harness.questions == 3


def test_another_key_or_name_reaches_the_engine(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    limiter.take("key")
    assert limiter.take("other")
    assert limiter.take_all([Charge("key", DRY, 1, "other")])
    for _ in range(3):
        assert not limiter.take_all([Charge("key", "5/s log", 6, DRY)])  # a count of its own
        assert not limiter.take("key")
    assert (harness.questions, memo_of(limiter).hits) == (5, 5)


@pytest.mark.parametrize("text", ["5/s fixed", "5/s sliding", "5/s log", "5/s queue 3", "5/s smooth", "5/s"])
def test_a_flood_asks_once_for_each_refusal_that_ended(text: str) -> None:
    """10,000 calls in ten seconds on a limit of 5/s; what passes is what passes without a memo."""
    harness = DenialCacheHarness()
    limiter, alone = harness.process(text), Limiter(text, clock=harness.clock)
    for _ in range(10_000):
        assert limiter.take("key").allowed == alone.take("key").allowed
        harness.clock.advance(0.001)
    assert memo_of(limiter).hits == 10_000 - harness.questions > 9_800
    for before, after in pairwise(harness.engine.charges):
        assert before.outcome[0] or after.at_us - before.at_us >= held_us(before.outcome)


def test_a_flood_on_a_dry_bucket_asks_once_a_second(harness: DenialCacheHarness) -> None:
    limiter = harness.process("1/day")
    limiter.take("key")
    for _ in range(10_000):
        assert not limiter.take("key")
        harness.clock.advance(0.001)
    assert (harness.questions, memo_of(limiter).hits) == (1 + 10, 9_990)


# What ends it.


def test_a_refund_in_this_process_ends_the_cached_refusal(harness: DenialCacheHarness) -> None:
    limiter = harness.process(name="api")
    taken = limiter.take("key", 4)
    place = limiter.reserve("key", 1)
    assert not limiter.take("key")
    place.cancel()
    assert limiter.take("key")
    assert not limiter.take("key")
    limiter.refund(taken, 1)
    assert limiter.take("key")
    assert not limiter.take("key")
    limiter.reset("key")
    assert limiter.take("key", 5)
    assert not limiter.take("key")
    before = harness.questions
    limiter.set_limit(DRY, "key")  # the same limit, retuned
    assert not limiter.take("key")
    assert harness.questions == before + 1
    assert memo_of(limiter).hits == 0


def test_a_refund_that_failed_ends_it_for_it_may_have_been_done(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    taken = limiter.take("key", 5)
    limiter.take("key")
    harness.engine.meanwhile = lost
    with pytest.raises(EngineUnavailable):
        limiter.refund(taken)
    harness.engine.meanwhile = lambda: None
    limiter.take("key")
    assert harness.questions == 3


@pytest.mark.parametrize("more", ["", "; 9/hour"])
def test_another_limit_under_the_same_name_ends_it(harness: DenialCacheHarness, more: str) -> None:
    limiter = harness.process(DRY + more, name="api")
    limiter.take("key", 5)
    assert not limiter.take("key")
    limiter.set_limit("1/s burst 6" + more)
    assert limiter.take("key")
    limiter.set_limit(DRY + more)  # it came back, and begins anew
    before = harness.questions
    assert not limiter.take("key")
    assert harness.questions == before + 1


def test_a_refund_in_another_process_does_not_end_the_cached_refusal(harness: DenialCacheHarness) -> None:
    ours, theirs = harness.process("1/hour"), harness.process("1/hour")
    ours.take("key")
    assert not ours.take("key")
    theirs.reset("key")
    harness.clock.advance(0.999)
    assert not ours.take("key")
    assert theirs.peek("key").remaining == 1
    harness.clock.advance(0.001)
    assert ours.take("key")


@pytest.mark.parametrize("more", ["", "; 9/hour"])
def test_a_refusal_that_was_on_its_way_when_the_key_was_reset_is_not_kept(
    harness: DenialCacheHarness, more: str
) -> None:
    limiter = harness.process(DRY + more)
    limiter.take("key", 5)

    harness.engine.meanwhile = lambda: done(memo_of(limiter).meter(parse(DRY), DRY).reset("key"))
    assert not limiter.take("key")
    harness.engine.meanwhile = lambda: None
    assert limiter.take("key", 4)


def test_a_refusal_that_came_while_a_refund_was_on_its_way_is_ended_by_it(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    taken = limiter.take("key", 5)

    def take() -> None:
        harness.engine.meanwhile = lambda: None
        done(memo_of(limiter).meter(parse(DRY), DRY).decide("key", 1))

    harness.engine.meanwhile = take
    limiter.refund(taken)
    assert [charge.outcome[0] for charge in harness.engine.charges] == [True, False]
    assert limiter.take("key", 5)


# What is not remembered.


@pytest.mark.parametrize("more", ["", "; 9/hour"])
def test_peeks_and_reservations_always_reach_the_engine(harness: DenialCacheHarness, more: str) -> None:
    limiter = harness.process(DRY + more)
    limiter.take("key", 5)
    assert not limiter.peek("key")
    assert not limiter.reserve("key", timeout=0.5)
    assert len(memo_of(limiter).denials) == 0
    assert not limiter.take("key")
    before = harness.questions
    assert not limiter.peek("key")
    assert not limiter.reserve("key", timeout=0.5)
    assert limiter.reserve("key").delay == 1
    assert (harness.questions, memo_of(limiter).hits) == (before + 3, 0)


@pytest.mark.parametrize("more", ["", "; 9/hour"])
def test_a_degraded_refusal_is_not_cached(harness: DenialCacheHarness, more: str) -> None:
    limiter = harness.process(DRY + more)
    limiter.take("key", 5)
    harness.engine.spoken = DegradedOutcome
    assert limiter.take("key").degraded
    harness.engine.spoken = lambda outcome: outcome
    assert not limiter.take("key").degraded
    assert memo_of(limiter).hits == 0


def test_a_refusal_that_ends_at_once_is_not_remembered(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    harness.engine.spoken = lambda outcome: (*outcome[:2], 0, *outcome[3:])
    assert not limiter.take("key")
    assert len(memo_of(limiter).denials) == 0


def test_a_failure_is_not_remembered(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    harness.engine.meanwhile = lost
    for _ in range(2):
        with pytest.raises(EngineUnavailable):
            limiter.take("key")


# Charges decided together.


def test_a_joint_refusal_is_repeated_as_a_whole(harness: DenialCacheHarness) -> None:
    limiter = harness.process("5/s; 6/hour; 100/s burst 1000")
    limiter.take("key", 5)
    refused = limiter.take("key", 2)
    harness.clock.advance(0.5)
    again = limiter.take("key", 2)
    assert (harness.questions, memo_of(limiter).hits) == (2, 1)
    assert (again.retry_after, again.atomic) == (599.5, True)
    for before, after in zip(refused.verdicts, again.verdicts, strict=True):
        assert (after.allowed, after.remaining, after.limit) == (before.allowed, before.remaining, before.limit)
        assert after.at_us == before.at_us + 500_000
        assert after.reset_after_us == max(0, before.reset_after_us - 500_000)
    assert [verdict.allowed for verdict in again.verdicts] == [False, False, True]
    assert [verdict.retry_after_us for verdict in again.verdicts] == [1, 599_500_000, 0]
    assert again.verdicts[2].reset_after_us == 0
    assert limiter.take("key", 1)  # less: it might fit, and does
    harness.clock.advance(0.5)
    limiter.take("key", 2)
    assert harness.questions == 4


def test_the_longest_refusal_sets_the_time_and_the_key_whose_refund_ends_it(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    short, long, free = of_different_eras("short", "long", "free")
    charges = [Charge(short, "10/s"), Charge(long, "1/s"), Charge(free, "9/s")]
    taken = limiter.take_all([Charge(long, "1/s")])
    limiter.take_all([Charge(short, "10/s", 10)])
    assert not limiter.take_all(charges)
    limiter.reset(short)
    limiter.reset(free)
    harness.clock.advance(0.9)
    assert limiter.take_all(charges).retry_after == 0.1
    assert memo_of(limiter).hits == 1
    limiter.refund(taken)
    assert limiter.take_all(charges)


def test_a_cost_that_never_fits_is_the_longest_refusal(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    key, other = of_different_eras("key", "other")
    limiter.take(key, 5)
    for _ in range(2):
        assert limiter.take_all([Charge(key, cost=2), Charge(other, cost=6)]).retry_after is None
        limiter.reset(key)
    assert memo_of(limiter).hits == 1


def test_the_same_charges_only(harness: DenialCacheHarness) -> None:
    limiter = harness.process()

    def take(**costs: int) -> bool:
        return limiter.take_all([Charge(key, cost=cost) for key, cost in costs.items()]).allowed

    assert take(a=4, b=2)
    assert not take(a=2, b=2)
    assert not take(a=2, b=3)
    assert memo_of(limiter).hits == 1
    assert limiter.take_all([Charge("a", DRY, 2, "other"), Charge("b", DRY, 2, "other")])
    assert not take(b=2, a=2)
    assert not take(a=2, b=2, c=1)
    assert not take(a=2, b=0)
    assert not take(a=2, b=0)
    assert not take(a=3, b=1)
    assert take(a=1, b=2)
    assert memo_of(limiter).hits == 1


def test_one_count_shared_by_many_is_remembered_for_each(harness: DenialCacheHarness) -> None:
    limiter = harness.process("2/hour")
    everybody, people = Charge("everybody"), [Charge(f"person {i}", DRY) for i in range(6)]
    for _ in range(3):
        for person in people:
            limiter.take_all([person, everybody])
    assert (harness.questions, memo_of(limiter).hits) == (8, 10)  # two passed at first, and asked once more
    limiter.reset(everybody.key)
    for person in people:
        assert limiter.take_all([person, everybody]).allowed == (person in people[:2])
    assert (harness.questions, memo_of(limiter).hits) == (14, 10)


def test_refusals_of_single_and_joint_charges_are_cached_separately(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("dry", 5)
    assert not limiter.take("dry")
    assert not limiter.take_all([Charge("dry"), Charge("key")])
    assert (harness.questions, memo_of(limiter).hits) == (3, 0)
    assert limiter.take("key")  # it was only rolled back


def test_a_joint_refusal_decided_apart_stays_apart(harness: DenialCacheHarness) -> None:
    limiter = harness.process(f"{DRY}; 9/hour")
    harness.engine.spoken = CrossSlotOutcome
    limiter.take("key", 5)
    assert not limiter.take("key").atomic
    harness.clock.advance(0.5)
    again = limiter.take("key")
    assert (memo_of(limiter).hits, again.atomic, again.retry_after) == (1, False, 0.5)


async def test_a_charge_of_another_engine_is_refused_with_a_sentence() -> None:
    inner = MemoryEngine()
    with pytest.raises(InvalidCharge, match="another engine"):
        DenialCacheEngine(inner).decide_all([(inner.meter(parse(DRY), "name"), "key", 1)])
    awaited = AsyncMemoryEngine(inner)
    with pytest.raises(InvalidCharge, match="another engine"):
        await AsyncDenialCacheEngine(awaited).decide_all([(awaited.meter(parse(DRY), "name"), "key", 1)])


# How much it holds.


def test_it_holds_a_fixed_number_and_the_oldest_go_first(harness: DenialCacheHarness) -> None:
    limiter = harness.process("1/hour", entries=100)
    keys = [f"key {i}" for i in range(250)]
    for key in keys:
        limiter.take(key, 2)
    before = harness.questions
    for key in keys[-100:]:
        assert not limiter.take(key, 2)
    assert harness.questions == before
    assert not limiter.take(keys[-101], 2)
    assert harness.questions == before + 1
    denials = memo_of(limiter).denials
    assert len(denials) == sum(map(len, denials._indexes.values())) == 100


def test_the_dead_leave_as_new_ones_come(harness: DenialCacheHarness) -> None:
    limiter = harness.process("1/hour")
    denials = memo_of(limiter).denials
    for i in range(200):
        limiter.take(f"key {i}", 2)
    for i in range(300):
        limiter.take_all([Charge(f"key {i}", cost=2), Charge("other", DRY)])
        harness.clock.advance(0.1)
    assert len(denials) == len(denials.combined) == 10  # what one second brings
    assert sum(map(len, denials._indexes.values())) == 0


def test_a_key_refused_again_and_again_takes_one_place(harness: DenialCacheHarness) -> None:
    limiter = harness.process("1/s")
    for _ in range(100):
        limiter.take("key")
        limiter.take("key")
        harness.clock.advance(0.75)
    for cost in range(100, 1, -1):
        limiter.take("key", cost)
    assert len(memo_of(limiter).denials) == 1


def test_a_refusal_that_has_ended_is_gone_when_it_is_met(harness: DenialCacheHarness) -> None:
    limiter = harness.process()
    limiter.take("key", 5)
    limiter.take("key")
    harness.clock.advance(1)
    assert limiter.take("key")
    assert not any(memo_of(limiter).denials._indexes.values())


def test_unused_names_leave_no_entries() -> None:
    memo = DenialCacheEngine(MemoryEngine())
    for i in range(100):
        memo.meter(parse(DRY), f"name {i}").decide("key", 1)
    assert len(memo.denials._indexes) == 0


def test_the_number_is_checked() -> None:
    with pytest.raises(InvalidRule, match="number of refusals to remember must be a whole number of at least 1"):
        DenialTable(0)


# The law.


class DenialCacheEvent(NamedTuple):
    process: int
    verb: str
    key: str
    cost: int
    after_us: int


VERBS = ("take", "take", "take", "take_all", "refund", "reset")
STEPS_US = (0, 0, 1, 10_000, 250_000, 600_000, 1_000_000, 3_000_000, -200_000)
TEXTS = (
    "5/s",
    "3/s burst 5",
    "1/hour burst 5",
    "5/s fixed",
    "5/s sliding",
    "5/s log",
    "5/s queue 4",
    "5/s smooth",
)

event = st.builds(
    DenialCacheEvent,
    st.integers(0, 1),
    st.sampled_from(VERBS),
    st.sampled_from("ab"),
    st.integers(1, 6),
    st.sampled_from(STEPS_US),
)
walks = st.lists(event, min_size=5, max_size=60)


def held_us(outcome: Outcome) -> int:
    wait_us = outcome[RETRY_AFTER_US]
    return MAX_REPEAT_US if wait_us is None else min(wait_us, MAX_REPEAT_US)


@given(walks, st.sampled_from(TEXTS))
def test_the_law_on_random_walks_of_two_processes(walk: list[DenialCacheEvent], text: str) -> None:
    """The engine allowed every call that passed, and refused every refusal that was repeated, for no more than
    was asked, no longer ago than it holds, and the same process has given nothing back since."""
    harness = DenialCacheHarness()
    processes = [harness.process(text) for _ in range(2)]
    passed: list[list[Decision]] = [[], []]
    refused: list[dict[tuple[str, ...], list[RecordedCharge]]] = [
        {},
        {},
    ]  # that the process did nothing to end
    for who, verb, key, cost, after_us in walk:
        harness.clock.set_us(harness.clock.now_us() + after_us)
        limiter, now_us, recorded = processes[who], harness.clock.now_us(), refused[who]
        if verb in ("take", "take_all"):
            keys = (key,) if verb == "take" else (key, "third")
            questions, answered = harness.questions, memo_of(limiter).hits
            decision = limiter.take_all([Charge(each, cost=cost) for each in keys])
            from_memory = memo_of(limiter).hits - answered
            assert harness.questions - questions + from_memory == 1
            if from_memory:
                assert not decision
                assert any(
                    one.cost <= cost and one.at_us <= now_us < one.at_us + held_us(one.outcome)
                    for one in recorded.get(keys, [])
                )
            elif decision:
                passed[who].append(decision)
            else:
                recorded.setdefault(keys, []).append(RecordedCharge(now_us, decision.key, cost, decision.outcome))
        elif verb == "refund" and passed[who]:
            back = passed[who].pop()
            limiter.refund(back)
            end(recorded, {part.key for part in back.counter_decisions})
        elif verb == "reset":
            limiter.reset(key)
            end(recorded, {key})


def end(recorded: dict[tuple[str, ...], list[RecordedCharge]], given_back: set[str]) -> None:
    for keys in recorded:
        recorded[keys] = [one for one in recorded[keys] if one.key not in given_back]


@given(walks, st.sampled_from([*TEXTS, "3/s burst 5; 20/minute log"]))
def test_a_process_alone_is_refused_nothing_that_would_pass(walk: list[DenialCacheEvent], text: str) -> None:
    harness = DenialCacheHarness()
    limiter, plain = harness.process(text), Limiter(text, clock=harness.clock)
    passed: list[tuple[Decision, Decision]] = []
    for _, verb, key, cost, after_us in walk:
        harness.clock.set_us(harness.clock.now_us() + abs(after_us))
        if verb == "refund" and passed:
            ours, alone = passed.pop()
            limiter.refund(ours)
            plain.refund(alone)
        elif verb == "reset":
            limiter.reset(key)
            plain.reset(key)
        else:
            ours, alone = limiter.take(key, cost), plain.take(key, cost)
            assert ours.allowed == alone.allowed
            if ours:
                passed.append((ours, alone))


# All but one: to a cost that is larger than the refused one, the memo repeats the smaller one's outcome.
@pytest.mark.parametrize(
    "story", [story for story in engine_stories if story.__name__ != "every_answer_is_the_models"]
)
def test_it_keeps_the_promises_of_an_engine(harness: DenialCacheHarness, story: Story) -> None:
    story(harness.process().engine, harness.clock)


# Threads, tasks, forks, servers.


def test_threads_are_admitted_exactly_and_counted_exactly() -> None:
    harness = DenialCacheHarness()
    limiter, start = harness.process("50/hour", entries=20), threading.Barrier(4)

    def work() -> int:
        start.wait()
        return sum(limiter.take(f"key {i % 40 if i % 3 else 0}").allowed for i in range(6000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with ThreadPoolExecutor(4) as pool:
        passed = [done.result() for done in [pool.submit(work) for _ in range(4)]]
    sys.setswitchinterval(before)
    assert sum(passed) == 50 * 40
    assert memo_of(limiter).hits == 4 * 6000 - harness.questions > 0
    assert len(memo_of(limiter).denials) <= 20


async def test_a_task_that_is_cancelled_while_it_resets_ends_it() -> None:
    harness = DenialCacheHarness()
    memo = AsyncDenialCacheEngine(AsyncMemoryEngine(harness.engine), clock=harness.clock)
    meter = memo.meter(parse(DRY), "api")
    await meter.decide("key", 5)
    await meter.decide("key", 1)

    async def stuck(key: str) -> None:
        await asyncio.sleep(3600)

    meter.meter.reset = stuck  # type: ignore[method-assign]
    task = asyncio.create_task(meter.reset("key"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await meter.decide("key", 1)
    assert (harness.questions, memo.hits) == (3, 0)


def test_a_forked_child_forgets_and_its_parent_does_not(harness: DenialCacheHarness) -> None:
    single = harness.process("1/hour")
    joint = Limiter(f"{DRY}; 9/hour", single.engine, clock=harness.clock)
    both = (single, joint, single, joint)
    memo = memo_of(single)
    assert not any(limiter.take("key", 6) for limiter in both)
    assert (memo.hits, len(memo.denials)) == (2, 2)
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def child() -> None:
        empty = memo.hits, len(memo.denials), len(memo.denials.combined)
        before = harness.questions
        passed = [limiter.take("key", 6).allowed for limiter in both]
        answers.put((empty, passed, harness.questions - before, memo.hits))
        os._exit(0)

    with memo.denials._lock:  # as if by a thread, that the child does not have
        process = fork.Process(target=child)
        process.start()
    assert answers.get() == ((0, 0, 0), [False] * 4, 2, 2)
    process.join(10)
    assert not any(limiter.take("key", 6) for limiter in both)
    assert memo.hits == 6


def test_a_flood_of_two_processes_on_a_real_server(server: RedisServer) -> None:
    memos = [DenialCacheEngine(RedisEngine(server.unix_url)) for _ in range(2)]
    ours, theirs = (Limiter("5/hour", memo) for memo in memos)
    assert ours.take("key", 5)
    before = scripts_run(server)
    answers = [limiter.take("key") for limiter in (ours, theirs) for _ in range(200)]
    script_calls = scripts_run(server) - before
    assert script_calls == 400 - sum(memo.hits for memo in memos)
    assert script_calls < 40  # twice, and once more for each second that this took
    assert not any(answers)
    assert all(600 < (answer.retry_after or 0) <= 720 for answer in answers)
    ours.reset("key")
    assert ours.take("key")
    pair = [Charge("key", cost=5), Charge("other", "9/s log")]
    before = scripts_run(server)
    assert not any(ours.take_all(pair) for _ in range(200))
    assert scripts_run(server) - before < 40
    for limiter in (ours, theirs):
        limiter.close()


def scripts_run(server: RedisServer) -> int:
    stats = server.call("INFO", "commandstats")
    assert isinstance(stats, bytes)
    line = next(line for line in stats.decode().splitlines() if line.startswith("cmdstat_evalsha:"))
    return int(line.partition("calls=")[2].partition(",")[0])


def test_its_law_says_for_how_long_a_refusal_is_repeated() -> None:
    words = " ".join(Limiter("3/minute", DenialCacheEngine(MemoryEngine(ManualClock()))).explain().split())
    assert "a refusal is repeated here for at most min(retry_after, 1 s)" in words
