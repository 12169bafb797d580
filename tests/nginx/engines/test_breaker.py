"""The breaker in Lua: every step has the result of Python's, on walks of any steps and times."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.engines.layers.fallback.breaker import Breaker, BreakerRoute, BreakerState
from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


class BreakerStep(NamedTuple):
    name: str
    passed_us: int
    route: str
    settle_us: int


STEPS = st.builds(
    BreakerStep,
    st.sampled_from(
        [
            "choose_route",
            "choose_route",
            "on_success",
            "on_failure",
            "on_failure",
            "on_withdrawal",
            "next_probe_us",
        ]
    ),
    st.sampled_from([0, 1, 99_999, 100_000, 250_000, 500_000, 1_000_000, 5_000_000, -1, -400_000]),
    st.sampled_from([route.value for route in BreakerRoute]),
    st.sampled_from([0, 1_000_000]),
)


@settings(max_examples=300)
@given(st.lists(STEPS, min_size=1, max_size=30))
def test_every_step_has_the_result_of_pythons(lua: LuajitProcess, steps: list[BreakerStep]) -> None:
    now_us, timed = 1_800_000_000_000_000, []
    for step in steps:
        now_us += step.passed_us
        timed.append([step.name, now_us, step.route, step.settle_us])
    assert lua.call_driver("breaker", steps=timed) == [list(result) for result in walk(timed)]


def walk(steps: list[list[Any]]) -> Iterator[tuple[Any, list[Any]]]:
    breaker, phases = Breaker(), list(BreakerState)
    for name, now_us, route, settle_us in steps:
        result: Any = False
        if name == "choose_route":
            chosen, breaker = breaker.choose_route(now_us)
            result = chosen.value
        elif name == "next_probe_us":
            result = breaker.next_probe_us(now_us)
        elif name == "on_success":
            breaker = breaker.on_success(BreakerRoute(route), now_us, settle_us)
        else:
            breaker = getattr(breaker, name)(BreakerRoute(route), now_us)
        yield result, [phases.index(breaker.phase), *breaker[1:]]
