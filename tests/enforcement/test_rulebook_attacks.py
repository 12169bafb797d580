"""Attacks on rulebooks that once succeeded: shadows that blocked live rules, wrong fallbacks, undivided shares,
cyclic books, attributes that were not normalised.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.algorithms.decision import ALLOWED, REMAINING, DegradedOutcome, Outcome
from headgate.clock import ManualClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import shortest_deadline
from headgate.engines.layers.fallback.breaker import FAILURES_TO_OPEN, OPEN, PROBE
from headgate.engines.memory.engine import MemoryEngine
from headgate.engines.port import Meter
from headgate.engines.redis import cross_slot
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import InvalidCharge, InvalidRule
from headgate.flow import run
from headgate.limit_syntax import parse
from headgate.limiter import AsyncLimiter, Limiter
from headgate.rules import load
from headgate.rules.attributes import Attributes, request
from headgate.rules.match import Matcher
from tests.engines.layers.faulty_engine import FaultyEngine, ImmediateFallback, faulty_memory_engine
from tests.engines.redis.version_harness import close_all, open_versions
from tests.servers import Proxy, RedisServer
from tests.servers.wait_until import until

NOBODY = "redis://127.0.0.1:1/0"  # nobody listens there
DAY = parse("5/day fixed")
SHADOWED: list[dict[str, Any]] = [
    {"name": "here", "limit": "5/hour", "where": "node"},
    {"name": "uploads", "limit": "5 slots", "mode": "shadow"},
]


def test_shadow_slots_block_no_call_if_their_server_is_gone() -> None:
    with Limiter.from_rules({"rules": SHADOWED}, NOBODY) as gate:
        for left in (4, 3, 2):
            decision = gate.check({})
            assert decision
            assert decision.remaining == left
            gate.release(decision)


async def test_nor_awaited() -> None:
    async with AsyncLimiter.from_rules({"rules": SHADOWED}, NOBODY) as gate:
        for left in (4, 3, 2):
            async with gate.hold({}) as decision:
                assert decision.remaining == left


@pytest.mark.parametrize(("fallback", "passed"), [("allow", 4), ("local", 2), ("deny", 0)])
async def test_a_rule_of_slots_has_its_fallback(fallback: str, passed: int) -> None:
    rules = {"rules": [{"name": "uploads", "limit": "2 slots", "fallback": fallback}]}
    with Limiter.from_rules(rules, NOBODY) as gate:
        decisions = [gate.check({}) for _ in range(4)]
        assert sum(map(bool, decisions)) == passed
        assert all(decision.degraded for decision in decisions)
    async with AsyncLimiter.from_rules(rules, NOBODY) as awaited:
        assert sum([bool(await awaited.check({})) for _ in range(4)]) == passed


def test_a_short_shadow_deadline_shortens_no_live_deadline() -> None:
    hurried, silent = ChargeOptions("shadow", is_shadow=True, deadline=0.02), ChargeOptions("live")
    live, aside = MemoryEngine().meter(DAY, "live", silent), MemoryEngine().meter(DAY, "shadow", hurried)
    assert shortest_deadline([live, aside]) is shortest_deadline([aside, live]) is None
    assert shortest_deadline([aside]) == 0.02


def test_a_live_call_outlives_the_patience_of_its_shadow(redis_server: RedisServer) -> None:
    rules = [{"name": "live", "limit": "5/hour"}, {"name": "s", "limit": "5/hour", "mode": "shadow"}]
    rules[1]["deadline"] = "20ms"
    with Proxy(redis_server) as link, Limiter.from_rules({"rules": rules}, link.url) as gate:
        assert gate.check({})
        link.delay(40)
        assert gate.check({}).remaining == 3


def test_a_call_with_only_shadows_has_a_short_deadline() -> None:
    with Limiter.from_rules({"rules": [{"name": "s", "limit": "5/hour", "mode": "shadow"}]}, NOBODY) as gate:
        [(meter, _, _)] = gate.plan_call({}, None).charges
        assert meter.options.deadline == 0.05


def test_a_shadow_whose_part_of_a_cluster_is_gone_brings_no_fallback_upon_others() -> None:
    clock = ManualClock()
    wire = faulty_memory_engine(clock, parts=True)  # by the first letter of the key
    engine = ImmediateFallback(wire, fallback=None, clock=clock)
    live = engine.meter(DAY, "live", ChargeOptions("live", fallback="deny"))
    shadow = engine.meter(DAY, "shadow", ChargeOptions("shadow", is_shadow=True))
    wire.down_parts = {"b"}
    while engine.state("b") is not OPEN:
        assert not live.decide("bob", 1)[ALLOWED]
    live_outcome, beside = engine.decide_all([(live, "ann", 1), (shadow, "beth", 1)])
    assert live_outcome[:2] == (True, 4)
    assert beside[ALLOWED]
    live_outcome, beside = engine.decide_all([(shadow, "amy", 1), (live, "ann", 1)])[::-1]
    assert live_outcome[REMAINING] == 3
    assert beside[:2] == (True, 4)


@pytest.mark.parametrize(
    ("shadow_deadline", "live_deadline", "waits"), [(None, None, 0.05), (0.02, None, 0.02), (0.3, 0.01, 0.01)]
)
def test_a_shadow_on_another_server_has_a_short_deadline(
    shadow_deadline: float | None, live_deadline: float | None, waits: float
) -> None:
    """A group with live charges waits as long as those say, also for what is aside in it."""
    live = RequestBuilder(DAY, "live", "hg", ChargeOptions("live", deadline=live_deadline))
    shadow = RequestBuilder(DAY, "shadow", "hg", ChargeOptions("shadow", is_shadow=True, deadline=shadow_deadline))
    rounds: list[Sequence[float | None]] = []

    def execute_all(questions: Sequence[RedisRequest], deadlines: Sequence[float | None]) -> list[Any]:
        rounds.append(deadlines)
        return [[[1, 4, 0, 1000, 0, 10**15, 0]] * count for count in ((2, 1, 1) if len(rounds) == 1 else (1, 1))]

    groups = [[(live, "a", 1), (shadow, "a", 1)], [(shadow, "b", 1)], [(live, "c", 1)]]
    run(cross_slot.decide_across_slots(execute_all, groups, None, 0, deadline=live_deadline))
    assert rounds == [[live_deadline, waits, live_deadline], [live_deadline, live_deadline]]


class PartlyDownEngine(FaultyEngine):
    """Decides as a cluster does: what is aside where nobody answers is in nobody's way."""

    def decide_all(
        self, charges: Sequence[tuple[Meter, str, int]], patience_us: int | None = None, commit: bool = True
    ) -> list[Outcome]:
        lost = {key for _, key, _ in charges if {key, self.shard(key)} & self.down_parts}
        near = [charge for charge in charges if charge[1] not in lost]
        outcomes = iter(super().decide_all(near, patience_us, commit))
        gone = DegradedOutcome((True, 0, 0, 0, 0, 0, 0))
        return [next(outcomes) if charge in near else gone for charge in charges]


