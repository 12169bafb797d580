"""Shares in Lua: word by word those of Python, also where a limit is at the edge of what can be written.

A double of seventeen digits may end in another digit, as LuaJIT rounds a tie up and Python to the even one. Both
are that double again.
"""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headgate.algorithms.fixed_window import FixedWindow
from headgate.algorithms.leaky_bucket import LeakyBucket
from headgate.algorithms.limit import EXACT, HORIZON_US, YEAR, Limit
from headgate.algorithms.sliding_log import SlidingLog
from headgate.algorithms.sliding_window import SlidingWindow
from headgate.algorithms.slots import Slots
from headgate.algorithms.smooth import Smooth
from headgate.algorithms.token_bucket import TokenBucket
from headgate.enforcement.split_limits import even_share
from headgate.engines.layers.fallback.limit_share import share
from headgate.errors import InvalidRule
from headgate.limit_syntax import parse
from tests.engines.layers.test_limit_share import LIMITS
from tests.nginx.pure_modules_process import bundle_entry, start_twins
from tests.nginx.rules.luajit_process import LuajitProcess


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def _drawn(draw: st.DrawFn, make: Callable[..., Limit], *strategies: st.SearchStrategy[Any]) -> Limit:
    try:
        return make(*(draw(strategy) for strategy in strategies))
    except InvalidRule:
        assume(False)
        raise


def large(most: int) -> st.SearchStrategy[int]:
    """Any size alike: as many of few digits as of many."""
    sizes = st.integers(0, most.bit_length() - 1)
    return sizes.flatmap(lambda bits: st.integers(2**bits, min(most, 2 ** (bits + 1))))


SECONDS = large(100 * YEAR).map(lambda us: us / 1_000_000)


KINDS = ["bucket", "leaky", "fixed", "calendar", "sliding", "log", "slots", "smooth", "warm"]


