"""Charges with and without lockouts in one request: the in-memory engine and the servers agree in answers and
states.

Plain charges, rules, shadows; rules that lock out, rules with overrides; kept or only told, on a clock that also
steps back.
"""

import random
from typing import cast

import pytest

from headgate.algorithms import lockout
from headgate.algorithms.decision import ALLOWED, LockedOutcome, Outcome, OverriddenOutcome, PausedOutcome
from headgate.algorithms.limit import SECOND
from headgate.algorithms.lockout import Lockout
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Engine
from headgate.engines.redis import keys
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.limit_syntax import parse, parse_all
from tests.servers import BASE_US, RedisServer

KEYS = ("anna", "bob")
QUICK = Lockout(2, 2 * SECOND, 3 * SECOND)
SLOW = Lockout(3, 10 * SECOND, SECOND)

# A rule: its terms and its limits.
RULES = [
    (None, "4/s burst 3"),
    (ChargeOptions("silent"), "5/s log"),
    (ChargeOptions("shadow", is_shadow=True), "3/s; 4/2s fixed"),
    (ChargeOptions("login", lockout=QUICK), "2/s"),
    (ChargeOptions("both", lockout=SLOW, overrides=True), "3/s; 5/2s sliding"),
    (ChargeOptions("tenant", overrides=True), "6/s queue 2; 7/day fixed in Asia/Shanghai; 9/s smooth"),
    (ChargeOptions("beside", is_shadow=True, lockout=QUICK, overrides=True), "2/s fixed; 3/s log"),
    (
        ChargeOptions("held", lockout=QUICK, pauses=(("token_bucket", "rule 7 0"), ("fixed_window", "rule 7 1"))),
        "2/s; 4/2s fixed",
    ),
    (ChargeOptions("calm", is_shadow=True, pauses=(("sliding_log", "rule 8 0"),)), "3/s log"),
]
PAUSABLE = (7, 8)
OVERRIDES = {
    "both": ("1/s", "20/s; 1/2s sliding", "20/s; 30/s; 5/s", "1/s fixed; 9/2s sliding"),
    "tenant": (
        "1/s queue 0",
        "2/s queue 9; 3/day fixed in Asia/Shanghai",
        "9/s queue 1; 2/month fixed; 1/s smooth",
        "4/day fixed in Asia/Tokyo; 5/s fixed",
    ),
    "beside": ("4/month fixed; 1/s log", "5/s fixed; 9/s log", "1/s fixed", "1/s; 7/minute log"),
}


def request_outcomes(
    engine: Engine, parts: list[tuple[int, str, int]], patience_us: int | None, commit: bool
) -> list[tuple[Outcome, type, str | None]]:
    charges = []
    for which, key, cost in parts:
        terms, text = RULES[which]
        charges += [
            (engine.meter(limit, f"rule {which} {place}", terms), key, cost)
            for place, limit in enumerate(parse_all(text))
        ]
    if len(charges) == 1 and commit:
        meter, key, cost = charges[0]
        return [shown(meter.decide(key, cost, patience_us))]
    return [shown(outcome) for outcome in engine.decide_all(charges, patience_us, commit)]


def shown(outcome: Outcome) -> tuple[Outcome, type, str | None]:
    return outcome, type(outcome), outcome.limit.text if isinstance(outcome, OverriddenOutcome) else None


@pytest.mark.parametrize("seed", range(12))
def test_memory_and_servers_agree(seed: int, driven_server: RedisServer) -> None:
    rng = random.Random(seed)
    clock = ManualClock(BASE_US)
    local, remote = MemoryEngine(clock), RedisEngine(driven_server.unix_url, clock=clock, deadline=30)
    seen: set[object] = set()
    for _ in range(10):
        change(rng, local, remote)
    for _ in range(100):
        step_us = rng.choice((0, 0, 0, 1, 999, 50_000, rng.randrange(300_000), 1_500_000))
        if rng.random() < 0.03:
            step_us = -rng.choice((1, 500_000, 5_000_000))
        clock.set_us(clock.now_us() + step_us)
        driven_server.clock.set_us(clock.now_us())
        forget_the_dead(local, driven_server)
        if rng.random() < 0.1:
            change(rng, local, remote)
        if rng.random() < 0.1:
            pause(rng, local, remote)
        parts = [
            (which, rng.choice(KEYS), rng.choice((0, 1, 1, 2, 2, 3)))
            for which in rng.sample(range(len(RULES)), rng.choice((1, 2, 3, 4)))
        ]
        patience_us = rng.choice((None, None, None, None, 0, 400_000))
        commit = rng.random() < 0.8
        here = request_outcomes(local, parts, patience_us, commit)
        assert here == request_outcomes(remote, parts, patience_us, commit), parts
        assert locks(local, clock.now_us()) == locks_kept(driven_server, clock.now_us())
        seen.update((outcome[ALLOWED], kind) for outcome, kind, _ in here)
    remote.close()
    kinds = {
        (False, LockedOutcome),
        (True, OverriddenOutcome),
        (True, tuple),
        (False, tuple),
        (False, PausedOutcome),
    }
    assert kinds <= seen


