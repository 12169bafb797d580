"""Slots: one answer by their numbers in Python, Lua 5.1 and LuaJIT, over time in memory and in servers."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.algorithms import slots
from headgate.algorithms.slots import Slots
from tests.engines.memory.test_slot_table import TableKeeper
from tests.engines.redis.test_slots import KEY, ServerKeeper
from tests.engines.slot_harness import BASE_US, SECOND
from tests.repo_rules.repository import SOURCE
from tests.servers import RedisServer

# Each line is a question: amount, ttl_us, now_us, cost; then alive, behind, opens_us, last_us, fresh.
PROGRAM = """
local model = dofile(arg[1])
local function show(...)
  local out = {}
  for i = 1, select("#", ...) do
    local value = select(i, ...)
    out[i] = value and string.format("%.17g", value) or "-"
  end
  return table.concat(out, " ")
end
for line in io.lines() do
  local n = {}
  for word in string.gmatch(line, "%S+") do n[#n + 1] = word end
  local limit = model.limit(n, 1)
  for i, word in ipairs(n) do n[i] = tonumber(word) end
  local now_us = n[3]
  local state = { alive = n[5], behind = n[6], opens_us = n[7], last_us = n[8], fresh = n[9] }
  local at_us = model.as_at(state.last_us, now_us)
  local outcome, fence, expires_us = model.decide(limit, state, now_us, n[4], at_us)
  print(show(outcome[1], outcome[2], outcome[3], outcome[4], outcome[5], outcome[6], outcome[7],
    fence or false, expires_us or false, model.turn(limit, state.alive) or false,
    model.renewed_us(limit, now_us), model.stepped_us(state.last_us, now_us),
    model.unpack_fresh(string.format("%.17g", model.pack_fresh(state.fresh))),
    model.dead_at_ms(state.last_us, state.fresh, now_us, true) or false,
    model.dead_at_ms(state.last_us, state.fresh, now_us, false) or false, model.draw(state.fresh, now_us)))
end
"""


def questions(rng: random.Random, count: int) -> Iterator[list[int]]:
    for _ in range(count):
        now_us = rng.choice([1, SECOND, BASE_US, BASE_US + rng.randrange(10**15), 2**52])
        far = rng.choice([1, 1000, SECOND, 10**13])
        alive = rng.choice([0, 1, 2, 3, rng.randrange(10**6)])
        yield [
            rng.choice([1, 2, 3, rng.randrange(1, 10**6), 2**53]),
            rng.choice([1, 30 * SECOND, rng.randrange(1, 10**13)]),
            now_us,
            rng.choice([0, 1, 1]),
            alive,
            rng.choice([0, 0, rng.randrange(alive + 1)]),
            now_us + rng.randrange(1, far + 1),
            max(0, now_us + rng.randrange(-far, far + 1)),
            rng.choice([0, now_us, max(0, now_us + rng.randrange(-far, far + 1))]),
        ]


def answer(question: list[int]) -> str:
    amount, ttl_us, now_us, cost, *counted = question
    alive, behind, opens_us, last_us, fresh = counted
    limit = Slots(amount, ttl_us / SECOND)
    assert limit.args == (amount, ttl_us)
    at_us = slots.as_at(last_us, now_us)
    outcome, lease = slots.decide(limit, (alive, behind, opens_us, last_us, fresh), now_us, cost, at_us)
    dead_us = slots.dead_at_us(last_us, fresh)
    remembered_us = slots.dead_at_us(last_us, fresh + slots.FENCE_MEMORY_US)
    numbers = [
        *outcome,
        *(lease or (None, None)),
        slots.turn(limit, alive),
        slots.renewed_us(limit, now_us),
        slots.stepped_us(last_us, now_us),
        fresh + 1,
        -(-remembered_us // 1000) if remembered_us > now_us else None,
        -(-dead_us // 1000) if dead_us > now_us else None,
        *slots.draw(fresh, now_us),
    ]
    return " ".join("-" if number is None else str(int(number)) for number in numbers)


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_python_and_lua_agree_on_every_number(lua: str, tmp_path: Path) -> None:
    program = tmp_path / "answer.lua"
    program.write_text(PROGRAM)
    requests = list(questions(random.Random(11), 20_000))
    ran = subprocess.run(
        [lua, program, str(SOURCE / "lua" / "algorithms" / "slots.lua")],
        input="\n".join(" ".join(map(str, question)) for question in requests),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [answer(question) for question in requests]


@pytest.mark.parametrize("seed", range(12))
def test_memory_and_servers_agree_over_time(seed: int, driven_server: RedisServer) -> None:
    rng = random.Random(seed)
    table, server = TableKeeper(), ServerKeeper(driven_server)
    limit, now_us = Slots(2), BASE_US
    fences, tickets = [BASE_US], [BASE_US]
    for _ in range(150):
        if rng.random() < 0.5:
            now_us += rng.choice([0, 1, 999, 20_000, 400_000, 999_999, SECOND, rng.randrange(31 * SECOND)])
        elif rng.random() < 0.1:
            now_us -= rng.choice([1, 99_999, 100_000, 100_001, 500_000, 10 * SECOND, 3600 * SECOND])
        if rng.random() < 0.05:
            limit = Slots(rng.randrange(1, 5), rng.choice([0.5, 2, 30]))
        table.set_us(now_us)
        server.set_us(now_us)
        # A key that is dead may be forgotten at any time, but for its last number; here both do so at once.
        if table.forgotten() and (fresh := driven_server.call("ZSCORE", KEY, "fence")):
            assert isinstance(fresh, bytes)
            driven_server.call("DEL", KEY)
            driven_server.call("ZADD", KEY, fresh, "fence")

        verb = rng.choice(["acquire", "acquire", "ask again", "ask again", "renew", "release", "leave", "peek"])
        fence, ticket = rng.choice(fences[-6:]), rng.choice(tickets[-6:])
        if verb in ("acquire", "ask again"):
            wait = rng.random() < 0.7
            mine = ticket if verb == "ask again" else None
            outcome, given = table.acquire(limit, mine, wait)
            assert server.acquire(limit, mine, wait) == (outcome, given)
            if outcome[0]:
                fences.append(outcome[6])
            if given is not None:
                tickets.append(given)
        elif verb == "renew":
            assert server.renew(limit, fence) == table.renew(limit, fence)
        elif verb == "release":
            assert server.release(limit, fence) == table.release(limit, fence)
        elif verb == "leave":
            assert server.leave(limit, ticket) == table.leave(limit, ticket)
        else:
            assert server.peek(limit) == table.peek(limit)
