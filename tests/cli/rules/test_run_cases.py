"""headgate rules test: limits under test, with the line of the first call that went otherwise."""

import pytest

from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write

BOOK = """
    rules:
      - name: login
        when: {method: POST, path: /login}
        key: address
        limit: 5/minute
        lockout: {after: 3, within: 1m, for: 1h}
        refuse: {status: 423}
      - {name: slow, when: {path: /slow}, limit: 1/s queue 2}
      - {name: old, when: {path: /old}, limit: 100/s, candidate: 1/minute}
      - {name: watch, when: {path: /old}, limit: 2/minute, mode: shadow}
      - {name: monthly, when: {path: /report}, key: user, missing: deny, limit: 2/month fixed in UTC, cost: pages}
"""
CALL = "request: {method: POST, path: /login, address: 192.0.2.7}"


def table(*calls: str, head: str = "") -> str:
    lines = ["rules: rules.yaml", "cases:", "  - name: one", f"    {head}" if head else "", "    calls:"]
    return "\n".join(line for line in [*lines, *(f"      - {{{call}}}" for call in calls)] if line)


@pytest.fixture(autouse=True)
def book(write: Write) -> None:
    write(BOOK)


@pytest.mark.parametrize(
    "calls",
    [
        (f"times: 5, {CALL}, expect: allowed", f"{CALL}, expect: refused"),
        (
            f"at: 0s, times: 5, {CALL}, expect: {{remaining: 0}}",
            f"at: 2s, {CALL}, expect: {{refused: login, retry_after: 10s, status: 423}}",
            f"at: 12s, {CALL}, expect: {{allowed: true, remaining: 0, status: 200}}",
        ),
        (
            f"times: 5, {CALL}, expect: allowed",
            f"times: 3, {CALL}, expect: refused",
            f"at: 30m, {CALL}, expect: {{refused: login, retry_after: 30m}}",
            f"at: 1h, {CALL}, expect: allowed",
        ),
        (
            "attributes: {path: /slow}, expect: {allowed: true, delay: 0s}",
            "attributes: {path: /slow}, expect: {allowed: true, delay: 1s}",
        ),
        (
            "attributes: {path: /old}, expect: {candidate: {old: allowed}, shadow: {watch: allowed}}",
            "attributes: {path: /old}, expect: {allowed: true, candidate: {old: refused}}",
            "attributes: {path: /old}, expect: {allowed: true, shadow: {watch: refused}}",
        ),
        ("attributes: {path: /report, user: ann, pages: 3}, expect: {refused: true, retry_after: never}",),
        ("request: {url: 'https://x/report?a=1', user: ann, pages: 2}, expect: allowed",),
        ("attributes: {path: /elsewhere}, times: 100, expect: allowed",),
    ],
)
def test_what_is_as_expected_passes(prompt: Prompt, write: Write, calls: tuple[str, ...]) -> None:
    assert prompt("rules", "test", write(table(*calls), "t.yaml")) == 0, prompt.out
    assert prompt.out == "ok      one\n1 of 1 cases passed\n"


@pytest.mark.parametrize(
    ("calls", "line", "expected", "actual"),
    [
        ((f"times: 6, {CALL}, expect: allowed",), "t.yaml:5, time 6 of 6", "allowed", "refused by login"),
        ((f"{CALL}, expect: refused",), "t.yaml:5", "refused", "allowed"),
        ((f"{CALL}, expect: {{remaining: 3}}",), "t.yaml:5", "remaining 3", "allowed, remaining 4"),
        (
            (f"times: 5, {CALL}, expect: allowed", f"{CALL}, expect: {{refused: items, retry_after: 1s}}"),
            "t.yaml:6",
            "refused by items, retry_after 1 s",
            "refused by login, retry_after 12 s",
        ),
        (
            ("attributes: {path: /old}, expect: {shadow: {old: refused}}",),
            "t.yaml:5",
            "shadow old refused",
            "allowed, no shadow of that rule",
        ),
    ],
)
def test_the_first_unexpected_call_is_reported(
    prompt: Prompt, write: Write, calls: tuple[str, ...], line: str, expected: str, actual: str
) -> None:
    assert prompt("rules", "test", write(table(*calls), "t.yaml")) == 3
    failed, wanted, got, total = prompt.out.splitlines()
    assert failed == "failed  one"
    assert wanted.strip() == f"{line}: expected {expected}"
    assert got.strip().startswith(f"found {actual}")
    assert total == "0 of 1 cases passed"
    (case,) = prompt.json("rules", "test", "t.yaml", code=3)["files"][0]["cases"]
    assert (case["passed"], case["expected"]) == (False, expected)


