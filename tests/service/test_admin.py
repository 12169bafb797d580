"""Operators' HTTP: who is let in, and what they can do to an embedded engine. (On Redis: test_admin_pushed.py.)"""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.rules import load
from headgate.service import sample
from headgate.service.admin import app
from headgate.service.admin.app import PACE
from headgate.service.admin.journal import changed
from headgate.service.admin.routes import ROUTES, TEXT, Route
from headgate.service.log import Line
from tests.service.operators import TOKEN, YAML, Operator, listening

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "login", "key": "user", "missing": "skip", "limit": "5/hour fixed", "overrides": True},
        {
            "name": "plans",
            "when": {"path": "/plans"},
            "key": "user",
            "missing": "skip",
            "limit": {"by": "plan", "cases": {"pro": "100/hour fixed"}, "otherwise": "10/hour fixed"},
        },
        {"name": "jobs", "when": {"path": "/jobs"}, "limit": "2 slots"},
    ]
}
SOCKET_FILE = ""
BROKEN = """
rules:
  - {name: a, limit: 10/minit}
  - {name: b, limits: 10/minute}
"""


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    async with Operator(BOOK) as operator:
        yield operator


def sentence(reply: Any) -> str:
    found: str = reply.json["detail"]
    return found


def path_of(route: Route) -> str:
    return route.path.format(rule="login", key="user=ann", version=1) if "{" in route.path else route.path


# Who is let in.


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.verb)
async def test_without_the_token_nothing_is_read_or_told(
    operator: Operator, route: Route, caplog: pytest.LogCaptureFixture
) -> None:
    for token in (None, "", "guessed", TOKEN[:-1], f"{TOKEN}x", "é"):
        caplog.clear()
        reply = await operator(route.method, path_of(route), b"{}", token=token)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert operator.body.read == 0
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("headgate.admin", "WARNING")
        assert not token or token not in Line().format(record)


async def test_the_token_must_come_as_a_bearers(operator: Operator) -> None:
    for shown, status in ((f"Basic {TOKEN}", 401), (TOKEN, 401), (f"bearer  {TOKEN} ", 200)):
        assert (await operator("GET", "/status", token=None, authorization=shown)).status == status


async def test_also_the_description_wants_it(operator: Operator) -> None:
    assert (await operator("GET", "/openapi.json", token="wrong")).status == 401
    assert (await operator("GET", "/openapi.json")).status == 200


async def test_guesses_are_slow_and_keep_nobody_else_out(operator: Operator) -> None:
    assert PACE == "10/s burst 20"
    replies = [await operator("GET", "/status", token="wrong", client=f"192.0.2.7:{port}") for port in range(40)]
    assert [reply.status for reply in replies[:20]] == [401] * 20
    assert 429 in [reply.status for reply in replies[20:]]
    right = [await operator("GET", "/status", client=f"192.0.2.7:{port}") for port in range(25)]
    late = next(reply for reply in right if reply.status == 429)  # a right guess is no faster
    assert late.headers["retry-after"] == "1"
    assert (await operator("GET", "/status", client="192.0.2.8:1")).status == 200


async def test_a_network_of_ipv6_is_one_guesser(operator: Operator) -> None:
    replies = [await operator("GET", "/status", client=f"[2001:db8::{n:x}]:1") for n in range(1, 42)]
    assert 429 in [reply.status for reply in replies]
    assert (await operator("GET", "/status", client="[2001:db8:0:1::1]:1")).status == 200


# What is asked.


@pytest.mark.parametrize("route", [route for route in ROUTES if route.changes], ids=lambda route: route.verb)
async def test_a_change_has_an_author(operator: Operator, route: Route) -> None:
    for author in (None, " ", "ann\x1b[2J", "ann%0Aeve", "x" * 101):
        reply = await operator(route.method, path_of(route), b"{}", author=author, content_type=YAML)
        assert reply.status == 400
        assert "author" in sentence(reply).lower()
        assert operator.body.read == 0