@st.composite
def edges(draw: st.DrawFn) -> Limit:
    """Limits of any size that can be."""
    match draw(st.sampled_from(KINDS)):
        case "bucket":
            return _drawn(draw, TokenBucket, large(EXACT), SECONDS, large(EXACT))
        case "leaky":
            delay = st.none() | st.just(0) | large(10**12)
            return _drawn(draw, LeakyBucket, large(10**9), SECONDS, large(10**12), delay)
        case "fixed":
            return _drawn(draw, FixedWindow, large(10**15), SECONDS)
        case "calendar":
            units, zones = (
                st.sampled_from(["day", "week", "month", "year"]),
                st.sampled_from(["UTC", "Asia/Tokyo"]),
            )
            return _drawn(draw, FixedWindow, large(10**15), units, zones)
        case "sliding":
            cells = draw(st.sampled_from([1, 7, 10, 1000]))
            spans = large(50 * YEAR // cells).map(lambda us: us * cells / 1_000_000)
            return _drawn(draw, SlidingWindow, large(10**13), spans, st.just(cells))
        case "log":
            return _drawn(draw, SlidingLog, large(10**6), SECONDS)
        case "slots":
            return _drawn(draw, Slots, large(EXACT), large(HORIZON_US).map(lambda us: us / 1_000_000))
        case "smooth":
            burst = st.sampled_from([0, 1.0, 0.25, 60, 2.000001, 86400])
            return _drawn(
                draw, lambda n, per, burst: Smooth(n, per, burst=burst), st.floats(0.0001, 1e6), SECONDS, burst
            )
    warmup, cold = large(HORIZON_US).map(lambda us: us / 1_000_000), st.floats(1, 1000) | st.sampled_from([3.0, 4])
    return _drawn(draw, Smooth, st.floats(0.0001, 1e6) | large(10**6), SECONDS, warmup, cold)


@st.composite
def slow_buckets(draw: st.DrawFn) -> Limit:
    """Such as fill in nearly a hundred years: not every share of them can be exact, or be written at all."""
    amount, period_us = draw(large(10**7)), draw(st.integers(YEAR, 100 * YEAR))
    burst = st.integers(0, 3).map(lambda less: 100 * YEAR * amount // period_us - less)
    return _drawn(draw, TokenBucket, st.just(amount), st.just(period_us / 1_000_000), burst)


@st.composite
def few_units(draw: st.DrawFn) -> Limit:
    """Limits with fewer units than most counts, of any length that can be."""
    amount, us = draw(st.integers(1, 40)), draw(large(100 * YEAR))
    match draw(st.sampled_from(["bucket", "fixed", "sliding", "log"])):
        case "bucket":
            return _drawn(draw, TokenBucket, large(10**9), st.just(us / 1_000_000), st.just(amount))
        case "fixed":
            return _drawn(draw, FixedWindow, st.just(amount), st.just(us / 1_000_000))
        case "log":
            return _drawn(draw, SlidingLog, st.just(amount), st.just(us / 1_000_000))
    cells = draw(st.sampled_from([1, 7, 10, 1000]))
    return _drawn(draw, SlidingWindow, st.just(amount), st.just(us // cells * cells / 1_000_000), st.just(cells))


COUNTS = st.integers(1, 40) | large(20_000)


DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]\d+)?")


def doubles(answer: Any) -> Any:
    """With every decimal number in it as Python writes that double."""
    if isinstance(answer, dict):
        return {name: doubles(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [doubles(value) for value in answer]
    return DECIMAL.sub(lambda match: repr(float(match[0])), answer) if isinstance(answer, str) else answer


def expected_fields(limit: Limit | None) -> dict[str, Any] | bool:
    return False if limit is None else share_fields(bundle_entry(limit))


def share_fields(fields: Any) -> Any:
    """Returns the fields that decide and describe a share.

    A share has the text of the whole limit, and is neither prefetched nor shed."""
    omitted = ("text", "drain", "flow")
    return fields and {name: value for name, value in fields.items() if name not in omitted}


@settings(max_examples=1500, deadline=None)
@given(LIMITS | edges(), COUNTS, st.integers(0, 50))
@example(TokenBucket(999_983, 100 * 365 * 86400), 10, 0)  # no period can express it: rounded down
@example(TokenBucket(1, 10 * 365 * 86400, 10), 4, 0)  # a unit of the burst is left out
@example(LeakyBucket(1, 900, 50), 4, 0)
@example(Smooth(1, HORIZON_US / 1_000_000 - 1000, burst=0), 2, 0)
@example(LeakyBucket(3, 1000, 9_460_799), 2, 0)  # the rate is rounded down, and it would not run dry in time
@example(Smooth(1, 100 * 86400, 10), 2, 0)  # too slow when cold
@example(Smooth(445064, 1.048576, 0.000001, 1), 2, 0)  # seventeen digits, and a tie
@example(Smooth(0.016384), 3, 0)  # the next double below a power of two
@example(Smooth(5), 9007, 0)
@example(Smooth(5), 9008, 0)  # no period is so long
def test_a_share_is_pythons(lua: LuajitProcess, limit: Limit, count: int, rank: int) -> None:
    rank = min(rank, count - 1)
    assert doubles(
        share_fields(lua.call_driver("share", limit=bundle_entry(limit), count=count, rank=rank))
    ) == expected_fields(share(limit, count, rank))


@settings(max_examples=1500, deadline=None)
@given(LIMITS | edges() | few_units(), COUNTS)
@example(LeakyBucket(100, 1, 0), 4)
@example(TokenBucket(999_983, 100 * 365 * 86400, 1), 10)  # no period can express it, and the burst is one unit
@example(TokenBucket(1, 60 * YEAR / 1_000_000), 2)
@example(FixedWindow(1, 60 * YEAR / 1_000_000), 2)  # no window is so long
@example(SlidingWindow(1, 60 * YEAR / 1_000_000), 2)
@example(SlidingLog(1, 60 * YEAR / 1_000_000), 2)
@example(SlidingWindow(3, 1, 10), 4)
def test_the_share_of_a_member_without_a_rank_is_pythons(lua: LuajitProcess, limit: Limit, count: int) -> None:
    assert doubles(
        share_fields(lua.call_driver("share", limit=bundle_entry(limit), count=count, rank=None))
    ) == expected_fields(share(limit, count, None))


@settings(max_examples=500, deadline=None)
@given(slow_buckets(), st.integers(2, 40), st.integers(0, 50))
def test_a_share_that_can_hardly_be_written_is_pythons(
    lua: LuajitProcess, limit: Limit, count: int, rank: int
) -> None:
    rank %= count
    assert doubles(
        share_fields(lua.call_driver("share", limit=bundle_entry(limit), count=count, rank=rank))
    ) == expected_fields(share(limit, count, rank))


@settings(max_examples=500, deadline=None)
@given(LIMITS | edges() | few_units(), st.integers(0, 3) | COUNTS, st.none() | st.integers(0, 50))
@example(LeakyBucket(1, 900, 50), 37, 3)
@example(TokenBucket(1, 10 * 365 * 86400, 10), 20, 19)
def test_an_even_share_is_pythons(lua: LuajitProcess, limit: Limit, count: int, rank: int | None) -> None:
    assert doubles(
        share_fields(lua.call_driver("even", limit=bundle_entry(limit), count=count, rank=rank))
    ) == expected_fields(even_share(limit, count, rank))


@settings(max_examples=1000, deadline=None)
@given(LIMITS | edges())
@example(TokenBucket(90_001, 10_000_000_023 / 1_000_000, 27_628_826_087))  # one grain more than whole seconds
def test_lua_computes_the_limit_fields_of_the_bundle(lua: LuajitProcess, limit: Limit) -> None:
    answer = lua.call_driver("complete", limit=bundle_entry(limit))
    assert answer == expected_fields(limit)


def test_shares_by_hand(lua: LuajitProcess) -> None:
    def numbers(verb: str, text: str, count: int, rank: int | None) -> list[str]:
        numbers: list[str] = lua.call_driver(verb, limit=bundle_entry(parse(text)), count=count, rank=rank)[
            "numbers"
        ]
        return numbers

    assert [numbers("share", "100/s burst 10", 3, rank)[:3] for rank in range(3)] == [
        ["1", "30000", str(burst)] for burst in (4, 3, 3)
    ]
    assert lua.call_driver("share", limit=bundle_entry(parse("100/s burst 2")), count=3, rank=2) is False
    assert numbers("even", "100/s burst 2", 3, 2)[:3] == ["1", "30000", "1"]
    assert numbers("share", "100/s burst 2", 3, None)[:3] == ["1", "30000", "1"]
    assert numbers("even", "100/s queue 0", 4, 3)[:2] == ["25000", "0"]
    assert numbers("even", "3/s sliding", 4, 0) == ["1", "133334", "10"]


@settings(max_examples=1000, deadline=None)
@given(*[large(EXACT) | st.just(0)] * 4)
@example(EXACT - 1, EXACT - 1, EXACT - 2, EXACT)
@example(EXACT, EXACT - 2, EXACT - 1, EXACT - 1)
@example(3 * 2**26, 2**26 + 1, 3 * 2**26 + 1, 2**26 + 1)
def test_products_are_compared_exactly(lua: LuajitProcess, a: int, b: int, c: int, d: int) -> None:
    assert lua.call_driver("at_most", factors=[a, b, c, d]) == (a * b <= c * d)


@settings(max_examples=1000, deadline=None)
@given(st.floats(1e-9, 1e6), st.integers(2, 9007), st.integers(-2, 2))
def test_products_of_doubles_are_compared_exactly(lua: LuajitProcess, rate: float, count: int, off: int) -> None:
    """A whole, and a part that is that whole divided, give or take the last bit."""
    part = rate / count * (1 + off * 2.0**-52)
    assert lua.call_driver("at_most", factors=[part, count, rate, 1]) == (Fraction(part) * count <= Fraction(rate))


@settings(max_examples=1000, deadline=None)
@given(large(EXACT), large(EXACT), large(EXACT), st.integers(-1, 1))
def test_products_that_are_nearly_the_same(lua: LuajitProcess, a: int, b: int, c: int, off: int) -> None:
    d = a * b // c + off
    assume(0 <= d <= EXACT)
    assert lua.call_driver("at_most", factors=[a, b, c, d]) == (a * b <= c * d)