def test_a_case_may_begin_at_an_instant_of_the_calendar(prompt: Prompt, write: Write) -> None:
    call = "attributes: {path: /report, user: ann, pages: 2}"
    calls = (f"{call}, expect: allowed", f"at: 59s, {call}, expect: refused", f"at: 60s, {call}, expect: allowed")
    text = table(*calls, head="start: 2026-02-28T23:59:00Z")
    assert prompt("rules", "test", write(text, "t.yaml")) == 0, prompt.out


def test_every_case_begins_anew_and_every_file_is_played(prompt: Prompt, write: Write) -> None:
    case = "{calls: [{times: 5, attributes: {}, expect: allowed}, {attributes: {}, expect: refused}]}"
    text = f"{{rules: {{rules: [{{name: a, limit: 5/hour, overrides: true}}]}}, cases: [{case}, {case}]}}"
    assert prompt("rules", "test", write(text, "t.yaml"), write(table(f"{CALL}, expect: allowed"), "u.yaml")) == 0
    assert prompt.out.splitlines() == ["ok      case 1", "ok      case 2", "ok      one", "3 of 3 cases passed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: none.yaml\ncases: []", "none.yaml: The rulebook cannot be read"),
        ("rules: rules.yaml\ncases: 3", "t.yaml:2: cases is a list"),
        ("cases: []", "A test lacks the field rules"),
        ("rules: {rules: [{name: a, limit: 5/huor}]}\ncases: []", "5/hour"),
        (table("expect: maybe"), 't.yaml:5: case 1: expect cannot be "maybe"'),
        (table(f"{CALL}, expct: allowed"), "Did you mean expect?"),
        (table(f"{CALL}, expect: {{remaning: 3}}"), "Did you mean remaining?"),
        (table("at: 5s, expect: allowed", "at: 3s, expect: allowed"), "t.yaml:6: case 1: Time goes forward"),
        (table("times: 0, expect: allowed"), "times is a whole number from 1"),
        (table("attributes: {Big: 1}, expect: allowed"), '"Big" is no attribute'),
        (table("expect: allowed", head="start: tomorrow"), "start is an instant"),
        ("rules: rules.yaml\ncases: []", "t.yaml:2: A table without cases tests nothing."),
        ("rules: rules.yaml\ncases: [{calls: []}]", "t.yaml:2: case 1: A case without calls tests nothing."),
    ],
)
def test_an_invalid_table_is_reported_with_its_line(prompt: Prompt, write: Write, text: str, message: str) -> None:
    assert prompt("rules", "test", write(text, "t.yaml")) == 2
    assert message in prompt.err
    assert "Traceback" not in prompt.err


def test_every_mistake_of_a_table_is_reported(prompt: Prompt, write: Write) -> None:
    calls = (
        "times: 0, cost: x, expect: maybe",
        "at: 5 minits, expect: {remaining: -1, status: much}",
        "at: 5s, exepct: allowed",
    )
    text = table(*calls, head="start: tomorrow") + "\n  - {naem: two, calls: 3}\n"
    assert prompt("rules", "test", write(text, "t.yaml")) == 2
    problems = [line for line in prompt.err.removeprefix("headgate: ").splitlines() if line.startswith("t.yaml:")]
    assert [problem.split(": ", 2)[:2] for problem in problems] == [
        ["t.yaml:4", "case 1"],
        *[["t.yaml:6", "case 1"]] * 3,
        *[["t.yaml:7", "case 1"]] * 3,
        *[["t.yaml:8", "case 1"]] * 2,
        ["t.yaml:9", "case 2"],
    ]
    assert 'A call has no field "exepct".' in prompt.err
    assert 'A case has no field "naem".' in prompt.err
