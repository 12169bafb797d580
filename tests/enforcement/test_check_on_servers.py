"""check() by a rulebook on real servers: one round trip, all kinds of deployment, outages, and pushed
rulebooks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.engines.url import open_version_store, parse_engine_url
from headgate.errors import EngineUnavailable, InvalidRule
from headgate.limiter import AsyncLimiter, Limiter
from headgate.rules import load, serialization
from headgate.rules.distribution.published_versions import RulebookVersions
from tests.servers import Cluster, RedisServer

FOUR: list[dict[str, Any]] = [
    {"name": "user", "key": "user", "missing": "skip", "limit": "10/hour"},
    {"name": "item", "when": {"path": "/items/{sku}"}, "key": "sku", "limit": "5/hour log"},
    {"name": "address", "key": "address", "limit": "8/hour fixed", "candidate": "1/hour"},
    {
        "name": "everything",
        "limit": "100/hour sliding",
        "mode": "shadow",
        "lockout": {"after": 2, "for": "1h"},
    },
]
CALL = {"path": "/items/7", "user": "ann", "address": "192.0.2.7"}


def scripts(server: RedisServer) -> int:
    stats = server.info("commandstats").get("cmdstat_evalsha", "calls=0,")
    return int(stats.partition("calls=")[2].partition(",")[0])


def remaining(gate: RuleLimiter) -> list[tuple[str | None, bool, int]]:
    decision = gate.peek(CALL)
    return [(each.rule, each.allowed, each.remaining) for each in (*decision.verdicts, *decision.shadow_verdicts)]


def test_all_rules_of_a_call_are_one_round_trip(server: RedisServer) -> None:
    with Limiter.from_rules({"rules": FOUR}, server.url) as gate:
        gate.check(CALL)  # the script is loaded now
        before = scripts(server)
        decision = gate.check(CALL)
        assert scripts(server) == before + 1
        assert decision.atomic
        assert [(each.rule, each.remaining) for each in decision.verdicts] == [
            ("user", 8),
            ("item", 3),
            ("address", 6),
        ]
        assert [(each.rule, each.shadow_kind, each.allowed) for each in decision.shadow_verdicts] == [
            ("address", "candidate", False),
            ("everything", "shadow", True),
        ]


async def test_awaited_too(server: RedisServer) -> None:
    async with AsyncLimiter.from_rules({"rules": FOUR}, server.url) as gate:
        await gate.check(CALL)
        before = scripts(server)
        decision = await gate.check(CALL)
        assert scripts(server) == before + 1
        assert [each.remaining for each in decision.verdicts] == [8, 3, 6]


def test_the_embedded_engine_and_a_server_say_the_same(driven_server: RedisServer) -> None:
    clock = driven_server.clock
    assert clock is not None
    rules = [
        *FOUR,
        {"name": "login", "limit": "2/minute", "lockout": {"after": 2, "within": "10m", "for": "1h"}, "cost": 1},
    ]

    class ServerTimeClock:
        def now_us(self) -> int:
            return clock.now_us()

        def sleep_us(self, us: int) -> None:
            clock.advance_us(us)

        async def asleep_us(self, us: int) -> None:
            clock.advance_us(us)

    with Limiter.from_rules({"rules": rules}, driven_server.url) as there:
        here = Limiter.from_rules({"rules": rules}, clock=ServerTimeClock())
        for step in range(60):
            clock.advance_us(7_000_000 * (step % 9))
            call = {**CALL, "user": "ann" if step % 3 else "bob", "path": f"/items/{step % 2}"}
            ours, theirs = here.check(call), there.check(call)
            assert ours.rule == theirs.rule
            assert ours.locked == theirs.locked
            assert [each[:5] for each in ours.verdicts] == [each[:5] for each in theirs.verdicts]
            assert [each[:5] for each in ours.shadow_verdicts] == [each[:5] for each in theirs.shadow_verdicts]


def test_in_a_cluster_by_slot_and_taken_back_where_one_refuses(cluster: Cluster) -> None:
    with Limiter.from_rules({"rules": FOUR}, cluster.url) as gate:
        for _ in range(5):
            decision = gate.check(CALL)
            assert decision.allowed
            assert not decision.atomic
        assert gate.check(CALL).rule == "item"
        stood = remaining(gate)
        assert stood[:3] == [("user", True, 5), ("item", False, 0), ("address", True, 3)]
        for _ in range(3):
            gate.check(CALL)
        assert remaining(gate)[:3] == stood[:3]
        # The same key text lies in one slot, whatever the rule.
        same = [{**FOUR[0], "name": name} for name in ("one", "two", "three")]
        with Limiter.from_rules({"rules": same}, cluster.url) as together:
            assert together.check(CALL).atomic


def test_local_charges_come_first_and_are_given_back_after_a_refusal(redis_server: RedisServer) -> None:
    rules = [
        {"name": "cap", "where": "node", "limit": "3/hour"},
        {"name": "all", "limit": "2/hour"},
        {"name": "seen", "limit": "9/hour", "mode": "shadow"},
    ]
    with Limiter.from_rules({"rules": rules}, redis_server.url) as one:
        with Limiter.from_rules({"rules": rules}, redis_server.url) as two:
            assert one.check({})
            assert two.check({})
            refused = one.check({})
            assert refused.rule == "all"
            assert not refused.atomic
            assert [each.remaining for each in refused.verdicts] == [2, 0]  # given back
            assert one.check({}, cost=3).shadow_verdicts[0].remaining == 3
        before = scripts(redis_server)
        capped = one.check({}, cost=4)
        assert (capped.rule, capped.retry_after) == ("cap", None)
        assert [each.rule for each in capped.verdicts] == ["cap"]  # nobody else was asked
        assert scripts(redis_server) == before + 1  # but the shadow was
        assert not capped.shadow_verdicts[0].allowed


def test_a_split_rule_has_an_even_share_and_needs_no_server() -> None:
    rules = [{"name": "share", "where": "split", "nodes": 4, "limit": "10/hour"}]
    with Limiter.from_rules({"rules": rules}, "redis://127.0.0.1:1/0") as gate:
        assert [bool(gate.check({})) for _ in range(3)] == [True, True, False]


def test_a_split_rule_divides_among_the_members(redis_server: RedisServer) -> None:
    rules = [{"name": "share", "where": "split", "limit": "10/hour"}]
    # Under a prefix of its own: whoever shared the server before may not have been heard leaving.
    with Limiter.from_rules({"rules": rules}, redis_server.url, prefix="split") as gate:
        assert [bool(gate.check({})) for _ in range(11)] == [True] * 10 + [False]


def test_a_prefetched_rule_is_decided_here_and_gives_back(redis_server: RedisServer) -> None:
    rules = [
        {"name": "hot", "prefetch": "5s", "limit": "10000/hour"},
        {"name": "narrow", "key": "user", "missing": "skip", "limit": "2/hour"},
    ]
    with Limiter.from_rules({"rules": rules}, redis_server.url) as gate:
        for _ in range(200):
            assert gate.check({})
        before = scripts(redis_server)
        for _ in range(5):
            assert gate.check({})
        assert scripts(redis_server) - before <= 1
        assert [bool(gate.check({"user": "ann"})) for _ in range(3)] == [True, True, False]
    with Limiter.from_rules({"rules": rules}, redis_server.url) as gate:
        assert gate.check({}).verdicts[0].remaining == 10000 - 205 - 2 - 1


def test_slots_come_back_when_another_rule_refuses(redis_server: RedisServer) -> None:
    rules = [{"name": "uploads", "limit": "1 slots"}, {"name": "all", "limit": "1/hour"}]
    with Limiter.from_rules({"rules": rules}, redis_server.url) as gate:
        with gate.hold({}):
            assert gate.check({}).rule == "uploads"
        assert gate.check({}).rule == "all"
        assert gate.peek({}).verdicts[0].remaining == 1


@pytest.mark.parametrize(("fallback", "allowed"), [("allow", True), ("deny", False), ("local", True)])
def test_each_rule_has_its_fallback(fallback: str, allowed: bool) -> None:
    rules = [
        {"name": "chosen", "limit": "2/hour", "fallback": fallback, "deadline": "50ms"},
        {"name": "open", "limit": "1/hour", "fallback": "allow", "deadline": "50ms"},
    ]
    with Limiter.from_rules({"rules": rules}, "redis://127.0.0.1:1/0") as gate:
        decision = gate.check({})
        assert decision.degraded
        assert bool(decision) is allowed
        if fallback == "local":
            assert [bool(gate.check({})) for _ in range(2)] == [True, False]


def test_without_a_fallback_the_failure_goes_up_and_what_was_charged_here_comes_back() -> None:
    rules = [{"name": "cap", "where": "node", "limit": "2/hour"}, {"name": "all", "limit": "1/hour"}]
    with Limiter.from_rules({"rules": rules}, "redis://127.0.0.1:1/0") as gate:
        for _ in range(5):
            with pytest.raises(EngineUnavailable):
                gate.check({})


def test_overrides_are_shared_and_read_by_the_same_script(server: RedisServer) -> None:
    rules = [{"name": "user", "key": "user", "missing": "skip", "limit": "2/hour", "overrides": True}]
    with (
        Limiter.from_rules({"rules": rules}, server.url) as one,
        Limiter.from_rules({"rules": rules}, server.url) as two,
    ):
        assert one.check(CALL).remaining == 1
        assert two.overrides("user").set("user=ann", "50/hour", absent=True)
        assert not two.overrides("user").set("user=ann", "60/hour", absent=True)
        before = scripts(server)
        decision = one.check(CALL)
        assert scripts(server) == before + 1
        assert str(decision.limit) == "50/hour"
        one.refund(decision)
        assert one.overrides("user").unset("user=ann")
        assert str(one.check(CALL).limit) == "2/hour"


# The rulebook itself.


def seen(what: Callable[[], bool]) -> float:
    """Returns how long it took to be seen."""
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < 5, "it was never seen"
        time.sleep(0.01)
    return time.monotonic() - started


def test_a_file_is_followed_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: [{name: all, limit: 10/hour fixed}]")
    with Limiter.from_rules(path) as gate:
        for _ in range(5):
            gate.check({})
        path.write_text("rules: [{name: all, limit: 4/hour fixed}]")
        seen(lambda: str(gate.peek({}).limit) == "4/hour fixed")
        assert not gate.check({})  # a lowered limit bites at once
        path.write_text("rules: [{name: all, limit: 10/hours fixd}]")
        seen(lambda: gate.refused_changes == 1)
        assert gate.watcher is not None
        assert "rules.yaml:1" in str(gate.watcher.error)
        assert str(gate.peek({}).limit) == "4/hour fixed"


def push(server: RedisServer, text: str) -> None:
    archive, close = open_version_store(parse_engine_url(server.url))
    document = json.dumps(serialization.document(load.parse(text)))
    RulebookVersions(archive).push(text, document, format="yaml", author="ann", note="a test")
    close()


def test_all_limiters_follow_a_pushed_rulebook(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    push(redis_server, "rules: [{name: all, limit: 10/hour}]")
    gates = [Limiter.from_rules("pushed", redis_server.url) for _ in range(3)]
    gates.append(Limiter.from_rules(redis_server.url))
    push(redis_server, "rules: [{name: all, limit: 1/hour}]")
    seen(lambda: all(str(gate.peek({}).limit) == "1/hour" for gate in gates))
    for gate in gates:
        gate.close()


def test_without_the_server_the_last_good_book_is_used(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with RedisServer("redis") as server:
        push(server, "rules: [{name: all, limit: 2/hour, fallback: local, deadline: 50ms}]")
        url = server.url
        Limiter.from_rules("pushed", url).close()
    with Limiter.from_rules("pushed", url) as gate:
        assert [bool(gate.check({})) for _ in range(3)] == [True, True, False]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(EngineUnavailable):
        Limiter.from_rules("pushed", url)


def test_an_invalid_rulebook_argument_is_refused() -> None:
    with pytest.raises(InvalidRule, match="give its URL as the engine"):
        Limiter.from_rules("pushed")
    with pytest.raises(InvalidRule, match="Rules are a Rulebook"):
        Limiter.from_rules(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match=r"nowhere\.yaml"):
        Limiter.from_rules("nowhere.yaml")


# A limit that changes while counts exist.

LOWERED = [
    *(("10/hour", "5/hour"), ("10/minute", "10/hour"), ("10/hour burst 20", "10/hour"), ("100/hour", "100/day")),
    *(("10/day fixed", "5/day fixed"), ("9/day fixed", "9/week fixed")),
    *(("10/hour sliding", "5/hour sliding"), ("10/minute sliding", "10/hour sliding")),
    *(("10/hour log", "5/hour log"), ("10/minute log", "10/hour log")),
    *(
        ("6/minute queue 9 nodelay", "6/minute queue 4 nodelay"),
        ("6/minute queue 9 nodelay", "1/minute queue 9 nodelay"),
    ),
]
RAISED = [
    *(("10/hour", "20/hour"), ("10/hour", "20/minute"), ("10/day fixed", "20/day fixed")),
    *(("10/hour sliding", "20/hour sliding"), ("10/hour log", "20/hour log")),
    ("6/minute queue 9 nodelay", "6/minute queue 19 nodelay"),
]


@pytest.fixture(params=["memory", "redis"])
def gate(request: pytest.FixtureRequest) -> Iterator[Callable[[str], RuleLimiter]]:
    opened: list[RuleLimiter] = []

    def follow(limit: str) -> RuleLimiter:
        rules = {"rules": [{"name": "all", "limit": limit}]}
        if opened:
            opened[0].replace(load.from_mapping(rules))
        elif request.param == "memory":
            opened.append(Limiter.from_rules(rules))
        else:
            server: RedisServer = request.getfixturevalue("redis_server")
            server.flush()
            opened.append(Limiter.from_rules(rules, server.url))
        return opened[0]

    yield follow
    opened[0].close()


def drained(limiter: RuleLimiter) -> int:
    return sum(bool(limiter.check({})) for _ in range(110))


@pytest.mark.parametrize(("before", "after"), LOWERED)
def test_a_lowered_limit_bites_at_once(gate: Callable[[str], RuleLimiter], before: str, after: str) -> None:
    drained(gate(before))
    assert not gate(after).check({})


@pytest.mark.parametrize(("before", "after"), RAISED)
def test_a_reload_gives_no_fresh_burst(gate: Callable[[str], RuleLimiter], before: str, after: str) -> None:
    assert drained(gate(before)) == 10
    assert drained(gate(after)) <= 10
