"""headgate rules explain: which rules apply, why the others do not, and what would be decided."""

import pytest

from headgate import Limiter
from headgate.rules import load
from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write
from tests.servers import RedisServer

BOOK = """
    rules:
      - name: login
        when: {method: POST, path: /login}
        key: address
        limit: 2/minute
        refuse: {status: 423}
      - name: items
        when: {path: "/items/{sku}"}
        key: [user, sku]
        missing: one
        limit: {by: plan, cases: {pro: 100/s}, otherwise: 5/s}
        candidate: 1/s
      - name: staff
        when: {header.x-staff: true}
        limit: unlimited
        replaces: [items]
      - {name: members, when: {path: /members}, key: user, missing: deny, limit: 1/s}
"""


@pytest.fixture
def book(write: Write) -> str:
    return write(BOOK)


def test_rules_that_apply_and_why_the_others_do_not(prompt: Prompt, book: str) -> None:
    document = prompt.json(
        "rules", "explain", book, "--path", "/items/7?x=1", "--user", "ann", "--attribute", "plan=pro"
    )
    by_rule = {rule["rule"]: rule for rule in document["rules"]}
    assert [rule["rule"] for rule in document["rules"] if rule["applies"]] == ["items"]
    assert by_rule["items"]["key"] == "user=ann|sku=7"
    assert by_rule["items"]["limits"] == ["100/s"]
    assert by_rule["items"]["candidate"] == ["1/s"]
    assert "method is GET, not POST" in by_rule["login"]["why"] or "path is /items/7" in by_rule["login"]["why"]
    assert "header.x-staff is absent" in by_rule["staff"]["why"]
    assert document["attributes"]["argument.x"] == "1"
    assert document["decision"]["allowed"]
    assert [each["shadow_kind"] for each in document["decision"]["shadow_verdicts"]] == ["candidate"]


def test_people_get_tables_and_a_sentence(prompt: Prompt, book: str) -> None:
    words = ("--method", "post", "--url", "https://shop.example/login", "--address", "203.0.113.9")
    assert prompt("rules", "explain", book, *words) == 0
    assert "address    203.0.113.9\n" in prompt.out
    assert "host       shop.example\n" in prompt.out
    assert "login    applies  key address=203.0.113.9, 2/minute\n" in prompt.out
    assert 'allowed by rule "login" (2/minute), 2 remaining' in prompt.out


def test_a_rule_that_was_replaced_says_by_which(prompt: Prompt, book: str) -> None:
    documents = [
        prompt.json("rules", "explain", book, "--path", "/items/7", "--header", header)
        for header in ("X_Staff:yes", "X-Staff: yes")
    ]
    assert documents[0] == documents[1]
    document = documents[0]
    assert {rule["rule"]: rule["why"] for rule in document["rules"]}["items"] == "replaced by staff"


def test_a_missing_attribute_denies(prompt: Prompt, book: str) -> None:
    document = prompt.json("rules", "explain", book, "--path", "/members")
    assert (document["decision"]["allowed"], document["decision"]["rule"]) == (False, "members")
    assert document["decision"]["status"] == 429


def test_attributes_alone_are_a_call_too(prompt: Prompt, book: str) -> None:
    document = prompt.json("rules", "explain", book, "--attribute", "tenant=7", "--address", "203.0.113.9")
    assert document["attributes"] == {"tenant": "7", "address": "203.0.113.9"}
    assert not any(rule["applies"] for rule in document["rules"])
    assert document["decision"]["rule"] is None


def test_a_call_without_a_path_has_none(prompt: Prompt, book: str) -> None:
    attributes = prompt.json("rules", "explain", book, "--method", "post")["attributes"]
    assert attributes["method"] == "POST"
    assert "path" not in attributes


def test_on_an_engine_the_counts_are_as_they_are(prompt: Prompt, book: str, server: RedisServer) -> None:
    call = {"method": "POST", "path": "/login", "address": "203.0.113.9"}
    limiter = Limiter.from_rules(book, server.url)
    assert [limiter.check(call).allowed for _ in range(3)] == [True, True, False]
    limiter.close()
    words = ("--method", "POST", "--path", "/login", "--address", "203.0.113.9", "--engine", server.url)
    for _ in range(2):
        decision = prompt.json("rules", "explain", book, *words)["decision"]
        assert (decision["allowed"], decision["rule"], decision["status"]) == (False, "login", 423)
        assert 20 < decision["retry_after"] <= 30


def test_an_invalid_attribute_is_reported(prompt: Prompt, book: str) -> None:
    assert '"Big" is no attribute' in prompt.failure("rules", "explain", book, "--attribute", "Big=1")
    assert "NAME:VALUE, not 'x'" in prompt.failure("rules", "explain", book, "--header", "x")


