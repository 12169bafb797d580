"""Our limiters decide what other limiters decided: in memory, on Redis and on Valkey.

How many steps are counted apart is pinned, so that nothing is set aside unseen.
"""

from pathlib import Path

import pytest

from tests.recorded.driven_engines import ReplayEngine, memory_engine, server_engine
from tests.recorded.replay import OF_RULES, replay, sort_cases
from tests.recorded.step_result import CHANGED, COST_0, LIMIT_0, STEPPED_BACK
from tests.servers import RedisServer

VECTORS = Path(__file__).parents[1] / "vectors"

# Cases, steps, and steps apart.
EXPECTED: dict[str, tuple[int, int, dict[str, int]]] = {
    "guava.jsonl": (34, 1316, {}),
    "nginx_derived.jsonl": (50, 3000, {}),
    "nginx_fakeclock.jsonl": (36, 1025, {}),
    "xtimerate.jsonl": (29, 1234, {CHANGED: 343, STEPPED_BACK: 80, COST_0: 28, LIMIT_0: 5}),
}

each_file = pytest.mark.parametrize("name", EXPECTED)


@each_file
def test_it_decides_the_same_in_memory(name: str) -> None:
    _decides_the_same(name, memory_engine())


@each_file
def test_it_decides_the_same_on_a_server(name: str, driven_server: RedisServer) -> None:
    _decides_the_same(name, server_engine(driven_server))


def test_defects_of_others_are_not_replayed_as_if_they_were_right() -> None:
    file = sort_cases(VECTORS / "seed_bugs.jsonl")
    assert (file.cases, file.troubles) == ([], [])
    assert sum(len(cases) for cases in file.uncovered.values()) == 40


def test_every_file_here_is_looked_at() -> None:
    assert {path.name for path in VECTORS.glob("*.jsonl")} == {*EXPECTED, "seed_bugs.jsonl", *OF_RULES}


def _decides_the_same(name: str, engine: ReplayEngine) -> None:
    cases, steps, apart = EXPECTED[name]
    file = sort_cases(VECTORS / name)
    tally = replay(file, engine)
    assert file.troubles + tally.troubles == []
    assert tally.mismatches == []
    assert (tally.cases, tally.steps, tally.apart) == (cases, steps, apart)
    assert tally.compared == steps - sum(apart.values())