def test_a_shadow_that_nobody_waited_for_tells_nothing_of_its_server() -> None:
    clock = ManualClock()
    wire = PartlyDownEngine(MemoryEngine(clock), parts=True)
    engine = ImmediateFallback(wire, fallback="deny", clock=clock)
    live = engine.meter(DAY, "live", ChargeOptions("live"))
    shadow = engine.meter(DAY, "shadow", ChargeOptions("shadow", is_shadow=True))
    wire.down_parts = {"b"}
    for _ in range(FAILURES_TO_OPEN):
        assert engine.decide_all([(live, "ann", 1), (shadow, "beth", 1)])[0][ALLOWED]
        assert not live.decide("bob", 1)[ALLOWED]
    assert engine.state("b") is OPEN


def test_a_server_that_answers_the_living_is_there_though_it_let_a_shadow_wait() -> None:
    clock = ManualClock()
    wire = PartlyDownEngine(MemoryEngine(clock), parts=True)
    engine = ImmediateFallback(wire, fallback="deny", clock=clock)
    live = engine.meter(DAY, "live", ChargeOptions("live"))
    shadow = engine.meter(DAY, "shadow", ChargeOptions("shadow", is_shadow=True))
    for _ in range(FAILURES_TO_OPEN):
        wire.down_parts = {"b"}
        assert not live.decide("bob", 1)[ALLOWED]
        wire.down_parts = {"beth"}
        assert engine.decide_all([(live, "bob", 1), (shadow, "beth", 1)])[0][ALLOWED]
    assert engine.state("b") is not OPEN