async def test_what_is_not_here(operator: Operator) -> None:
    for target in ("/", "/rulez", "/rules/", "/rules/login", "/rules/history/x", "/rules/login/overrides/"):
        assert (await operator("GET", target)).status == 404, target
    reply = await operator("PATCH", "/rules")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, PUT")
    assert (await operator("GET", "/keys?tpo=1")).json["detail"].startswith('"tpo" is not a parameter here.')
    assert (await operator("GET", "/keys?top=0")).status == 400
    assert (await operator("GET", "/keys?top=%FF")).status == 400
    assert (await operator("GET", f"/keys?rule={'x' * 257}")).status == 400


async def test_bodies_are_bounded_and_left_unread(operator: Operator) -> None:
    reply = await operator("POST", "/peek", b"x" * 70_000)
    assert (reply.status, operator.body.read) == (413, 66)
    assert (await operator("POST", "/peek", b"{}", content_length="70000")).status == 413
    assert operator.body.read == 0
    large = await operator("PUT", "/rules", b"x" * 5_000_000, content_type=YAML)
    assert large.status == 413
    key = "user=" + "x" * 9000
    assert (await operator("GET", f"/rules/login/overrides/{key}")).status == 400
    assert (await operator("POST", "/peek", {"rule": "login", "key": key})).status == 400


async def test_a_rulebook_says_how_it_is_written(operator: Operator) -> None:
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        reply = await operator("POST", "/rules/validate", b"rules: []", content_type=kind)
        assert reply.status == 415
        assert "application/yaml" in sentence(reply)


STRANGE: list[Any] = [
    *(None, True, "", "x", "x" * 20_000, "\x00", -1, 0, 0.0001, 1.5, 2**70, 1e308, 31_622_401, [], [1], {}),
    *({"x": []}, {"x": "y" * 9000}, {"y" * 300: 1}, {str(n): 1 for n in range(300)}, {"plan": True}),
]


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if isinstance(route.asked, type)], ids=lambda r: r.verb
)
async def test_every_field_may_hold_anything(operator: Operator, route: Route) -> None:
    assert isinstance(route.asked, type)
    good = {"limits": "1/hour fixed"} if route.verb == "set_override" else {"rule": "login", "key": "user=ann"}
    for field in msgspec.structs.fields(route.asked):
        for value in STRANGE:
            for beside in ({}, good if route.verb != "rollback" else {}):
                reply = await operator(route.method, path_of(route), {**beside, field.name: value})
                assert reply.status in (200, 400, 404, 409), (field.name, value, reply)


bodies = st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["attributes", "rule", "key", "cost", "to", "note", "limits", "ttl", "absent", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    route=st.sampled_from([route for route in ROUTES if route.asked is not None]),
    body=bodies,
    kind=st.sampled_from([YAML, "application/json", "application/toml"]),
    rule=st.sampled_from(["login", "plans", "jobs", "none"]) | st.text(min_size=1, max_size=5),
    key=st.sampled_from(["user=ann", "all"]) | st.text(min_size=1, max_size=10),
)
async def test_whatever_is_sent_is_answered(route: Route, body: bytes, kind: str, rule: str, key: str) -> None:
    async with Operator(BOOK) as operator:
        scope_path = route.path.format(rule=rule, key=key) if "{" in route.path else route.path
        quoted = scope_path.replace("%", "%25").replace("?", "%3F")
        reply = await operator(route.method, quoted, body, content_type=kind)
        assert reply.status in (200, 400, 404, 409), reply


# Rules that come from elsewhere.


async def test_the_sample_is_told_as_it_could_be_written() -> None:
    async with Operator() as operator:
        told = (await operator("GET", "/rules")).json
        assert load.parse(told["text"], format=told["format"]) == load.of(sample.BOOK)
        assert (told["source"], told["edition"], told["rules"]) == ("the sample", None, 3)
        refused = await operator.put_rules("rules: []")
        assert refused.status == 409
        assert "--rules pushed" in sentence(refused)
        assert len(operator.limiter.rulebook) == 3


async def test_rules_of_a_file_are_changed_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("# ours\nrules: [{name: a, limit: 10/hour}]\n")
    async with Operator(str(path)) as operator:
        told = (await operator("GET", "/rules")).json
        assert (told["text"], told["format"], told["source"]) == (path.read_text(), "yaml", str(path))
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


