"""Bodies of refusals: the rule's own, a problem document or a sentence; nginx sends the same."""

import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import ManualClock
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.http.refusal_body import (
    HTML,
    PLAIN,
    PROBLEM,
    REASONS,
    RefusalResponse,
    configured_response,
    refusal_response,
    undecided_response,
    violated_rules,
    wants_json,
)
from headgate.rules.load import from_mapping
from headgate.rules.rule import Refusal
from headgate.rules.serialization import document
from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

JSON, BROWSER, CURL = "application/json", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "*/*"
TYPES = "https://iana.org/assignments/http-problem-types"


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


@pytest.mark.parametrize("accept", ["text/plain", "text/plain, */*;q=0.5", "text/*", "text/html;q=0", "image/png"])
@pytest.mark.parametrize(
    ("wait", "sentence"),
    [
        (12, "Too many requests. Try again in 12 seconds.\n"),
        (1, "Too many requests. Try again in 1 second.\n"),
        (None, "Too many requests.\n"),
    ],
)
def test_a_rule_that_says_nothing_is_a_sentence(accept: str | None, wait: int | None, sentence: str) -> None:
    expected = RefusalResponse(429, [("Content-Type", PLAIN)], sentence.encode())
    assert configured_response(Refusal(), ["login"], accept, wait) == expected
    assert configured_response(Refusal(503), ["login"], accept, wait) == expected._replace(status=503)


@pytest.mark.parametrize("accept", [BROWSER, "text/html, application/json", "TEXT/HTML;q=0.5"])
def test_a_browser_gets_a_page(accept: str) -> None:
    status, headers, body = configured_response(Refusal(), ["login"], accept, 12)
    assert (status, headers) == (429, [("Content-Type", HTML)])
    assert b"<h1>Too Many Requests</h1>\n<p>Too many requests. Try again in 12 seconds.</p>" in body
    status, headers, body = undecided_response(accept)
    assert (status, headers) == (503, [("Content-Type", HTML)])
    assert b"<title>Service Unavailable</title>" in body


