"""The stored form of a sliding log: its commands, its size, and that its ring is never lost.

The parity walks hold the answers; here the rings are larger, so that they grow, go round, shrink and are laid
anew under changed limits.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from headgate.algorithms.decision import ALLOWED, RESET_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import DAY, MAX_CLOCK_SWING_US, SECOND
from headgate.algorithms.sliding_log import SlidingLog, State, decide, refund, write_pending
from headgate.engines.redis.script_assembly import algorithm_script
from headgate.engines.redis.sync_engine import RedisEngine
from tests.servers import BASE_US, RedisServer
from tests.servers.raw_redis_client import Reply, send_commands

HEADER, WIDTH = 39, 7


class MirroredLogs:
    """One log in a server and one in Python, asked the same."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.engine = RedisEngine(server.unix_url)
        self.state: State | None = None
        self.now_us = BASE_US

    def decide(self, limit: SlidingLog, cost: int, patience_us: int | None = None) -> Outcome:
        self.server.clock.set_us(self.now_us)
        outcome, after = decide(limit, self.state, self.now_us, cost, patience_us)
        if after is not None and after is not self.state:
            self.state = write_pending(limit, after)
        assert self.engine.meter(limit, "log").decide("key", cost, patience_us) == outcome
        return outcome

    def refund(self, limit: SlidingLog, receipt: Receipt, units: int, cancel: bool = False) -> bool:
        self.server.clock.set_us(self.now_us)
        after = refund(limit, self.state, self.now_us, units, receipt, cancel)
        self.state = self.state if after is None else after
        outcome, _ = decide(limit, self.state, self.now_us, 0)
        assert self.engine.meter(limit, "log").refund("key", units, receipt, cancel) == outcome
        return after is not None

    @property
    def bytes(self) -> int:
        length = self.server.call("STRLEN", *_keys(self.server))
        assert isinstance(length, int)
        return length


@pytest.fixture
def twins(driven_server: RedisServer) -> Iterator[MirroredLogs]:
    both = MirroredLogs(driven_server)
    yield both
    both.engine.close()


def test_rings_that_grow_go_round_and_shrink_lose_nothing(twins: MirroredLogs) -> None:
    rng = random.Random(1)
    limit = SlidingLog(400, 1)
    receipts: list[Receipt] = []
    for step in range(3000):
        # Busy and quiet times: from hardly any units in the window to all that fit.
        busy = step // 500 % 2
        twins.now_us += rng.randrange(3000 if busy else 200_000)
        cost = rng.choice((1, 1, 1, 2, 7, rng.randrange(60) if busy else 1))
        outcome = twins.decide(limit, cost, rng.choice((None, None, 50_000)))
        if outcome[ALLOWED] and cost:
            receipts.append(Receipt.from_outcome(outcome, cost))
        if rng.random() < 0.1 and receipts:
            receipt = rng.choice(receipts[-20:])
            twins.refund(limit, receipt, rng.randrange(1, receipt.cost + 1), cancel=rng.random() < 0.3)
        assert twins.bytes <= HEADER + 2 * 400 * WIDTH  # reservations keep what they push out


def test_a_changed_limit_finds_the_same_units(twins: MirroredLogs) -> None:
    rng = random.Random(2)
    limits = [SlidingLog(amount, per) for amount in (1, 5, 60, 300) for per in (0.5, 1, 2)]
    limit = limits[-1]
    kept_until_ms = 0
    for _ in range(2000):
        twins.now_us += rng.choice((0, 1000, rng.randrange(20_000)))
        if rng.random() < 0.02:
            limit = rng.choice(limits)
        if twins.now_us // 1000 > kept_until_ms:
            twins.state = None  # as in the server, which cannot know the limit that comes
        cost = rng.choice((0, 1, 1, 2, 30))
        outcome = twins.decide(limit, cost, rng.choice((None, 100_000)))
        if outcome[ALLOWED] and cost:
            kept_until_ms = twins.now_us // 1000 - -outcome[RESET_AFTER_US] // 1000 + MAX_CLOCK_SWING_US // 1000


def test_a_refund_moves_units_across_the_rings_end(twins: MirroredLogs) -> None:
    limit = SlidingLog(10, 1)
    for _ in range(3):
        twins.now_us += SECOND // 4
        twins.decide(limit, 3)
    twins.now_us += SECOND // 2
    receipts = [Receipt.from_outcome(twins.decide(limit, cost), cost) for cost in (2, 1)]
    twins.now_us += 10
    receipts.append(Receipt.from_outcome(twins.decide(limit, 1), 1))
    assert [twins.refund(limit, receipt, 1) for receipt in (receipts[1], receipts[0], receipts[2])] == [True] * 3
    for _ in range(30):
        twins.now_us += SECOND // 20
        twins.decide(limit, 1)


def test_it_lives_until_its_last_unit_leaves(twins: MirroredLogs) -> None:
    limit = SlidingLog(2, 1)
    first, second = (Receipt.from_outcome(twins.decide(limit, 2, SECOND), 2) for _ in range(2))
    assert twins.server.call("PTTL", *_keys(twins.server)) == 2100
    assert twins.refund(limit, second, 2, cancel=True)
    assert twins.server.call("PTTL", *_keys(twins.server)) == 1100
    assert twins.refund(limit, first, 2)
    assert twins.server.call("PTTL", *_keys(twins.server)) == 100