async def test_every_problem_of_a_book_is_told_with_its_line(operator: Operator) -> None:
    reply = await operator("POST", "/rules/validate", BROKEN.encode(), content_type=YAML)
    assert reply.status == 400
    assert [problem["line"] for problem in reply.json["problems"]] == [3, 4, 4]
    assert "10/minute" in reply.json["problems"][0]["problem"]
    assert "limits" in reply.json["problems"][1]["problem"]


# Limits of single keys.


async def test_a_key_gets_a_limit_of_its_own_and_loses_it(operator: Operator) -> None:
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
    told = (await operator("GET", "/rules/login/overrides?top=2")).json
    assert (len(told["overrides"]), told["complete"]) == (2, False)


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
    told = (await operator("GET", "/keys?top=2")).json
    assert (told["counts"], told["complete"]) == (4, True)
    assert [(each["key"], each["used"], each["of"]) for each in told["keys"]] == [
        ("user=bob", 4, 5),
        ("all", 1, 2),
    ]
    assert {each["name"]: each["counts"] for each in told["rules"]} == {"login": 3, "jobs": 1}
    assert [each["key"] for each in (await operator("GET", "/keys?rule=jobs")).json["keys"]] == ["all"]


async def test_a_call_is_peeked_at_and_charged_nothing(operator: Operator) -> None:
    asked = {"attributes": {"user": "ann", "path": "/plans", "plan": "pro"}, "cost": 3}
    for _ in range(2):
        told = (await operator("POST", "/peek", asked)).json
        assert told["allowed"]
        assert [(each["rule"], each["key"], each["limit"]) for each in told["limits"]] == [
            ("login", "user=ann", "5/hour fixed"),
            ("plans", "user=ann", "100/hour fixed"),
        ]
    assert not (await operator("POST", "/peek", {**asked, "cost": 6})).json["allowed"]


async def test_one_key_of_a_rule_is_peeked_at(operator: Operator) -> None:
    await operator.check(user="ann")
    told = (await operator("POST", "/peek", {"rule": "login", "key": "user=ann"})).json
    assert (told["allowed"], told["limits"][0]["remaining"]) == (True, 4)
    which = await operator("POST", "/peek", {"rule": "plans", "key": "user=ann"})
    assert (which.status, '"attributes": {"plan": ...}' in sentence(which)) == (400, True)
    asked = {"rule": "plans", "key": "user=ann", "attributes": {"plan": "pro"}}
    assert (await operator("POST", "/peek", asked)).json["limits"][0]["limit"] == "100/hour fixed"
    asked["attributes"] = {"plan": None}
    assert (await operator("POST", "/peek", asked)).json["limits"][0]["limit"] == "10/hour fixed"
    assert (await operator("POST", "/peek", {"rule": "jobs", "key": "all"})).json["limits"][0]["remaining"] == 2


async def test_it_must_be_said_whose(operator: Operator) -> None:
    for asked, words in (
        ({}, '"rule" and "key"'),
        ({"key": "user=ann"}, '"rule"'),
        ({"rule": "login"}, "user=VALUE"),
        ({"rule": "login", "key": "ann"}, "user=VALUE"),
        ({"rule": "login", "kye": "ann"}, "kye"),
    ):
        for verb in ("/peek", "/reset", "/refund"):
            reply = await operator("POST", verb, asked)
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
    told = (await operator("POST", "/reset", {"attributes": call})).json
    assert told == {
        "forgotten": [
            {"rule": "login", "key": "user=ann", "counts": ["login"]},
            {"rule": "plans", "key": "user=ann", "counts": ["plans@pro", "plans"]},
        ],
        "left_out": [],
    }
    assert (await operator("POST", "/peek", {"rule": "login", "key": "user=ann"})).json["limits"][0][
        "remaining"
    ] == 5


async def test_a_reset_also_forgets_what_was_decided_beside() -> None:
    rule = {"name": "a", "key": "user", "missing": "skip", "limit": "5/hour fixed", "candidate": "3/hour fixed"}
    async with Operator({"rules": [rule]}) as operator:
        await operator.check(user="ann")
        told = (await operator("POST", "/reset", {"rule": "a", "key": "user=ann"})).json
        assert told["forgotten"][0]["counts"] == ["a", "a~"]
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


