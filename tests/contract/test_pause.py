"""Pauses on every engine: nobody passes before the end, waiters keep their order, nothing is counted twice."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from headgate.errors import InvalidCharge, InvalidRule
from headgate.limiter import AsyncLimiter, Limiter
from tests.contract.engine_harness import EngineHarness
from tests.contract.test_waiting import HeldSleepClock
from tests.contract.verb_table import EXAMPLES

US = 1e-6
texts = pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()], ids=list(EXAMPLES))


@texts
def test_a_pause_never_shortens_a_longer_one_and_reset_ends_it(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text, pausable=True)
    assert limiter.pause("key", 30) == 30
    harness.advance(10)
    assert limiter.pause("key", 5) == 20
    assert limiter.pause("key", 25) == 25
    assert limiter.peek("key").paused_for == 25
    limiter.reset("key")
    assert limiter.peek("key").paused_for == 0
    assert limiter.take("key", 10)


@texts
def test_a_refused_call_leaves_no_trace_and_states_the_rest(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text, pausable=True)
    limiter.take("key", 10)
    retry_after = limiter.take("key").retry_after
    assert retry_after is not None
    limiter.pause("key", 7)
    before = harness.stored()
    refused = limiter.take("key")
    assert not refused
    assert refused.retry_after is not None
    if "fixed" in text:  # its windows go on: by the end of the pause there is a new one
        assert refused.retry_after == 7
    else:
        assert refused.retry_after == pytest.approx(7 + retry_after)
    assert str(refused) == f"refused while paused: retry after {refused.retry_after:g} s"
    assert harness.stored() == before
    harness.advance(refused.retry_after)
    assert limiter.take("key")


@texts
def test_reservations_during_a_pause_are_served_after_it_in_order(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text, pausable=True)
    limiter.pause("key", 7)
    assert not limiter.reserve("key", timeout=7 - US)
    places = [limiter.reserve("key", 10).delay for _ in range(3)]
    assert places == sorted(set(places))
    assert places[0] == pytest.approx(7 + EXAMPLES_BY_TEXT[text].delay)
    limiter.reserve("key", 10).cancel()
    fourth = limiter.reserve("key", 10)
    assert fourth.delay > places[2]


EXAMPLES_BY_TEXT = {example.text: example for example in EXAMPLES.values()}


@texts
def test_a_refund_and_a_settlement_while_paused_count_once(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text, pausable=True)
    taken = limiter.take("key", 10)
    limiter.pause("key", 7)
    harness.advance(1)
    limiter.refund(taken, 4)
    assert limiter.peek("key").paused_for == 6
    harness.advance(6)
    plain = harness.limiter(text, "plain")
    given_back = plain.take("key", 10)
    plain.refund(given_back, 4)
    assert limiter.peek("key").remaining >= plain.peek("key").remaining


def differs(first: list[Any], second: list[Any], count: int) -> bool:
    return len(first) + len(second) != count


async def until_changed(changed: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if changed():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing happened")


@texts
def test_waiters_that_queued_before_the_pause_are_served_after_it_in_order(
    text: str, harness: EngineHarness
) -> None:
    """Each wakes when its turn would have come, learns of the pause, and sleeps on."""
    limiter, gate = harness.async_limiter(text, pausable=True), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> tuple[list[int], list[float]]:
        served: list[int] = []
        times: list[float] = []

        async def visitor(number: int) -> None:
            assert await limiter.wait("key", 5)
            served.append(number)
            times.append(harness.seconds())

        await limiter.take("key", 10)
        tasks = []
        for number in range(4):
            if number == 2:
                assert await limiter.pause("key", 0.05) == 0.05
                assert await limiter.pause("key", 9) == 9
            tasks.append(asyncio.create_task(visitor(number)))
            await gate.next_sleeper()
        started = {id(sleeper): harness.seconds() for _, sleeper in gate.sleepers}
        while len(served) < 4:
            due = [
                (started[id(sleeper)] + us / 1e6, sleeper) for us, sleeper in gate.sleepers if not sleeper.done()
            ]
            at, sleeper = min(due, key=lambda pair: pair[0])
            harness.advance(max(0.0, at - harness.seconds()))
            sleeper.set_result(None)
            count, done = len(gate.sleepers), len(served)
            await until_changed(partial(differs, gate.sleepers, served, count + done))
            for _, each in gate.sleepers[count:]:
                started[id(each)] = harness.seconds()
        await asyncio.gather(*tasks)
        return served, times

    served, times = harness.run(story())
    assert times[0] >= 9
    if "fixed" in text:  # its window passes while it is paused: it takes a place in a later one, behind newcomers
        assert sorted(served) == [0, 1, 2, 3]
        assert [int(at) for at in sorted(times)] == [9, 9, 10, 10]
    else:
        assert served == [0, 1, 2, 3]
        unpaused = harness.limiter(text, "unpaused")
        unpaused.take("key", 10)
        expected = [9 + unpaused.reserve("key", 5).delay for _ in range(4)]
        assert times == pytest.approx(expected, abs=0.0011)


def test_a_waiter_whose_turn_comes_too_late_is_refused_and_leaves_its_place(harness: EngineHarness) -> None:
    limiter, gate = harness.async_limiter("1/s", pausable=True), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.take("key")
        waiter = asyncio.create_task(limiter.wait("key", timeout=3))
        await gate.next_sleeper()
        await limiter.pause("key", 60)
        harness.advance(1)
        gate.sleepers[0][1].set_result(None)
        refused = await waiter
        assert not refused
        assert refused.retry_after == pytest.approx(60, abs=1e-3)
        assert (await limiter.reserve("key")).delay == pytest.approx(60, abs=1e-3)

    harness.run(story())


def test_a_cancelled_waiter_gives_its_place_back_while_paused(harness: EngineHarness) -> None:
    limiter, gate = harness.async_limiter("1/s", pausable=True), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.take("key")
        waiter = asyncio.create_task(limiter.wait("key"))
        await gate.next_sleeper()
        await limiter.pause("key", 60)
        waiter.cancel()
        await asyncio.gather(waiter, return_exceptions=True)
        assert (await limiter.reserve("key")).delay == 61

    harness.run(story())


@pytest.mark.parametrize("text", ["1/s", "1/s log", "1/s fixed"])
def test_a_waiter_learns_within_ten_seconds_that_a_long_pause_was_ended(text: str, harness: EngineHarness) -> None:
    """Its place is gone with the counts: it takes another one, behind those who came meanwhile."""
    limiter, gate = harness.async_limiter(text, pausable=True), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.pause("key", 3600)
        waiters = []
        for _ in range(2):
            waiters.append(asyncio.create_task(limiter.wait("key")))
            await gate.next_sleeper()
        for look in range(2):
            harness.advance(10)
            for number, (slept_us, sleeper) in enumerate(gate.sleepers[-2:]):
                assert slept_us == 10_000_000
                if look == 1 and number == 0:
                    await limiter.reset("key")
                    assert await limiter.take("key")
                sleeper.set_result(None)
                await gate.next_sleeper()
        delays = [round(slept_us / 1e6, 3) for slept_us, _ in gate.sleepers[-2:]]
        assert delays == [1, 2]
        harness.advance(1)
        gate.sleepers[-2][1].set_result(None)
        assert await waiters[0]
        harness.advance(1)
        gate.sleepers[-1][1].set_result(None)
        assert await waiters[1]
        assert len(gate.sleepers) == 6

    harness.run(story())


def test_a_waiter_in_a_long_pause_is_served_at_its_end(harness: EngineHarness) -> None:
    limiter, gate = harness.async_limiter("1/s", pausable=True), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.pause("key", 25)
        await limiter.reserve("key")
        waiter = asyncio.create_task(limiter.wait("key", timeout=26))
        for slept_s in (10, 10, 6):
            await gate.next_sleeper()
            assert gate.sleepers[-1][0] == slept_s * 1_000_000
            harness.advance(slept_s)
            gate.sleepers[-1][1].set_result(None)
        assert await waiter

    harness.run(story())


def test_several_limits_are_paused_together(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s; 4/hour fixed; 20/minute log", pausable=True)
    limiter.take("key")
    limiter.pause("key", 100)
    refused = limiter.take("key")
    assert [verdict.retry_after for verdict in refused.verdicts] == [100, 100, 100]
    assert limiter.reserve("key").delay == 100
    harness.advance(100)
    assert [limiter.take("key").allowed for _ in range(3)] == [True, True, False]


def test_a_pause_outlives_the_counts_and_then_expires(harness: EngineHarness) -> None:
    """The queue keeps its places through two pauses, though its counts would have expired long before."""
    limiter = harness.limiter("1/s", pausable=True)
    limiter.take("key")
    assert limiter.reserve("key").delay == 1
    limiter.pause("key", 100)
    harness.advance(100.5)
    limiter.pause("key", 50)
    harness.advance(50)
    assert limiter.reserve("key").delay == pytest.approx(1.5)
    harness.advance(30)
    assert limiter.take("key")
    harness.advance(30)
    assert limiter.take("other")
    assert [name for name in harness.stored() if b"pe:" in name] == [] if harness.server else True  # type: ignore[operator]


def test_a_clock_that_is_set_back_pauses_nobody_for_longer(harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s", pausable=True)
    limiter.take("key")
    limiter.pause("key", 20)
    harness.advance(-3600)
    assert limiter.peek("key").paused_for == 20
    harness.advance(20)
    assert limiter.peek("key").paused_for == 0


def test_limiters_of_one_name_share_a_pause(harness: EngineHarness) -> None:
    first, second = (harness.limiter("5/s", "partner", pausable=True) for _ in range(2))
    first.pause("api", 4)
    assert second.take("api").paused_for == 4
    assert harness.limiter("5/s", "another", pausable=True).take("api")


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), True, "5", None])
def test_an_invalid_pause_is_refused(seconds: object, harness: EngineHarness) -> None:
    limiter = harness.limiter("5/s", pausable=True)
    with pytest.raises(InvalidCharge, match=r"^A pause lasts a number of seconds above 0, not "):
        limiter.pause("key", seconds)  # type: ignore[arg-type]
    assert harness.stored() == {}


def test_a_limiter_says_how_it_can_be_paused(harness: EngineHarness) -> None:
    with pytest.raises(
        InvalidCharge, match=r"^This limiter cannot be paused: make it with pausable=True, in every"
    ):
        harness.limiter("5/s").pause("key", 5)


def test_a_pause_is_an_hour_at_most_unless_set_otherwise(harness: EngineHarness) -> None:
    assert harness.limiter("5/s", pausable=True).pause("key", 86_400) == 3600
    assert Limiter("5/s", harness.engine, pausable=True, max_pause=86_400).pause("other", 90_000) == 86_400
    with pytest.raises(
        InvalidRule, match=r"^max_pause is a number of seconds above 0, at most 366 days; not 0\.$"
    ):
        Limiter("5/s", pausable=True, max_pause=0)


@pytest.mark.parametrize("make", [Limiter, AsyncLimiter])
def test_a_setting_of_pauses_without_pauses_is_an_error(make: Any) -> None:
    with pytest.raises(InvalidRule, match=r"^max_pause=60 has no effect on a limiter without pausable=True: add "):
        make("5/s", max_pause=60)
    with pytest.raises(InvalidRule, match=r'^pausable is True or False, not "?\'no\'"?\.$'):
        make("5/s", pausable="no")
