"""Membership on real servers: which members are alive, what is remembered, who sends heartbeats when."""

import asyncio
import gc
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines.layers.fallback import FallbackEngine
from headgate.engines.layers.fallback.membership import (
    MEMBER_TTL_US,
    REMEMBERED_HEARTBEATS,
    AsyncMembership,
    Membership,
    MembershipState,
)
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable
from tests.servers import RedisServer

SCRIPT = (files("headgate") / "lua" / "commands" / "membership.lua").read_text()


def run_command(server: RedisServer, verb: str, member: int) -> object:
    return server.call("EVAL", SCRIPT, 1, "hg2:members", verb, member, MEMBER_TTL_US)


def eventually(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_everybody_is_counted_and_ranked_by_id(driven_server: RedisServer) -> None:
    assert run_command(driven_server, "heartbeat", 500) == [1, 0]
    assert run_command(driven_server, "heartbeat", 7) == [2, 0]
    assert run_command(driven_server, "heartbeat", 2**48) == [3, 2]
    assert run_command(driven_server, "heartbeat", 500) == [3, 1]
    assert run_command(driven_server, "leave", 7) == 1
    assert run_command(driven_server, "leave", 7) == 0
    assert run_command(driven_server, "heartbeat", 500) == [2, 0]


def test_the_silent_are_dead_after_the_ttl(driven_server: RedisServer) -> None:
    run_command(driven_server, "heartbeat", 1)
    driven_server.clock.advance_us(MEMBER_TTL_US - 1)
    assert run_command(driven_server, "heartbeat", 2) == [2, 1]
    driven_server.clock.advance_us(1)
    assert run_command(driven_server, "heartbeat", 2) == [1, 0]
    assert driven_server.call("ZCARD", "hg2:members") == 2  # the dead are gone, not just uncounted
    assert 0 < int(str(driven_server.call("PTTL", "hg2:members"))) <= MEMBER_TTL_US // 1000


def test_a_clock_that_steps_back_does_not_keep_the_dead(driven_server: RedisServer) -> None:
    run_command(driven_server, "heartbeat", 1)
    run_command(driven_server, "heartbeat", 2)
    driven_server.clock.advance_us(-3_600_000_000)
    assert run_command(driven_server, "heartbeat", 1) == [1, 0]
    assert run_command(driven_server, "heartbeat", 2) == [2, 1]
    driven_server.clock.advance_us(MEMBER_TTL_US)
    assert run_command(driven_server, "heartbeat", 1) == [1, 0]


@given(st.lists(st.integers(1, 2**48), min_size=1, max_size=8, unique=True))
def test_ranks_are_all_different_and_stable(redis_server: RedisServer, ids: list[int]) -> None:
    redis_server.flush()
    for member in ids:
        run_command(redis_server, "heartbeat", member)
    places = [run_command(redis_server, "heartbeat", member) for member in ids]
    assert places == [[len(ids), sorted(ids).index(member)] for member in ids]


def test_it_calls_nothing_that_the_documented_rights_do_not_grant() -> None:
    commands = {word for word in SCRIPT.split('"') if word.isupper()}
    assert commands <= {
        "TIME",
        "ZADD",
        "ZREM",
        "ZCOUNT",
        "ZRANGEBYSCORE",
        "ZREVRANGE",
        "ZSCORE",
        "PEXPIRE",
        "KEYS",
    }


def test_a_member_without_a_reply_is_alone_or_one_of_the_stated_number() -> None:
    assert MembershipState().position == (1, 0)
    assert MembershipState(4).position == (4, None)


def test_a_count_that_falls_is_believed_later() -> None:
    state = MembershipState()
    state.note_reply(4, 2)
    for _ in range(REMEMBERED_HEARTBEATS - 1):
        state.note_reply(1, 0)
        assert state.position == (4, 2)
    state.note_reply(2, 1)
    assert state.position == (2, 1)
    state.note_reply(3, 0)
    assert state.position == (3, 0)


def test_a_failed_heartbeat_changes_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[tuple[int, int] | None] = [(3, 1), None, None, (2, 0), None]

    def beat(_: str) -> tuple[int, int]:
        answer = answers.pop(0)
        if answer is None:
            raise EngineUnavailable("Nobody is there.")
        return answer

    members = Membership(beat)
    notified: list[int] = []

    class Listener:
        def on_heartbeat(self) -> None:
            notified.append(members.count)

    listener = Listener()
    members.engines.add(listener)
    for _ in range(5):
        members.heartbeat_once()
    assert members.position == (3, 1)
    assert notified == [3, 3]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    Membership().heartbeat_once()  # nobody to ask


def test_it_beats_until_it_is_closed_and_takes_itself_out() -> None:
    beats: list[str] = []
    left: list[str] = []

    def beat(member: str) -> tuple[int, int]:
        beats.append(member)
        return 2, 1

    members = Membership(beat, left.append, interval_s=0.01)
    members.start()
    members.start()
    eventually(lambda: len(beats) > 3)
    assert members.position == (2, 1)
    members.close()
    members.close()
    assert left == [members.id] == list(set(beats))
    eventually(lambda: "headgate-members" not in {thread.name for thread in threading.enumerate()})


def test_it_ends_with_its_owner() -> None:
    engine = FallbackEngine(MemoryEngine(), members=Membership(lambda _: (1, 0), interval_s=0.01))
    thread = next(each for each in threading.enumerate() if each.name == "headgate-members")
    del engine
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_with_a_fallback_that_keeps_no_shares_nobody_beats() -> None:
    FallbackEngine(MemoryEngine(), fallback="allow", members=Membership(lambda _: (1, 0)))
    assert "headgate-members" not in {thread.name for thread in threading.enumerate()}


def test_a_forked_child_is_a_separate_member() -> None:
    fork = multiprocessing.get_context("fork")
    beats = fork.SimpleQueue()

    def beat(member: str) -> tuple[int, int]:
        beats.put((os.getpid(), member))
        return 2, 0

    engine = FallbackEngine(MemoryEngine(), members=Membership(beat, interval_s=0.05))
    eventually(lambda: engine.members.count == 2)
    child = fork.Process(target=time.sleep, args=(1,))
    child.start()
    child.join()
    engine.close()
    seen = set()
    while not beats.empty():
        seen.add(beats.get())
    assert len(seen) == 2
    assert len({pid for pid, _ in seen}) == len({member for _, member in seen}) == 2


async def test_awaited_it_beats_on_the_loop_where_it_is_used() -> None:
    beats: list[asyncio.AbstractEventLoop] = []
    thrice = asyncio.Event()
    left: list[str] = []

    async def beat(member: str) -> tuple[int, int]:
        beats.append(asyncio.get_running_loop())
        if len(beats) == 3:
            thrice.set()
        return 3, 2

    async def leave(member: str) -> None:
        left.append(member)

    members = AsyncMembership(beat, leave, interval_s=0.01)
    members.ensure_started()
    members.ensure_started()
    await asyncio.wait_for(thrice.wait(), 10)
    assert set(beats) == {asyncio.get_running_loop()}
    assert members.position == (3, 2)
    await members.close()
    await members.close()
    count = len(beats)
    await asyncio.sleep(0.05)
    assert (len(beats), left) == (count, [members.id])


def test_awaited_it_moves_on_when_its_loop_is_gone() -> None:
    beats: list[int] = []

    async def beat(member: str) -> tuple[int, int]:
        beats.append(len(beats))
        if len(beats) == 2:
            raise EngineUnavailable("Nobody is there.")
        return 3, 2

    members = AsyncMembership(beat, interval_s=3600)

    async def use() -> None:
        members.ensure_started()
        await asyncio.sleep(0.01)

    for loops in (1, 2, 3):
        asyncio.run(use())
        assert len(beats) == loops
    members.reset_after_fork()
    assert members.position == (4, None)
    asyncio.run(use())
    assert len(beats) == 4
