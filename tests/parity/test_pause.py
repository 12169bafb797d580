"""Pauses: one answer in Python, Lua 5.1 and LuaJIT by their numbers; and in memory and the servers."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.algorithms import pause
from headgate.algorithms.decision import ALLOWED, MARK, Outcome, PausedOutcome, Receipt
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.redis import keys
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse_all
from tests.repo_rules.repository import SOURCE
from tests.servers import BASE_US, RedisServer

# Each line: now_us, duration_us; then the packed state, or "-".
PROGRAM = """
local model = dofile(arg[1])
for line in io.lines() do
  local n = {}
  for word in string.gmatch(line, "%S+") do n[#n + 1] = word end
  local now_us = tonumber(n[1])
  local state = n[3] ~= "-" and model.current_state(model.unpack(n[3]), now_us) or nil
  local after = model.extended(state, now_us, tonumber(n[2]))
  print(string.format("%.0f %.0f %.0f ", model.left_us(state, now_us), model.clock_us(state, now_us, false),
    model.clock_us(state, now_us, true)) .. model.pack(after))
end
"""


def questions(rng: random.Random, count: int) -> Iterator[tuple[int, int, pause.State | None]]:
    for _ in range(count):
        far = rng.choice([10, 10**6, 10**12, 10**14])
        now_us = rng.choice([10**15, 1_700_000_000_000_000, 5 * 10**15])
        stamp_us = now_us + rng.choice([0, -1, 100_000, 100_001, rng.randrange(-far, far)])
        state = stamp_us + rng.randrange(1, far + 1), rng.randrange(far), stamp_us
        yield now_us, rng.randrange(1, far + 1), state if rng.random() < 0.9 else None


def answer(now_us: int, duration_us: int, state: pause.State | None) -> str:
    current = None if state is None else pause.current_state(state, now_us)
    clocks = [pause.clock_us(current, now_us, has_edges) for has_edges in (False, True)]
    after = pause.extended(current, now_us, duration_us)
    return f"{pause.left_us(current, now_us)} {clocks[0]} {clocks[1]} {pause.pack(after)}"


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_python_and_lua_agree_on_every_number(lua: str, tmp_path: Path) -> None:
    program = tmp_path / "answer.lua"
    program.write_text(PROGRAM)
    requests = list(questions(random.Random(3), 20_000))
    lines = (f"{now} {duration} {pause.pack(state) if state else '-'}" for now, duration, state in requests)
    ran = subprocess.run(
        [lua, program, str(SOURCE / "lua" / "algorithms" / "pause.lua")],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [answer(*question) for question in requests]


LIMITS = (
    "4/s burst 3",
    "4/s queue 3",
    "5/s fixed",
    "5/day fixed in Asia/Shanghai",
    "5/s sliding",
    "5/s log",
    "4/s smooth",
    "4/s burst 3; 6/2s fixed; 5/s log",
)
KEYS = ("anna", "bob")


@pytest.mark.parametrize("text", LIMITS)
@pytest.mark.parametrize("seed", range(3))
def test_memory_and_servers_agree(seed: int, text: str, driven_server: RedisServer) -> None:
    """Takes, reservations, cancellations, refunds, surcharges and pauses, on a clock that also steps back."""
    rng = random.Random(f"{seed} {text}")
    clock = ManualClock(BASE_US)
    local, remote = MemoryEngine(clock), RedisEngine(driven_server.unix_url, clock=clock, deadline=30)
    limits = parse_all(text)
    counts = tuple((limit.algorithm, f"count {place}") for place, limit in enumerate(limits))
    options = ChargeOptions("paused", pauses=counts)
    here: list[Any] = [local.meter(limit, count[1], options) for limit, count in zip(limits, counts, strict=True)]
    there: list[Any] = [
        remote.meter(limit, count[1], options) for limit, count in zip(limits, counts, strict=True)
    ]
    charged: list[tuple[int, str, int, Outcome]] = []
    seen: set[object] = set()
    for _ in range(200):
        step_us = rng.choice((0, 0, 1, 999, 50_000, rng.randrange(300_000), 1_500_000))
        if rng.random() < 0.02:
            step_us = -rng.choice((1, 500_000, 5_000_000))
        clock.set_us(clock.now_us() + step_us)
        driven_server.clock.set_us(clock.now_us())
        forget_the_dead(local, driven_server)
        key, verb = rng.choice(KEYS), rng.random()
        if verb < 0.1:
            duration_us = rng.choice((1, 200_000, 900_000, 3_000_000))
            assert here[0].pause(key, duration_us) == there[0].pause(key, duration_us)
        elif verb < 0.25 and charged:
            place, key, cost, outcome = charged.pop(rng.randrange(len(charged)))
            receipt, units = Receipt.from_outcome(outcome, cost), rng.randrange(1, cost + 1)
            cancel = bool(receipt.delay_us) and rng.random() < 0.7
            if cancel or rng.random() < 0.6:
                given = [meters[place].refund(key, units, receipt, cancel) for meters in (here, there)]
            else:
                given = [meters[place].surcharge(key, units, receipt) for meters in (here, there)]
            assert given[0] == given[1]
        elif verb < 0.27:
            for meter in (*here, *there):
                meter.reset(key)
        else:
            cost, commit = rng.choice((0, 1, 1, 2, 3)), rng.random() < 0.9
            patience_us = rng.choice((None, None, 0, 400_000, 5_000_000))
            charges = [[(meter, key, cost) for meter in meters] for meters in (here, there)]
            mine = local.decide_all(charges[0], patience_us, commit)
            theirs = remote.decide_all(charges[1], patience_us, commit)
            assert [(*each[:MARK], type(each), paused_us(each)) for each in mine] == [
                (*each[:MARK], type(each), paused_us(each)) for each in theirs
            ]
            seen.update((each[ALLOWED], type(each)) for each in mine)
            if commit and cost and all(each[ALLOWED] for each in mine):
                charged += [(place, key, cost, each) for place, each in enumerate(mine)]
        now_us = clock.now_us()
        assert running(pauses_here(local), now_us) == running(pauses_there(driven_server), now_us)
    remote.close()
    assert {(False, PausedOutcome), (True, PausedOutcome), (True, tuple), (False, tuple)} <= seen


def paused_us(outcome: Outcome) -> int | None:
    return outcome.paused_us if isinstance(outcome, PausedOutcome) else None


def forget_the_dead(engine: MemoryEngine, server: RedisServer) -> None:
    """Makes both engines drop dead states at once: they may do so at any time."""
    tables: list[tuple[str, str, Any]] = [
        (*named, table) for named, family in engine._families.items() for table in family.values()
    ]
    tables += [("pause", rule, pauses.table) for rule, pauses in engine._pauses.items()]
    for kind, name, table in tables:
        for key in table.states:
            if not server.call("EXISTS", keys.build_key(keys.key_head("hg", kind, name), key)):
                table.delete(key)


def running(pauses: dict[str, str], now_us: int) -> dict[str, str]:
    """The pauses that have not ended: the others may be forgotten at any time."""
    return {key: text for key, text in pauses.items() if pause.unpack(text)[0] > now_us}


def pauses_here(engine: MemoryEngine) -> dict[str, str]:
    states = [pauses.table.states for pauses in engine._pauses.values()]
    return {key: pause.pack(state) for table in states for key, state in table.items() if state is not None}


def pauses_there(server: RedisServer) -> dict[str, str]:
    stored: Any = server.call("KEYS", "hg2:pe:*")
    texts: list[Any] = [server.call("GET", name) for name in stored]
    return {name.decode().partition("{")[2][:-1]: text.decode() for name, text in zip(stored, texts, strict=True)}
