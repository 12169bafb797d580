"""Counts go by the real time: a cached clock that stands still, or one that steps, frees no units and no locks."""

import time
from collections.abc import Iterator

import pytest

from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.limit_syntax import parse
from tests.nginx.engines.shared.shared_harness import SharedDictError, SharedDictMeter, SharedDictNginx
from tests.servers import BASE_US

PERIOD_S = 1.0
BUSY_S = 1.2  # the cached clock is so far behind that an entry's life by it would be over


@pytest.fixture(scope="module")
def real_nginx() -> Iterator[SharedDictNginx]:
    with SharedDictNginx() as nginx:
        yield nginx


@pytest.mark.parametrize("text", ["1/s", "2/s burst 1", "3/2s burst 1", "1/s queue 0", "1/s sliding", "1/s log"])
def test_a_unit_that_a_busy_worker_took_is_gone(text: str, real_nginx: SharedDictNginx) -> None:
    """nginx counts an entry's life from the cached clock, so the count would have been dead at once."""
    meter = SharedDictMeter(parse(text), "busy")
    assert real_nginx.decide([(meter, text, 1)], busy=BUSY_S)[0].allowed == 1
    taken_at = time.monotonic()
    again = real_nginx.take(meter, text)
    if time.monotonic() - taken_at < 0.4 * PERIOD_S:  # else a unit may be back
        assert (again.allowed, again.remaining) == (0, 0)


def test_a_slot_that_a_busy_worker_gave_is_held(real_nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(Slots(1, PERIOD_S), "busy")
    assert real_nginx.acquire(meter, busy=BUSY_S).allowed == 1
    given_at = time.monotonic()
    again = real_nginx.acquire(meter)
    if time.monotonic() - given_at < 0.9 * PERIOD_S:  # else it has ended
        assert again.allowed == 0


def test_facts_are_of_the_real_time(real_nginx: SharedDictNginx) -> None:
    before_us = time.time_ns() // 1000
    outcome = real_nginx.decide([(SharedDictMeter(parse("1/s"), "at"), "key", 1)], busy=0.05)[0]
    assert before_us + 50_000 <= outcome.at_us <= time.time_ns() // 1000


def test_a_stepped_clock_takes_no_lock_from_its_holder(nginx: SharedDictNginx) -> None:
    """A lock is taken for dead half a second after somebody first waited for it, by a clock that never steps."""
    meter = SharedDictMeter(parse("5/day"), "held")
    nginx.call_driver("hold", key="held")
    waited_since = time.monotonic()
    for step_us in (0, 3600 * SECOND, -3600 * SECOND):
        nginx.at(BASE_US + step_us)
        try:
            nginx.decide([(meter, "held", 1)], deadline=0.02)
        except SharedDictError:
            continue
        assert time.monotonic() - waited_since >= 0.5
    time.sleep(0.6)
    assert nginx.take(meter, "held").allowed == 1
