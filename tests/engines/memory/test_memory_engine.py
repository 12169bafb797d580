"""The in-memory engine: exact among threads, usable from any event loop, and no larger than its live keys."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.decision import Charge
from headgate.clock import ManualClock
from headgate.engines.memory.async_engine import AsyncMemoryEngine
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import InvalidCharge, RateLimited
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter

THREADS = 4


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Threads that take turns after nearly every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(work: Callable[[], int]) -> list[int]:
    """Returns what each of the threads counted."""
    start = threading.Barrier(THREADS)

    def run() -> int:
        start.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return [done.result() for done in [pool.submit(run) for _ in range(THREADS)]]


@pytest.mark.usefixtures("hurried_threads")
@pytest.mark.parametrize(
    "text",
    [
        "1000/hour",
        "1000/hour fixed",
        "1000/hour sliding",
        "1000/hour log",
        "1/s queue 999 nodelay",
        "1000/day; 1000/hour",
    ],
)
def test_threads_are_admitted_exactly(text: str) -> None:
    limiter = Limiter(text, clock=ManualClock())
    passed = at_once(lambda: sum(limiter.take("key").allowed for _ in range(1000)))
    assert sum(passed) == 1000


@pytest.mark.usefixtures("hurried_threads")
def test_threads_that_take_and_refund_leave_nothing_behind() -> None:
    limiter = Limiter("100/hour", clock=ManualClock())

    def borrow() -> int:
        for _ in range(500):
            taken = limiter.take("key", 3)
            if taken:
                limiter.refund(taken)
        return 0

    at_once(borrow)
    assert limiter.peek("key").remaining == 100


@pytest.mark.usefixtures("hurried_threads")
def test_threads_hold_no_more_slots_than_there_are() -> None:
    limiter = Limiter("2 slots", clock=ManualClock())
    lock, held, most = threading.Lock(), 0, 0

    def hold() -> int:
        nonlocal held, most
        got = 0
        for _ in range(300):
            try:
                with limiter.guard("key"):
                    got += 1
                    with lock:
                        held += 1
                        most = max(most, held)
                    with lock:
                        held -= 1
            except RateLimited:
                continue
        return got

    assert sum(at_once(hold)) > 0
    assert (most <= 2, limiter.peek("key").remaining) == (True, 2)


@pytest.mark.usefixtures("hurried_threads")
def test_threads_that_meet_new_keys_at_once_admit_each_once() -> None:
    limiter = Limiter("1/hour", clock=ManualClock())
    passed = at_once(lambda: sum(limiter.take(f"key {n}").allowed for n in range(2000)))
    assert sum(passed) == 2000


@pytest.mark.usefixtures("hurried_threads")
def test_a_log_of_joint_charges_stays_true_to_the_clock() -> None:
    """A clock reading that was overtaken by another thread must not look like a step back."""
    limiter = Limiter("100000/hour log; 100000/hour")

    def take() -> int:
        return sum(limiter.take("key").allowed for _ in range(500))

    at_once(take)
    table = limiter.engine._families["sliding_log", "100000/hour log"][0]  # type: ignore[attr-defined]
    ahead_us = table.states["key"][4]
    assert ahead_us == 0


def test_several_event_loops_share_one_limiter() -> None:
    limiter = AsyncLimiter("1000/hour", AsyncMemoryEngine(MemoryEngine(ManualClock())))

    async def crowd() -> int:
        decisions = await asyncio.gather(*(limiter.take("key") for _ in range(400)))
        return sum(decision.allowed for decision in decisions)

    assert sum(at_once(lambda: asyncio.run(crowd()))) == 1000


@pytest.mark.parametrize(
    "text", ["1/s", "1/s fixed", "1/s sliding", "1/s log", "1/s queue 0", "1/s smooth warmup 1s"]
)
def test_dead_keys_are_dropped(text: str) -> None:
    """300,000 keys, 1000 a second, each dead after a few: never more than a few thousand are remembered."""
    clock = ManualClock()
    engine = MemoryEngine(clock)
    limiter = Limiter(text, engine, clock=clock)
    most = 0
    for number in range(300_000 if text == "1/s" else 30_000):
        limiter.take(f"key {number}")
        clock.advance(0.001)
        if number % 100 == 0:
            most = max(most, len(engine))
    life = 4 if "warmup" in text else 1
    assert 900 <= most <= 2100 * life


def test_a_key_that_lives_is_never_dropped() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    limiter = Limiter("1/hour", engine, clock=clock)
    limiter.take("kept")
    for number in range(5000):
        Limiter("1/s", engine, clock=clock).take(f"key {number}")
        limiter.take(f"other {number % 7}")
        clock.advance(0.01)
    assert not limiter.take("kept")


def test_no_call_ever_sweeps_all_keys() -> None:
    """After 200,000 keys have died at once, the slowest call is nowhere near a walk over all of them."""
    clock = ManualClock()
    engine = MemoryEngine(clock)
    limiter = Limiter("1/s", engine, clock=clock)
    keys = 200_000
    for number in range(keys):
        limiter.take(f"key {number}")
    assert len(engine) == keys
    clock.advance(3600)
    before = len(engine)
    for number in range(1000):
        limiter.take(f"new {number}")
        assert before - len(engine) <= 2  # a call looks at two old keys, drops at most those and adds its own
        before = len(engine)
    assert before < keys


def test_reset_keys_leave_the_queue_bounded() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    limiter = Limiter("1/s", engine, clock=clock)
    for _ in range(10_000):
        limiter.take("one")
        limiter.reset("one")
    assert len(engine) <= 1
    assert len(next(iter(engine._families["token_bucket", "1/s"].values())).queue) < 10


def test_a_hundred_thousand_keys_at_one_instant_cost_alike() -> None:
    """The last thousand keys are as quick as the first: nothing grows with the number of keys."""
    limiter = Limiter("1/s", clock=ManualClock())

    def thousand(start: int) -> float:
        began = time.perf_counter()
        for number in range(start, start + 1000):
            limiter.take(f"key {number}")
        return time.perf_counter() - began

    times = [thousand(start) for start in range(0, 100_000, 1000)]
    assert sorted(times[-20:])[3] < 5 * sorted(times[:20])[3]


def test_a_charge_of_another_engine_is_refused() -> None:
    engine = MemoryEngine()
    stranger = AsyncMemoryEngine(MemoryEngine()).meter(parse("1/s"), "1/s")
    with pytest.raises(InvalidCharge, match="another engine"):
        engine.decide_all([(stranger, "key", 1)])  # type: ignore[list-item]


def test_names_keep_counts_apart_and_together() -> None:
    engine = MemoryEngine(ManualClock())
    one = Limiter("3/s", engine, name="one")
    other = Limiter("3/s", engine, name="other")
    same = Limiter("5/s burst 3", engine, name="one")
    assert one.take("key", 3)
    assert other.take("key", 3)
    assert not same.take("key")
    assert not one.take_all([Charge("key", "3/s", 1, "other")])
