"""Adaptive limits in nginx: bit by bit the limits, states and reasons of Python, on windows and histories."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.adaptive_concurrency_state import ConcurrencyState
from headgate.adaptive.adaptive_limit import AdaptiveLimit, ResponseTarget
from headgate.adaptive.carried_state import carried_state
from headgate.adaptive.gate import DROPPED, IGNORED, SUCCESS, ConcurrencyGate
from headgate.adaptive.offered_load import OfferedLoad
from headgate.adaptive.priority import PriorityGate, new_gate
from headgate.adaptive.rate_gate import RateGate
from headgate.adaptive.target_concurrency import TargetConcurrency
from headgate.adaptive.window import Window
from tests.adaptive.windows import windows
from tests.nginx.rules.luajit_process import LuajitProcess

DRIVER = Path(__file__).with_name("adaptive_driver.lua")
START_NS = 5_000_000_000
MS = 1_000_000

LIMITS = [
    AdaptiveLimit("concurrency"),
    AdaptiveLimit("concurrency", None, (3, 60)),
    AdaptiveLimit("concurrency", ResponseTarget(90, 250_000), (5, 500)),
    AdaptiveLimit("concurrency", ResponseTarget(99, 200_000), (1, 100)),
    AdaptiveLimit("rate", ResponseTarget(90, 250_000), (10, 500)),
    AdaptiveLimit("rate", ResponseTarget(99.9, 120_000), (20, 2000)),
]


@pytest.fixture(scope="module", params=["compiled", "interpreted"])
def adaptive(request: pytest.FixtureRequest) -> Iterator[LuajitProcess]:
    running = LuajitProcess(DRIVER, *([] if request.param == "compiled" else ["-joff"]))
    yield running
    running.close()


def algorithm_name(limit: AdaptiveLimit) -> str:
    if limit.kind == "rate":
        return "target_rate"
    return "adaptive_concurrency" if limit.target is None else "target_concurrency"


def settings_of(limit: AdaptiveLimit) -> dict[str, Any]:
    low, high = limit.bounds
    target = limit.target
    return {"low": low, "high": high} | (
        {} if target is None else {"target_s": target.seconds, "quantile": target.quantile}
    )


def concurrency_fields(state: ConcurrencyState) -> list[float]:
    """The numbers of a state, as Lua lists them."""
    trial, relation, load = state.trial, state.relation, state.load
    return [
        state.limit,
        state.base_ns,
        state.response_ns,
        state.proven,
        trial is not None,
        *((0, 0, 0, 0, 0) if trial is None else trial),
        state.unverified,
        state.verified_limit,
        relation is not None,
        *((0, 0, 0, 0, 0) if relation is None else relation),
        state.drop_level,
        state.drop_windows,
        state.drop_share,
        state.dropping,
        state.refusing,
        state.slow,
        state.flat_low,
        state.flat_high,
        *load,
        state.room,
        state.deviation,
        state.base_variance,
    ]


@st.composite
def timed_windows(draw: st.DrawFn) -> Window:
    """Any window, with how many calls came and how long it took."""
    window = draw(windows())
    return window._replace(
        strained=False,
        arrived=window.samples + window.dropped + window.refused,
        length_ns=draw(st.sampled_from([0.0, 5e7, 1e9, 4e10])),
        typical_ns=window.response_ns * draw(st.floats(0.3, 1.0)),
        spread=draw(st.sampled_from([0.0, 0.01, 0.2])),
        quantile_ns=draw(st.sampled_from([0.0, 1.0, 2.5, math.inf])) * window.response_ns
        if window.samples
        else 0.0,
    )


def crossed(window: Window) -> dict[str, Any]:
    fields = window._asdict()
    if math.isinf(fields["quantile_ns"]):
        fields["quantile_ns"] = -1
    return {name: float(value) for name, value in fields.items()}


@settings(max_examples=150, deadline=None)
@given(st.lists(timed_windows(), min_size=1, max_size=40), st.sampled_from(LIMITS[:4]))
def test_any_windows(adaptive: LuajitProcess, drawn: list[Window], limit: AdaptiveLimit) -> None:
    algorithm: Any = limit.algorithm_settings()
    state, expected = algorithm.start(), []
    for window in drawn:
        _, state, reason = algorithm.update(state, window)
        numbers = concurrency_fields(state) if isinstance(algorithm, AdaptiveConcurrency) else list(state)
        expected.append([*map(float, numbers), reason])
    answers = adaptive.call_driver(
        "windows", algorithm=algorithm_name(limit), settings=settings_of(limit), windows=[*map(crossed, drawn)]
    )
    assert answers == expected


@pytest.mark.parametrize(
    "percentile", [50, 75, 90, 95, 99, 99.5, 99.9, *(each / 10 for each in range(500, 1000, 7))]
)
def test_a_window_has_the_calls_that_its_percentile_needs(adaptive: LuajitProcess, percentile: float) -> None:
    limit = AdaptiveLimit("concurrency", ResponseTarget(percentile, 200_000))
    algorithm = limit.algorithm_settings()
    assert isinstance(algorithm, TargetConcurrency)
    answer = adaptive.call_driver("window_of", algorithm="target_concurrency", settings=settings_of(limit))
    assert answer == list(algorithm.window_of(algorithm.start()))


class GivenChance(random.Random):
    """Chances that the test draws."""

    chance = 0.0

    def random(self) -> float:
        return self.chance


@dataclass
class History:
    """A server that slows down in an overload, in virtual time, under a gate of Python; and what came of it."""

    limit: AdaptiveLimit
    classes: int
    seed: int

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.limit} {self.classes} {self.seed}")
        self.drawn = GivenChance()
        self.gate: ConcurrencyGate | RateGate = new_gate(self.limit.algorithm_settings(), START_NS)
        self.priority = (
            PriorityGate(
                self.limit.algorithm_settings(), START_NS, self.classes, random=self.drawn, gate=self.gate
            )
            if self.classes
            else None
        )
        self.events: list[list[Any]] = []
        self.expected: list[list[Any]] = []

    def run(self, calls: int) -> None:
        chance, now, ends = self.chance, START_NS, list[tuple[int, int, int, int]]()
        threads, work, rate = chance.randint(2, 15), chance.choice([2, 20, 100]) * MS, 100.0
        for number in range(calls):
            if number % 400 == 0:
                rate = chance.uniform(0.3, 3) * threads * 1e9 / work
                work = chance.choice([work, work, 2 * work, work // 2])
            if chance.random() < 0.002:
                self.change(now)
            now += max(1, int(chance.expovariate(rate / 1e9)))
            while ends and ends[0][0] <= now:
                self.leave(*heappop(ends))
            entered = self.enter(now)
            if entered:
                slower = max(1.0, self.gate.in_flight / threads) * chance.lognormvariate(
                    0, chance.choice([0.02, 0.3])
                )
                heappush(ends, (now + max(1, int(work * slower)), number, entered, now))

    def enter(self, now: int) -> int:
        priority = self.chance.randrange(self.classes) if self.classes else 0
        self.drawn.chance = self.chance.random()
        if self.priority is None:
            entered = self.gate.try_enter(now)
        else:
            entered = self.priority.enter(now, None, priority, may_wait=False)
        self.note(["enter", now, priority, self.drawn.chance], entered)
        if entered == 0 and self.chance.random() < 0.02:
            entered = self.gate.enter_above()
            self.note(["above", now], entered)
        if entered and self.chance.random() < 0.01:
            if isinstance(self.gate, RateGate):
                self.gate.cancel()
            else:
                self.gate.leave(entered, now, now, IGNORED)
            self.note(["cancel", now], 0)
            return 0
        return entered

    def leave(self, now: int, number: int, entered: int, started: int) -> None:
        outcome = self.chance.choices([SUCCESS, IGNORED, DROPPED], [0.97, 0.02, 0.01 + 0.1 * (number % 7 == 0)])[0]
        self.gate.leave(entered, started, now, outcome)
        self.note(["leave", now, entered, now - started, outcome], self.gate.room(now))

    def change(self, now: int) -> None:
        low = self.chance.randint(1, 20)
        high = low + self.chance.randint(0, 300)
        changed = AdaptiveLimit(self.limit.kind, self.limit.target, (low, high)).algorithm_settings()
        self.gate.change(changed, now, carried_state(self.gate.state, changed))  # type: ignore[arg-type]
        self.note(["change", now, low, high], 0)

    def note(self, event: list[Any], answer: int) -> None:
        gate = self.gate
        learned = gate.rate if isinstance(gate, RateGate) else gate.state.limit
        ratio = 0.0 if self.priority is None else self.priority.rejection.ratio
        self.events.append(event)
        self.expected.append([answer, gate.limit, learned, gate.in_flight, gate.reason, ratio])


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_any_history(adaptive: LuajitProcess, limit: AdaptiveLimit, classes: int) -> None:
    seen: set[str] = set()
    for seed in range(4):
        history = History(limit, classes, seed)
        history.run(3000)
        answers = adaptive.call_driver(
            "history",
            algorithm=algorithm_name(limit),
            settings=settings_of(limit),
            classes=classes,
            start_ns=START_NS,
            events=history.events,
        )
        assert len(answers) == len(history.expected)
        differing = (
            (number, event, expected, answer)
            for number, (event, expected, answer) in enumerate(
                zip(history.events, history.expected, answers, strict=True)
            )
            if expected != answer
        )
        assert next(differing, None) is None
        seen |= {row[4] for row in history.expected}
    assert len(seen) >= 3  # the limit did move


def test_the_load_has_the_fields_that_lua_lists() -> None:
    assert OfferedLoad._fields == ("rate", "last_rate", "capacity", "calls", "level")