@pytest.mark.parametrize("accept", [JSON, None, "", " ", CURL, "application/*", "*/*;q=0.1, text/html;q=0"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_program_gets_a_problem(status: int, accept: str | None) -> None:
    response = configured_response(Refusal(status), ["login", 'say "hé"\\\n'], accept, 12)
    assert response[:2] == (status, [("Content-Type", PROBLEM)])
    assert json.loads(response.body) == {
        "type": f"{TYPES}#quota-exceeded",
        "title": "Too Many Requests",
        "status": status,
        "detail": "A quota of this service is used up. "
        "Retry-After says how many seconds to wait, if waiting helps.",
        "violated-policies": ["login", 'say "hé"\\\n'],
    }


def test_a_refusal_without_a_limit_says_why() -> None:
    rule = {"name": "keyed", "key": "header.x-key", "missing": "deny", "limit": "1/s"}
    decision = RuleLimiter(from_mapping({"rules": [rule]}), clock=ManualClock()).check({})
    detail = "The request was refused, because header.x-key is missing."
    assert json.loads(refusal_response(decision, CURL).body)["detail"] == detail
    assert refusal_response(decision, "text/plain").body.decode() == f"{detail}\n"
    assert f"<p>{detail}</p>" in refusal_response(decision, BROWSER).body.decode()
    assert (
        json.loads(configured_response(Refusal(), [], JSON, None, 'a "b" is missing').body)["detail"].count('"')
        == 2
    )


def test_a_service_that_cannot_decide() -> None:
    response = undecided_response(JSON, ["login"])
    assert response[:2] == (503, [("Content-Type", PROBLEM)])
    assert json.loads(response.body) == {
        "type": f"{TYPES}#temporary-reduced-capacity",
        "title": "Service Unavailable",
        "status": 503,
        "detail": "This service cannot decide about requests at the moment. Try again later.",
        "violated-policies": ["login"],
    }
    plain = RefusalResponse(
        503, [("Content-Type", PLAIN)], b"This service cannot decide about requests at the moment.\n"
    )
    assert undecided_response("text/plain") == plain
    assert undecided_response(CURL, ["login"]) == undecided_response(None, ["login"]) == response
    assert undecided_response("text/plain", wait=1).body == plain.body.strip() + b" Try again in 1 second.\n"


@pytest.mark.parametrize("accept", [None, JSON, BROWSER])
def test_a_configured_body_is_sent_for_every_accept_header(accept: str | None) -> None:
    response = configured_response(Refusal(403, "<b>Später</b>", "text/html"), ["a"], accept)
    assert response == (403, [("Content-Type", "text/html")], "<b>Später</b>".encode())
    assert configured_response(Refusal(body="Later."), ["a"], accept) == (
        429,
        [("Content-Type", PLAIN)],
        b"Later.",
    )
    assert configured_response(Refusal(body=""), ["a"], accept) == (429, [("Content-Type", PLAIN)], b"")
    assert configured_response(Refusal(302, redirect="/slow"), ["a"], accept) == (
        302,
        [("Location", "/slow")],
        b"",
    )
    far = Refusal(307, redirect="HTTPS://example.com/queue?from=a%20b#c")
    assert configured_response(far, ["a"], accept) == (307, [("Location", far.redirect)], b"")


@pytest.mark.parametrize("accept", [None, JSON, BROWSER])
@pytest.mark.parametrize("status", [200, 204, 304, 444])
def test_statuses_without_a_body_have_none(status: int, accept: str | None) -> None:
    assert configured_response(Refusal(status), ["login"], accept, 12) == (status, [], b"")


@given(st.text(max_size=20), st.text(max_size=20), st.lists(st.text(max_size=8), max_size=3))
def test_nothing_that_a_rule_says_can_end_a_header_field(text: str, kind: str, names: list[str]) -> None:
    """However the rule was made: loaders would have refused most of these."""
    for refusal in (Refusal(302, redirect=text), Refusal(body=text, type=kind), Refusal(type=kind)):
        response = configured_response(refusal, names, JSON)
        assert all(re.fullmatch(r"[ -~]+|", value) for _, value in response.headers)
        assert response.headers[-1][0] in ("Location", "Content-Type")


BOOK = {
    "rules": [
        {"name": "minute", "key": ["user"], "missing": "deny", "limit": "1/minute"},
        {
            "name": "hour",
            "key": ["user"],
            "missing": "deny",
            "limit": ["1/hour", "2/hour fixed"],
            "refuse": {"status": 403},
        },
        {"name": "tried", "key": ["user"], "missing": "deny", "limit": "1/day", "mode": "shadow"},
        {"name": "rest", "limit": "100/minute"},
    ]
}


def test_a_decision_names_the_rules_that_refused_and_is_answered_by_the_one_that_spoke() -> None:
    limiter = RuleLimiter(from_mapping(BOOK), clock=ManualClock(1_700_000_000))
    call = {"user": "ada"}
    passed = limiter.check(call)
    assert passed.allowed
    with pytest.raises(ValueError, match="not refused"):
        refusal_response(passed, JSON)
    decision = limiter.check(call)
    assert violated_rules(decision) == ["minute", "hour"]
    response = refusal_response(decision, JSON)
    assert response.status == 403
    assert json.loads(response.body)["violated-policies"] == ["minute", "hour"]
    assert refusal_response(decision, "text/plain").body == b"Too many requests. Try again in 3600 seconds.\n"


ACCEPTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                JSON,
                PROBLEM,
                "text/html",
                "text/*",
                "*/*",
                "Application/JSON",
                "application/*",
                "text/json",
                "é",
                "",
            ]
        ),
        st.sampled_from(["", ";q=0", ";q=0.5", "; Q=0.9", " ;\tq=1", ";q=1.0.0", ";q=.", ";q=.5", ";q=5.", ";q=x"])
        | st.text(";qQ=0.5 \t,aé", max_size=6),
    ),
    max_size=5,
).map(lambda kinds: ",".join(kind + parameters for kind, parameters in kinds)) | st.text(max_size=20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\\x00\n\x1f\x7f\x80'), max_size=6)
NAMES = st.lists(TEXTS, min_size=1, max_size=3)
REFUSES: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({}, optional={"status": st.sampled_from([200, 204, 302, 400, 403, 429, 444, 503])}),
    st.fixed_dictionaries(
        {"body": st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)},
        optional={"status": st.integers(200, 599), "type": st.sampled_from(["text/html", "a/b; c=d"])},
    ),
    st.fixed_dictionaries(
        {"redirect": st.text(st.sampled_from("a/?#%[]~!"), max_size=8).map(lambda rest: "/a" + rest)},
        optional={"status": st.integers(300, 399)},
    ),
)


@settings(max_examples=200, deadline=None)
@given(REFUSES, NAMES, st.sampled_from([None, JSON]) | ACCEPTS)
@example({}, ["".join(map(chr, range(0xA0)))], JSON)
def test_nginx_answers_the_same(
    lua: LuajitProcess, refuse: dict[str, Any], names: list[str], accept: str | None
) -> None:
    book = from_mapping({"rules": [{"name": "login", "limit": "1/s", "refuse": refuse}]})
    written = document(book)["rules"][0].get("refuse")
    question = {"rule": "login", "violated": names}
    question |= {} if written is None else {"refuse": written}
    question |= {} if accept is None else {"accept": accept}
    theirs = lua.call_driver("refusal", **question)
    ours = configured_response(book.rules[0].refuse, names, accept)
    fields = dict(ours.headers)
    assert ours.status == theirs["status"]
    assert fields.get("Location") == theirs.get("location")
    if "body" in theirs:
        assert ours.body == theirs["body"].encode("latin-1")
        assert fields["Content-Type"] == theirs["type"]
    else:  # nginx has a page there
        assert ours.body in (b"", b"Too many requests.\n") or fields["Content-Type"] in (HTML, PROBLEM)


@settings(max_examples=300, deadline=None)
@given(ACCEPTS)
def test_python_and_lua_agree_on_clients_that_prefer_json(lua: LuajitProcess, accept: str) -> None:
    assert wants_json(accept) is (
        "body" in lua.call_driver("refusal", rule="login", violated=["login"], accept=accept)
    )


def test_a_long_accept_is_read_and_not_remembered() -> None:
    assert wants_json("a/b," * 20_000 + JSON)
    assert not wants_json("a/b," * 20_000 + "text/html, " + JSON)


def test_titles_are_the_usual_reason_phrases() -> None:
    differs = {413: "Content Too Large"}  # Python before 3.13 says what RFC 7231 did
    assert {status: HTTPStatus(status).phrase for status in REASONS} | differs == REASONS
