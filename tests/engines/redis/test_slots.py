"""Slots in a real server: every story under a driven clock, what is written, and eight processes at once."""

import multiprocessing
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

import pytest

from headgate.algorithms.decision import Outcome
from headgate.algorithms.slots import TICKET_US, Slots
from headgate.engines.redis.protocol import parse_outcome
from headgate.engines.redis.script_assembly import standalone_script
from headgate.limiter import Limiter
from tests.engines.slot_harness import BASE_US, SECOND, SlotHarness
from tests.engines.slot_stories import Story, stories
from tests.servers import RedisServer
from tests.servers.raw_redis_client import Reply, send_commands

KEY = "hg:{key}"
SCRIPT = standalone_script("slots", "slots").text


def evaluate(unix_path: str, limit: Slots, verb: str, *words: int | str) -> Reply:
    return send_commands(unix_path, ("EVAL", SCRIPT, 1, KEY, verb, *map(str, limit.args), *words))[0]


def slot(reply: Reply) -> tuple[Outcome, int | None]:
    numbers = whole(reply)
    return parse_outcome(numbers[:7]), numbers[7] if len(numbers) == 8 else None


def whole(reply: Reply) -> list[int]:
    assert isinstance(reply, list)
    return [number for number in reply if isinstance(number, int)]


class ServerKeeper:
    """One key in a server, and the server's own clock, driven."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def set_us(self, now_us: int) -> None:
        self.server.clock.set_us(now_us)

    def acquire(self, limit: Slots, ticket: int | None, wait: bool) -> tuple[Outcome, int | None]:
        return slot(self._run_command(limit, "acquire", "" if ticket is None else ticket, int(wait)))

    def renew(self, limit: Slots, fence: int) -> int | None:
        held, expires_us = whole(self._run_command(limit, "renew", fence))
        return expires_us if held else None

    def release(self, limit: Slots, fence: int) -> bool:
        return self._run_command(limit, "release", fence) == 1

    def leave(self, limit: Slots, ticket: int) -> bool:
        return self._run_command(limit, "leave", ticket) == 1

    def peek(self, limit: Slots) -> Outcome:
        return parse_outcome(whole(self._run_command(limit, "peek")))

    def forgotten(self) -> bool:
        """Returns whether nothing lives: but for its last number, kept for a day, the key is as never used."""
        alive = self.server.call("ZRANGEBYSCORE", KEY, f"({self.server.clock.now_us()}", "+inf")
        assert isinstance(alive, list)
        return not [name for name in alive if name != b"stamp"]

    def writes(self) -> int:
        """Returns how many changes the server has seen."""
        info = self.server.call("INFO", "persistence")
        assert isinstance(info, bytes)
        return int(info.split(b"rdb_changes_since_last_save:")[1].split()[0])

    def _run_command(self, limit: Slots, verb: str, *words: int | str) -> Reply:
        return evaluate(self.server.unix_path, limit, verb, *words)


@pytest.mark.parametrize("run_story", stories, ids=lambda run_story: run_story.__name__)
def test_story(run_story: Story, driven_server: RedisServer) -> None:
    run_story(SlotHarness(ServerKeeper(driven_server)))


def test_a_denied_newcomer_and_a_look_write_nothing(driven_server: RedisServer) -> None:
    keeper = ServerKeeper(driven_server)
    harness = SlotHarness(keeper)
    first, _ = harness.gets(), harness.gets()
    harness.at(1)
    harness.waits()
    before = keeper.writes()
    for second in (2, 5, 29, 29.9):
        harness.at(second)
        harness.denied()
        assert harness.free() == 0
        assert not harness.releases(first + 100)
        assert harness.renews(first + 100) is None
    assert keeper.writes() == before


def test_the_first_question_after_a_step_back_writes_it_down_once(driven_server: RedisServer) -> None:
    keeper = ServerKeeper(driven_server)
    harness = SlotHarness(keeper)
    harness.gets(), harness.gets()
    harness.at(-3600)
    before = keeper.writes()
    harness.denied(retry_after=30)
    after = keeper.writes()
    assert after > before
    harness.at(-3599)
    harness.denied(retry_after=29)
    assert keeper.writes() == after


def test_a_key_lives_as_long_as_its_last_lease_or_ticket_or_fence(driven_server: RedisServer) -> None:
    harness = SlotHarness(ServerKeeper(driven_server))
    ends_at_ms = BASE_US // 1000

    def dies_after_ms() -> int:
        ends = driven_server.call("PEXPIRETIME", KEY)
        assert isinstance(ends, int)
        return ends - ends_at_ms

    day_ms = 86_400_000
    fence = harness.gets()
    assert dies_after_ms() == day_ms + 1  # a microsecond more than a day, because so is the next fence
    harness.gets()
    harness.waits()
    assert dies_after_ms() == day_ms + 1
    harness.limit = Slots(2, ttl=2 * 86_400)
    harness.at(0.05)
    assert harness.renews(fence) == 2 * 86_400 + 0.05
    assert dies_after_ms() == 2 * day_ms + 50 + 100  # a clock that swings may meet it again
    assert harness.releases(fence)
    assert dies_after_ms() == day_ms + 1
    harness.at(86_401)
    assert driven_server.call("EXISTS", KEY) == 0


def test_everything_dead_is_removed_when_somebody_writes(driven_server: RedisServer) -> None:
    harness = SlotHarness(ServerKeeper(driven_server))
    harness.limit = Slots(1, ttl=60)
    harness.gets()
    for _ in range(50):
        harness.waits()
    harness.at(TICKET_US / SECOND)
    last = harness.waits()
    # Two for the ticket, one each for the lease, the sequence and the stamp.
    assert driven_server.call("ZCARD", KEY) == 5
    assert harness.waits(last) == last


@pytest.mark.slow
def test_eight_processes_never_hold_more_than_three(server: RedisServer) -> None:
    spawn = multiprocessing.get_context("spawn")
    holding, most, served = spawn.Value("i", 0), spawn.Value("i", 0), spawn.Value("i", 0)
    start = spawn.Barrier(8)
    workers = [
        spawn.Process(target=hammer, args=(server.unix_path, start, number % 2 == 0, holding, most, served))
        for number in range(8)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0] * 8
    assert most.value == 3
    assert served.value >= 8
    assert holding.value == 0


def hammer(
    unix_path: str,
    start: Barrier,
    wait: bool,
    holding: "Synchronized[int]",
    most: "Synchronized[int]",
    served: "Synchronized[int]",
) -> None:
    """Take a slot and give it back, again and again; count how many hold one at the same time."""
    limit, ticket = Slots(3), None
    start.wait(timeout=60)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline or ticket is not None:
        (allowed, *_, fence), ticket = slot(
            evaluate(unix_path, limit, "acquire", "" if ticket is None else ticket, int(wait))
        )
        if not allowed:
            time.sleep(0.001)
            continue
        with holding:
            holding.value += 1
            with most:
                most.value = max(most.value, holding.value)
        time.sleep(0.002)
        with holding:
            holding.value -= 1
        with served:
            served.value += 1
        assert evaluate(unix_path, limit, "release", fence) == 1


def test_a_reset_ends_all_leases_and_the_numbers_go_on(driven_server: RedisServer) -> None:
    limiter = Limiter("2 slots", driven_server.unix_url)
    before = [limiter.acquire("key").fence, limiter.acquire("key").fence]
    limiter.reset("key")
    driven_server.clock.advance_us(-1_000_000)
    assert limiter.acquire("key").fence > max(before)
    limiter.close()
