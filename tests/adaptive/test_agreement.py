"""Several processes in front of one service agree on the median of what each has learned; in virtual time.

The server has 12 threads and calls take 150 ms: 80 calls a second are possible, and 100 come, spread over the
processes at random.
"""

from __future__ import annotations

from math import inf
from random import Random
from statistics import mean
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.agreement import agreed_limit
from headgate.adaptive.gate import DROPPED, SUCCESS, ConcurrencyGate
from headgate.adaptive.simulation.servers import SharedThreads
from headgate.adaptive.target_concurrency import TargetConcurrency

NS = 1e9
SECONDS, WARM_UP = 120, 40
THREADS, WORK_S, RATE = 12, 0.150, 100
DEFAULT = AdaptiveConcurrency()
TARGET = TargetConcurrency(target=0.25, quantile=0.9, ceiling=500)

VOTES = st.lists(st.floats(1, 1000), min_size=3, max_size=20)


@given(VOTES, st.randoms(use_true_random=False))
def test_the_agreed_limit_lies_between_the_votes_whatever_their_order(votes: list[float], random: Random) -> None:
    agreed = agreed_limit(votes)
    assert agreed is not None
    assert min(votes) <= agreed <= max(votes)
    random.shuffle(votes)
    assert agreed_limit(votes) == agreed


@given(VOTES, st.sampled_from([1.0, 1000.0]))
def test_one_process_moves_nobody_beyond_its_neighbours(votes: list[float], wrong: float) -> None:
    agreed = agreed_limit([*votes, wrong])
    assert agreed is not None
    assert min(votes) <= agreed <= max(votes)


def test_of_two_each_keeps_its_limit() -> None:
    assert agreed_limit([]) is agreed_limit([5]) is agreed_limit([5, 25]) is None


class Outcome(NamedTuple):
    limits: list[float]  # of each process, on average
    passed: list[int]
    good: float  # calls per second that were answered within twice the work
    p99: float


class _ProcessCall(NamedTuple):
    process: int
    started_ns: float
    entered: int


def _run(
    algorithm: object, processes: int, *, agree: bool, bad: int | None = None, errors: bool = False, seed: int = 1
) -> Outcome:
    """Runs processes in front of one service. A `bad` one sees five times the response times of the others; or,
    with `errors`, all of its calls as dropped."""
    random, server = Random(seed), SharedThreads(THREADS)
    gates = [ConcurrencyGate(algorithm, 0.0) for _ in range(processes)]  # type: ignore[arg-type]
    limits: list[list[int]] = [[] for _ in gates]
    passed, responses = [0] * processes, []
    arrival_ns, tick_ns, now_ns = random.expovariate(RATE) * NS, NS, 0.0
    while now_ns < SECONDS * NS:
        now_ns = min(arrival_ns, server.next_ns, tick_ns)
        measured = now_ns > WARM_UP * NS
        if now_ns == server.next_ns:
            call, _ = server.pop()
            if call is not None:
                took_ns = now_ns - call.started_ns
                seen_ns = 5 * took_ns if call.process == bad else took_ns
                ended = DROPPED if errors and call.process == bad else SUCCESS
                gates[call.process].leave(call.entered, now_ns - seen_ns, now_ns, ended)
                if measured:
                    responses.append(took_ns / NS)
                    passed[call.process] += 1
        elif now_ns == arrival_ns:
            process = random.randrange(processes)
            if entered := gates[process].try_enter(now_ns):
                server.add(now_ns, _ProcessCall(process, now_ns, entered), WORK_S * NS)
            arrival_ns = now_ns + random.expovariate(RATE) * NS
        else:
            agreed = agreed_limit([gate.limit for gate in gates if gate.windows]) if agree else None
            for gate, seen in zip(gates, limits, strict=True):
                if agreed is not None:
                    gate.go_on_from(agreed)
                if measured:
                    seen.append(gate.limit)
            tick_ns += NS
    assert server.next_ns < inf
    responses.sort()
    good = sum(took <= 2 * WORK_S for took in responses) / (SECONDS - WARM_UP)
    return Outcome([mean(each) for each in limits], passed, good, responses[len(responses) * 99 // 100])


@pytest.mark.parametrize("algorithm", [DEFAULT, TARGET], ids=["default", "target"])
@pytest.mark.parametrize("bad", [None, 0])
def test_four_that_agree_are_worth_one(algorithm: object, bad: int | None) -> None:
    alone = _run(algorithm, 1, agree=False)
    four = _run(algorithm, 4, agree=True, bad=bad)
    assert sum(four.limits) == pytest.approx(sum(alone.limits), rel=0.2)
    assert min(four.passed) >= 0.5 * sum(four.passed) / 4, "each has at least half of its fair share"
    assert four.good >= 0.95 * alone.good
    assert four.p99 <= 2.5 * WORK_S


@pytest.mark.parametrize("algorithm", [DEFAULT, TARGET], ids=["default", "target"])
def test_one_process_whose_calls_all_fail_shrinks_only_itself(algorithm: object) -> None:
    alone = _run(algorithm, 1, agree=False)
    four = _run(algorithm, 4, agree=True, bad=0, errors=True)
    assert min(four.limits[1:]) >= sum(alone.limits) / 4
    assert min(four.passed[1:]) >= sum(four.passed) / 4, "they take over what it leaves"
    assert four.good >= 0.9 * alone.good
    assert four.p99 <= 2.5 * WORK_S


def test_four_that_do_not_agree_are_unequal() -> None:
    four = _run(DEFAULT, 4, agree=False, seed=2)
    assert max(four.limits) > 3 * min(four.limits), "which is what agreeing is for"
