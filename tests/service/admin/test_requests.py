"""The admin API: who has access, which requests are valid, and its description."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.service.admin import app
from headgate.service.admin.app import REQUEST_LIMIT
from headgate.service.admin.routes import ROUTES, RULEBOOK_TEXT, AdminRoute
from headgate.service.log_format import TextFormatter
from tests.service.admin.admin_harness import BOOK, TOKEN, YAML, Operator, path_of, sentence, serve_admin

# Who is let in.


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.handler)
async def test_without_the_token_nothing_is_read_or_returned(
    operator: Operator, route: AdminRoute, caplog: pytest.LogCaptureFixture
) -> None:
    for token in (None, "", "guessed", TOKEN[:-1], f"{TOKEN}x", "é"):
        caplog.clear()
        reply = await operator(route.method, path_of(route), b"{}", token=token)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert operator.body.read == 0
        (record,) = caplog.records
        assert (record.name, record.levelname) == ("headgate.admin", "WARNING")
        assert not token or token not in TextFormatter().format(record)


async def test_the_token_must_come_as_a_bearers(operator: Operator) -> None:
    for shown, status in ((f"Basic {TOKEN}", 401), (TOKEN, 401), (f"bearer  {TOKEN} ", 200)):
        assert (await operator("GET", "/status", token=None, authorization=shown)).status == status


async def test_also_the_description_wants_it(operator: Operator) -> None:
    assert (await operator("GET", "/openapi.json", token="wrong")).status == 401
    assert (await operator("GET", "/openapi.json")).status == 200


async def test_guesses_are_slow_and_keep_nobody_else_out(operator: Operator) -> None:
    assert REQUEST_LIMIT == "10/s burst 20"
    replies = [await operator("GET", "/status", token=None, client=f"192.0.2.7:{port}") for port in range(40)]
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


@pytest.mark.parametrize("route", [route for route in ROUTES if route.is_change], ids=lambda route: route.handler)
async def test_a_change_has_an_author(operator: Operator, route: AdminRoute) -> None:
    for author in (None, " ", "ann\x1b[2J", "ann%0Aeve", "x" * 101):
        reply = await operator(route.method, path_of(route), b"{}", author=author, content_type=YAML)
        assert reply.status == 400
        assert "author" in sentence(reply).lower()
        assert operator.body.read == 0


async def test_unknown_paths_get_404(operator: Operator) -> None:
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
    "route", [route for route in ROUTES if isinstance(route.request_type, type)], ids=lambda r: r.handler
)
async def test_every_field_may_hold_anything(operator: Operator, route: AdminRoute) -> None:
    assert isinstance(route.request_type, type)
    good = {"limits": "1/hour fixed"} if route.handler == "set_override" else {"rule": "login", "key": "user=ann"}
    for field in msgspec.structs.fields(route.request_type):
        for value in STRANGE:
            for beside in ({}, good if route.handler != "rollback" else {}):
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
    route=st.sampled_from([route for route in ROUTES if route.request_type is not None]),
    body=bodies,
    kind=st.sampled_from([YAML, "application/json", "application/toml"]),
    rule=st.sampled_from(["login", "plans", "jobs", "none"]) | st.text(min_size=1, max_size=5),
    key=st.sampled_from(["user=ann", "all"]) | st.text(min_size=1, max_size=10),
)
async def test_every_request_body_is_answered(
    route: AdminRoute, body: bytes, kind: str, rule: str, key: str
) -> None:
    async with Operator(BOOK) as operator:
        scope_path = route.path.format(rule=rule, key=key) if "{" in route.path else route.path
        quoted = scope_path.replace("%", "%25").replace("?", "%3F")
        reply = await operator(route.method, quoted, body, content_type=kind)
        assert reply.status in (200, 400, 404, 409), reply


# The description.


async def test_the_description_is_whole(operator: Operator) -> None:
    response = (await operator("GET", "/openapi.json")).json
    schemas = response["components"]["schemas"]
    text = json.dumps(response)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in schemas
    assert {(method.upper(), path) for path, methods in response["paths"].items() for method in methods} == {
        (route.method, route.path) for route in ROUTES
    }
    for route in ROUTES:
        operation = response["paths"][route.path][route.method.lower()]
        names = {each["name"] for each in operation.get("parameters", ())}
        assert ("X-Headgate-Author" in names) == route.is_change
        assert ("requestBody" in operation) == (route.request_type is not None)
        if route.request_type is RULEBOOK_TEXT:
            assert "application/yaml" in operation["requestBody"]["content"]


async def test_schemathesis_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "REQUEST_LIMIT", "100000/s burst 100000")
    async with Operator(BOOK, body=2**22) as operator, serve_admin(operator.admin) as line:
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
        output, _ = await asyncio.wait_for(run.communicate(), 120)
        assert run.returncode == 0, output.decode()[-8000:]
