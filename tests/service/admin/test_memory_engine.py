"""Operators' actions over HTTP on an in-memory engine. (On Redis: test_redis_engine.py. Access and requests:
test_requests.py.)
"""

import logging
import re
from pathlib import Path

import pytest

from headgate.rules import load
from headgate.service import sample_rules
from headgate.service.admin.audit_log import log_change
from headgate.service.log_format import TextFormatter
from tests.service.admin.admin_harness import BOOK, TOKEN, YAML, Operator, sentence

SOCKET_FILE = ""
BROKEN = """
rules:
  - {name: a, limit: 10/minit}
  - {name: b, limits: 10/minute}
"""


# Rules that come from elsewhere.


async def test_the_sample_rulebook_can_be_loaded_from_its_text_and_published_over() -> None:
    async with Operator() as operator:
        response = (await operator("GET", "/rules")).json
        assert load.parse(response["text"], format=response["format"]) == load.from_mapping(
            sample_rules.SAMPLE_RULEBOOK
        )
        assert (response["source"], response["version"]["version"], response["rules"]) == ("this process", 1, 3)
        published = await operator.put_rules("rules: []")
        assert (published.status, published.json["version"]["version"]) == (200, 2)
        assert (len(operator.limiter.rulebook), operator.limiter.rulebook.version) == (0, 2)
        rolled_back = await operator("POST", "/rules/rollback", {"note": "too early"})
        assert (rolled_back.status, len(operator.limiter.rulebook)) == (200, 3)


async def test_rules_of_a_file_are_changed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("# ours\nrules: [{name: a, limit: 10/hour}]\n")
    async with Operator(str(path)) as operator:
        response = (await operator("GET", "/rules")).json
        assert (response["text"], response["format"], response["source"]) == (path.read_text(), "yaml", str(path))
        for method, target in (
            ("GET", "/rules/history"),
            ("GET", "/rules/history/1"),
            ("POST", "/rules/rollback"),
        ):
            reply = await operator(method, target, {})
            assert reply.status == 409
            assert str(path) in sentence(reply)
        assert (await operator.put_rules("rules: []")).status == 409
        judged = await operator("POST", "/rules/validate", b"rules: [{name: a, limit: 9/hour}]", content_type=YAML)
        assert judged.json == {
            "rules": 1,
            "warnings": [],
            "changes": {
                "same": False,
                "book": [],
                "rules": [
                    {
                        "rule": "a",
                        "change": "changed",
                        "counts_start_anew": None,
                        "fields": [{"name": "limit", "old": "10/hour", "new": "9/hour"}],
                    }
                ],
            },
        }


async def test_every_problem_of_a_rulebook_has_its_line(operator: Operator) -> None:
    reply = await operator("POST", "/rules/validate", BROKEN.encode(), content_type=YAML)
    assert reply.status == 400
    assert [problem["line"] for problem in reply.json["problems"]] == [3, 4, 4]
    assert "10/minute" in reply.json["problems"][0]["problem"]
    assert "limits" in reply.json["problems"][1]["problem"]


# Limits of single keys.


async def test_a_key_gets_an_override_and_loses_it(operator: Operator) -> None:
    at = "/rules/login/overrides"
    assert (await operator("GET", f"{at}/user=ann")).status == 404
    assert (await operator("PUT", f"{at}/user=ann", {"limits": "1/hour fixed"})).json["limits"] == "1/hour fixed"
    assert [await operator.check(user="ann") for _ in range(2)] == [True, False]
    assert (await operator("GET", f"{at}/user=ann")).json["limits"] == "1/hour fixed"
    assert (await operator("GET", at)).json == {
        "rule": "login",
        "complete": True,
        "overrides": [{"rule": "login", "key": "user=ann", "limits": "1/hour fixed"}],
    }
    refused = await operator("PUT", f"{at}/user=ann", {"limits": "9/hour fixed", "absent": True})
    assert (refused.status, sentence(refused)) == (409, "user=ann has a limit of its own already; it stays.")
    assert (await operator("DELETE", f"{at}/user=ann")).json["had"] == "1/hour fixed"
    assert (await operator("DELETE", f"{at}/user=ann")).status == 404
    assert await operator.check(user="ann")


