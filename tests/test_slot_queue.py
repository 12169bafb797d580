"""Waiting for a slot, step by step: when a waiter polls, with which ticket, and what it leaves behind."""

import pytest

from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import Slots
from headgate.clock import ManualClock
from headgate.engines.memory.slot_table import SlotTable
from headgate.errors import EngineUnavailable, RateLimited
from headgate.flow import run
from headgate.slot_queue import acquire

SECOND = 1_000_000


class SlotQueueMeter:
    """Slots by a clock that sleeping turns; one is held. `log` tells what was asked."""

    def __init__(self) -> None:
        self.limit = Slots(1, ttl=30)
        self.clock = ManualClock()
        self.table = SlotTable()
        self.log: list[str] = []
        self.took_us = 0
        self.failing = False
        self.release_at_us: int | None = None
        self.leaving: dict[int, int] = {}
        self.holder = self.table.acquire("key", self.limit, self.clock.now_us())[0][6]

    def acquire(self, key: str, ticket: int | None = None, wait: bool = False) -> tuple[Outcome, int | None]:
        if self.failing and ticket is not None:
            raise EngineUnavailable("nobody answers")
        self.clock.set_us(self.clock.now_us() + self.took_us)
        now_us = self.clock.now_us()
        if self.release_at_us is not None and now_us >= self.release_at_us:
            self.table.release("key", self.holder, now_us)
        for leave_at_us, leaver in self.leaving.items():
            if now_us >= leave_at_us:
                self.table.leave("key", leaver)
        outcome, given = self.table.acquire(key, self.limit, now_us, ticket, wait)
        self.log.append(
            ("ask" if ticket is None else "again") + ("" if wait else " last") + ("!" if outcome[0] else "")
        )
        return outcome, given

    def leave(self, key: str, ticket: int) -> bool:
        self.log.append("leave")
        return self.table.leave(key, ticket)

    def sleep_us(self, duration_us: int) -> None:
        self.log.append(f"{duration_us / 1000:g}ms")
        self.clock.sleep_us(duration_us)


@pytest.fixture
def meter() -> SlotQueueMeter:
    return SlotQueueMeter()


def test_a_free_slot_is_had_at_once(meter: SlotQueueMeter) -> None:
    meter.release_at_us = meter.clock.now_us()
    assert run(acquire(meter, "key", 0, meter.sleep_us)).allowed
    assert meter.log == ["ask last!"]


def test_without_a_timeout_a_caller_does_not_wait(meter: SlotQueueMeter) -> None:
    with pytest.raises(RateLimited) as raised:
        run(acquire(meter, "key", 0, meter.sleep_us))
    assert raised.value.decision.retry_after == 30
    assert meter.log == ["ask last"]


def test_it_asks_again_until_one_is_free(meter: SlotQueueMeter) -> None:
    meter.release_at_us = meter.clock.now_us() + 300_000
    decision = run(acquire(meter, "key", 5 * SECOND, meter.sleep_us))
    assert decision.allowed
    assert decision.outcome[6] > meter.holder
    assert meter.log == [
        "ask", "10ms", "again", "20ms", "again", "40ms", "again", "80ms", "again", "100ms", "again",
        "100ms", "again!",
    ]  # fmt: skip


def test_it_sleeps_no_longer_than_the_lease_lasts(meter: SlotQueueMeter) -> None:
    meter.clock.advance(29.99)
    assert run(acquire(meter, "key", 5 * SECOND, meter.sleep_us)).allowed
    assert meter.log == ["ask", "10ms", "again!"]


def test_waiters_further_back_poll_less_often_until_the_queue_moves(meter: SlotQueueMeter) -> None:
    now_us = meter.clock.now_us()
    _, first = meter.table.acquire("key", meter.limit, now_us, wait=True)
    _, second = meter.table.acquire("key", meter.limit, now_us, wait=True)
    assert first is not None
    assert second is not None
    meter.leaving = {now_us + 50_000: first, now_us + 100_000: second}
    meter.release_at_us = now_us + 100_000
    assert run(acquire(meter, "key", 5 * SECOND, meter.sleep_us)).allowed
    # Third; still third; second by now; free.
    assert meter.log == ["ask", "30ms", "again", "60ms", "again", "20ms", "again!"]


def test_the_last_question_comes_at_the_timeout_and_gives_the_ticket_up(meter: SlotQueueMeter) -> None:
    with pytest.raises(RateLimited):
        run(acquire(meter, "key", 50_000, meter.sleep_us))
    assert meter.log == ["ask", "10ms", "again", "20ms", "again", "20ms", "again last"]
    meter.table.release("key", meter.holder, meter.clock.now_us())
    assert meter.table.peek("key", meter.limit, meter.clock.now_us())[0]


def test_the_time_that_asking_takes_counts(meter: SlotQueueMeter) -> None:
    meter.took_us = 30_000
    with pytest.raises(RateLimited):
        run(acquire(meter, "key", 100_000, meter.sleep_us))
    assert meter.log == ["ask", "10ms", "again", "20ms", "again", "40ms", "again last"]


def test_a_clock_that_steps_back_does_not_prolong_the_wait(meter: SlotQueueMeter) -> None:
    def sleep_us(duration_us: int) -> None:
        meter.sleep_us(duration_us)
        meter.clock.advance(-60)

    with pytest.raises(RateLimited):
        run(acquire(meter, "key", 200_000, sleep_us))
    assert meter.log[-1] == "again last"
    assert len(meter.log) < 12


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_interrupted_waiter_leaves_the_queue(meter: SlotQueueMeter, error: type[BaseException]) -> None:
    def sleep_us(duration_us: int) -> None:
        raise error

    with pytest.raises(error):
        run(acquire(meter, "key", SECOND, sleep_us))
    assert meter.log == ["ask", "leave"]


def test_a_waiter_without_an_engine_leaves_the_queue(meter: SlotQueueMeter) -> None:
    meter.failing = True
    with pytest.raises(EngineUnavailable):
        run(acquire(meter, "key", SECOND, meter.sleep_us))
    assert meter.log == ["ask", "10ms", "leave"]
