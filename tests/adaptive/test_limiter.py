"""AdaptiveLimiter around blocks, functions and coroutines, in threads and on event loops."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from headgate import AdaptiveConcurrency, AdaptiveLimiter, RateLimited
from headgate.adaptive.aimd import Aimd
from headgate.adaptive.gradient2 import Gradient2
from headgate.adaptive.overload_signals import CpuUsage
from headgate.adaptive.target_concurrency import TargetConcurrency
from headgate.adaptive.target_rate import TargetRate
from headgate.adaptive.vegas import Vegas
from headgate.adaptive.window import LimitAlgorithm
from headgate.errors import InvalidCharge, InvalidRule

MS = 1_000_000


class NanosecondClock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def _fixed(limit: int) -> Aimd:
    return Aimd(initial=limit, floor=limit, ceiling=limit)


def _one_call_at_a_time() -> tuple[AdaptiveLimiter, NanosecondClock]:
    """A limiter whose every call is a window, from 20 calls on."""
    clock = NanosecondClock()
    return AdaptiveLimiter(Aimd(initial=20, floor=1, ceiling=40), clock_ns=clock), clock


def test_a_block_counts_while_it_runs() -> None:
    limiter = AdaptiveLimiter()
    with limiter.guard():
        assert limiter.in_flight == 1
        with limiter.guard():
            assert limiter.in_flight == 2
    assert limiter.in_flight == 0


def test_a_call_too_many_is_refused_like_by_any_other_limiter() -> None:
    limiter = AdaptiveLimiter(_fixed(1), name="reports")
    with limiter.guard(), pytest.raises(RateLimited) as refused, limiter.guard():
        pass
    decision = refused.value.decision
    assert (decision.allowed, decision.key, str(decision.limit)) == (False, "reports", "1 slots")
    assert decision.retry_after is not None
    assert decision.retry_after > 0
    with limiter.guard():
        pass


def test_functions_and_coroutine_functions_are_guarded() -> None:
    limiter = AdaptiveLimiter()

    @limiter.guard()
    def seen() -> int:
        return limiter.in_flight

    @limiter.guard()
    async def seen_later() -> int:
        await asyncio.sleep(0)
        return limiter.in_flight

    assert seen() == 1
    assert asyncio.run(seen_later()) == 1
    assert limiter.in_flight == 0


def test_generators_are_not_guarded() -> None:
    def numbers() -> Any:
        yield 1

    with pytest.raises(InvalidCharge, match="numbers is a generator: its caller decides how long it takes"):
        AdaptiveLimiter().guard()(numbers)


@pytest.mark.parametrize(
    ("error", "limit"),
    [(None, 20), (TimeoutError, 18), (asyncio.TimeoutError, 18), (ValueError, 20), (KeyboardInterrupt, 20)],
)
def test_an_exception_tells_how_it_went(error: type[BaseException] | None, limit: int) -> None:
    limiter, _ = _one_call_at_a_time()
    with suppress(BaseException), limiter.guard():
        if error:
            raise error
    assert (limiter.limit, limiter.in_flight) == (limit, 0)


def test_a_call_can_be_dropped_or_ignored_without_an_exception() -> None:
    limiter, _ = _one_call_at_a_time()
    with limiter.guard() as call:
        call.drop()
        assert (limiter.limit, limiter.in_flight) == (18, 0)
    assert (limiter.limit, limiter.in_flight) == (18, 0)
    with limiter.guard() as call:
        call.ignore()
    call = limiter.acquire()
    call.drop()
    call.success()
    assert (limiter.limit, limiter.in_flight) == (16, 0)


def test_the_limit_follows_the_service() -> None:
    clock = NanosecondClock()
    limiter = AdaptiveLimiter(AdaptiveConcurrency(initial=4), clock_ns=clock)
    for _ in range(40):  # everybody who may comes, and everybody is served in 100 ms
        calls = []
        while limiter.in_flight < limiter.limit:
            calls.append(limiter.acquire())
        with pytest.raises(RateLimited):
            limiter.acquire()
        clock.now_ns += 100 * MS
        for call in calls:
            call.success()
    assert limiter.limit > 40
    assert limiter.reason == "no queue"


def test_many_threads_never_exceed_the_limit() -> None:
    limiter = AdaptiveLimiter(_fixed(3))
    most, failures = [0], []

    def work() -> None:
        for _ in range(300):
            try:
                with limiter.guard():
                    most[0] = max(most[0], limiter.in_flight)
            except RateLimited:
                pass
            except BaseException as error:  # a thread's error would be lost
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert 1 <= most[0] <= 3
    assert limiter.in_flight == 0


async def test_tasks_wait_for_their_turn_and_the_important_come_first() -> None:
    limiter = AdaptiveLimiter(_fixed(1), priorities=("high", "medium", "low"), queue=30)
    served = []

    async def call(priority: str) -> None:
        async with limiter.guard(priority):
            served.append(priority)
            await asyncio.sleep(0)

    async with limiter.guard("low"):
        tasks = [asyncio.create_task(call(priority)) for priority in ("medium", "high")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RateLimited):
            await call("low")
    await asyncio.gather(*tasks)
    assert served == ["high", "medium"]
    assert limiter.in_flight == 0


async def test_a_task_that_is_cancelled_in_the_queue_leaves_it() -> None:
    limiter = AdaptiveLimiter(_fixed(1), queue=30)
    async with limiter.guard():
        task = asyncio.create_task(limiter.guard().__aenter__())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert limiter.in_flight == 0
    async with limiter.guard():
        assert limiter.in_flight == 1


async def test_a_task_whose_turn_does_not_come_is_refused() -> None:
    limiter = AdaptiveLimiter(_fixed(1), queue=0.001)
    async with limiter.guard():
        with pytest.raises(RateLimited):
            async with limiter.guard():
                pass
    assert limiter.in_flight == 0


def test_threads_wait_for_their_turn() -> None:
    limiter = AdaptiveLimiter(_fixed(1), queue=30)
    entered = threading.Event()

    def wait() -> None:
        with limiter.guard():
            entered.set()

    with limiter.guard():
        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()
    with limiter.guard(), pytest.raises(RateLimited):
        limiter.acquire()  # never waits


def test_a_thread_whose_turn_does_not_come_is_refused() -> None:
    limiter = AdaptiveLimiter(_fixed(1), queue=0.001)
    with limiter.guard(), pytest.raises(RateLimited), limiter.guard():
        pass


def test_a_guard_that_is_strained_stops_growth() -> None:
    class Strained:
        def strained(self) -> bool:
            return True

    clock = NanosecondClock()
    limiter = AdaptiveLimiter(AdaptiveConcurrency(initial=4), signals=[Strained()], clock_ns=clock)
    for _ in range(20):
        calls = [limiter.acquire() for _ in range(4)]
        clock.now_ns += 100 * MS
        for call in calls:
            call.success()
    assert (limiter.limit, limiter.reason) == (4, "strained")


ALGORITHMS: tuple[LimitAlgorithm[Any], ...] = (
    *(Aimd(floor=1), Vegas(), Gradient2(floor=1), AdaptiveConcurrency()),
    TargetConcurrency(target=0.2),
)


@pytest.mark.parametrize("before", ALGORITHMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("after", ALGORITHMS, ids=lambda each: type(each).__name__)
def test_every_algorithm_goes_on_from_the_limit_of_another(
    before: LimitAlgorithm[Any], after: LimitAlgorithm[Any]
) -> None:
    limiter = AdaptiveLimiter(before)
    limiter.go_on_from(30.5)
    assert limiter.limit == 30
    limiter.change(after, keep=True)
    assert (limiter.limit, type(limiter.limit), limiter.reason) == (30, int, "changed settings")
    limiter.acquire().success()


def test_a_limit_starts_at_the_bound_that_is_nearer() -> None:
    assert AdaptiveLimiter(AdaptiveConcurrency(ceiling=10)).limit == 10
    assert AdaptiveLimiter(AdaptiveConcurrency(floor=30)).limit == 30


def test_a_rate_can_be_limited_instead() -> None:
    clock = NanosecondClock()
    limiter = AdaptiveLimiter(TargetRate(target=0.1, ceiling=100), clock_ns=clock)
    for _ in range(10):
        limiter.acquire().success()
    with pytest.raises(RateLimited):
        limiter.acquire()
    clock.now_ns += 10 * MS
    limiter.acquire().success()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"algorithm": AdaptiveConcurrency},
            "An algorithm is an object such as AdaptiveConcurrency(floor=4); not",
        ),
        ({"algorithm": 20}, "An algorithm is an object such as AdaptiveConcurrency(floor=4); not 20."),
        ({"queue": -1}, "queue is a number at least 0, at most 60; not -1."),
        ({"priorities": "high"}, "Priorities are names that differ"),
        ({"priorities": ("a", "a")}, "Priorities are names that differ"),
        ({"fair": True}, "Fairness is among the calls of a class: give priorities"),
        ({"drops": [TimeoutError]}, "drops is a tuple of exceptions, such as (TimeoutError,); not"),
        ({"signals": CpuUsage()}, "signals is a list such as [CpuUsage(threshold=0.9)]; not"),
        ({"signals": [5]}, "signals is a list such as [CpuUsage(threshold=0.9)]; not [5]."),
        ({"algorithm": TargetRate(target=1), "queue": 1}, "A rate has no queue"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        AdaptiveLimiter(**settings)
    assert str(refused.value).startswith(message)


def test_an_unknown_priority_is_refused_with_those_that_there_are() -> None:
    limiter = AdaptiveLimiter(priorities=("high", "low"))
    with pytest.raises(InvalidCharge, match=r"'hihg' is no priority of this limiter. Known: high, low."):
        limiter.guard("hihg")
    with pytest.raises(InvalidCharge, match="Known: none, give the limiter priorities"):
        AdaptiveLimiter().acquire("high")
    with pytest.raises(InvalidCharge, match=r"with brackets: write @limiter.guard\(\) above it."):
        AdaptiveLimiter().guard(len)  # type: ignore[arg-type]
