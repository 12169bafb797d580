"""Concurrent calls of processes, threads and tasks have the results of some sequential order.

Histories are recorded against real servers and put to the checker: an order must be found in which the model in
Python gives every answer that was seen, with all seven numbers. Limits are small and short, so that within one
history charges pass, are refused, are given back and forgotten, and windows end.

An engine that is wrong on purpose shows that the checker can see.
"""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.linearizability.checker import ExactLaw, Law, LawViolation, check
from tests.linearizability.history import CallHistory, Operation
from tests.linearizability.inexact_engine_laws import DenialCacheLaw, PrefetchLaw
from tests.linearizability.record_history import (
    PROCESSES,
    SECOND,
    CallScenario,
    Recorder,
    play_process,
    start_recorder,
)
from tests.servers import RedisServer

LIMITS = [
    "250/s burst 4",  # a unit is a whole number of microseconds
    "700/s burst 5",  # and here it is not: grains are left over
    "4/10ms fixed",
    "4/10ms sliding",
    "4/10ms log",
    "500/s queue 4 nodelay",
]

# Of the same algorithms, and never used up: they show what the first ones have let pass.
SECOND_LIMITS = [
    "3000/s burst 3000",
    "7000/s burst 3000",
    "9000/10ms fixed",
    "9000/10ms sliding",
    "9000/10ms log",
    "5000/s queue 3000 nodelay",
]

BLOCKING = {"threads": 4, "calls": 30}
AWAITING = {"threads": 2, "tasks": 8, "calls": 10}  # two event loops share one limiter

# Engines that do not ask for every call, in words, and the law of each.
LEASE = "lease?units=4&hold_us=20000"
HELD = 4 * PROCESSES
FORGIVING: list[tuple[str, str, Law]] = [
    ("memo", "700/s burst 5", DenialCacheLaw()),
    ("memo", "4/10ms fixed", DenialCacheLaw()),
    ("memo", "4/10ms log", DenialCacheLaw()),
    (LEASE, "700/s burst 20", PrefetchLaw(HELD)),
    (LEASE, "20/40ms fixed", PrefetchLaw(HELD)),
    (LEASE, "20/40ms sliding", PrefetchLaw(HELD)),
    (LEASE, "20/40ms log", PrefetchLaw(HELD)),
    (f"memo {LEASE}", "700/s burst 20", PrefetchLaw(HELD)),
]

_numbers = count(1)


@pytest.fixture(scope="module")
def processes() -> Iterator[Recorder]:
    with start_recorder() as started:
        yield started


@pytest.mark.parametrize("limit", LIMITS)
def test_threads(limit: str, processes: Recorder, server: RedisServer) -> None:
    for _ in range(4):
        check(_lively(processes, _scene(server.unix_url, limit, keys=2, **BLOCKING)), _law_of(server))


@pytest.mark.parametrize("limit", LIMITS)
def test_tasks_of_several_event_loops(limit: str, processes: Recorder, server: RedisServer) -> None:
    for _ in range(2):
        check(_lively(processes, _scene(server.unix_url, limit, keys=3, **AWAITING)), _law_of(server))


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("limit", LIMITS)
def test_a_crowd_of_tasks(limit: str, keys: int, processes: Recorder, redis_server: RedisServer) -> None:
    scenario = _scene(redis_server.unix_url, limit, keys=keys, threads=1, tasks=64, calls=4)
    check(_lively(processes, scenario))


@pytest.mark.parametrize("crowd", [BLOCKING, {"threads": 1, "tasks": 32, "calls": 4}], ids=["threads", "tasks"])
@pytest.mark.parametrize(("limit", "second_limit"), list(zip(LIMITS, SECOND_LIMITS, strict=True)))
def test_joint_takes(
    limit: str, second_limit: str, crowd: dict[str, int], processes: Recorder, redis_server: RedisServer
) -> None:
    """Each limit sees the calls in some order, and the second is charged only where the first lets pass."""
    scenario = _scene(redis_server.unix_url, limit, keys=2, second_limit=second_limit, **crowd)
    history = _lively(processes, scenario)
    operations: dict[bool, list[Operation]] = {False: [], True: []}  # by whether they are under the second limit
    for operation in history.operations:
        operations[operation.key.startswith(SECOND)].append(operation)
    check(CallHistory(limit, operations[False]))
    check(CallHistory(second_limit, operations[True]))


@pytest.mark.parametrize("crowd", [BLOCKING, AWAITING], ids=["threads", "tasks"])
@pytest.mark.parametrize(("engine", "limit", "law"), FORGIVING)
def test_inexact_engines_stay_within_their_stated_bounds(
    engine: str, limit: str, law: Law, crowd: dict[str, int], processes: Recorder, redis_server: RedisServer
) -> None:
    scenes = [_scene(f"{engine} {redis_server.unix_url}", limit, keys=2, **crowd) for _ in range(3)]
    histories = [_lively(processes, scenario) for scenario in scenes]
    for history in histories:
        check(history, law)
    assert not all(map(_exact, histories)), "nothing had to be forgiven: was the wrapper asked at all?"


@pytest.mark.parametrize("crowd", [BLOCKING, AWAITING], ids=["threads", "tasks"])
def test_a_pace_is_not_prefetched(crowd: dict[str, int], processes: Recorder, redis_server: RedisServer) -> None:
    scenario = _scene(f"{LEASE} {redis_server.unix_url}", "500/s queue 4 nodelay", keys=2, **crowd)
    check(_lively(processes, scenario))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_race_is_seen(limit: str, processes: Recorder, redis_server: RedisServer) -> None:
    def race() -> None:
        for _ in range(20):
            check(processes.record(_scene(f"racing {redis_server.unix_url}", limit, keys=1, threads=2, calls=20)))

    with pytest.raises(LawViolation, match="no order explains the answers"):
        race()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_racing_engine_is_exact_with_one_thread(limit: str, redis_server: RedisServer) -> None:
    scenario = _scene(f"racing {redis_server.unix_url}", limit, keys=2, threads=1, calls=200)
    check(CallHistory(limit, play_process(0, scenario)))


def _law_of(server: RedisServer) -> Law:
    return ExactLaw(swings=1 if server.kind == "valkey" else 0)


def _scene(engine: str, limit: str, *, keys: int, **crowd: Any) -> CallScenario:
    """Keys that nobody has used, and steps that nobody has taken."""
    number = next(_numbers)
    return CallScenario(
        engine, limit, tuple(f"history {number} key {key}" for key in range(keys)), seed=number, **crowd
    )


def _lively(processes: Recorder, scenario: CallScenario) -> CallHistory:
    """A history in which everything happened: another one would show little. A slow machine gets several tries."""
    everything = {"take", "peek", "refund", "reset", "admitted", "denied"}
    happened: set[str] = set()
    for attempt in range(5):
        keys = tuple(f"{key} attempt {attempt}" for key in scenario.keys)
        history = processes.record(scenario._replace(keys=keys, seed=scenario.seed + 1000 * attempt))
        happened = {operation.verb for operation in history.operations}
        happened |= {"admitted" for operation in history.operations if operation.admitted}
        happened |= {"denied" for operation in history.operations if operation.denied}
        if happened == everything:
            return history
    raise AssertionError(f"In no history did anybody see this: {', '.join(everything - happened)}.")


def _exact(history: CallHistory) -> bool:
    try:
        check(history)
    except LawViolation:
        return False
    return True
