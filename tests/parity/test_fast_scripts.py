"""The fast scripts decide as the plain ones: take_together as take_all, take_calls and take_many as a take_all for
each call.

Two sets of counts on one server, under two prefixes, get the same calls: one by the fast script, one by the plain
one. Outcomes and stored states stay equal.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.engines.redis.joint_takes import JointBuilder
from headgate.engines.redis.protocol import RequestBuilder, parse_outcome
from headgate.engines.redis.script_assembly import Script, algorithm_script
from headgate.engines.redis.take_all import parse_outcomes, take_all_request
from headgate.engines.redis.take_together import take_together_request
from headgate.limit_syntax import parse
from tests.servers import BASE_US, RedisServer

ALGORITHMS = {
    "token_bucket": ("10/s burst 3", "123457/day burst 7", "2/s"),
    "leaky_bucket": ("6/s queue 3", "6/s queue 5 delay 2"),
    "fixed_window": ("5/s fixed", "3/s fixed"),
    "sliding_window": ("6/s sliding", "4/s sliding"),
    "sliding_log": ("5/s log", "3/s log"),
    "smooth": ("9/s smooth", "9/s smooth warmup 2s"),
}
FAST, PLAIN = "fast", "plain"
KEYS = ("anna", "bob")

Charge = tuple[int, str, int]  # the index of a limit, a key, a cost
Call = list[Charge]
pauses_us = st.sampled_from((0, 1, 999, 100_000, 333_333, 3_000_000, -50_000, -5_000_000))
charges = st.tuples(st.integers(0, 9), st.sampled_from(KEYS), st.sampled_from((0, 1, 1, 1, 2, 8)))
calls = st.lists(charges, min_size=1, max_size=4, unique_by=lambda charge: (charge[0] % 2, charge[1]))
walks = st.lists(st.tuples(pauses_us, st.lists(calls, min_size=1, max_size=5)), min_size=1, max_size=8)
counts = st.tuples(st.sampled_from(KEYS), st.sampled_from((0, 1, 1, 1, 2, 8)))
# Calls on the same one or two limits.
alike_calls = st.integers(1, 2).flatmap(
    lambda width: st.lists(
        st.lists(counts, min_size=width, max_size=width).map(
            lambda call: [(number, key, cost) for number, (key, cost) in enumerate(call)]
        ),
        min_size=1,
        max_size=5,
    )
)
alike_walks = st.lists(st.tuples(pauses_us, alike_calls), min_size=1, max_size=8)


class Walk:
    """Both sets of counts, from empty."""

    def __init__(self, server: RedisServer, algorithm: str) -> None:
        self.server, self.algorithm = server, algorithm
        server.call("FLUSHALL")
        server.clock.set_us(BASE_US)
        self.now_us = BASE_US
        self.builders = {
            prefix: [RequestBuilder(parse(text), text, prefix) for text in ALGORITHMS[algorithm]]
            for prefix in (FAST, PLAIN)
        }

    def pass_time(self, pause_us: int) -> None:
        self.now_us += pause_us
        self.server.clock.set_us(self.now_us)

    def built(self, prefix: str, call: Call) -> list[tuple[RequestBuilder, str, int]]:
        # The two limits of a call differ; `unique_by` sees to it.
        return [(self.builders[prefix][number % 2], key, cost) for number, key, cost in call]

    def run(self, script: Script | None, packed: bytes) -> Any:
        assert script is not None
        words = _words(packed)
        return self.server.call("EVAL", script.text, *words[2:])

    def plain(self, call: Call) -> list[Any]:
        built = self.built(PLAIN, call)
        request = take_all_request(built, None, self.now_us)
        return [tuple(each) for each in parse_outcomes(self.run(request.script, request.packed), built)]

    def together(self, call: Call) -> list[Any]:
        built = self.built(FAST, call)
        request = take_together_request(built, self.now_us)
        return [tuple(each) for each in parse_outcomes(self.run(request.script, request.packed), built)]

    def joined(self, joined_calls: Sequence[Call]) -> list[list[Any]]:
        """All calls in one run of take_calls."""
        every = [self.built(FAST, call) for call in joined_calls]
        names = list(dict.fromkeys(builder.key(key) for call in every for builder, key, _ in call))
        limits = {builder.key(key): builder.args(self.now_us) for call in every for builder, key, _ in call}
        args: list[Any] = [len(every), *(number for name in names for number in limits[name])]
        for call in every:
            args.append(len(call))
            for builder, key, cost in call:
                number = names.index(builder.key(key)) + 1
                args += [number] if cost == 1 else [-number, cost]
        script = algorithm_script("take_calls", self.algorithm)
        replies: Any = self.server.call("EVAL", script.text, len(names), *names, *args)
        return [
            [parse_outcome(reply)] if len(call) == 1 else [tuple(each) for each in parse_outcomes(reply, call)]
            for reply, call in zip(replies, every, strict=True)
        ]

    def alike(self, calls_on_same_limits: Sequence[Call]) -> list[list[Any]]:
        """All calls in one run of take_many."""
        every = [self.built(FAST, call) for call in calls_on_same_limits]
        builder = JointBuilder([builder for builder, _, _ in every[0]])
        _, *columns = zip(*(zip(*call, strict=True) for call in every), strict=True)
        request = builder.decide_each(*columns)
        return [list(each) for each in builder.parse_each(self.run(request.script, request.packed), len(every))]

    def stored(self, prefix: str) -> dict[bytes, tuple[Any, Any]]:
        names: Any = self.server.call("KEYS", f"{prefix}*")
        return {
            name.removeprefix(prefix.encode()): (self.server.call("GET", name), self.server.call("PTTL", name))
            for name in names
        }


def _words(packed: bytes) -> list[bytes]:
    """Returns the arguments of a packed command."""
    words, at = [], packed.index(b"\r\n") + 2
    while at < len(packed):
        end = packed.index(b"\r\n", at)
        length = int(packed[at + 1 : end])
        words.append(packed[end + 2 : end + 2 + length])
        at = end + 2 + length + 2
    return words


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=40)
@given(walk=walks)
def test_take_together_decides_as_take_all(algorithm: str, walk: Any, driven_redis: RedisServer) -> None:
    counts = Walk(driven_redis, algorithm)
    for pause_us, several in walk:
        counts.pass_time(pause_us)
        for call in several:
            assert counts.together(call) == counts.plain(call)
    assert counts.stored(FAST) == counts.stored(PLAIN)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"sliding_log"}))
@settings(max_examples=40)
@given(walk=walks)
def test_take_calls_decides_as_one_take_all_for_each_call(
    algorithm: str, walk: Any, driven_redis: RedisServer
) -> None:
    counts = Walk(driven_redis, algorithm)
    for pause_us, several in walk:
        counts.pass_time(pause_us)
        assert counts.joined(several) == [counts.plain(call) for call in several]
    assert counts.stored(FAST) == counts.stored(PLAIN)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=40)
@given(walk=alike_walks)
def test_take_many_decides_as_one_take_all_for_each_call(
    algorithm: str, walk: Any, driven_redis: RedisServer
) -> None:
    counts = Walk(driven_redis, algorithm)
    for pause_us, several in walk:
        counts.pass_time(pause_us)
        assert counts.alike(several) == [counts.plain(call) for call in several]
    assert counts.stored(FAST) == counts.stored(PLAIN)
