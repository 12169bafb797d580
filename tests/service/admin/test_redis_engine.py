"""Operators' HTTP where rules are pushed and counts are kept on a server: real ones."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.engines.redis import keys
from headgate.gateway import bundle
from headgate.rules import load
from headgate.service.admin import counter_handlers
from headgate.service.log_format import JsonFormatter, TextFormatter
from tests.servers import Cluster, RedisServer
from tests.service.admin.admin_harness import TOKEN, YAML, Operator, serve_admin

ONE = "# one\nrules: [{name: a, key: user, missing: skip, limit: 1/hour fixed, overrides: true}]\n"
TWO = ONE.replace("one", "two").replace("1/hour", "2/hour")
THREE = ONE.replace("one", "three").replace("1/hour", "3/hour")


@pytest.fixture(autouse=True)
def kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def push(tmp_path: Path, text: str, url: str) -> None:
    """As the command line does it."""
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    assert main(["rules", "push", str(path), "--engine", url, "--author", "cli"]) == 0


async def eventually(what: Callable[[], bool], seconds: float) -> float:
    """After how many seconds it is so."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.01)
    return time.monotonic() - began


def limit_of(limiter: AsyncRuleLimiter) -> str:
    return limiter.rulebook.rules[0].limit.otherwise[0].text


