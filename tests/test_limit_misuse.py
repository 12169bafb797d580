"""Time zones, numbers of nodes and instants that cannot be are refused where they are given, by a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import AsyncLimiter, Charge, FixedWindow, InvalidRule, Limiter, ManualClock
from headgate.enforcement.check_together import BatchedCall

MARS = FixedWindow(10, per="day", zone="Mars")
NOT_A_ZONE = r'^"Mars" is not a time zone\. '


def test_a_limiter_with_a_zone_that_is_none() -> None:
    for limit in (MARS, [FixedWindow(3), MARS]):
        with pytest.raises(InvalidRule, match=NOT_A_ZONE):
            Limiter(limit)
        with pytest.raises(InvalidRule, match=NOT_A_ZONE):
            AsyncLimiter(limit)
    limiter = Limiter("10/day fixed")
    with pytest.raises(InvalidRule, match=NOT_A_ZONE):
        limiter.set_limit(MARS)
    with pytest.raises(InvalidRule, match=NOT_A_ZONE):
        limiter.take_all([Charge("ann"), Charge("bob", MARS)])
    assert limiter.peek("ann").remaining == 10
    with pytest.raises(InvalidRule, match=NOT_A_ZONE):
        Limiter.from_rules({"rules": []}).check_together([BatchedCall({}, limit=MARS, name="mars", key="ann")])


def test_a_zone_of_this_world() -> None:
    assert Limiter(FixedWindow(10, per="day", zone="Asia/Shanghai")).take("ann").remaining == 9


@pytest.mark.parametrize("nodes", [0, -1, 1.5, "x", None, True], ids=repr)
def test_nodes(nodes: Any) -> None:
    for limiter in (Limiter("3/s"), AsyncLimiter("3/s")):
        with pytest.raises(InvalidRule, match=r"^nodes is a whole number, at least 1; not "):
            limiter.explain(nodes)


@pytest.mark.parametrize("given", ["x", None, 1.5, True], ids=repr)
def test_a_manual_clock_is_set_to_microseconds(given: Any) -> None:
    sentence = r"^A ManualClock is set to whole microseconds since 1970, such as 1_700_000_000_000_000; not "
    if given is not None:
        with pytest.raises(InvalidRule, match=sentence):
            ManualClock(given)
    clock = ManualClock(7)
    with pytest.raises(InvalidRule, match=sentence):
        clock.set_us(given)
    assert clock.now_us() == 7


@pytest.mark.parametrize("given", ["1s", None, float("nan"), float("inf"), True], ids=repr)
def test_a_manual_clock_advances_by_seconds(given: Any) -> None:
    clock = ManualClock(7)
    with pytest.raises(InvalidRule, match=r"^A ManualClock advances by a number of seconds, such as 1\.5; not "):
        clock.advance(given)
    assert clock.now_us() == 7


@pytest.mark.parametrize("limit", ["adaptive", "adaptive concurrency p99 200ms"])
def test_an_adaptive_limit_as_a_text_names_the_rule(limit: str) -> None:
    way = r"Write limit: \{adaptive: concurrency\} in a rulebook, or use AdaptiveLimiter\(\)\."
    with pytest.raises(InvalidRule, match=f'^"{limit}" is not a limit\\. {way}$'):
        Limiter(limit)


def test_an_adaptive_limit_as_a_mapping_names_the_rule() -> None:
    limit: Any = {"adaptive": "concurrency"}
    with pytest.raises(InvalidRule, match=r"An adaptive limit is a rule: Limiter\.from_rules\(\.\.\.\)\.$"):
        Limiter(limit)
