"""The check API over HTTP: what is answered to whom, against a running service."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from headgate import ManualClock
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.check import Checker
from headgate.service.receipt_tokens import ReceiptSigner
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service

KEYED = {"key": "user", "missing": "skip"}
FACTS = {"allowed", "rule", "limit", "remaining", "retry_after", "reset_after", "delay", "degraded"}
BOOK = {
    "rules": [
        {
            "name": "login",
            "when": {"path": "/login"},
            **KEYED,
            "limit": "2/day",
            "lockout": {"after": 2, "within": "10m", "for": "1h"},
            "refuse": {"status": 403, "body": "no", "type": "text/plain"},
        },
        {"name": "paid", "when": {"path": "/paid"}, "key": "plan", "missing": "deny", "limit": "5/day"},
        {
            "name": "trial",
            "when": {"path": "/shadow"},
            **KEYED,
            "limit": "3/day",
            "mode": "shadow",
        },
        {"name": "live", "when": {"path": "/shadow"}, **KEYED, "limit": "9/day", "candidate": "1/day"},
        {"name": "queue", "when": {"path": "/queue"}, **KEYED, "limit": "10/s burst 1"},
    ]
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(BOOK) as running:
        yield running


def user() -> str:
    return secrets.token_hex(8)


def test_an_answer_carries_the_facts_and_the_rule_that_spoke(service: Service) -> None:
    ann = user()
    passed = service.check(path="/login", user=ann)
    assert set(passed) == FACTS
    assert (passed["allowed"], passed["rule"], passed["limit"]) == (True, "login", "2/day")
    assert (passed["remaining"], passed["retry_after"], passed["degraded"]) == (1, 0, False)
    service.check(path="/login", user=ann)
    refused = service.check(path="/login", user=ann)
    assert set(refused) == FACTS | {"why", "refusal"}
    assert (refused["allowed"], refused["remaining"], refused["why"]) == (False, 0, None)
    assert 0 < refused["retry_after"] <= 43_200
    assert refused["refusal"] == {"status": 403, "body": "no", "type": "text/plain", "redirect": None}
    nobody = service.check(path="/")
    assert {name for name, value in nobody.items() if value is None} == {"rule", "limit", "remaining"}
    assert (nobody["allowed"], nobody["degraded"], nobody["delay"]) == (True, False, 0)


def test_more_than_ever_fits_has_no_wait(service: Service) -> None:
    assert service.check(3, path="/login", user=user())["retry_after"] is None


def test_a_lockout_is_in_the_response(service: Service) -> None:
    ann = user()
    answers = [service.check(path="/login", user=ann) for _ in range(5)]
    assert [answer["allowed"] for answer in answers] == [True, True, False, False, False]
    assert answers[-1]["why"] == "it was refused too often and is locked out"
    assert 3000 < answers[-1]["retry_after"] <= 3600


def test_a_missing_dimension_is_in_the_response(service: Service) -> None:
    reply = service.post("check", attributes={"path": "/paid"}, verdicts=True).json
    assert (reply["allowed"], reply["rule"], reply["limit"], reply["remaining"]) == (False, "paid", None, None)
    assert "plan" in reply["why"]
    assert [(each["rule"], each["limit"]) for each in reply["verdicts"]] == [("paid", None)]


def test_shadow_and_candidate_verdicts_are_separate(service: Service) -> None:
    request = {"attributes": {"path": "/shadow", "user": user()}, "verdicts": True}
    response = [service.post("check", request).json for _ in range(4)][-1]
    assert response["allowed"]
    assert (response["rule"], response["remaining"]) == ("live", 5)
    assert [(each["rule"], each["shadow_kind"], each["allowed"]) for each in response["verdicts"]] == [
        ("live", None, True),
        ("trial", "shadow", False),
        ("live", "candidate", False),
    ]
    assert {each["limit"] for each in response["verdicts"]} == {"9/day", "3/day", "1/day"}


def test_a_peek_charges_nothing(service: Service) -> None:
    ann = user()
    for _ in range(3):
        assert service.post("peek", attributes={"path": "/login", "user": ann}).json["remaining"] == 2
    assert service.post("peek", attributes={"path": "/login", "user": ann}, receipt=True).status == 400


def test_a_place_in_a_queue_has_a_delay(service: Service) -> None:
    ann = user()
    request = {"path": "/queue", "user": ann}
    places = [service.post("reserve", attributes=request).json for _ in range(5)]
    assert all(place["allowed"] and place["receipt"] for place in places)
    assert places[0]["delay"] == 0
    assert places[-1]["delay"] > 0
    refused = service.post("reserve", attributes=request, cost=1, timeout=0).json
    assert not refused["allowed"]
    assert refused["retry_after"] > 0


def test_several_at_once_each_by_itself_or_all_or_none(service: Service) -> None:
    ann = user()
    one = {"attributes": {"path": "/login", "user": ann}}
    apart = service.post("checks", checks=[one, {"attributes": {}}, one, one]).json
    assert not apart["allowed"]
    assert [answer["allowed"] for answer in apart["answers"]] == [True, True, True, False]
    bob = {"attributes": {"path": "/login", "user": user()}}
    together = service.post("checks", checks=[bob, one], together=True).json
    assert not together["allowed"]
    assert service.post("peek", bob).json["remaining"] == 2
    assert service.post("checks", checks=[bob, bob], together=True).json["allowed"]


def checker(clock: ManualClock, limits: list[tuple[str, str]]) -> Checker:
    rules = [{"name": f"rule{n}", "limit": limit, "mode": mode} for n, (limit, mode) in enumerate(limits)]
    return Checker(AsyncRuleLimiter({"rules": rules}, clock=clock), ReceiptSigner(""), 100)


LIMITS = some.sampled_from(["3/minute", "2/s burst 5", "4/minute sliding", "1/s queue 3", "2 slots", "2/s smooth"])


@given(
    some.lists(some.tuples(LIMITS, some.sampled_from(["enforce", "shadow"])), max_size=2),
    some.lists(some.tuples(some.sampled_from([0, 0.1, 3.0]), some.integers(0, 3)), min_size=3, max_size=9),
)
def test_the_short_way_says_what_the_long_way_says(
    limits: list[tuple[str, str]], calls: list[tuple[float, int]]
) -> None:
    async def story() -> None:
        clock = ManualClock()
        short, long = checker(clock, limits), checker(clock, limits)
        for wait, cost in calls:
            clock.advance(wait)
            expected = long.answer(await long.limiter.check({}, cost), verdicts=True)
            expected.verdicts = msgspec.UNSET
            assert short.answer(await short.limiter.check({}, cost)) == expected

    asyncio.run(story())


@pytest.mark.parametrize(
    ("verb", "body", "sentence"),
    [
        (
            "check",
            {"attributes": {}, "cost": -1},
            "cost must be a whole number of at least 0, not -1.",
        ),
        (
            "check",
            {"attributes": {}, "cost": 1.5},
            "cost must be a whole number of at least 0, not 1.5.",
        ),
        (
            "check",
            {"attributes": {}, "cost": "1"},
            'cost must be a whole number of at least 0, not "1".',
        ),
        ("refund", {"receipt": "", "cost": 0}, "cost must be a whole number of at least 1, not 0."),
        (
            "check",
            {"attributes": {}, "cost": 2**60},
            f"cost must be a whole number of at most {2**53 - 1}, not {2**60}.",
        ),
        ("check", {}, "The body: attributes is missing."),
        ("check", {"attribute": {}}, 'The body: "attribute" is not a field. Did you mean attributes?'),
        (
            "check",
            {"attributes": {}, "zzz": 1},
            'The body: "zzz" is not a field. Known are attributes, cost, receipt, verdicts.',
        ),
        (
            "check",
            {"attributes": {"user": ["ann"]}},
            "attributes.user must be a text of at most 8192 characters, a number, true, false or null, "
            "not a list of 1.",
        ),
        ("check", {"attributes": [1]}, "attributes must be an object of at most 256 names, not a list of 1."),
        ("check", [], "The body must be an object, not a list of 0."),
        ("check", {"attributes": {}, "verdicts": 1}, "verdicts must be true or false, not 1."),
        (
            "finish",
            {"receipt": "x", "outcome": "droped"},
            'outcome must be dropped, ignored or success, not "droped". Did you mean dropped?',
        ),
        ("finish", {"receipt": "x", "outcome": 5}, "outcome must be dropped, ignored or success, not 5."),
        ("checks", {"checks": []}, "checks must be a list of at least one, not a list of 0."),
        (
            "checks",
            {"checks": [{"attributes": {}}, {"attributes": {}, "cots": 1}]},
            'checks[1]: "cots" is not a field. Did you mean cost?',
        ),
        (
            "checks",
            {"checks": [{"attributes": {}, "cost": 2.5}]},
            "checks[0].cost must be a whole number of at least 0, not 2.5.",
        ),
        ("reserve", {"attributes": {}, "timeout": -1}, "timeout must be a number from 0 to 31622400, not -1."),
        ("renew", {"receipt": None}, "receipt must be a text of at most 61440 characters, not null."),
        ("cancel", {"receipt": "", "cost": 1}, 'The body: "cost" is not a field. Known are receipt.'),
    ],
)
def test_an_invalid_request_gets_a_problem_document(service: Service, verb: str, body: Any, sentence: str) -> None:
    reply = service.post(verb, body)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/problem+json")
    assert reply.json["detail"] == sentence
    assert (reply.json["title"], reply.json["status"]) == ("Bad Request", 400)


def test_problems_are_titled_by_the_reason_phrase_of_their_status(service: Service) -> None:
    replies = [
        service.send_request("GET", "/nowhere"),
        service.send_request("GET", "/v1/check"),
        service.post("refund", receipt="made up"),
    ]
    titles = [(reply.status, reply.json["title"]) for reply in replies]
    assert titles == [(404, "Not Found"), (405, "Method Not Allowed"), (404, "Not Found")]


@pytest.mark.parametrize("cost", [b"2.0", b"2e0", b"0.2e1"])
def test_a_whole_number_may_be_written_otherwise(service: Service, cost: bytes) -> None:
    body = b'{"attributes": {"path": "/login", "user": "%s"}, "cost": %s}' % (user().encode(), cost)
    assert service.send_request("POST", "/v1/check", body).json["remaining"] == 0
    batch = b'{"checks": [{"attributes": {}, "cost": 1}, %s]}' % body
    assert not service.send_request("POST", "/v1/checks", batch).json["allowed"]


def test_attributes_are_texts_whatever_they_were(service: Service) -> None:
    for value in (5, 5.5, True, 10**24, "\x00", "ä"):
        first = service.check(path="/login", user=value)
        assert first["rule"] == "login"
    assert service.check(path="/login", user="5")["remaining"] == 0
    assert service.check(path="/login", user="true")["remaining"] == 0
    assert service.check(path="/login", user=None)["rule"] is None
    twice = b'{"attributes": {"path": "/", "path": "/login", "user": "%s"}}' % user().encode()
    assert service.send_request("POST", "/v1/check", twice).json["rule"] == "login"  # the last counts


def test_health_and_what_is_not_here(service: Service) -> None:
    assert service.send_request("GET", "/healthz").body == b"ok\n"
    assert service.send_request("GET", "/readyz").json == {
        "ready": True,
        "rules": len(BOOK["rules"]),
        "degraded": [],
    }
    head = service.send_request("HEAD", "/healthz")
    assert (head.status, head.body) == (200, b"")
    assert service.send_request("POST", "/healthz").headers["allow"] == "GET, HEAD"
    for method in ("GET", "HEAD", "PUT", "OPTIONS", "DELETE"):
        reply = service.send_request(method, "/v1/check")
        assert (reply.status, reply.headers["allow"]) == (405, "POST")
    for path in ("/", "/v1/check/", "/v1", "/auth/envoys", "/v1/checker"):
        assert service.send_request("POST", path).status == 404
    assert service.send_request("GET", "/json").status == 405


def test_a_service_with_too_much_to_do_says_when_to_come_back() -> None:
    with Service(own_limit="3/s") as service:
        replies = [service.post("check", attributes={}) for _ in range(6)]
        assert [reply.status for reply in replies[:3]] == [200, 200, 200]
        reply = replies[-1]
        assert reply.status == 503
        assert reply.headers["retry-after"] == "1"
        assert (
            reply.json["detail"]
            == "This service has too much to do. Ask again after the seconds that Retry-After says."
        )
        response = service.send_request("GET", "/auth/nginx")
        assert (response.status, response.headers["x-headgate-code"], response.body) == (403, "503", b"")
        assert {service.send_request("GET", path).status for path in ("/healthz", "/readyz")} == {200}
        until(lambda: None if service.post("check", attributes={}).status == 200 else "still too much", 10)


def test_when_redis_dies_each_rule_does_what_it_says() -> None:
    rules = [
        {"name": name, "when": {"path": f"/{name}"}, "limit": "4/day"} | more
        for name, more in (
            ("allow", {"fallback": "allow"}),
            ("deny", {"fallback": "deny"}),
            ("local", {"fallback": "local"}),
            ("none", {}),
        )
    ]
    with RedisServer() as redis, Service({"rules": rules}, engine=redis.url) as service:
        for name in ("allow", "deny", "local", "none"):
            assert (service.check(path=f"/{name}")["degraded"], service.check()["rule"]) == (False, None)
        redis.kill()
        responses = {name: service.check(path=f"/{name}") for name in ("allow", "deny", "local")}
        assert [answer["allowed"] for answer in responses.values()] == [True, False, True]
        assert all(answer["degraded"] for answer in responses.values())
        assert {answer["rule"] for answer in responses.values()} == {"allow", "deny", "local"}
        reply = service.post("check", attributes={"path": "/none"})
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.json["title"] == "Service Unavailable"
        assert "Redis at 127.0.0.1" in reply.json["detail"]
        assert service.check() == service.check()  # no rule applies: nobody is asked
        # What was taken from a fallback can be given back, and nobody is told of it twice.
        receipt = service.post("check", attributes={"path": "/local"}, receipt=True).json["receipt"]
        assert service.post("refund", receipt=receipt).status in (200, 503)
        assert "could not be answered" not in service.output
        redis.restart()
        until(lambda: "degraded" if service.check(path="/local")["degraded"] else None, 20)
        assert service.check(path="/none")["rule"] == "none"
