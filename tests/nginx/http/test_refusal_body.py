"""Bodies of refusals in nginx, and the word that is logged for them."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidRulebook
from headgate.rules.load import from_mapping
from headgate.rules.serialization import document
from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

JSON, BROWSER, CURL = "application/json", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "*/*"
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def answer(
    lua: LuajitProcess, refuse: dict[str, Any] | None, accept: str | None = None, violated: Any = ("login",)
) -> Any:
    request = {"rule": "login", "violated": violated}
    request |= {} if refuse is None else {"refuse": refuse}
    return lua.call_driver("refusal", **request, **({} if accept is None else {"accept": accept}))


@pytest.mark.parametrize("accept", [None, BROWSER, CURL, ""])
def test_a_rule_that_says_nothing_leaves_the_page_to_nginx(lua: LuajitProcess, accept: str | None) -> None:
    assert answer(lua, None, accept) == {"status": 429}
    assert answer(lua, {"status": 503}, accept) == {"status": 503}


@pytest.mark.parametrize("status", [429, 503])
def test_clients_that_prefer_json_get_problem_json(lua: LuajitProcess, status: int) -> None:
    response = answer(lua, {"status": status}, JSON, ["login", 'say "hé"\\\n'])
    assert (response["status"], response["type"]) == (status, PROBLEM)
    body = json.loads(response["body"].encode("latin-1").decode())
    assert body.pop("title") == "Too Many Requests"
    assert "Retry-After" in body.pop("detail")
    assert body == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "status": status,
        "violated-policies": ["login", 'say "hé"\\\n'],
    }


@pytest.mark.parametrize(
    ("accept", "wants"),
    [
        (JSON, True),
        (PROBLEM, True),
        ("Application/JSON; charset=utf-8", True),
        ("application/json, text/plain, */*", True),
        ("*/*, application/json", True),
        ("application/json;q=0.9, text/html;q=0.8", True),
        ("text/html;q=0.8, application/problem+json;q=0.9", True),
        ("application/json, text/html", True),
        ("application/json, text/html;q=0", True),
        ("text/html, application/json", False),
        ("text/html, application/problem+json, application/json", False),
        ("application/json;q=0.5, */*", False),
        ("application/json;q=0.5, text/*;q=0.7", False),
        ("application/json;q=0", False),
        ("application/json ; Q=0.0, */*;q=0", False),
        ("application/*", False),
        ("text/json-looking", False),
        ("text/html;level=application/json", False),
        (BROWSER, False),
    ],
)
def test_accept_headers_that_prefer_json(lua: LuajitProcess, accept: str, wants: bool) -> None:
    assert ("body" in answer(lua, None, accept)) is wants


@pytest.mark.parametrize("accept", [None, JSON, BROWSER])
def test_the_body_of_a_rule_is_sent_to_every_client(lua: LuajitProcess, accept: str | None) -> None:
    refusal = {"status": 403, "body": "<b>Später</b>", "type": "text/html"}
    assert answer(lua, refusal, accept) == refusal | {"body": "<b>Später</b>".encode().decode("latin-1")}
    plain = {"status": 429, "body": "Later."}
    assert answer(lua, plain, accept) == plain | {"type": "text/plain; charset=utf-8"}
    assert answer(lua, {"body": ""}, accept)["body"] == ""


@pytest.mark.parametrize("accept", [None, JSON])
def test_a_redirect(lua: LuajitProcess, accept: str | None) -> None:
    assert answer(lua, {"redirect": "/slow"}, accept) == {"status": 302, "location": "/slow"}
    far = {"status": 307, "redirect": "HTTPS://example.com/queue?from=a#b"}
    assert answer(lua, far, accept) == {"status": 307, "location": far["redirect"]}


@pytest.mark.parametrize("status", [200, 204, 304, 444])
def test_statuses_without_a_body_have_none(lua: LuajitProcess, status: int) -> None:
    assert answer(lua, {"status": status}, JSON) == {"status": status}


def test_an_invalid_status_is_reported(lua: LuajitProcess) -> None:
    for status in (199, 600, 429.5, "429"):
        assert answer(lua, {"status": status})["error"] == (
            f'rule "login": refuse has a status of {status}. It is a whole number from 200 to 599.'
        )
    for status in (200, 429):
        assert "a whole number from 300 to 399" in answer(lua, {"redirect": "/", "status": status})["error"]
    for kind in ("html", "text/plain\r\nX: y", "text/plain\n", "text/plain; a=é", " text/plain"):
        assert "is no content type" in answer(lua, {"body": "x", "type": kind})["error"]


REDIRECTS = st.text(st.sampled_from("htps:/?#@a.%[]é\r\n\t \x00\x7f\\"), max_size=14) | st.sampled_from(
    [
        "/a\r\nSet-Cookie: x=y",
        "https://a\n",
        "//evil.example",
        "/\\evil",
        "javascript:x",
        "http://",
        "HTTP://a",
        "/",
    ]
)


def loaded(address: str) -> dict[str, Any] | None:
    """Returns the refusal of a rule with this redirect, as in the document; None if the loader refuses it."""
    book = {"rules": [{"name": "login", "limit": "1/s", "refuse": {"redirect": address}}]}
    try:
        written: dict[str, Any] = document(from_mapping(book))["rules"][0]["refuse"]
    except InvalidRulebook:
        return None
    return written


@settings(max_examples=500, deadline=None)
@given(REDIRECTS | REDIRECTS.map(lambda rest: "/" + rest) | REDIRECTS.map(lambda rest: "https://a" + rest))
def test_an_address_is_taken_if_the_loader_takes_it_and_it_cannot_end_a_header(
    lua: LuajitProcess, address: str
) -> None:
    """By itself: a bundle may come from a loader that was less strict."""
    written = loaded(address)
    response = answer(lua, {"redirect": address})
    if written is not None and re.fullmatch("[!-~]+", address):
        assert response == {"status": written["status"], "location": written["redirect"]}
    else:
        assert "is no address" in response["error"]


PASSED, DELAYS, REFUSES = [1, 3, 0, 5, 0, 0, 0], [1, 3, 0, 5, 70, 0, 0], [0, 0, 9, 5, 0, 0, 0]
LOCKED_OUT = [-3, 0, 9, 5, 0, 0, 0]


@pytest.mark.parametrize(
    ("asides", "expected"),
    [
        (None, "PASSED"),
        ([], "PASSED"),
        ([PASSED, PASSED], "PASSED"),
        ([PASSED, DELAYS, PASSED], "DELAYED_DRY_RUN"),
        ([REFUSES], "REJECTED_DRY_RUN"),
        ([LOCKED_OUT], "REJECTED_DRY_RUN"),
        ([DELAYS, REFUSES], "REJECTED_DRY_RUN"),
        ([REFUSES, DELAYS], "REJECTED_DRY_RUN"),
    ],
)
def test_shadow_verdicts_are_logged_as_dry_run(lua: LuajitProcess, asides: Any, expected: str) -> None:
    shadow_fields = {} if asides is None else {"asides": asides}
    assert lua.call_driver("word", allowed=True, delayed=False, **shadow_fields) == expected


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("asides", [[], [PASSED], [DELAYS], [REFUSES]])
def test_the_enforced_status_is_logged_before_dry_runs(lua: LuajitProcess, delayed: bool, asides: Any) -> None:
    assert lua.call_driver("word", allowed=False, delayed=delayed, asides=asides) == "REJECTED"
    assert lua.call_driver("word", allowed=True, delayed=True, asides=asides) == "DELAYED"