async def test_a_list_of_them_is_bounded(operator: Operator) -> None:
    for user in "abc":
        await operator("PUT", f"/rules/login/overrides/user={user}", {"limits": "1/hour fixed", "ttl": 60})
    response = (await operator("GET", "/rules/login/overrides?top=2")).json
    assert (len(response["overrides"]), response["complete"]) == (2, False)


async def test_an_override_that_would_decide_nothing_is_refused(operator: Operator) -> None:
    for rule, key, limits, words in (
        ("plans", "user=ann", "1/hour fixed", "takes no overrides"),
        ("login", "usr=ann", "1/hour fixed", "Write user=VALUE"),
        ("login", "user=ann", "1/hour log", "counts something else"),
        ("login", "user=ann", "1/minit", "1/minute"),
    ):
        reply = await operator("PUT", f"/rules/{rule}/overrides/{key}", {"limits": limits})
        assert (reply.status, words in sentence(reply)) == (400, True), reply
    missing = await operator("PUT", "/rules/logn/overrides/user=ann", {"limits": "1/hour fixed"})
    assert (missing.status, "Did you mean login?" in sentence(missing)) == (404, True)
    assert (await operator("GET", "/rules/login/overrides")).json["overrides"] == []


# Counts.


async def test_keys_of_the_embedded_engine_busiest_first(operator: Operator) -> None:
    for user, calls in (("ann", 1), ("bob", 4), ("eve", 2)):
        for _ in range(calls):
            await operator.check(user=user)
    await operator.check(path="/jobs")
    response = (await operator("GET", "/keys?top=2")).json
    assert (response["counts"], response["complete"]) == (4, True)
    assert [(each["key"], each["used"], each["of"]) for each in response["keys"]] == [
        ("user=bob", 4, 5),
        ("all", 1, 2),
    ]
    assert {each["name"]: each["counts"] for each in response["rules"]} == {"login": 3, "jobs": 1}
    assert [each["key"] for each in (await operator("GET", "/keys?rule=jobs")).json["keys"]] == ["all"]
    missing = await operator("GET", "/keys?rule=lgoin")
    assert (missing.status, "Did you mean login?" in sentence(missing)) == (404, True)
    assert (await operator("GET", "/keys?rule=plans")).json["keys"] == []


async def test_a_call_is_peeked_at_and_charged_nothing(operator: Operator) -> None:
    request = {"attributes": {"user": "ann", "path": "/plans", "plan": "pro"}, "cost": 3}
    for _ in range(2):
        response = (await operator("POST", "/peek", request)).json
        assert response["allowed"]
        assert [(each["rule"], each["key"], each["limit"]) for each in response["limits"]] == [
            ("login", "user=ann", "5/hour fixed"),
            ("plans", "user=ann", "100/hour fixed"),
        ]
    assert not (await operator("POST", "/peek", {**request, "cost": 6})).json["allowed"]


async def test_one_key_of_a_rule_is_peeked_at(operator: Operator) -> None:
    await operator.check(user="ann")
    response = (await operator("POST", "/peek", {"rule": "login", "key": "user=ann"})).json
    assert (response["allowed"], response["limits"][0]["remaining"]) == (True, 4)
    which = await operator("POST", "/peek", {"rule": "plans", "key": "user=ann"})
    assert (which.status, '"attributes": {"plan": ...}' in sentence(which)) == (400, True)
    request = {"rule": "plans", "key": "user=ann", "attributes": {"plan": "pro"}}
    assert (await operator("POST", "/peek", request)).json["limits"][0]["limit"] == "100/hour fixed"
    request["attributes"] = {"plan": None}
    assert (await operator("POST", "/peek", request)).json["limits"][0]["limit"] == "10/hour fixed"
    assert (await operator("POST", "/peek", {"rule": "jobs", "key": "all"})).json["limits"][0]["remaining"] == 2


