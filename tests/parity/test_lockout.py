"""The lockout by its numbers: one answer in Python, Lua 5.1 and LuaJIT. In servers: test_lockout_together.py."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.algorithms import lockout
from headgate.algorithms.lockout import Lockout
from tests.repo_rules.repository import SOURCE

# Each line is a question: after, within_us, for_us, now_us; then the packed state, or "-".
PROGRAM = """
local model = dofile(arg[1])
local function packed(state) return state and model.pack(state) or "-" end
for line in io.lines() do
  local n = {}
  for word in string.gmatch(line, "%S+") do n[#n + 1] = word end
  local numbers, now_us = model.limit(n, 1), tonumber(n[4])
  local state = n[5] ~= "-" and model.unpack(n[5]) or nil
  local settled = model.current_state(numbers, state, now_us)
  local left_us = model.left_us(settled, now_us)
  local after = left_us == 0 and model.count_refusal(numbers, settled, now_us) or settled
  print(packed(settled), string.format("%.17g", left_us), packed(after),
    string.format("%.17g", model.ttl_ms(numbers, after, now_us)))
end
"""


def questions(rng: random.Random, count: int) -> Iterator[tuple[Lockout, int, lockout.State | None]]:
    for _ in range(count):
        far = rng.choice([10, 10**6, 10**12, 10**15])
        numbers = Lockout(rng.choice([1, 2, 3, 10**15]), rng.randrange(1, far + 1), rng.randrange(1, far + 1))
        now_us = rng.choice([10**6, 1_700_000_000_000_000, 5 * 10**15])
        until_us = now_us + rng.choice([0, 1, -1, numbers.within_us, numbers.for_us, rng.randrange(-far, far)])
        state = until_us, rng.choice([0, 0, 1, 2, rng.randrange(10**14)])
        yield numbers, now_us, state if until_us > 0 and rng.random() < 0.9 else None


def answer(numbers: Lockout, now_us: int, state: lockout.State | None) -> str:
    settled = lockout.current_state(numbers, state, now_us)
    left_us = lockout.left_us(settled, now_us)
    after = settled if settled is not None and left_us else lockout.count_refusal(numbers, settled, now_us)
    ttl_ms = -((now_us - lockout.dead_at_us(after)) // 1000)
    return "\t".join([packed(settled), str(left_us), packed(after), str(ttl_ms)])


def packed(state: lockout.State | None) -> str:
    return "-" if state is None else lockout.pack(state)


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_python_and_lua_agree_on_every_number(lua: str, tmp_path: Path) -> None:
    program = tmp_path / "answer.lua"
    program.write_text(PROGRAM)
    requests = list(questions(random.Random(7), 20_000))
    lines = (f"{' '.join(map(str, numbers))} {now_us} {packed(state)}" for numbers, now_us, state in requests)
    ran = subprocess.run(
        [lua, program, str(SOURCE / "lua" / "algorithms" / "lockout.lua")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [answer(*question) for question in requests]
