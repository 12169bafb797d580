"""Slots on the dict: they return, they expire, and they go as Python's do."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.algorithms.limit import SECOND
from headgate.algorithms.slots import Slots
from headgate.engines.memory.slot_table import SlotTable
from tests.nginx.engines.shared.shared_harness import SharedDictMeter, SharedDictNginx, WireOutcome
from tests.nginx.engines.shared.test_parity import wire
from tests.servers import BASE_US


def test_a_slot_returns_when_it_is_released(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(Slots(2, 30), "returned")
    first, second = nginx.acquire(meter), nginx.acquire(meter)
    assert (first.remaining, second.remaining, first.mark < second.mark) == (1, 0, True)
    refused = nginx.acquire(meter)
    assert (refused.allowed, refused.retry_after_us) == (0, 30 * SECOND)
    assert nginx.release(meter, first.mark)
    assert not nginx.release(meter, first.mark)
    assert nginx.acquire(meter).mark > second.mark
    assert nginx.acquire(meter, "another").allowed == 1


def test_a_slot_expires_unless_it_is_renewed(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(Slots(2, 30), "expired")
    renewed, left = nginx.acquire(meter).mark, nginx.acquire(meter).mark
    nginx.at(BASE_US + 29 * SECOND)
    assert nginx.renew(meter, renewed)
    nginx.at(BASE_US + 30 * SECOND)
    assert not nginx.renew(meter, left)
    assert [nginx.acquire(meter).allowed for _ in range(2)] == [1, 0]
    assert nginx.release(meter, renewed)
    nginx.at(BASE_US + 70 * SECOND)
    assert not [name for name in nginx.names() if name.endswith("expired:{key}")]


def test_expired_leases_take_no_room(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(Slots(1, 1), "pruned")
    for second in range(50):
        nginx.at(BASE_US + second * SECOND)
        assert nginx.acquire(meter).allowed == 1
    assert nginx.entry("chg2:ss:pruned:{key}")[0] == 16 * 7


@pytest.mark.parametrize("seed", range(6))
def test_they_go_as_python_s_go(seed: int, nginx: SharedDictNginx) -> None:
    rng = random.Random(seed)
    # Later than all others who use this nginx: no number that was given once is given again.
    base_us = BASE_US + (seed + 1) * 1000 * 3600 * SECOND
    table, limit, now_us, fences = SlotTable(), Slots(2), base_us, [base_us]
    for _ in range(150):
        if rng.random() < 0.5:
            now_us += rng.choice([0, 1000, 20_000, 400_000, SECOND, rng.randrange(31_000) * 1000])
        elif rng.random() < 0.1:
            now_us -= rng.choice([1000, 500_000, 10 * SECOND, 3600 * SECOND])
        if rng.random() < 0.05:
            limit = Slots(rng.randrange(1, 9), rng.choice([0.5, 2, 30]))
        nginx.at(now_us)
        meter = SharedDictMeter(limit, f"walk {seed}")
        table.sweep(now_us)
        if not len(table):  # What is dead may be forgotten at any time; here both do so at once.
            nginx.forget(meter, "key")
        verb, fence = rng.choice(["acquire", "acquire", "renew", "release"]), rng.choice(fences[-6:])
        if verb == "acquire":
            outcome, _ = table.acquire("key", limit, now_us)
            assert nginx.acquire(meter) == wire(outcome)
            fences.append(outcome[6] if outcome[0] else base_us)
        elif verb == "renew":
            assert nginx.renew(meter, fence) == (table.renew("key", limit, fence, now_us) is not None)
        else:
            assert nginx.release(meter, fence) == table.release("key", fence, now_us)


def test_a_thousand_slots_and_no_more(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(Slots(1000, 30), "many")
    fences = [nginx.acquire(meter).mark for _ in range(1000)]
    assert nginx.acquire(meter).allowed == 0
    assert len(set(fences)) == 1000
    assert nginx.release(meter, fences[500])
    assert [nginx.acquire(meter).allowed for _ in range(2)] == [1, 0]


def test_two_workers_hand_out_each_slot_once() -> None:
    meter = SharedDictMeter(Slots(100, 600), "both")

    def acquire_in_thread(_: int) -> list[WireOutcome]:
        client = SharedDictNginx.__new__(SharedDictNginx)
        client.nginx, client._line, client.clock = nginx.nginx, None, None
        acquired = [client.acquire(meter) for _ in range(40)]
        client.hang_up()
        return acquired

    with SharedDictNginx(workers=2) as nginx, ThreadPoolExecutor(8) as pool:
        outcomes = [outcome for some in pool.map(acquire_in_thread, range(8)) for outcome in some]
    fences = [outcome.mark for outcome in outcomes if outcome.allowed]
    assert (len(fences), len(set(fences)), len(outcomes)) == (100, 100, 320)