async def test_the_key_is_required(operator: Operator) -> None:
    for request, words in (
        ({}, '"rule" and "key"'),
        ({"key": "user=ann"}, '"rule"'),
        ({"rule": "login"}, "user=VALUE"),
        ({"rule": "login", "key": "ann"}, "user=VALUE"),
        ({"rule": "login", "kye": "ann"}, "kye"),
    ):
        for verb in ("/peek", "/reset", "/refund"):
            reply = await operator("POST", verb, request)
            assert (reply.status, words in sentence(reply)) == (400, True), reply
    nobody = await operator("POST", "/reset", {"attributes": {"path": "/"}})
    assert (nobody.status, sentence(nobody)) == (
        400,
        "No rule counts a call of these attributes: there is nothing to do.",
    )


async def test_a_reset_says_what_was_forgotten(operator: Operator) -> None:
    call = {"user": "ann", "path": "/plans"}
    for _ in range(6):
        await operator.check(**call)
    assert not await operator.check(**call)
    response = (await operator("POST", "/reset", {"attributes": call})).json
    assert response == {
        "forgotten": [
            {"rule": "login", "key": "user=ann", "counts": ["login"]},
            {"rule": "plans", "key": "user=ann", "counts": ["plans@pro", "plans"]},
        ],
        "left_out": [],
    }
    assert (await operator("POST", "/peek", {"rule": "login", "key": "user=ann"})).json["limits"][0][
        "remaining"
    ] == 5


async def test_a_reset_also_deletes_candidate_counts() -> None:
    rule = {"name": "a", "key": "user", "missing": "skip", "limit": "5/hour fixed", "candidate": "3/hour fixed"}
    async with Operator({"rules": [rule]}) as operator:
        await operator.check(user="ann")
        response = (await operator("POST", "/reset", {"rule": "a", "key": "user=ann"})).json
        assert response["forgotten"][0]["counts"] == ["a", "a~"]
        assert (await operator("GET", "/keys")).json["keys"] == []


async def test_one_key_is_reset_and_its_slots(operator: Operator) -> None:
    for user in ("ann", "bob"):
        for _ in range(5):
            await operator.check(user=user)
    await operator("POST", "/reset", {"rule": "login", "key": "user=ann"})
    assert [await operator.check(user=user) for user in ("ann", "bob")] == [True, False]
    for _ in range(2):
        await operator.check(path="/jobs")
    assert not await operator.check(path="/jobs")
    assert (await operator("POST", "/reset", {"rule": "jobs", "key": "all"})).status == 200
    assert await operator.check(path="/jobs")


async def test_a_key_is_paused_and_a_reset_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.admin")
    rule = {"name": "api", "key": "user", "missing": "skip", "limit": "5/hour", "pausable": True}
    async with Operator({"rules": [rule, {"name": "all", "limit": "9/s"}]}) as operator:
        body = {"rule": "api", "key": "user=ann", "seconds": 7200}
        paused = {"name": "api", "key": "user=ann", "paused_for": 3600.0}
        assert (await operator("POST", "/pause", body)).json == paused
        assert not await operator.check(user="ann")
        assert await operator.check(user="bob")
        assert [each["key"] for each in (await operator("GET", "/keys")).json["pauses"]] == ["user=ann"]
        await operator("POST", "/reset", {"rule": "api", "key": "user=ann"})
        assert await operator.check(user="ann")
        refused = await operator("POST", "/pause", {"rule": "all", "key": "all", "seconds": 5})
        assert (refused.status, "pausable: true" in sentence(refused)) == (400, True)
        assert (await operator("POST", "/pause", body | {"seconds": 0})).status == 400
        assert (await operator("POST", "/pause", body | {"rule": "none"})).status == 404
    assert "key paused" in caplog.text