async def test_units_are_given_back_to_a_call_and_to_a_key(operator: Operator) -> None:
    for _ in range(5):
        await operator.check(user="ann")
    told = (await operator("POST", "/refund", {"attributes": {"user": "ann"}, "cost": 2})).json["limits"]
    assert [(each["name"], each["before"], each["remaining"]) for each in told] == [("login", 0, 2)]
    told = (await operator("POST", "/refund", {"rule": "login", "key": "user=ann", "cost": 99})).json["limits"]
    assert [(each["before"], each["remaining"]) for each in told] == [(2, 5)]


async def test_a_key_that_is_no_path(operator: Operator) -> None:
    own = "/rules/login/overrides/user=a%252Fb%257C%2F%3F"
    assert (await operator("PUT", own, {"limits": "1/hour fixed"})).json["key"] == "user=a%2Fb%7C/?"


# What is told of the worker, and what is logged.


async def test_status() -> None:
    async with Operator(BOOK, admin_token=TOKEN) as operator:
        told = (await operator("GET", "/status")).json
        assert (told["engine"], told["rules"], told["edition"], told["degraded"]) == ("memory://", 3, None, [])
        assert (told["refused_changes"], told["refused_why"]) == (0, None)


async def test_a_refused_file_is_told_in_the_status(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("rules: []")
    async with Operator(str(path)) as operator:
        path.write_text("rules: [{name: a, limit: 10/minit}]")
        assert operator.limiter.watch is not None
        operator.limiter.watch.look()
        told = (await operator("GET", "/status")).json
        assert told["refused_changes"] == 1
        assert "10/minute" in told["refused_why"]


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
    lines = [Line().format(record).split(" info ", 1)[1] for record in caplog.records]
    assert lines == [
        f'override set author=eve remote=192.0.2.9:5 rule=login key={key} after="9/hour fixed" ttl=60.0',
        f'override unset author="J\\u00fcrgen" remote=192.0.2.9:5 rule=login key={key} before="9/hour fixed"',
        f"key reset author=ann remote=192.0.2.9:5 rule=login key={key} counts=login",
        f"units refunded author=ann remote=192.0.2.9:5 rule=login key={key} units=1",
    ]
    assert TOKEN not in caplog.text


async def test_who_comes_by_a_socket_file_has_no_address(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator("GET", "/status", token="guessed", client=SOCKET_FILE)
    assert [vars(record)["remote"] for record in caplog.records] == ["unix"]


def test_no_value_can_be_taken_for_two(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate.admin")
    changed("key reset", "ann", "192.0.2.9:5", key="user=a author=eve\n2026 info override set")
    (record,) = caplog.records
    line = Line().format(record)
    assert "\n" not in line
    assert 'key="user=a author=eve\\n2026' in line


# The description.


async def test_the_description_is_whole(operator: Operator) -> None:
    told = (await operator("GET", "/openapi.json")).json
    schemas = told["components"]["schemas"]
    text = json.dumps(told)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    assert {(method.upper(), path) for path, methods in told["paths"].items() for method in methods} == {
        (route.method, route.path) for route in ROUTES
    }
    for route in ROUTES:
        operation = told["paths"][route.path][route.method.lower()]
        names = {each["name"] for each in operation.get("parameters", ())}
        assert ("X-Headgate-Author" in names) == route.changes
        assert ("requestBody" in operation) == (route.asked is not None)
        if route.asked is TEXT:
            assert "application/yaml" in operation["requestBody"]["content"]


async def test_schemathesis_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "PACE", "100000/s burst 100000")
    async with Operator(BOOK, body=2**22) as operator, listening(operator.admin) as line:
        # No schema can say what a limit in words is, or a rulebook: much that it allows is refused.
        run = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{line.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {TOKEN}", "--header", "X-Headgate-Author: ann"),
            *(
                "--checks",
                "all",
                "--exclude-checks",
                "positive_data_acceptance",
                "--mode",
                "all",
                "--workers",
                "1",
                "--max-examples",
                "5",
                "--seed",
                "6",
            ),
            *("--request-timeout", "10", "--no-color"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(run.communicate(), 120)
        assert run.returncode == 0, said.decode()[-8000:]
