"""Several calls in one run of a script are decided as the in-memory engine decides them one by one."""

import random
from typing import Any

import pytest
import redis

from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis import keys, protocol
from headgate.engines.redis.script_assembly import algorithm_script
from headgate.limit_syntax import parse
from tests.servers import BASE_US, RedisServer

ALGORITHMS = {
    "token_bucket": ("10/s burst 3", "123457/day burst 7", "2/s"),
    "leaky_bucket": ("6/s queue 3", "6/s queue 5 delay 2"),
    "fixed_window": ("5/s fixed", "3/s fixed"),
    "sliding_window": ("6/s sliding", "4/s sliding"),
    "smooth": ("9/s smooth", "9/s smooth warmup 2s"),
}
KEYS = ("anna", "bob", "cy")
Charge = tuple[str, str, int]  # limit, key, cost


def run_script(server: RedisServer, algorithm: str, calls: list[list[Charge]]) -> Any:
    """The calls in one run; what each of them was told."""
    script = algorithm_script("take_calls", algorithm)
    counts = list(dict.fromkeys((text, key) for call in calls for text, key, _ in call))
    words: list[Any] = [len(calls)]
    for text, _ in counts:
        words += protocol.limit_args(parse(text), text)
    for call in calls:
        words.append(len(call))
        for text, key, cost in call:
            number = counts.index((text, key)) + 1
            words += [number] if cost == 1 else [-number, cost]
    names = [keys.build_key(keys.key_head("hg", algorithm, text), key) for text, key in counts]
    with redis.Redis(unix_socket_path=str(server.unix_path)) as client:  # it tells errors among other replies
        return client.execute_command("EVAL", script.text, len(names), *names, *words)


def reply_outcomes(reply: Any, charges: int) -> list[tuple[Any, ...]]:
    if charges == 1:
        return [protocol.parse_outcome(reply)]
    if isinstance(reply[0], int):
        row = reply[1:]
        rows = [row[4 * i : 4 * i + 4] for i in range(charges)]
        return [(True, left, 0, reset, delay, reply[0], mark) for left, reset, delay, mark in rows]
    return [protocol.parse_outcome(each) for each in reply]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_run_says_what_as_many_calls_say(algorithm: str, seed: int, driven_server: RedisServer) -> None:
    rng = random.Random(seed)
    clock = ManualClock(BASE_US)
    driven_server.call("FLUSHALL")
    local = MemoryEngine(clock)
    meters = {text: local.meter(parse(text), text) for text in ALGORITHMS[algorithm]}
    pool = [(text, key) for text in meters for key in KEYS]
    refused = joined = 0
    for _ in range(40):
        clock.set_us(clock.now_us() + rng.choice((0, 1, 999, 100_000, rng.randrange(700_000), 3_000_000)))
        driven_server.clock.set_us(clock.now_us())
        calls = [
            [(*count, rng.choice((0, 1, 1, 1, 2, 8))) for count in rng.sample(pool, rng.choice((1, 1, 2, 3, 4)))]
            for _ in range(rng.randrange(1, 7))
        ]
        there = run_script(driven_server, algorithm, calls)
        assert len(there) == len(calls)
        for call, reply in zip(calls, there, strict=True):
            if len(call) == 1:
                (text, key, cost), *_ = call
                here = [meters[text].decide(key, cost)]
            else:
                here = local.decide_all([(meters[text], key, cost) for text, key, cost in call], None)
            assert reply_outcomes(reply, len(call)) == [tuple(each) for each in here], (calls, call)
            refused += not all(each[0] for each in here)
            joined += 1
    assert 5 < refused < joined - 5


def test_a_clock_that_steps_back_goes_on_from_there_though_all_are_refused(driven_server: RedisServer) -> None:
    driven_server.call("FLUSHALL")
    full, both = [("2/s", "ann", 2)], [("2/s", "ann", 1), ("10/s burst 3", "ann", 1)]
    replies = []
    for at_us, calls in ((0, [full]), (-5_000_000, [both, both]), (-4_500_000, [both, both])):
        driven_server.clock.set_us(BASE_US + at_us)
        replies += run_script(driven_server, "token_bucket", calls)
    assert [isinstance(each[0], int) for each in replies] == [True, False, False, True, False]
    assert [each[0][2] for each in replies if isinstance(each[0], list)] == [500_000] * 3


def test_a_count_that_is_not_ours_is_nobody_elses_trouble(driven_server: RedisServer) -> None:
    driven_server.call("FLUSHALL")
    taken = keys.build_key(keys.key_head("hg", "token_bucket", "2/s"), "bob")
    driven_server.call("HSET", taken, "somebody", "else's")
    ann, bob, both = [("2/s", "ann", 1)], [("2/s", "bob", 1)], [("2/s", "bob", 1), ("2/s", "ann", 1)]
    first, wrong, joint, second, third = run_script(driven_server, "token_bucket", [ann, bob, both, ann, ann])
    assert [first[0], second[0], third[0]] == [1, 1, 0]
    assert "WRONGTYPE" in str(wrong)
    assert "WRONGTYPE" in str(joint)
    assert driven_server.call("HGET", taken, "somebody") == b"else's"


def test_a_log_is_kept_in_another_way() -> None:
    with pytest.raises(AssertionError):
        algorithm_script("take_calls", "sliding_log")
