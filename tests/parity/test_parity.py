"""One answer: Python = Lua 5.1 = LuaJIT = Redis = Valkey, at every step of the same random walks.

The Lua programs run the model's file as it is; memory and the servers are asked by their engines, as in
production, on a clock that the walk turns. All seven outcome are compared, and the state as it is stored.
"""

import random
import subprocess
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import pytest

from headgate.algorithms import ALGORITHMS
from headgate.algorithms.decision import Outcome, Receipt
from headgate.algorithms.limit import DAY, Limit
from headgate.algorithms.token_bucket import TokenBucket, convert_pace, decide, pack, refund
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.pending_cancellations import PendingCancellations
from headgate.engines.port import Meter
from headgate.engines.redis.protocol import RedisRequest, command
from headgate.engines.redis.sync_engine import RedisEngine, RedisMeter
from headgate.limit_syntax import parse
from tests.parity.walks import START_US, Walker, WalkStep
from tests.repo_rules.repository import SOURCE
from tests.servers import RedisServer

DRIVER = Path(__file__).with_name("driver.lua")
WALKS, STEPS = 150, 60  # for each algorithm, in each Lua
RESTLESS, OFTEN = 100, 0.25  # as many again, on which the limit changes so often
SERVER_WALKS, SERVER_STEPS = 50, 60  # in each server


def walks(
    name: str, count: int, length: int, *, retunes: bool = False, changes: float = 0.04
) -> Iterator[list[WalkStep]]:
    for seed in range(count):
        walker = Walker(name, random.Random(f"{name} {seed}"))
        yield list(walker.steps(length, retunes=retunes, changes=changes))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_python_and_lua_agree(lua: str, name: str) -> None:
    lines: list[str] = []
    expected: list[tuple[WalkStep, str]] = []
    for walk in chain(walks(name, WALKS, STEPS), walks(name, RESTLESS, STEPS, changes=OFTEN)):
        lines.append("forget")
        args: tuple[int | float, ...] = ()
        for step in walk:
            if step.limit.args != args:
                args = step.limit.args
                lines.append(f"limit {_words(args)}")
            lines.append(_question(step))
            if step.verb != "forget":
                expected.append((step, _answer(step)))
    answers = _answers(lua, name, lines)
    assert len(answers) == len(expected)
    differing = (
        (step, wanted, got) for (step, wanted), got in zip(expected, answers, strict=True) if wanted != got
    )
    assert list(islice(differing, 3)) == []


def _answers(lua: str, name: str, lines: list[str]) -> list[str]:
    """Returns the answers of the Lua model to each line of a walk (see driver.lua)."""
    ran = subprocess.run(
        [lua, DRIVER, str(SOURCE / "lua" / "algorithms"), name],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("lua", ["lua5.1", "luajit"])
def test_refunds_of_a_finer_limit_are_rounded_up_alike(lua: str) -> None:
    """Sevenths of a microsecond are no grains of the limit that follows; the oldest refunds are added up there."""
    fine, whole = TokenBucket(7, burst=100), TokenBucket(10, burst=100)
    state, lines = None, []
    for limit, parts in ((fine, 3), (whole, 7)):
        if state is not None:
            state = convert_pace(whole, state, fine.pace)
        outcome, state = decide(limit, state, START_US, 20)
        lines += [f"limit {_words(limit.args)}", f"decide {START_US} 20 -1"]
        for returned in range(parts):
            receipt = Receipt.from_outcome(outcome, 20, returned)
            state = refund(limit, state, START_US, 1, receipt, cancel=False)
            lines.append(f"refund {START_US} 1 0 {_words(receipt)}")
    assert state is not None
    assert _answers(lua, "token_bucket", lines)[-1] == f"1 {pack(state, str(whole.pace))}"


def _question(step: WalkStep) -> str:
    if step.verb == "decide":
        patience = -1 if step.patience_us is None else step.patience_us
        return f"decide {step.now_us} {step.cost} {patience}"
    if step.verb == "surcharge" and step.receipt is not None:
        return f"surcharge {step.now_us} {step.cost} 0 {_words(step.receipt)}"
    if step.receipt is not None:
        return f"refund {step.now_us} {step.cost} {int(step.cancel)} {_words(step.receipt)}"
    return step.verb


def _answer(step: WalkStep) -> str:
    if step.verb in ("refund", "surcharge"):
        return f"{int(step.given)} {step.state}"
    return f"{_words([-1 if fact is None else int(fact) for fact in step.outcome])} {step.state}"


def _words(numbers: tuple[int | float, ...] | list[int]) -> str:
    return " ".join(map(repr, numbers))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_servers_agree(name: str, driven_server: RedisServer) -> None:
    rng = random.Random(name)
    for number, walk in enumerate(walks(name, SERVER_WALKS, SERVER_STEPS, retunes=True)):
        # Nobody's clock but the server's counts: the caller's only finds the calendar, and may be wrong.
        ours = ManualClock(walk[0].now_us + rng.choice((0, 0, DAY, -DAY, 400 * DAY, -4000 * DAY)))
        engine = RedisEngine(driven_server.unix_url, clock=ours, deadline=30)
        engine._late_replies._pending = PendingCancellations(
            0
        )  # no place is tried again: each step is one of the model's
        key = f"walk {number}"
        for step in walk:
            driven_server.clock.set_us(step.now_us)
            meter = engine.meter(_unresolved(step.limit), "walk")
            assert _apply_step(meter, key, step) in (None, step.outcome), step
            if step.alive and name != "sliding_log":
                assert _stored(engine, meter, key) == step.state, step
        engine.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_python_and_memory_agree(name: str) -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    engine.pending_cancellations = PendingCancellations(0)  # as above
    for number, walk in enumerate(walks(name, SERVER_WALKS, SERVER_STEPS, retunes=True)):
        for step in walk:
            clock.set_us(step.now_us)
            meter = engine.meter(_unresolved(step.limit), f"walk {number}")
            assert _apply_step(meter, "key", step) in (None, step.outcome), step


def _apply_step(meter: Meter, key: str, step: WalkStep) -> Outcome | None:
    if step.verb == "decide":
        return meter.decide(key, step.cost, step.patience_us)
    if step.verb == "surcharge" and step.receipt is not None:
        return meter.surcharge(key, step.cost, step.receipt)
    if step.receipt is not None:
        return meter.refund(key, step.cost, step.receipt, step.cancel)
    if step.verb == "retune":
        meter.retune(key)
    else:
        meter.reset(key)
    return None


def _stored(engine: RedisEngine, meter: RedisMeter, key: str) -> str:
    stored = engine.execute(RedisRequest(command("GET", meter.builder.key(key)), None))
    return "-" if stored is None else bytes(stored).decode()


def _unresolved(limit: Limit) -> Limit:
    """The limit as a caller has it: without the calendar around now."""
    return parse(limit.text) if limit.algorithm == "fixed_window" else limit