async def test_units_are_given_back_to_a_call_and_to_a_key(operator: Operator) -> None:
    for _ in range(5):
        await operator.check(user="ann")
    limits = (await operator("POST", "/refund", {"attributes": {"user": "ann"}, "cost": 2})).json["limits"]
    assert [(each["name"], each["before"], each["remaining"]) for each in limits] == [("login", 0, 2)]
    limits = (await operator("POST", "/refund", {"rule": "login", "key": "user=ann", "cost": 99})).json["limits"]
    assert [(each["before"], each["remaining"]) for each in limits] == [(2, 5)]


async def test_a_key_that_is_no_path(operator: Operator) -> None:
    path = "/rules/login/overrides/user=a%2Fb%257C%2F%3F"
    assert (await operator("PUT", path, {"limits": "1/hour fixed"})).json["key"] == "user=a/b%7C/?"


# What is told of the worker, and what is logged.


async def test_status() -> None:
    async with Operator(BOOK, admin_token=TOKEN) as operator:
        response = (await operator("GET", "/status")).json
        assert (response["engine"], response["rules"], response["rulebook_version"], response["degraded"]) == (
            "memory://",
            3,
            None,
            [],
        )
        assert (response["refused_changes"], response["refused_why"]) == (0, None)


async def test_a_refused_file_is_in_the_status(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    async with Operator(str(path)) as operator:
        path.write_text("rules: [{name: a, limit: 10/minit}]")
        assert operator.limiter.watcher is not None
        operator.limiter.watcher.poll()
        response = (await operator("GET", "/status")).json
        assert response["refused_changes"] == 1
        assert "10/minute" in response["refused_why"]


async def test_every_change_is_one_line(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.admin")
    await operator.check(user="ann")
    at = {"client": "192.0.2.9:5"}
    key = "user=ann"
    await operator(
        "PUT", f"/rules/login/overrides/{key}", {"limits": "9/hour fixed", "ttl": 60}, author="eve", **at
    )
    await operator("DELETE", f"/rules/login/overrides/{key}", author="J%C3%BCrgen", **at)
    await operator("POST", "/reset", {"rule": "login", "key": key}, **at)
    await operator("POST", "/refund", {"rule": "login", "key": key}, **at)
    for target in ("/rules", "/keys", "/status", "/rules/login/overrides", "/openapi.json"):
        await operator("GET", target)
    await operator("POST", "/peek", {"rule": "login", "key": key})
    await operator("DELETE", f"/rules/login/overrides/{key}")
    changes = [record for record in caplog.records if record.name == "headgate.admin"]
    lines = [TextFormatter().format(record).split(" info ", 1)[1] for record in changes]
    lines[1] = re.sub(r"before_ttl=\d+\.\d+", "before_ttl=(what was left)", lines[1])
    assert lines == [
        f'override set author=eve remote=192.0.2.9:5 rule=login key={key} after="9/hour fixed" ttl=60.0',
        f'override unset author="J\\u00fcrgen" remote=192.0.2.9:5 rule=login key={key} before="9/hour fixed" '
        "before_ttl=(what was left)",
        f"key reset author=ann remote=192.0.2.9:5 rule=login key={key} counts=login used=login=1",
        f"units refunded author=ann remote=192.0.2.9:5 rule=login key={key} units=1",
    ]
    assert TOKEN not in caplog.text


async def test_a_unix_socket_client_is_logged_as_unix(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator("GET", "/status", token="guessed", client=SOCKET_FILE)
    assert [vars(record)["remote"] for record in caplog.records] == ["unix"]


def test_no_value_can_be_taken_for_two(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.admin")
    log_change("key reset", "ann", "192.0.2.9:5", key="user=a author=eve\n2026 info override set")
    (record,) = caplog.records
    line = TextFormatter().format(record)
    assert "\n" not in line
    assert 'key="user=a author=eve\\n2026' in line