async def test_all_workers_follow_what_is_put_over_http(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with (
        Operator("pushed", engine=redis_server.url) as operator,
        Operator("pushed", engine=redis_server.url) as other,
        serve_admin(operator.admin) as line,
    ):
        response = await line("GET", "/rules")
        assert (response.status, response.headers["etag"], response.json["text"]) == (200, '"1"', ONE)
        assert (await line("GET", "/rules", Authorization="Bearer guessed")).status == 401
        note = "m%C3%A9hr%20room"
        done = await line("PUT", f"/rules?note={note}", TWO.encode(), Content_Type=YAML, If_Match='"1"')
        assert (done.status, done.headers["etag"]) == (200, '"2"')
        version = done.json["version"]
        assert (version["version"], version["author"], version["note"]) == (2, "ann", "méhr room")
        assert done.json["changes"]["rules"][0]["fields"] == [
            {"name": "limit", "old": "1/hour fixed", "new": "2/hour fixed"}
        ]
        assert limit_of(operator.limiter) == "2/hour fixed"  # who published follows at once
        await eventually(lambda: limit_of(other.limiter) == "2/hour fixed", 5)  # a second, and a busy machine
        large = await line("POST", "/peek", b"#" * 70_000)
        assert large.status == 413
        override = await line("PUT", "/rules/a/overrides/user=b%257Cc%2Fd", b'{"limits": "9/hour fixed"}')
        assert override.json["key"] == "user=b%7Cc/d"


async def test_a_concurrent_push_is_not_overwritten(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        push(tmp_path, TWO, redis_server.url)
        for given in ({"if_match": '"1"'}, {"target": "/rules?expected=1"}, {"if_match": 'W/"1"'}):
            late = await operator.put_rules(THREE, **given)
            assert late.status == 412
            assert "version 2, by cli" in late.json["detail"]
        assert (await operator.put_rules(THREE, target="/rules?expected=2", if_match='"1"')).status == 400
        assert (await operator.put_rules(THREE, if_match="new")).status == 400
        assert (await operator("GET", "/rules")).json["text"] == TWO
        assert (await operator.put_rules(THREE, if_match='"2"')).json["version"]["version"] == 3
        again = (await operator.put_rules(THREE)).json
        assert (again["published"], again["version"]["version"], again["changes"]["same"]) == (False, 3, True)


async def test_a_broken_book_is_not_published(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        broken = "rules:\n  - {name: a, limit: 10/minit}\n  - {name: b}\n"
        for target in ("/rules", "/rules/validate"):
            method = "PUT" if target == "/rules" else "POST"
            reply = await operator(method, target, broken.encode(), content_type=YAML)
            assert reply.status == 400
            assert [problem["line"] for problem in reply.json["problems"]] == [2, 3]
        assert (await operator.put_rules("{", kind="application/json")).status == 400
        assert (await operator.put_rules("rules = [", kind="application/toml")).status == 400
        assert [each["version"] for each in (await operator("GET", "/rules/history")).json["versions"]] == [1]
        judged = await operator("POST", "/rules/validate", TWO.encode(), content_type=YAML)
        assert (judged.status, judged.json["changes"]["same"]) == (200, False)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("application/json", '{"rules": [{"name": "b", "limit": "1/hour"}]}'),
        ("application/toml; charset=utf-8", '[[rules]]\nname = "b"\nlimit = "1/hour"\n'),
        ("text/yaml", "rules: [{name: b, limit: 1/hour}]"),
    ],
)
async def test_every_format_is_read(redis_server: RedisServer, tmp_path: Path, kind: str, text: str) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        assert (await operator.put_rules(text, kind=kind)).status == 200
        response = (await operator("GET", "/rules")).json
        assert (response["text"], response["format"] in kind, response["rules"]) == (text, True, 1)
        assert operator.limiter.rulebook.rule("b") is not None


async def test_history_and_rollback(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate.admin")
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        await operator.put_rules(TWO, "/rules?note=more", client="192.0.2.9:5")
        back = await operator("POST", "/rules/rollback", {"note": "too much"}, author="bob", client="192.0.2.9:5")
        assert (back.json["before"], back.json["version"]["version"]) == (2, 3)
        assert (back.json["version"]["rolled_back_to"], back.json["changes"]["same"]) == (1, False)
        assert limit_of(operator.limiter) == "1/hour fixed"
        log_record = (await operator("GET", "/rules/history")).json
        assert log_record["in_force"] == 3
        assert [(each["version"], each["author"], each["note"]) for each in log_record["versions"]] == [
            (3, "bob", "too much"),
            (2, "ann", "more"),
            (1, "cli", ""),
        ]
        version = (await operator("GET", "/rules/history/2")).json
        assert (version["text"], version["in_force"], version["format"]) == (TWO, False, "yaml")
        assert (await operator("GET", "/rules/history/9")).status == 404
        assert (await operator("POST", "/rules/rollback", {"to": 9})).status == 400
        assert (await operator("POST", "/rules/rollback", {"to": 2})).json["version"]["version"] == 4
        assert limit_of(operator.limiter) == "2/hour fixed"
    changes = [record for record in caplog.records if record.name == "headgate.admin"]  # not what the watch logs
    lines = [TextFormatter().format(record).split(" info ", 1)[1] for record in changes]
    assert lines[:2] == [
        "rules published author=ann remote=192.0.2.9:5 before=1 after=2 note=more",
        'rules rolled back author=bob remote=192.0.2.9:5 before=2 after=3 to=1 note="too much"',
    ]
    assert len(lines) == 3
    log_record = json.loads(JsonFormatter().format(changes[0]))
    assert (log_record["author"], log_record["before"], log_record["after"], log_record["logger"]) == (
        "ann",
        1,
        2,
        "headgate.admin",
    )
    assert TOKEN not in caplog.text


async def test_a_gateway_gets_what_the_command_line_would_have_given_it(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        await operator.put_rules(TWO)
        papers = [json.loads(str(redis_server.call("HGET", "hg2:rules", n).decode())) for n in (1, 2)]  # type: ignore[union-attr]
        by_hand, here = (json.loads(paper["document"]) for paper in papers)
        assert here.keys() == by_hand.keys()
        assert here["scripts"] == by_hand["scripts"]
        texts = bundle.script_texts(here)
        there = redis_server.call("HKEYS", keys.scripts_key("hg"))
        assert {sha.decode() for sha in there} >= set(texts)  # type: ignore[union-attr]
        assert redis_server.call("SCRIPT", "EXISTS", *texts) == [1] * len(texts)


async def test_scripts_are_loaded_on_every_master(cluster: Cluster, tmp_path: Path) -> None:
    push(tmp_path, ONE, cluster.url)
    cluster.script_flush()
    async with Operator("pushed", engine=cluster.url) as operator:
        done = (await operator.put_rules(TWO)).json
        assert (done["published"], done["warnings"]) == (True, [])
        shas = list(bundle.script_texts(bundle.compile_bundle(load.parse(TWO), 0)))
        for node in cluster.masters():
            assert node.call("SCRIPT", "EXISTS", *shas) == [1] * len(shas)
        for user in "abcdef":
            await operator.check(user=user)
        response = (await operator("GET", "/keys?rule=a")).json
        assert [each["used"] for each in response["keys"]] == [1] * 6


async def test_a_reset_clears_cached_refusals_at_once(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=f"{redis_server.url}?denial_cache=on") as operator:
        assert [await operator.check(user="ann") for _ in range(3)] == [True, False, False]
        response = (await operator("POST", "/reset", {"attributes": {"user": "ann"}})).json
        assert response["forgotten"] == [{"rule": "a", "key": "user=ann", "counts": ["a"]}]
        assert await operator.check(user="ann")
        assert not await operator.check(user="ann")
        assert (await operator("PUT", "/rules/a/overrides/user=ann", {"limits": "9/hour fixed"})).status == 200
        assert await operator.check(user="ann")


async def test_keys_and_peeks_of_a_server(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, TWO, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        for user in ("ann", "ann", "bob"):
            await operator.check(user=user)
        response = (await operator("GET", "/keys")).json
        assert [(each["key"], each["used"], each["of"]) for each in response["keys"]] == [
            ("user=ann", 2, 2),
            ("user=bob", 1, 2),
        ]
        assert response["keys"][0]["bytes"] > 0
        peeked = (await operator("POST", "/peek", {"rule": "a", "key": "user=ann"})).json
        assert (peeked["allowed"], peeked["limits"][0]["remaining"]) == (False, 0)
        given = (await operator("POST", "/refund", {"rule": "a", "key": "user=ann"})).json["limits"]
        assert [(each["before"], each["remaining"]) for each in given] == [(0, 1)]


async def test_one_walk_at_a_time(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, ONE, redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        replies = await asyncio.gather(*(operator("GET", "/keys") for _ in range(3)))
        assert sorted(reply.status for reply in replies) == [200, 503, 503]


async def test_a_walk_that_takes_too_long_tells_what_it_has(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(tmp_path, ONE, redis_server.url)
    for start in range(0, 60_000, 10_000):
        redis_server.call("MSET", *(word for n in range(start, start + 10_000) for word in (f"other{n}", "1")))
    monkeypatch.setattr(
        counter_handlers, "MAX_SCAN_S", 0.02
    )  # a pause between two rounds alone would take six times as long
    async with Operator("pushed", engine=redis_server.url) as operator:
        assert not (await operator("GET", "/keys")).json["complete"]
        monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert (await operator("GET", "/keys")).json["complete"]


async def test_a_reset_leaves_per_process_counts_out(redis_server: RedisServer, tmp_path: Path) -> None:
    push(tmp_path, f"{ONE[:-2]}, {{name: near, where: node, limit: 1/hour}}]\n", redis_server.url)
    async with Operator("pushed", engine=redis_server.url) as operator:
        response = (await operator("POST", "/reset", {"attributes": {"user": "ann"}})).json
        assert ([each["rule"] for each in response["forgotten"]], response["left_out"]) == (["a"], ["near"])
        refused = await operator("POST", "/reset", {"rule": "near", "key": "all"})
        assert (refused.status, "counted in each process" in refused.json["detail"]) == (400, True)


async def test_when_the_server_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        push(tmp_path, f"{ONE[:-2]}]\n".replace("overrides", "fallback: allow, overrides"), server.url)
        engine = f"{server.url}?deadline=200ms".replace("redis://", "redis://:secret-word@", 1)
        server.call("CONFIG", "SET", "requirepass", "secret-word")
        async with Operator("pushed", engine=engine) as operator:
            assert (await operator("GET", "/rules")).status == 200
            server.kill()
            for _ in range(3):
                assert await operator.check(user="ann")
            body = {"rule": "a", "key": "user=ann"}
            for method, target in (
                *(("GET", "/rules"), ("GET", "/rules/history"), ("GET", "/rules/a/overrides"), ("GET", "/keys")),
                *(("POST", "/peek"), ("POST", "/reset"), ("POST", "/refund")),
            ):
                reply = await operator(method, target, body)
                assert (reply.status, reply.headers.get("retry-after")) == (503, "1"), (target, reply)
                assert "secret-word" not in reply.body.decode()
            unsure = [record for record in caplog.records if record.getMessage() == "a change may have been made"]
            assert [vars(record)["verb"] for record in unsure] == ["reset", "refund"]
            response = (await operator("GET", "/status")).json
            assert [each["state"] for each in response["degraded"]] == ["open"]
            assert (response["degraded_decisions"], response["rulebook_version"]) == (3, 1)
            assert response["engine"].endswith("?deadline=200ms")
        assert "secret-word" not in json.dumps(response) + caplog.text
