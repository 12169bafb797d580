"""Limits in Envoy's units, and the same headers as everywhere; without a server."""

from collections.abc import Iterator

import pytest
from google.protobuf.wrappers_pb2 import UInt64Value
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.clock import ManualClock
from headgate.enforcement.check_together import BatchedCall
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.http.headers import headers
from headgate.limit_syntax import parse
from headgate.service.envoy.fast_response import _varint, encode_passes
from headgate.service.envoy.messages import RateLimitResponse
from headgate.service.envoy.request import DescriptorCheck
from headgate.service.envoy.response import ResponseFormat, make_response, rate

USUAL = ResponseFormat()
SECOND, MINUTE, HOUR, DAY, MONTH, YEAR, WEEK = range(1, 8)


@pytest.mark.parametrize(
    ("text", "quantity"),
    [
        ("10/s fixed", (10, SECOND)),
        ("10/minute fixed", (10, MINUTE)),
        ("10/hour sliding", (10, HOUR)),
        ("10/day sliding", (10, DAY)),
        ("5/week fixed", (5, WEEK)),
        ("5/month fixed in Europe/Berlin", (5, MONTH)),
        ("5/year fixed", (5, YEAR)),
        ("5/7d fixed", (5, WEEK)),
        ("5/30d fixed", (5, MONTH)),
        ("600/10m fixed", (600, 0)),
        ("100/s burst 200", (100, SECOND)),
        ("10/minute", (10, MINUTE)),
        ("600/10m", (1, SECOND)),
        ("90/minute burst 5", (90, MINUTE)),
        ("1/7d burst 3", (3, 0)),
        ("30/minute queue 5", (30, MINUTE)),
        ("10/s smooth", (10, SECOND)),
        ("1.5/s smooth", (90, MINUTE)),
        ("20 slots", (20, 0)),
        ("10000000000/day fixed", (2**32 - 1, DAY)),
    ],
)
def test_limits_in_envoys_units(text: str, quantity: tuple[int, int]) -> None:
    assert rate(parse(text)) == quantity


LIMITS = ("3/minute fixed", "2/s burst 5", "5/hour sliding", "4/10m log", "1/s queue 3", "2/s smooth", "2 slots")
ATTRIBUTES = {
    "one": {"user": "ann"},
    "both": {"user": "ann", "sku": "7"},
    "none": {"nobody": "x"},
    "late": {"sku": "7"},
}
Steps = list[tuple[list[str], int, float]]  # who asks, at which cost; and how long after that the next do

steps = st.tuples(
    st.lists(st.sampled_from(list(ATTRIBUTES)), min_size=1, max_size=3), st.integers(0, 2), st.floats(0, 90)
)


def answers(limit: str, walk: Steps) -> Iterator[tuple[list[DescriptorCheck], tuple[RuleDecision, ...]]]:
    """Returns what is asked on the way, and what is decided."""
    clock, rule = ManualClock(), {"missing": "skip"}
    rules = [
        {**rule, "name": "one", "key": "user", "limit": limit},
        {**rule, "name": "two", "key": "sku", "limit": "9/s"},
    ]
    with RuleLimiter({"rules": rules}, clock=clock) as limiter:
        for names, cost, seconds in walk:
            calls = [BatchedCall(ATTRIBUTES[name], cost) for name in names]
            yield [DescriptorCheck(call, cost) for call in calls], limiter.check_together(calls)
            clock.advance(seconds)


@given(st.lists(steps, max_size=6))
@settings(max_examples=60)
def test_headers_are_those_of_the_decision(walk: Steps) -> None:
    for limit in LIMITS:
        for checks, decisions in answers(limit, walk):
            if len(decisions) == 1:
                written = encode_passes(USUAL, checks, decisions)
                made = make_response(USUAL, checks, decisions)
                response = made if written is None else RateLimitResponse.FromString(written)
                assert [(head.key, head.value) for head in response.response_headers_to_add] == headers(
                    decisions[0]
                )


@given(st.lists(steps, max_size=6))
@settings(max_examples=60)
def test_the_fast_response_parses_as_the_plain_one(walk: Steps) -> None:
    for limit in LIMITS:
        for checks, decisions in answers(limit, walk):
            written = encode_passes(USUAL, checks, decisions)
            if written is not None:
                assert RateLimitResponse.FromString(written) == make_response(USUAL, checks, decisions)
                assert all(decision.allowed for decision in decisions)
            else:
                assert any(not one.allowed or len(one.counter_decisions) > 1 or one.delay for one in decisions)


def test_numbers_of_any_size_are_written_at_once() -> None:
    for limit in ("4294967296/365d fixed", "10000000000000/day fixed", "200/minute fixed"):
        for checks, decisions in answers(limit, [(["one"], 1, 0.0)]):
            written = encode_passes(USUAL, checks, decisions)
            assert written is not None
            assert RateLimitResponse.FromString(written) == make_response(USUAL, checks, decisions)
            assert encode_passes(ResponseFormat("legacy"), checks, decisions) is None


def test_a_shadow_is_not_encoded_by_the_fast_path() -> None:
    rule = {"name": "new", "key": "user", "missing": "skip", "limit": "3/minute fixed", "mode": "shadow"}
    with RuleLimiter({"rules": [rule]}, clock=ManualClock()) as limiter:
        call = BatchedCall(ATTRIBUTES["one"], 1)
        assert encode_passes(USUAL, [DescriptorCheck(call, 1)], limiter.check_together([call])) is None


@given(st.integers(0, 2**63))
@settings(max_examples=500)
def test_a_number_is_written_as_protobuf_writes_it(number: int) -> None:
    assert _varint(number) == UInt64Value(value=number).SerializeToString()[1:] or number == 0