def test_a_log_that_was_emptied_keeps_its_stamp_while_the_clock_may_swing(twins: MirroredLogs) -> None:
    limit = SlidingLog(5, 1)
    twins.decide(limit, 5)
    twins.now_us += SECOND
    assert twins.refund(limit, Receipt.from_outcome(twins.decide(limit, 1), 1), 1)
    twins.now_us -= MAX_CLOCK_SWING_US
    assert twins.decide(limit, 0)[RESET_AFTER_US] == 0
    assert twins.decide(limit, 5)[RESET_AFTER_US] == SECOND + MAX_CLOCK_SWING_US
    twins.now_us += SECOND
    assert not twins.decide(limit, 1)[ALLOWED]


def test_a_log_that_is_hardly_used_stays_small(twins: MirroredLogs) -> None:
    limit = SlidingLog(100_000, 1)
    for _ in range(300):
        twins.now_us += SECOND // 10
        twins.decide(limit, 1)
    assert twins.bytes <= HEADER + 20 * WIDTH
    twins.decide(limit, 5000)
    assert twins.bytes >= HEADER + 5000 * WIDTH
    for _ in range(11):
        twins.now_us += SECOND // 10
        twins.decide(limit, 1)
    assert twins.bytes <= HEADER + 30 * WIDTH


def test_a_full_ring_that_goes_round_is_written_in_place(twins: MirroredLogs) -> None:
    limit = SlidingLog(1000, 1)
    for _ in range(1500):
        twins.now_us += 1000
        twins.decide(limit, 1)
    calls(twins.server)
    for _ in range(1000):
        twins.now_us += 1000
        assert twins.decide(limit, 1)[ALLOWED]
    made = calls(twins.server)
    assert made["setrange"] == 2000
    assert 2000 <= made["getrange"] <= 2010
    assert "set" not in made
    assert twins.bytes == HEADER + 1000 * WIDTH
    twins.decide(SlidingLog(500, 1), 1, SECOND)
    assert twins.bytes == HEADER + 1001 * WIDTH  # what a reservation pushes out is kept while it lies ahead
    twins.now_us += SECOND
    twins.decide(SlidingLog(500, 1), 1)
    assert twins.bytes <= HEADER + 500 * WIDTH


# On the real clock.

SCRIPT = algorithm_script("take", "sliding_log").text
LIMIT = SlidingLog(70_000, DAY // SECOND)


def take(server: RedisServer, key: str, costs: list[int], limit: SlidingLog = LIMIT) -> list[Reply]:
    sha = server.call("SCRIPT", "LOAD", SCRIPT)
    assert isinstance(sha, bytes)
    numbers = limit.amount, limit.period_us
    return send_commands(server.unix_path, *(("EVALSHA", sha, 1, key, *numbers, cost, -1) for cost in costs))


def calls(server: RedisServer) -> dict[str, int]:
    """Returns how often each command was called since the last time."""
    text = server.call("INFO", "commandstats")
    server.call("CONFIG", "RESETSTAT")
    assert isinstance(text, bytes)
    return {name: int(count) for name, count in re.findall(r"cmdstat_([\w|]+):calls=(\d+)", text.decode())}


def weight(server: RedisServer, key: str) -> int:
    size = server.call("MEMORY", "USAGE", key)
    assert isinstance(size, int)
    return size


@pytest.mark.parametrize("amount", [10_000, 20_000, 70_000])
def test_a_unit_weighs_at_most_ten_bytes_and_twice_that_while_the_ring_fills(
    server: RedisServer, amount: int
) -> None:
    limit = SlidingLog(amount, DAY // SECOND)
    filled = 0
    for percent in (1, 10, 25, 47, 50, 75, 93, 94, 99):
        more = amount * percent // 100 - filled
        take(server, "log", [10] * (more // 10), limit)
        filled += more // 10 * 10
        assert weight(server, "log") <= 20 * filled
    take(server, "log", [10] * ((amount - filled) // 10), limit)
    assert server.call("STRLEN", "log") == HEADER + WIDTH * amount
    assert weight(server, "log") <= 10 * amount


def test_a_decision_costs_the_same_however_full_the_ring_is(server: RedisServer) -> None:
    take(server, "log", [1] * 100)
    take(server, "full", [LIMIT.amount])
    calls(server)
    for before in (0, 6_900, 20_000, 40_000):
        take(server, "log", [before] if before else [])
        calls(server)
        take(server, "log", [1] * 50)
        made = calls(server)
        assert [made[name] // 50 for name in ("getrange", "setrange", "pexpire", "time")] == [2, 2, 1, 1]
        assert made.get("set", 0) <= 1  # a ring laid anew is paid for by the units that filled the last one
    take(server, "full", [1] * 50)
    denied = calls(server)
    assert denied["getrange"] == 100
    assert not denied.keys() & {"set", "setrange", "pexpire", "del"}


def _keys(server: RedisServer) -> list[bytes]:
    keys = server.call("KEYS", "*")
    assert isinstance(keys, list)
    return [key for key in keys if isinstance(key, bytes)]