def test_while_a_part_of_a_cluster_is_probed_its_shadows_bring_no_fallback_upon_others() -> None:
    clock = ManualClock()
    wire = PartlyDownEngine(MemoryEngine(clock), parts=True)
    engine = ImmediateFallback(wire, fallback="deny", clock=clock)
    live = engine.meter(DAY, "live", ChargeOptions("live"))
    shadow = engine.meter(DAY, "shadow", ChargeOptions("shadow", is_shadow=True))
    wire.down_parts = {"b"}
    while engine.state("b") is not OPEN:
        assert not live.decide("bob", 1)[ALLOWED]
    clock.set_us(clock.now_us() + 1_000_000)
    assert engine.shards["b"].choose_route(clock.now_us()) is PROBE  # somebody is on the way
    live_outcome, _ = engine.decide_all([(live, "ann", 1), (shadow, "beth", 1)])
    assert live_outcome[:2] == (True, 4)


SLOW: dict[str, Any] = {
    "name": "slow",
    "where": "split",
    "nodes": 20,
    "limit": "1/minute queue 25",
}  # 16 thousandths


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"limit": "100/s", "candidate": "1/minute queue 25"},
        {"limit": {"by": "plan", "cases": {"free": "1/minute queue 25"}, "otherwise": "100/s"}},
    ],
)
def test_an_indivisible_limit_is_refused_at_construction(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRule, match=r'"slow": 1/minute queue 25 is too slow for 20 nodes'):
        Limiter.from_rules({"rules": [SLOW | fields]})


def test_an_uncountable_split_divides_as_finely_as_possible() -> None:
    rules = {"rules": [{"name": "slow", "where": "split", "limit": "1/minute queue 25"}]}
    with Limiter.from_rules(rules, f"{NOBODY}?nodes=20") as gate:
        assert [bool(gate.check({})) for _ in range(3)] == [True, True, False]  # of 26, among 10


