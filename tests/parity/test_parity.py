"""One answer: Python = Lua 5.1 = LuaJIT = Redis = Valkey, at every step of the same random walks.

The Lua programs run the model's file as it is; memory and the servers are asked by their engines, as in
production, on a clock that the walk turns. All seven facts are compared, and the state as it is stored.
"""

import random
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from headgate.clock import ManualClock
from headgate.engine.local import LocalEngine
from headgate.engine.port import Meter
from headgate.engine.redis.blocking import RedisEngine, RedisMeter
from headgate.engine.redis.wire import Question, command
from headgate.model import ALGORITHMS
from headgate.model.decision import Facts
from headgate.model.limit import DAY, Limit
from headgate.text import parse
from tests.house.tree import SOURCE
from tests.parity.walks import Step, Walker
from tests.servers import RedisServer

DRIVER = Path(__file__).with_name("driver.lua")
WALKS, STEPS = 150, 60  # for each algorithm, in each Lua
SERVER_WALKS, SERVER_STEPS = 50, 60  # in each server


def walks(name: str, count: int, length: int, *, retunes: bool = False) -> Iterator[list[Step]]:
    for seed in range(count):
        walker = Walker(name, random.Random(f"{name} {seed}"))
        yield list(walker.steps(length, retunes=retunes))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_python_and_lua_agree(lua: str, name: str) -> None:
    lines: list[str] = []
    expected: list[tuple[Step, str]] = []
    for walk in walks(name, WALKS, STEPS):
        lines.append("forget")
        args: tuple[int | float, ...] = ()
        for step in walk:
            if step.limit.args != args:
                args = step.limit.args
                lines.append(f"limit {_words(args)}")
            lines.append(_question(step))
            if step.verb != "forget":
                expected.append((step, _answer(step)))
    ran = subprocess.run(
        [lua, DRIVER, str(SOURCE / "lua" / "model"), name],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    answers = ran.stdout.splitlines()
    assert len(answers) == len(expected)
    differing = (
        (step, wanted, got) for (step, wanted), got in zip(expected, answers, strict=True) if wanted != got
    )
    assert list(islice(differing, 3)) == []


def _question(step: Step) -> str:
    if step.verb == "decide":
        patience = -1 if step.patience_us is None else step.patience_us
        return f"decide {step.now_us} {step.cost} {patience}"
    if step.receipt is not None:
        return f"refund {step.now_us} {step.cost} {int(step.cancel)} {_words(step.receipt)}"
    return step.verb


def _answer(step: Step) -> str:
    if step.verb == "refund":
        return f"{int(step.given)} {step.state}"
    return f"{_words([-1 if fact is None else int(fact) for fact in step.facts])} {step.state}"


def _words(numbers: tuple[int | float, ...] | list[int]) -> str:
    return " ".join(map(repr, numbers))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_servers_agree(name: str, driven_server: RedisServer) -> None:
    rng = random.Random(name)
    for number, walk in enumerate(walks(name, SERVER_WALKS, SERVER_STEPS, retunes=True)):
        # Nobody's clock but the server's counts: the caller's only finds the calendar, and may be wrong.
        ours = ManualClock(walk[0].now_us + rng.choice((0, 0, DAY, -DAY, 400 * DAY, -4000 * DAY)))
        engine = RedisEngine(driven_server.unix_url, clock=ours)
        key = f"walk {number}"
        for step in walk:
            driven_server.clock.set_us(step.now_us)
            meter = engine.meter(_unresolved(step.limit), "walk")
            assert _ask(meter, key, step) in (None, step.facts), step
            if step.alive and name != "sliding_log":
                assert _stored(engine, meter, key) == step.state, step
        engine.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_memory_agree(name: str) -> None:
    clock = ManualClock()
    engine = LocalEngine(clock)
    for number, walk in enumerate(walks(name, SERVER_WALKS, SERVER_STEPS, retunes=True)):
        for step in walk:
            clock.set_us(step.now_us)
            meter = engine.meter(_unresolved(step.limit), f"walk {number}")
            assert _ask(meter, "key", step) in (None, step.facts), step


def _ask(meter: Meter, key: str, step: Step) -> Facts | None:
    if step.verb == "decide":
        return meter.decide(key, step.cost, step.patience_us)
    if step.receipt is not None:
        return meter.refund(key, step.cost, step.receipt, step.cancel)
    if step.verb == "retune":
        meter.retune(key)
    else:
        meter.reset(key)
    return None


def _stored(engine: RedisEngine, meter: RedisMeter, key: str) -> str:
    found = engine.ask(Question(command("GET", meter.questions.key(key)), None))
    return "-" if found is None else bytes(found).decode()


def _unresolved(limit: Limit) -> Limit:
    """The limit as a caller has it: without the calendar around now."""
    return parse(limit.text) if limit.algorithm == "fixed_window" else limit
