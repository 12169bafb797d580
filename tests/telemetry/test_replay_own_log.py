"""A decision log that is replayed under its own rules gives the same answers: call by call from one process, equal
counts per key and instant from several."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncLimiter, Limiter, RuleLimiter
from headgate.cli import main
from headgate.enforcement.check_together import BatchedCall
from headgate.telemetry.decision_log import DecisionLog
from tests.servers import RedisServer
from tests.telemetry.log_lines import read_lines, replay

RULES: dict[str, Any] = {
    "rules": [
        {
            "name": "login",
            "when": {"path": "/login"},
            "key": "address",
            "missing": "deny",
            "limit": "20/s burst 5",
            "lockout": {"after": 8, "within": "1s", "for": "200ms"},
        },
        {
            "name": "api",
            "key": "user",
            "missing": "skip",
            "limit": {"by": "plan", "cases": {"pro": "200/s sliding"}, "otherwise": "60/s fixed"},
            "cost": {"by": "method", "cases": {"POST": 3}, "otherwise": 1},
            "candidate": "5/s",
        },
        {"name": "everybody", "limit": ["300/s burst 20", "3000/minute"]},
        {"name": "later", "key": "user", "missing": "skip", "limit": "10/s", "mode": "shadow"},
    ]
}


def a_call(chance: random.Random) -> tuple[dict[str, str], int | None]:
    attributes = {
        "path": chance.choice(("/login", "/", "/api")),
        "method": chance.choice(("GET", "POST")),
        "plan": chance.choice(("pro", "free")),
        "address": f"192.0.2.{chance.randint(1, 4)}",
    }
    if chance.random() < 0.8:
        attributes["user"] = chance.choice(("ann", "bob", "kim"))
    if chance.random() < 0.05:
        del attributes["address"]
    return attributes, chance.choice((None, None, 1, 2, 4))


def make_calls(limiter: RuleLimiter, seed: int, calls: int, calls_between_pauses: int = 50) -> None:
    chance = random.Random(seed)
    for number in range(1, calls + 1):
        if number % calls_between_pauses == 0:
            time.sleep(chance.random() / 20)  # so that there is room again
        limiter.check(*a_call(chance))


def assert_the_same(logs: list[Path], folder: Path, rules: dict[str, Any], calls: int, *, by_call: bool) -> None:
    result = replay(logs, rules, folder)
    recorded = result["recorded"]
    assert recorded["calls"] == calls
    refused = sum(not each["allowed"] for path in logs for each in read_lines(path))
    assert 0.1 * calls < refused < 0.9 * calls, f"{refused} of {calls} were refused: that proves little"
    assert recorded["same_groups"] == recorded["groups"], recorded
    if by_call:
        assert recorded["same"] == calls, recorded


def test_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, observers=[DecisionLog(path)]) as limiter:
        make_calls(limiter, 1, 600)
    assert_the_same([path], tmp_path, RULES, 600, by_call=True)


def test_on_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(RULES, f"{redis_server.url}?deadline=10s", observers=[DecisionLog(path)]) as limiter:
        make_calls(limiter, 2, 600)
    assert_the_same([path], tmp_path, RULES, 600, by_call=True)


ONE_LIMIT: dict[str, Any] = {
    "rules": [{"name": "api", "key": "user", "missing": "deny", "limit": "100/s burst 10"}]
}


async def test_tasks_that_share_a_round_trip(tmp_path: Path, redis_server: RedisServer) -> None:
    path, chance = tmp_path / "log", random.Random(3)
    log = DecisionLog(path)
    async with AsyncLimiter.from_rules(ONE_LIMIT, f"{redis_server.url}?deadline=10s", observers=[log]) as limiter:
        for _ in range(10):
            users = [{"user": chance.choice(("ann", "bob"))} for _ in range(40)]
            await asyncio.gather(*map(limiter.check, users))
            await asyncio.sleep(0.05)
    lines = read_lines(path)
    assert len({each["at_us"] for each in lines}) < len(lines)  # several were decided at one instant
    assert_the_same([path], tmp_path, ONE_LIMIT, 400, by_call=True)


def test_the_order_of_responses_does_not_matter(tmp_path: Path) -> None:
    path, chance = tmp_path / "log", random.Random(4)
    log = DecisionLog(path)
    with Limiter.from_rules(ONE_LIMIT, observers=[log]) as limiter:
        for _ in range(10):
            plans = [limiter.plan_call({"user": "ann"}) for _ in range(30)]
            decisions = [limiter.decide_plan(plan, response_follows=True) for plan in plans]
            chance.shuffle(decisions)
            for decision in decisions:
                log.responded(decision, 200 if decision.allowed else 429, 10)
            time.sleep(0.05)
    numbers = [each["seq"] for each in read_lines(path)]
    assert numbers != sorted(numbers)
    assert_the_same([path], tmp_path, ONE_LIMIT, 300, by_call=True)


def run_in_processes(works: list[Callable[[], None]]) -> None:
    pids = []
    for work in works:
        pid = os.fork()
        if pid == 0:
            try:
                work()
                os._exit(0)
            finally:
                os._exit(1)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(works)


@pytest.mark.parametrize("one_file", [True, False])
def test_several_processes(tmp_path: Path, redis_server: RedisServer, one_file: bool) -> None:
    paths = [tmp_path / ("log" if one_file else f"log-{number}") for number in range(4)]

    def work(number: int) -> None:
        url = f"{redis_server.url}?deadline=10s"
        with Limiter.from_rules(RULES, url, observers=[DecisionLog(paths[number])]) as limiter:
            make_calls(limiter, number, 200, calls_between_pauses=10)

    run_in_processes([lambda number=number: work(number) for number in range(4)])  # type: ignore[misc]
    logs = sorted(set(paths))
    assert_the_same(logs, tmp_path, RULES, 800, by_call=False)
    assert len({each["process"] for path in logs for each in read_lines(path)}) == 4


def test_rules_that_count_in_each_process(tmp_path: Path, redis_server: RedisServer) -> None:
    rules = {
        "rules": [{"name": "node", "key": "user", "missing": "deny", "where": "node", "limit": "50/s burst 9"}]
    }
    path = tmp_path / "log"

    def work() -> None:
        with Limiter.from_rules(rules, redis_server.url, observers=[DecisionLog(path)]) as limiter:
            for _ in range(100):
                limiter.check({"user": "ann"})
                time.sleep(0.001)

    run_in_processes([work] * 3)
    assert_the_same([path], tmp_path, rules, 300, by_call=False)


def test_calls_together_and_reservations(tmp_path: Path) -> None:
    rules = {
        "rules": [
            {"name": "api", "key": "user", "missing": "deny", "limit": "100/s burst 6"},
            {"name": "all", "limit": "400/s burst 12"},
        ]
    }
    path, chance = tmp_path / "log", random.Random(5)
    with Limiter.from_rules(rules, observers=[DecisionLog(path)]) as limiter:
        for number in range(300):
            asks = [
                BatchedCall({"user": chance.choice(("ann", "bob", "kim"))}, chance.choice((0, 1, 3)))
                for _ in range(3)
            ]
            if number % 3 == 0:
                limiter.check_together([*asks, BatchedCall({})][: chance.choice((3, 3, 3, 4))])
            elif number % 3 == 1:
                limiter.reserve(asks[0].attributes, 1, timeout=chance.choice((0, 0.01)))
            else:
                limiter.check(asks[0].attributes, 2)
            if chance.random() < 0.1:
                time.sleep(0.02)
    assert_the_same([path], tmp_path, rules, len(read_lines(path)), by_call=True)


def test_overrides_that_come_and_go(tmp_path: Path, redis_server: RedisServer) -> None:
    rules: dict[str, Any] = {
        "rules": [{"name": "api", "key": "user", "missing": "deny", "limit": "20/s burst 3", "overrides": True}]
    }
    path = tmp_path / "log"
    with Limiter.from_rules(rules, f"{redis_server.url}?deadline=10s", observers=[DecisionLog(path)]) as limiter:
        for number in range(300):
            if number == 100:
                limiter.overrides("api").set("user=ann", "100/s burst 9")
            if number == 200:
                limiter.overrides("api").unset("user=ann")
            limiter.check({"user": "ann" if number % 2 else "bob"})
            time.sleep(0.002)
    texts = {each["verdicts"][0].get("override") for each in read_lines(path)}
    assert texts == {None, "100/s burst 9"}
    assert_the_same([path], tmp_path, rules, 300, by_call=True)


def test_hashed_keys_are_replayed_as_well(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rules: dict[str, Any] = {
        "rules": [{"name": "api", "key": ["user", "address"], "missing": "one", "limit": "100/hour burst 5"}]
    }
    with Limiter.from_rules(rules, observers=[DecisionLog(path, salt="a secret salt")]) as limiter:
        for number in range(200):
            limiter.check({"user": f"user-{number % 12}|%", "address": f"2001:db8::{number}"})
    assert_the_same([path], tmp_path, rules, 200, by_call=True)


def failed_replay(log: Path, rules: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (folder / "book.json").write_text(json.dumps(rules))
    assert main(["replay", str(log), "--rules", str(folder / "book.json")]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"except": {"address": "10.0.0.0/8"}}, 'address is hashed, and the rule "api" tests its value'),
        ({"mode": {"enforce": 10, "shadow": 90}}, 'the rule "api" enforces a part of its keys'),
    ],
)
def test_rules_that_need_the_value_of_a_hash_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: dict[str, Any], sentence: str
) -> None:
    rules = {"rules": [{"name": "api", "key": "address", "missing": "deny", "limit": "5/s", **rule}]}
    with Limiter.from_rules(rules, observers=[DecisionLog(tmp_path / "log", salt="a secret salt")]) as limiter:
        limiter.check({"address": "192.0.2.7"})
    assert sentence in failed_replay(tmp_path / "log", rules, tmp_path, capsys)


def test_a_sampled_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Limiter.from_rules(ONE_LIMIT, observers=[DecisionLog(tmp_path / "log", sample=0.5)]) as limiter:
        for _ in range(50):
            limiter.check({"user": "ann"})
    printed = failed_replay(tmp_path / "log", ONE_LIMIT, tmp_path, capsys)
    assert "This decision log is sampled (line 1: sample 0.5), so calls are missing" in printed


def test_other_rules_give_other_answers(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter.from_rules(ONE_LIMIT, observers=[DecisionLog(path)]) as limiter:
        for _ in range(100):
            limiter.check({"user": "ann"})
    wider = {"rules": [{**ONE_LIMIT["rules"][0], "limit": "100/s burst 50"}]}
    assert replay([path], wider, tmp_path)["recorded"]["same"] < 100


def test_the_log_of_a_limiter_without_rules_is_replayed_by_its_key(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Limiter("100/s burst 5", observers=[DecisionLog(path)]) as limiter:
        for number in range(100):
            limiter.take(f"user {number % 3}")
    rules = {"rules": [{"name": "any", "key": "key", "missing": "deny", "limit": "100/s burst 5"}]}
    assert_the_same([path], tmp_path, rules, 100, by_call=True)


def test_a_pushed_rulebook_has_its_version_in_the_log(tmp_path: Path, redis_server: RedisServer) -> None:
    book = tmp_path / "book.json"
    for limit in ("100/s burst 5", "100/s burst 6"):
        book.write_text(json.dumps({"rules": [{**ONE_LIMIT["rules"][0], "limit": limit}]}))
        assert main(["rules", "push", str(book), "--engine", redis_server.url, "--author", "test"]) == 0
    with Limiter.from_rules("pushed", redis_server.url, observers=[DecisionLog(tmp_path / "log")]) as limiter:
        limiter.check({"user": "ann"})
        assert limiter.rulebook.version == 2
    assert read_lines(tmp_path / "log")[0]["version"] == 2
