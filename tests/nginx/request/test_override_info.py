"""Responses for a key with an override state the override's limit, not the rule's."""

import re
from typing import Any

import pytest

from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.http.headers import headers
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer

ADA = {"X-User": "ada"}


def book(*limits: str, **more: Any) -> dict[str, Any]:
    rules = [
        {"name": f"rule-{place}", "key": "header.x-user", "missing": "skip", "limit": limit, "overrides": True}
        for place, limit in enumerate(limits)
    ]
    return {"rules": rules, **more}


def patient(server: RedisServer) -> str:
    """A gate that never decides without the server, and so without overrides."""
    return server.url + "?deadline=2s"


def test_a_raised_override_is_in_the_fields_before_and_after_a_refusal(redis_server: RedisServer) -> None:
    with NginxGateway(book("2/day"), patient(redis_server), workers=2) as gate:
        with RuleLimiter("pushed", redis_server.url) as limiter:
            limiter.overrides("rule-0").set("header.x-user=ada", "4/day")
        replies = [gate.get("/", headers=ADA) for _ in range(20)]  # the memo answers most, at both workers
        assert [reply.status for reply in replies] == [200] * 4 + [429] * 16
        assert {reply.headers["ratelimit-policy"] for reply in replies} == {'"rule-0";q=4;w=86400'}
        assert [reply.headers["ratelimit"].split(";")[1] for reply in replies[:4]] == ["r=3", "r=2", "r=1", "r=0"]
        other = gate.get("/", headers={"X-User": "bob"})
        assert other.headers["ratelimit-policy"] == '"rule-0";q=2;w=86400'
        assert other.headers["ratelimit"] == '"rule-0";r=1;t=43200'


def test_a_changed_override_is_in_the_fields_at_once(redis_server: RedisServer) -> None:
    with (
        NginxGateway(book("20/day"), patient(redis_server)) as gate,
        RuleLimiter("pushed", redis_server.url) as limiter,
    ):
        overrides = limiter.overrides("rule-0")
        answers = []
        for limit in ("40/day", "60/day", "40/day"):
            overrides.set("header.x-user=ada", limit)
            answers.append(gate.get("/", headers=ADA).headers["ratelimit-policy"])
        overrides.unset("header.x-user=ada")
        answers.append(gate.get("/", headers=ADA).headers["ratelimit-policy"])
        assert answers == [f'"rule-0";q={amount};w=86400' for amount in (40, 60, 40, 20)]


PAIRS = [
    ("10/s burst 20", "7/s burst 50"),
    ("6/minute queue 5", "30/minute queue 9"),
    ("5/hour fixed", "50/hour fixed"),
    ("5/month fixed", "70/month fixed"),
    ("5/minute sliding", "50/minute sliding"),
    ("5/minute log", "50/minute log"),
    ("10/s smooth burst 0s", "40/s smooth burst 0s"),  # saves nothing, so it is the tightest whenever it is asked
]


@pytest.mark.parametrize("form", ["draft-11", "legacy", "envoy", "spring"])
def test_fields_are_pythons_whatever_the_algorithm(form: Any, redis_server: RedisServer) -> None:
    rules = book(*(rule for rule, _ in PAIRS), headers=form)
    with (
        NginxGateway(rules, patient(redis_server)) as gate,
        RuleLimiter("pushed", redis_server.url) as limiter,
    ):
        for place, (_, limit) in enumerate(PAIRS):
            limiter.overrides(f"rule-{place}").set("header.x-user=ada", limit)
        decision = limiter.check({"header.x-user": "ada"})
        assert decision.allowed
        fields = dict(headers(decision, form))
        found = gate.get("/", headers=ADA).headers
        for name in ("RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Burst-Capacity"):
            assert found.get(name.lower()) == fields.get(name)
        assert sum(name.startswith("X-RateLimit") or name == "RateLimit-Policy" for name in fields) > 0


def gets(server: RedisServer) -> int:
    """Returns how often GET was run, inside scripts too."""
    info = server.call("INFO", "commandstats")
    assert isinstance(info, bytes)
    match = re.search(rb"cmdstat_get:calls=(\d+)", info)
    return 0 if match is None else int(match[1])


def test_an_override_comes_with_the_decision_and_is_not_read_again(redis_server: RedisServer) -> None:
    with (
        NginxGateway(book("20/day"), patient(redis_server)) as gate,
        RuleLimiter("pushed", redis_server.url) as limiter,
    ):
        for amount in (40, 60):
            limiter.overrides("rule-0").set("header.x-user=ada", f"{amount}/day")
            before = gets(redis_server)
            assert gate.get("/", headers=ADA).headers["ratelimit-policy"] == f'"rule-0";q={amount};w=86400'
            assert gets(redis_server) - before == 2  # the script reads the override and the count