def test_a_book_that_cannot_be_followed_is_not_kept(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    versions = open_versions(redis_server.url)
    for name, rule in (("good", {"name": "a", "limit": "5/s"}), ("bad", SLOW)):
        document = json.dumps({"name": name, "rules": [rule]})
        versions.push(document, document, format="json", author="ana")
        for _ in range(2):
            with Limiter.from_rules("pushed", redis_server.url) as gate:
                assert gate.rulebook.name == "good"
                assert gate.refused_changes == (name == "bad")
    close_all()


def test_verdicts_and_shadow_verdicts_keep_the_order_of_the_rulebook() -> None:
    lacking = {"key": "user", "missing": "deny", "limit": "5/s"}
    rules: list[dict[str, Any]] = [
        {"name": "a", "mode": "shadow"} | lacking,
        {"name": "b", "limit": "5/s", "candidate": "1/s"},
        {"name": "c", "limit": ["5/s", "9/hour"], "where": "node"},
        {"name": "d", "limit": "5/s", "mode": "shadow"},
        {"name": "e", "mode": "shadow"} | lacking,
        {"name": "f", "limit": "5/s", "mode": "shadow"},
    ]
    decision = Limiter.from_rules({"rules": rules}).check({})
    assert decision
    assert [verdict.rule for verdict in decision.verdicts] == ["b", "c", "c"]
    assert [aside.rule for aside in decision.shadow_verdicts] == ["a", "b", "d", "e", "f"]
    rules[0]["mode"] = rules[4]["mode"] = "enforce"
    decision = Limiter.from_rules({"rules": rules}).check({})
    assert not decision
    assert [verdict.rule for verdict in decision.verdicts] == ["a", "e"]  # the others were not asked
    never = {"name": "0", "limit": "1/s", "cost": 2}
    for order in ([never, {"name": "a"} | lacking], [{"name": "a"} | lacking, never]):
        decision = Limiter.from_rules({"rules": order}).check({})
        assert decision.rule == "a"  # who is not asked does not speak


def test_slots_of_two_rules_are_two_questions() -> None:
    slots = [{"name": name, "limit": "5 slots"} for name in ("a", "b")]
    with Limiter.from_rules({"rules": slots}) as both, Limiter.from_rules({"rules": slots[:1]}) as one:
        assert both.check({}).atomic is False
        assert one.check({}).atomic


@pytest.mark.parametrize("name", [1, b"user", ("user",)])
def test_a_name_of_an_attribute_is_text(name: Any) -> None:
    sentence = 'The names of attributes are text, such as "user"'
    rules = {"rules": [{"name": "a", "key": "user", "missing": "one", "limit": "5/s"}]}
    with Limiter.from_rules(rules) as gate, pytest.raises(InvalidCharge, match=sentence):
        gate.check({"user": "ann", name: 2})
    with pytest.raises(InvalidCharge, match=sentence):
        Attributes({name: 2})


def test_a_split_limit_is_divided_among_the_live_members(redis_server: RedisServer) -> None:
    other = RedisEngine(redis_server.url)
    other.heartbeat("1")
    rules = {"rules": [{"name": "share", "where": "split", "limit": "10/hour"}]}
    with Limiter.from_rules(rules, redis_server.url) as gate:
        until(lambda: None if gate.engine.members.count == 2 else "the other one is not known", 10)
        assert [bool(gate.check({})) for _ in range(6)] == [True] * 5 + [False]
    other.close()


async def test_divided_when_awaited_too(redis_server: RedisServer) -> None:
    other = RedisEngine(redis_server.url)
    other.heartbeat("1")
    rules = {"rules": [{"name": "share", "where": "split", "limit": "10/hour"}]}
    async with AsyncLimiter.from_rules(rules, redis_server.url) as gate:
        await gate.peek({})
        async with asyncio.timeout(10):
            while gate.engine.members.count == 1:
                await gate.clock.asleep_us(10_000)
        assert [bool(await gate.check({})) for _ in range(6)] == [True] * 5 + [False]
    other.close()


def test_a_local_fallback_knows_the_members_before_its_first_call(redis_server: RedisServer) -> None:
    other = RedisEngine(redis_server.url)
    other.heartbeat("1")
    rules = {"rules": [{"name": "api", "fallback": "local", "limit": "10/hour"}]}
    with Limiter.from_rules(rules, redis_server.url) as gate:
        until(lambda: None if gate.engine.members.count == 2 else "the other one is not known", 10)
    other.close()


@pytest.mark.parametrize("where", ["node", "split"])
def test_overrides_that_no_process_reads_are_refused(where: str) -> None:
    with pytest.raises(InvalidRule, match=f"overrides have no effect with where: {where}"):
        load.from_mapping({"rules": [{"name": "cap", "limit": "5/s", "where": where, "overrides": True}]})


def test_attributes_stay_normal_however_they_are_set() -> None:
    book = load.from_mapping(
        {"rules": [{"name": "r", "when": {"path": "/a"}, "key": "user", "missing": "deny", "limit": "1/s"}]}
    )
    ways = [request("GET", "/", user="x") for _ in range(2)]
    ways[0] |= {"path": "//a", "user": 7}
    del ways[1]["user"], ways[1]["path"]
    assert ways[1].setdefault("user", 7) == "7"
    assert ways[1].setdefault("path", "/b/../a") == "/a"
    ways.append(Attributes({"path": "/./a"}, user=7))
    assert [[match.key for match in Matcher(book).match(way)] for way in ways] == [["user=7"]] * 3
    ways[0] |= {"user": None}
    assert "user" not in ways[0]
    assert ways[2].setdefault("user", 8) == "7"


@pytest.mark.parametrize(("paper", "code"), [(">&-", 0), (">&- 2>&-", 0), (">/dev/full", 2)])
def test_a_command_reports_that_its_output_cannot_be_written(paper: str, code: int) -> None:
    words = f'exec "$0" -m headgate.cli rules schema {paper}'
    done = subprocess.run(["sh", "-c", words, sys.executable], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert done.stderr == (
        "" if code == 0 else "headgate: This cannot be written or read: No space left on device.\n"
    )