@pytest.mark.parametrize("given", ["999.1.1.1", "10.0.0.1:80", "localhost"])
def test_an_invalid_address_is_reported_as_left_out(prompt: Prompt, book: str, given: str) -> None:
    for words in (("--address", given), ("--attribute", f"address={given}")):
        assert prompt("rules", "explain", book, "--method", "POST", "--path", "/login", *words) == 0
        assert prompt.err.startswith(f"headgate: '{given}' is not an IP address: the call has no address")
        assert prompt.err.count("\n") == 1
        assert "login refuses" in prompt.out or "address is missing" in prompt.out
    document = prompt.json("rules", "explain", book, "--method", "POST", "--path", "/login", "--address", given)
    assert "address" not in document["attributes"]
    with Limiter.from_rules(load.read(book)) as limiter:
        running = limiter.check({"method": "POST", "path": "/login", "address": given})
    assert (running.allowed, running.why) == (document["decision"]["allowed"], document["decision"]["why"])


def test_an_address_that_is_one_is_not_warned_of(prompt: Prompt, book: str) -> None:
    assert prompt("rules", "explain", book, "--address", "::ffff:192.0.2.7") == 0
    assert prompt.err == ""


def test_a_header_that_is_none_is_refused_in_the_words_of_the_help(prompt: Prompt, book: str) -> None:
    for given in ("foo", "=foo", ": foo"):
        assert f"NAME:VALUE, not {given!r}" in prompt.failure("rules", "explain", book, "--header", given)
    for given in ("x-plan: pro", "x-plan:pro", "x-plan:a=b"):
        attributes = prompt.json("rules", "explain", book, "--header", given)["attributes"]
        assert attributes["header.x-plan"] == given.partition(":")[2].strip()
    assert "NAME:VALUE, not 'x-plan=pro'" in prompt.failure("rules", "explain", book, "--header", "x-plan=pro")


def test_a_refusal_without_a_limit_shows_none(prompt: Prompt, book: str) -> None:
    words = ("rules", "explain", book, "--method", "POST", "--path", "/login")
    (verdict,) = prompt.json(*words)["decision"]["verdicts"]
    assert (verdict["rule"], verdict["allowed"]) == ("login", False)
    assert (verdict["limit"], verdict["remaining"]) == (None, None)
    assert prompt(*words) == 0
    assert "unlimited" not in prompt.out
    row = prompt.out.splitlines()[-1].split()
    assert row == ["login", "address=", "-", "refused", "-", "-"]


ADAPTIVE = """
    rules:
      - name: app
        limit: {adaptive: concurrency, target: p99 200ms, between: [5, 500]}
      - name: reports
        limit: {adaptive: rate, target: p90 250ms, between: [10, 500]}
      - {name: free, limit: {adaptive: concurrency}}
"""


def test_an_adaptive_limit_says_what_it_would_do(prompt: Prompt, write: Write) -> None:
    adaptive = prompt.json("rules", "explain", write(ADAPTIVE), "--response-time", "300ms")["adaptive"]
    assert adaptive["app"]["starts"] == "at 20, and stays from 5 to 500"
    assert adaptive["app"]["would"] == (
        "at a P99 of 300 ms, above the target, the limit falls: from the start 20, 18, 16, 14, ..., and 5 calls "
        "in flight after 11 windows, in 7.7 s at the earliest"
    )
    assert adaptive["reports"]["would"].startswith(
        "at a P90 of 300 ms, above the target, the limit falls: from the start 500, 425, 361, 307, ..., and 10"
    )
    assert adaptive["free"]["would"].startswith(
        "no percentile decides: the limit falls while calls take more than"
    )


def test_an_adaptive_limit_says_whom_its_rule_refuses(prompt: Prompt, write: Write) -> None:
    book = """
    rules:
      - {name: shadow, mode: shadow, limit: {adaptive: concurrency}}
      - {name: busy, limit: {adaptive: concurrency}, refuse: {status: 429}, where: cluster}
    """
    adaptive = prompt.json("rules", "explain", write(book))["adaptive"]
    assert adaptive["shadow"]["refused"].startswith("nobody: the limit of a shadow")
    assert adaptive["shadow"]["process"].startswith("each learns by itself")
    assert adaptive["busy"]["refused"] == "the calls above the limit, at once, with status 429"
    assert adaptive["busy"]["process"].startswith("those of one Redis go on from the median")


def test_an_adaptive_limit_near_or_below_its_target(prompt: Prompt, write: Write) -> None:
    book = write(ADAPTIVE)
    near = prompt.json("rules", "explain", book, "--response-time", "190ms")["adaptive"]["app"]
    assert near["would"] == "at a P99 of 190 ms, at the target, the limit stays: at the start 20 calls in flight"
    below = prompt.json("rules", "explain", book, "--response-time", "50ms")["adaptive"]["app"]
    expected = "at a P99 of 50 ms, below the target, the limit rises while it is used up: from the start 20, 22,"
    assert below["would"].startswith(expected)
    assert "adaptive" in prompt.json("rules", "explain", book), "in words, also without a response time"
