"""Charges that are bound once are decided as by the engine, whatever layers it has.

The server's clock stands still meanwhile. Prefetched units come from several instants, so prefetching is left out:
that it is not passed by is the last test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Outcome
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock, SystemClock
from headgate.engines import bound_charges
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.url import build_async_engine, parse_engine_url
from headgate.limit_syntax import parse
from tests.servers import RedisServer

LIMITS = ("3/minute", "7/minute", "4/day fixed", "4/hour sliding")
LAYERS = ("", "&fallback=deny", "&fallback=local", "&denial_cache=on", "&denial_cache=on&fallback=allow")
CHARGES = st.dictionaries(
    st.tuples(st.sampled_from(LIMITS), st.sampled_from(["ann", "bob"])), st.integers(0, 3), max_size=3
)
STEPS = st.lists(CHARGES, min_size=1, max_size=6)
Step = dict[tuple[str, str], int]


async def walk(url: str, steps: Sequence[Step], prefix: str) -> list[list[Outcome]]:
    """Decides the steps, each several charges together."""
    is_memory = url.startswith("memory:")
    clock = ManualClock() if is_memory else SystemClock()
    engine = build_async_engine(parse_engine_url(url, ruled=True), prefix, clock, ruled=True)
    lockout = ChargeOptions("locked", lockout=Lockout(2, 60_000_000, 60_000_000))
    meters = {text: engine.meter(parse(text), text, lockout if "sliding" in text else None) for text in LIMITS}
    outcomes: list[list[Outcome]] = []
    try:
        for step in steps:
            charges = [(meters[text], key, cost) for (text, key), cost in step.items()]
            decide_now = bound_charges.bind_now(engine, charges)
            if prefix == "plain" and len(charges) == 1:
                meter, key, cost = charges[0]
                result: Any = await meter.decide(key, cost)
            elif prefix == "plain":
                result = await engine.decide_all(charges) if charges else []
            elif decide_now is not None and len(outcomes) % 2:
                result = decide_now()
            else:
                result = await bound_charges.bind(engine, charges)()
            assert (decide_now is not None) == is_memory
            outcomes.append(result if isinstance(result, list) else [result])
    finally:
        await engine.close()
    return outcomes


@settings(max_examples=60)
@given(steps=STEPS)
def test_bound_charges_are_decided_as_by_the_engine_in_memory(steps: list[Step]) -> None:
    assert asyncio.run(walk("memory://", steps, "bound")) == asyncio.run(walk("memory://", steps, "plain"))


@pytest.mark.parametrize("layers", LAYERS)
@settings(max_examples=10, deadline=None)
@given(steps=STEPS)
def test_bound_charges_are_decided_as_by_the_engine(
    layers: str, steps: list[Step], driven_redis: RedisServer
) -> None:
    driven_redis.call("FLUSHALL")
    url = f"{driven_redis.url}?deadline=30s{layers}"
    bound, plain = (asyncio.run(walk(url, steps, prefix)) for prefix in ("bound", "plain"))
    assert [[(type(each), each) for each in step] for step in bound] == [
        [(type(each), each) for each in step] for step in plain
    ]


def test_what_does_something_is_not_passed_by(driven_redis: RedisServer) -> None:
    def bound(layers: str, count: int) -> str:
        ruled = "prefetch" not in layers
        url = parse_engine_url(f"{driven_redis.url}?deadline=30s{layers}", ruled=ruled)
        engine = build_async_engine(url, ruled=ruled)
        charges = [(engine.meter(parse("3/minute"), "x"), f"key {number}", 1) for number in range(count)]
        decide: Any = bound_charges.bind(engine, charges)
        name: str = decide.func.__qualname__.partition(".")[0]
        return name

    assert bound("", 1) == "AsyncRedisTakes"
    assert bound("", 2) == "AsyncRedisTakes"
    assert bound("&prefetch=100ms", 1) == "AsyncPrefetchMeter"
    assert bound("&fallback=deny", 1) == "AsyncFallbackMeter"
    assert bound("&fallback=deny", 2) == "AsyncFallbackEngine"
    assert bound("&denial_cache=on", 1) == "AsyncDenialCacheMeter"
    assert bound("&denial_cache=on", 2) == "AsyncDenialCacheEngine"
