"""Pauses of rules in nginx: what a program or an operator pauses in Redis is refused at the gate."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter
from headgate.cli import main
from headgate.enforcement.rule_limiter import RuleLimiter
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until

API = {
    "name": "api",
    "when": {"path": "/"},
    "key": "user",
    "missing": "skip",
    "limit": "100/hour",
    "pausable": "2h",
}
ALL = {"name": "all", "when": {"path": "/both"}, "limit": "1000/hour"}
FIXED = API | {
    "name": "both",
    "when": {"path": "/both"},
    "limit": "5/hour fixed; 9/hour log",
    "candidate": "9/hour",
}
LOCKED = {"lockout": {"after": 1, "within": "1m", "for": "1h"}}
FAILING = API | {"name": "failing", "when": {"path": "/failing"}} | LOCKED
WATCHED = API | {"name": "watched", "when": {"path": "/watched"}, "mode": "shadow"}
JOBS = API | {"name": "jobs", "when": {"path": "/jobs"}, "limit": "2 slots"}
BOOK: dict[str, Any] = {"rules": [API, ALL, FIXED, FAILING, WATCHED, JOBS]}
OPTIONS = 'attributes = { user = "$http_x_user" }, denial_cache = true, shed = true'
PATHS = "".join(
    f'location /{name} {{ content_by_lua_block {{ ngx.say("ok") }} }}\n'
    for name in ("both", "failing", "watched", "jobs")
)


@pytest.fixture(scope="module")
def gate(redis_server: RedisServer) -> Iterator[NginxGateway]:
    with NginxGateway(BOOK, redis=redis_server.url, options=OPTIONS, server=PATHS) as gate:
        yield gate


@pytest.fixture
def program(gate: NginxGateway, redis_server: RedisServer) -> Iterator[RuleLimiter]:
    with Limiter.from_rules(BOOK, f"{redis_server.url}?deadline=10s") as limiter:
        yield limiter


def get(gate: NginxGateway, path: str, user: str) -> Any:
    return gate.get(path, {"X-User": user})


def test_a_paused_key_is_refused_at_the_gate_until_a_reset(gate: NginxGateway, program: RuleLimiter) -> None:
    assert get(gate, "/", "ann").status == 200
    program.pause("api", {"user": "ann"}, 600)
    for _ in range(3):
        refused = get(gate, "/", "ann")
        assert refused.status == 429
        assert 590 < int(refused.headers["retry-after"]) <= 600
    assert get(gate, "/", "bob").status == 200
    assert program.peek({"path": "/", "user": "ann"}).remaining == 99  # a refusal charges nothing
    program.reset({"path": "/", "user": "ann"})
    assert get(gate, "/", "ann").status == 200  # no cache repeats the refusal


def test_an_operator_pauses_a_key_of_several_limits(
    gate: NginxGateway, program: RuleLimiter, redis_server: RedisServer, tmp_path: Path
) -> None:
    """Decided beside another rule and a candidate, in one script."""
    assert get(gate, "/both", "ann").status == 200
    book = tmp_path / "book.json"
    book.write_text(json.dumps(BOOK))
    command = ["pause", "user=ann", "1h", "--rule", "both", "--rules", str(book), "--engine", redis_server.url]
    assert main(command) == 0
    refused = get(gate, "/both", "ann")
    assert (refused.status, 3500 < int(refused.headers["retry-after"]) <= 3600) == (429, True)
    by_rule = {each.rule: each.remaining for each in program.peek({"path": "/both", "user": "bob"}).verdicts}
    assert by_rule["all"] == 999
    assert get(gate, "/both", "bob").status == 200


def test_a_pause_is_no_refusal_that_a_lockout_counts(gate: NginxGateway, program: RuleLimiter) -> None:
    program.pause("failing", "user=ann", 600)
    assert [get(gate, "/failing", "ann").status for _ in range(2)] == [429, 429]
    program.reset({"path": "/failing", "user": "ann"})
    assert get(gate, "/failing", "ann").status == 200


def test_a_shadow_refuses_nobody(gate: NginxGateway, program: RuleLimiter) -> None:
    program.pause("watched", "user=ann", 600)
    assert get(gate, "/watched", "ann").status == 200


def test_slots(gate: NginxGateway, program: RuleLimiter) -> None:
    assert get(gate, "/jobs", "ann").status == 200
    program.pause("jobs", "user=ann", 600)
    refused = get(gate, "/jobs", "ann")
    assert (refused.status, 590 < int(refused.headers["retry-after"]) <= 600) == (429, True)
    program.reset({"path": "/jobs", "user": "ann"})
    assert get(gate, "/jobs", "ann").status == 200


def test_without_redis_no_rule_can_be_paused() -> None:
    """Calls would pass that an operator believes to have stopped. What is followed already stays."""
    refused = 'rule "api" is pausable, and pauses are stored in Redis, where this nginx does not look'
    with pytest.raises(RuntimeError, match=refused), NginxGateway({"rules": [API]}):
        pass
    plain = {name: value for name, value in API.items() if name != "pausable"}
    with NginxGateway({"rules": [plain]}, options='attributes = { user = "$http_x_user" }') as gate:
        assert get(gate, "/", "ann").headers["ratelimit"].startswith('"api";r=99')
        gate.follow({"rules": [{**API, "limit": "7/hour"}]})
        until(lambda: None if refused in gate.log else "nothing logged", 10)
        assert get(gate, "/", "ann").headers["ratelimit"].startswith('"api";r=98')
