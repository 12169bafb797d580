"""Waiting on every engine: first come first served, decided before the charge, given back when cancelled."""

import asyncio

import pytest

from headgate.errors import RateLimited
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES

US = 1e-6
texts = pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()], ids=list(EXAMPLES))


class HeldSleepClock:
    """A clock on which sleepers stay asleep until they are woken."""

    def __init__(self, harness: EngineHarness) -> None:
        self.now_us = harness.clock.now_us
        self.sleepers: list[tuple[int, asyncio.Future[None]]] = []
        self._asleep = asyncio.Event()

    def sleep_us(self, duration_us: int) -> None:
        raise KeyboardInterrupt

    async def asleep_us(self, duration_us: int) -> None:
        sleeper = asyncio.get_running_loop().create_future()
        self.sleepers.append((duration_us, sleeper))
        self._asleep.set()
        await sleeper

    async def next_sleeper(self) -> None:
        """Wait until one more has fallen asleep."""
        await self._asleep.wait()
        self._asleep.clear()


@texts
def test_waiters_are_served_in_the_order_of_asking(text: str, harness: EngineHarness) -> None:
    limiter, gate = harness.async_limiter(text), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> list[int]:
        served: list[int] = []

        async def visitor(number: int) -> None:
            await limiter.wait("key", 5)
            served.append(number)

        await limiter.take("key", 10)
        tasks = []
        for number in range(4):
            tasks.append(asyncio.create_task(visitor(number)))
            await gate.next_sleeper()
        due = [duration_us for duration_us, _ in gate.sleepers]
        assert due == sorted(due)
        assert due[0] > 0
        for _, sleeper in sorted(gate.sleepers, key=lambda pair: pair[0]):
            sleeper.set_result(None)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return served

    assert harness.run(story()) == [0, 1, 2, 3]


@texts
def test_a_cancelled_wait_gives_its_place_back(text: str, harness: EngineHarness) -> None:
    limiter, gate = harness.async_limiter(text), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.take("key", 10)
        first = asyncio.create_task(limiter.wait("key", 10))
        await gate.next_sleeper()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        # Whoever comes next gets the place that was given up.
        place_in_line = await limiter.reserve("key", 10)
        assert place_in_line.decision.delay_us == gate.sleepers[0][0]

    harness.run(story())


@texts
def test_an_interrupted_wait_gives_its_place_back(text: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(text)
    if harness.awaited:
        return _interrupted_while_awaited(text, harness)
    limiter.take("key", 10)
    delay = limiter.reserve("key", 10)
    delay.cancel()
    calm, limiter.clock = limiter.clock, HeldSleepClock(harness)
    with pytest.raises(KeyboardInterrupt):
        limiter.wait("key", 10)
    limiter.clock = calm
    assert limiter.reserve("key", 10).delay == delay.delay
    return None


def _interrupted_while_awaited(text: str, harness: EngineHarness) -> None:
    """An event loop lets a KeyboardInterrupt through its tasks; so may any error of a sleeper."""
    limiter, gate = harness.async_limiter(text), HeldSleepClock(harness)
    limiter.clock = gate

    async def story() -> None:
        await limiter.take("key", 10)
        waiting = asyncio.create_task(limiter.wait("key", 10))
        await gate.next_sleeper()
        gate.sleepers[0][1].set_exception(RuntimeError("woken by force"))
        with pytest.raises(RuntimeError, match="woken by force"):
            await waiting
        assert (await limiter.reserve("key", 10)).decision.delay_us == gate.sleepers[0][0]

    harness.run(story())


@texts
def test_waiting_with_nothing_in_the_way_does_not_sleep(text: str, harness: EngineHarness) -> None:
    waited = harness.limiter(text).wait("key")
    assert (waited.allowed, waited.delay, harness.seconds()) == (True, 0, 0)


def test_a_reservation_cancelled_late_gives_nothing_back(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s")
    limiter.take("key", 10)
    early, late = limiter.reserve("key", 5), limiter.reserve("key", 5)
    harness.advance(0.6)
    early.cancel()
    assert limiter.peek("key").retry_after == pytest.approx(0.5)
    late.cancel()
    assert limiter.take("key").allowed


def test_several_limits_wait_for_the_slowest(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s; 15/hour")
    assert limiter.take("key", 10)
    assert limiter.wait("key", 5).delay == 0.5
    before = harness.stored()
    refused = limiter.wait("key", timeout=10)
    assert (refused.allowed, str(refused.limit), refused.retry_after) == (False, "15/hour", 239.5)
    assert harness.stored() == before
    waited = limiter.wait("key")
    assert (waited.delay, harness.seconds()) == (239.5, 240)


def test_an_interrupted_wait_on_several_limits_gives_all_back(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s; 15/hour")
    limiter.take("key", 10)
    before = [verdict[:4] for verdict in limiter.peek("key").verdicts]
    place_in_line = limiter.reserve("key", 5)
    assert place_in_line.delay == 0.5
    place_in_line.cancel()
    assert [verdict[:4] for verdict in limiter.peek("key").verdicts] == before


def test_a_guard_with_a_timeout_waits(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s")
    limiter.take("key", 10)
    with limiter.guard("key", timeout=0.1) as decision:
        assert (decision.delay, harness.seconds()) == (0.1, 0.1)
    with (
        pytest.raises(RateLimited, match=r"^refused by 10/s: retry after 0\.1 s$"),
        limiter.guard("key", timeout=0.05),
    ):
        pass
    assert harness.seconds() == 0.1
