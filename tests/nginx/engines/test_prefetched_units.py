"""Stocks in Lua: what is held at most, and each unit's receipt, are those of Python."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.algorithms.decision import MARK, RESET_AFTER_US
from headgate.algorithms.limit import Limit
from headgate.algorithms.token_bucket import TokenBucket
from headgate.clock import ManualClock
from headgate.engines.layers.prefetch.prefetched_units import Demand, PrefetchedUnits, PrefetchTable, max_prefetch
from headgate.engines.memory.engine import MemoryEngine
from headgate.limit_syntax import parse
from tests.engines.layers.test_limit_share import LIMITS
from tests.nginx.pure_modules_process import bundle_entry
from tests.nginx.rules.luajit_process import LuajitProcess

DRIVER = Path(__file__).with_name("prefetched_units.lua")
MOST = 2**40
EXACT = 2**52
LARGE = st.sampled_from(["99991/year burst 1000000", "7/s burst 1000000007", "100000000/day", "999983/week"])


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = LuajitProcess(DRIVER)
    yield running
    running.close()


@given(limit=LIMITS, units=st.none() | st.integers(1, 2**50))
def test_how_much_is_held_at_most(lua: LuajitProcess, limit: Limit, units: int | None) -> None:
    options = {} if units is None else {"units": units}
    assert lua.call_driver("bound", limit=bundle_entry(limit), **options) == min(MOST, max_prefetch(limit, units))


@given(
    limit=LIMITS | LARGE.map(parse),
    before=st.integers(0, 5) | st.integers(0, 2**30),
    extra=st.integers(1, MOST),
    data=st.data(),
)
def test_a_receipt_is_pythons(
    lua: LuajitProcess, limit: Limit, before: int, extra: int, data: st.DataObject
) -> None:
    """A rounded product is a microsecond or two less: to the safe side."""
    assume(max_prefetch(limit) > 0)
    extra = min(extra, max_prefetch(limit))
    meter = MemoryEngine(ManualClock()).meter(limit, "limit")
    meter.decide("ada", before)
    outcome = meter.decide("ada", 1 + extra)
    assume(outcome[0])
    lefts = sorted({0, extra, data.draw(st.integers(0, extra))})
    batch = PrefetchedUnits(meter, "ada", outcome, 1, extra, PrefetchTable(), Demand(0))
    words = [int(word or 0) for word in outcome]
    receipts = lua.call_driver("receipts", limit=bundle_entry(limit), outcome=words, extra=extra, lefts=lefts)
    for left, receipt in zip(lefts, receipts, strict=True):
        expected = batch.outcome(left)
        assert receipt[1] == expected[1]
        assert receipt[MARK] == expected[MARK]
        rounded = isinstance(limit, TokenBucket) and left * limit.period_us >= EXACT
        less_us = expected[RESET_AFTER_US] - receipt[RESET_AFTER_US]
        assert 0 <= less_us <= 2 if rounded else less_us == 0


def test_no_unit_outlasts_its_water(lua: LuajitProcess) -> None:
    """A rate whose parts of a microsecond are finer than doubles: never more than Python tells."""
    limit = parse("99991/year burst 1000000")
    meter = MemoryEngine(ManualClock()).meter(limit, "limit")
    outcome = meter.decide("ada", 100_001)
    batch = PrefetchedUnits(meter, "ada", outcome, 1, 100_000, PrefetchTable(), Demand(0))
    lefts = list(range(0, 100_000, 7))
    words = [int(word or 0) for word in outcome]
    receipts = lua.call_driver("receipts", limit=bundle_entry(limit), outcome=words, extra=100_000, lefts=lefts)
    less = {
        batch.outcome(left)[RESET_AFTER_US] - one[RESET_AFTER_US]
        for left, one in zip(lefts, receipts, strict=True)
    }
    assert less <= {0, 1, 2}