def forget_the_dead(engine: MemoryEngine, server: RedisServer) -> None:
    """Makes both engines drop dead states at once: they may do so at any time, and a step back recalls none."""
    tables = [(*named, table) for named, family in engine._families.items() for table in family.values()]
    tables += [("lockout", rule, table) for rule, table in engine._lockouts.items()]
    tables += [("pause", rule, pauses.table) for rule, pauses in engine._pauses.items()]
    for kind, name, table in tables:
        for key in table.states:
            if not server.call("EXISTS", keys.build_key(keys.key_head("hg", kind, name), key)):
                table.delete(key)
    paused = {
        keys.build_key(keys.key_head("hg", "pause", rule), key)
        for rule, pauses in engine._pauses.items()
        for key, state in pauses.table.states.items()
        if state is not None
    }
    for redis_key in cast(list[bytes], server.call("KEYS", "hg2:pe:*")):
        if redis_key not in paused:
            server.call("UNLINK", redis_key)


def pause(rng: random.Random, *engines: Engine) -> None:
    which, key, duration_us = rng.choice(PAUSABLE), rng.choice(KEYS), rng.choice((1, 300_000, 2_000_000))
    options, text = RULES[which]
    meters = [engine.meter(parse_all(text)[0], f"rule {which} 0", options) for engine in engines]
    here, there = (meter.pause(key, duration_us) for meter in meters)
    assert here == there


def change(rng: random.Random, *engines: Engine) -> None:
    rule, key = rng.choice(list(OVERRIDES)), rng.choice(KEYS)
    text, verb, absent = (
        rng.choice(OVERRIDES[rule]),
        rng.choice(("set", "set", "set", "unset")),
        rng.random() < 0.3,
    )
    if verb == "set":
        done = [engine.overrides(rule).set(key, text, absent=absent) for engine in engines]
    else:
        done = [engine.overrides(rule).unset(key) for engine in engines]
    assert done[0] == done[1]
    listed = [sorted(engine.overrides(rule).list()) for engine in engines]
    assert listed[0] == listed[1]


def locks(engine: MemoryEngine, now_us: int) -> dict[str, str]:
    return {
        f"{rule} {key}": lockout.pack(state)
        for rule, table in engine._lockouts.items()
        for key, state in table.states.items()
        if state is not None and state[0] > now_us
    }


def locks_kept(server: RedisServer, now_us: int) -> dict[str, str]:
    locks = {}
    for name in cast(list[bytes], server.call("KEYS", "hg2:lt:*")):
        text = cast(bytes, server.call("GET", name)).decode()
        until_us, _ = lockout.unpack(text)
        if until_us <= now_us:
            continue
        _, _, rule, key = name.decode().split(":")
        locks[f"{rule} {key.strip('{}')}"] = text
        # The key lives as long as it matters: a server lets it die after the millisecond that it names.
        assert 0 <= cast(int, server.call("PEXPIRETIME", name)) - until_us // 1000 <= 1
    return locks


def test_a_peek_of_a_rule_with_one_limit_is_alike(driven_server: RedisServer) -> None:
    """A peek of a rule looks at its lock and its override, and counts nothing."""
    remote = RedisEngine(driven_server.unix_url, deadline=30)
    meter = remote.meter(parse("1/minute"), "login", ChargeOptions("login", lockout=Lockout(1, SECOND, SECOND)))
    assert meter.decide("anna", 1)[ALLOWED]
    assert [meter.decide("anna", 0)[ALLOWED] for _ in range(5)] == [False] * 5
    assert driven_server.call("KEYS", "hg2:lt:*") == []
    remote.close()
