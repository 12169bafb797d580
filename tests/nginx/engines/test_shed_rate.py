"""Floods in simulated time: requests to Redis, use of the limit, and shares of every tenth of a window."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.gateway.bundle import limit_entry
from headgate.limit_syntax import parse
from tests.nginx.wrk_flood import chi_square_tail
from tests.repo_rules.repository import ROOT

DRIVER = Path(__file__).with_name("shed_simulation.lua")
SKIP, SECONDS = 3, 23

Flood = Callable[..., Any]


@pytest.fixture(scope="module")
def flood() -> Iterator[Flood]:
    process = subprocess.Popen(
        ["luajit", DRIVER, ROOT / "nginx" / "lib"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(text: str, demand: list[int], *, members: int = 0, span: int = 1, error: float = 1.0) -> Any:
        """`demand` of each nginx; so many `members` are said to be there; `error` in what is known of it."""
        limit = parse(text)
        entry = dict(limit_entry(limit))
        question = {"limit": entry, "members": len(demand), "demand": demand, "believed": members or len(demand)}
        question |= {"seconds": SECONDS, "skip": SKIP, "away": 500, "error": error, "seed": 1}
        question |= {"span": span * 1_000_000}
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield run
    process.communicate(timeout=10)


LIMITS = {  # and what they give in the seconds that are looked at
    "200/s": 4000,
    "200/s burst 30": 4000,
    "200/s burst 10": 4000,
    "200/s burst 5": 4000,
    "200/s burst 1": 4000,
    "200/s fixed": 4000,
    "10/s fixed": 200,
    "1000/5s fixed": 4000,
    "200/s sliding": 4000,
    "200/s queue 10 nodelay": 4000,
    "200/s queue 0": 4000,
    "200/s smooth": 4000,
    "10/s": 200,
    "3000/s fixed": 60_000,
}


@pytest.mark.parametrize("sharers", [1, 2])
@pytest.mark.parametrize("text", LIMITS)
def test_shedding_uses_the_limit_with_few_requests_at_any_moment(flood: Flood, text: str, sharers: int) -> None:
    span = 5 if "5s" in text else 1
    flooded = flood(text, [10_000 // sharers] * sharers, span=span)
    most = LIMITS[text]
    assert flooded["requests"] <= 3 * most
    assert flooded["allowed"] >= 0.975 * most
    even = sum(flooded["tenths"]) / 10
    spread = sum((tenth - even) ** 2 / even for tenth in flooded["tenths"])
    assert chi_square_tail(spread, 9) > 0.001, flooded["tenths"]


@pytest.mark.parametrize("text", ["200/s", "200/s fixed", "10/s fixed", "200/s burst 1", "200/s smooth"])
@pytest.mark.parametrize(("demand", "members"), [([10_000, 0], 2), ([10_000], 22), ([5_000, 5_000], 22)])
def test_members_without_demand_leave_their_part_to_others(
    flood: Flood, text: str, demand: list[int], members: int
) -> None:
    flooded = flood(text, demand, members=members)
    assert flooded["allowed"] >= 0.94 * LIMITS[text]
    assert flooded["requests"] <= 3 * LIMITS[text]


@pytest.mark.parametrize("text", ["200/s", "200/s fixed", "200/s sliding", "200/s burst 10"])
@pytest.mark.parametrize("sharers", [5, 10])
def test_many_nginx_send_no_more_requests_than_few(flood: Flood, text: str, sharers: int) -> None:
    flooded = flood(text, [10_000 // sharers] * sharers)
    assert flooded["requests"] <= 1.6 * LIMITS[text]
    assert flooded["allowed"] >= 0.975 * LIMITS[text]


@pytest.mark.parametrize("text", ["200/s", "200/s fixed"])
@pytest.mark.parametrize("error", [0.7, 1.4])
def test_a_wrong_demand_estimate_still_uses_the_limit(flood: Flood, text: str, error: float) -> None:
    flooded = flood(text, [10_000], error=error)
    assert flooded["allowed"] >= 0.975 * LIMITS[text]
    assert flooded["requests"] <= 1.5 * LIMITS[text]


@pytest.mark.parametrize("text", ["200/s", "200/s fixed"])
def test_a_demand_that_is_not_far_above_is_not_shed(flood: Flood, text: str) -> None:
    flooded = flood(text, [350])
    assert flooded["requests"] == flooded["arrived"]


@pytest.mark.parametrize("text", ["1000/day fixed", "1000/day", "500/week fixed", "1000/hour log", "20 slots"])
def test_limits_that_take_long_to_come_back_are_not_paced(flood: Flood, text: str) -> None:
    assert flood(text, [10_000]) is None
