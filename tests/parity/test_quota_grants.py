"""Quota grants agree in Python, Lua 5.1 and LuaJIT, in memory and in servers."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.algorithms import quota_grants
from headgate.algorithms.divisible_limit import ALL_GRANT_UNITS, quota_units
from headgate.algorithms.limit import SECOND
from headgate.algorithms.quota_grants import Holder, State
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse
from tests.repo_rules.repository import SOURCE
from tests.servers import BASE_US, RedisServer

# Each line is a question: verb, name, wants or "-", now_us, live_us, unknown_until_us, least. The ledger goes on
# from line to line; "forget" drops it, and a file may hold the one to begin with. Answered: grains, holders, its
# death, and the ledger with its lines' ends as bars.
PROGRAM = """
local model = dofile(arg[1])
local text = arg[2] and io.open(arg[2]):read("*a")
for line in io.lines() do
  local n = {}
  for word in string.gmatch(line, "%S+") do n[#n + 1] = word end
  local now_us, live_us, unknown_us, least = tonumber(n[4]), tonumber(n[5]), tonumber(n[6]), tonumber(n[7])
  if n[1] == "forget" then text = nil end
  if n[1] == "leave" and text then
    local after, dead_us = model.remove_holder(text, now_us, n[2])
    text = after
    print(string.format("- %.0f %s", dead_us, (string.gsub(text, "\\n", "|"))))
  elseif n[1] == "leave" then
    print("-")
  else
    local wants, grains, dead_us, count = tonumber(n[3])
    grains, text, dead_us, count = model.report_demand(least, text, now_us, n[2], wants, live_us, unknown_us)
    print(string.format("%.0f %.0f %.0f %s", grains, count, dead_us, (string.gsub(text, "\\n", "|"))))
  end
end
"""


class GrantQuestion(NamedTuple):
    verb: str
    name: str
    wants: int | None
    now_us: int
    live_us: int
    unknown_us: int
    least: int

    def __str__(self) -> str:
        return " ".join("-" if each is None else str(each) for each in self)


def walk(rng: random.Random, steps: int, names: int) -> Iterator[GrantQuestion]:
    now_us, live_us, least = BASE_US, 10 * SECOND, 1000
    for _ in range(steps):
        chance = rng.random()
        if chance < 0.7:
            now_us += rng.choice([0, 1, SECOND // names, SECOND, rng.randrange(12 * SECOND)])
        elif chance < 0.73:
            now_us -= rng.choice([1, SECOND, 3600 * SECOND])
        if rng.random() < 0.05:
            live_us = rng.choice([1, 3 * SECOND, 10 * SECOND, 86_400 * SECOND])
        if rng.random() < 0.05:
            least = rng.choice(
                [
                    1,
                    2,
                    1000,
                    ALL_GRANT_UNITS // 100,
                    ALL_GRANT_UNITS // 7 + 1,
                    ALL_GRANT_UNITS // 2,
                    ALL_GRANT_UNITS // 2 + 1,
                    ALL_GRANT_UNITS,
                ]
            )
        verb = rng.choices(["assign", "leave", "forget"], [95, 4, 1])[0]
        wants = rng.choice(
            [
                None,
                0,
                0,
                1,
                ALL_GRANT_UNITS,
                rng.randrange(ALL_GRANT_UNITS + 1),
                rng.randrange(ALL_GRANT_UNITS // names + 1),
            ]
        )
        unknown_us = rng.choice([0, 0, now_us, now_us + 1, now_us + 2 * SECOND, now_us + 10**12])
        yield GrantQuestion(verb, f"e{rng.randrange(names)}", wants, now_us, live_us, unknown_us, least)


def answers(requests: list[GrantQuestion], state: State | None = None) -> Iterator[str]:
    for verb, name, wants, now_us, live_us, unknown_us, least in requests:
        if verb == "leave":
            state = quota_grants.remove_holder(state, now_us, name)
            yield "-" if state is None else f"- {quota_grants.dead_at_us(state)} {barred(state)}"
            continue
        if verb == "forget":
            state = None
        grains, state = quota_grants.report_demand(least, state, now_us, name, wants, live_us, unknown_us)
        assert quota_grants.unpack(quota_grants.pack(state)) == state
        granted = -1 if grains is None else grains
        yield f"{granted} {len(state.holders)} {quota_grants.dead_at_us(state)} {barred(state)}"


def barred(state: State) -> str:
    return quota_grants.pack(state).replace("\n", "|")


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
@pytest.mark.parametrize(("steps", "names"), [(6000, 3), (4000, 12), (1500, 60)])
def test_python_and_lua_agree_on_every_ledger(lua: str, steps: int, names: int, tmp_path: Path) -> None:
    requests = list(walk(random.Random(steps), steps, names))
    assert_alike(lua, tmp_path, requests)


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_they_agree_on_a_ledger_that_is_full(lua: str, tmp_path: Path) -> None:
    rng = random.Random(8)
    parts = [
        ((rng.randrange(ALL_GRANT_UNITS // 1000), BASE_US + 10 * SECOND + rank),)
        for rank in range(quota_grants.MAX_HOLDERS - 2)
    ]
    noted = [rng.choice([0, rng.randrange(ALL_GRANT_UNITS // 100), rng.randrange(ALL_GRANT_UNITS)]) for _ in parts]
    holders = (Holder(f"e{rank}", noted[rank], each) for rank, each in enumerate(parts))
    state = State(BASE_US + SECOND, 0, tuple(holders))
    names = ["e0", "e500", "new", "newer", "newest", "e997", "newest"]
    requests = [
        GrantQuestion("assign", name, 10**6 * n, BASE_US + SECOND + n, 10 * SECOND, 0, 1000)
        for n, name in enumerate(names)
    ]
    requests.append(requests[-1]._replace(now_us=BASE_US + 10 * SECOND + 500))  # half of them have left
    assert_alike(lua, tmp_path, requests, state)


def assert_alike(lua: str, tmp_path: Path, requests: list[GrantQuestion], state: State | None = None) -> None:
    program, ledger = tmp_path / "answer.lua", tmp_path / "ledger"
    program.write_text(PROGRAM)
    ledger.write_text("" if state is None else quota_grants.pack(state))
    ran = subprocess.run(
        [lua, program, str(SOURCE / "lua" / "algorithms" / "quota_grants.lua"), *([ledger] if state else [])],
        input="\n".join(map(str, requests)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for question, answer, expected in zip(
        requests, ran.stdout.splitlines(), answers(requests, state), strict=True
    ):
        assert answer == expected, question


LIMITS = [parse(text) for text in ("100/s", "100/s burst 7", "9/minute fixed", "1000000/s burst 1000000000")]


@pytest.mark.parametrize("seed", range(6))
def test_memory_and_servers_agree_over_time(seed: int, driven_server: RedisServer) -> None:
    rng, clock = random.Random(seed), ManualClock()
    now_us, limit, spans = BASE_US, LIMITS[0], (7 * SECOND, 3 * SECOND)
    memory, engine = MemoryEngine(clock), RedisEngine(driven_server.unix_url, deadline=30)
    for _ in range(200):
        if rng.random() < 0.6:
            now_us += rng.choice([0, 1, 999, SECOND, 2 * SECOND, rng.randrange(12 * SECOND)])
        elif rng.random() < 0.1:
            now_us -= rng.choice([1, SECOND, 10 * SECOND])
        if rng.random() < 0.05:
            limit = rng.choice(LIMITS)
            spans = rng.choice([(7 * SECOND, 3 * SECOND), (2 * SECOND, SECOND)])
        driven_server.clock.set_us(now_us)
        if not driven_server.call("EXISTS", "hg2:at:rule:{key}"):
            # Where a ledger has died, neither may remember anything of it: a clock that steps back would show.
            engine.close()
            clock.set_us(now_us - 3600 * SECOND)
            memory, engine = MemoryEngine(clock), RedisEngine(driven_server.unix_url, deadline=30)
        clock.set_us(now_us)
        here, there = memory.quota_ledger(limit, "rule", *spans), engine.quota_ledger(limit, "rule", *spans)
        holder = rng.choice(["a", "b b", "ü{%}\n", "d" * 300])
        if rng.random() < 0.05:
            here.leave("key", holder)
            there.leave("key", holder)
            continue
        wanted = rng.choice([None, 0, 1, rng.randrange(100), rng.randrange(10**6)])
        granted = here.grant("key", holder, wanted, SECOND)
        assert there.grant("key", holder, wanted, SECOND) == granted
        assert granted is not None
        assert granted.period_us == quota_units(limit).period_us
    engine.close()
