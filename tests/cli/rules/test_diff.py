"""headgate rules diff: by what books mean, and a warning where counts start anew."""

from collections.abc import Mapping

import pytest

from headgate.operations.compare_rulebooks import compare
from headgate.rules import load
from headgate.rules.rule import Rulebook
from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write

OLD = """
    defaults: {missing: deny}
    rules:
      - {name: login, key: address, limit: 10/minute}
      - {name: items, key: user, limit: 5/s}
      - {name: gone, limit: 1/s}
"""


def book(*rules: Mapping[str, object]) -> Rulebook:
    return load.from_mapping({"rules": list(rules)})


def test_the_same_meaning_in_other_words_is_no_difference(prompt: Prompt, write: Write) -> None:
    old = write(
        "{defaults: {missing: deny}, rules: [{name: a, key: user, limit: 60/minute burst 60}]}", "old.yaml"
    )
    new = write('[[rules]]\nname = "a"\nkey = ["user"]\nmissing = "deny"\nlimit = "60/minute"\n', "new.toml")
    assert prompt("rules", "diff", old, new, "--exit-code") == 0
    assert prompt.out == "No difference in meaning.\n"
    assert prompt.json("rules", "diff", old, new) == {"same": True, "book": [], "rules": []}


def test_rules_that_came_went_and_changed(prompt: Prompt, write: Write) -> None:
    new = """
        name: shop
        rules:
          - {name: login, key: address, limit: 20/minute, mode: shadow}
          - {name: items, key: user, missing: deny, limit: 5/s}
          - {name: came, limit: 2/s}
    """
    words = (write(OLD, "old.yaml"), write(new, "new.yaml"))
    assert prompt("rules", "diff", *words) == 0
    assert prompt.out.splitlines() == [
        "name: shop",
        "~ login: changed",
        "    limit: 10/minute -> 20/minute",
        "    mode: shadow",
        "+ came: added",
        "    limit: 2/s",
        "- gone: removed",
    ]
    document = prompt.json("rules", "diff", *words, "--exit-code", code=3)
    assert [(each["rule"], each["change"], each["counts_start_anew"]) for each in document["rules"]] == [
        ("login", "changed", None),
        ("came", "added", None),
        ("gone", "removed", None),
    ]


A = {"name": "a", "key": "user", "missing": "deny", "limit": "10/minute"}


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (A | {"limit": "20/hour"}, None),
        (A | {"limit": "10/minute log"}, "a sliding log cannot go on with the counts of a token bucket"),
        (A | {"limit": ["10/minute", "100/day"]}, "limit 2 is new"),
        (A | {"key": "address"}, "the key is another one"),
        (A | {"key": ["user", "path"]}, "the key is another one"),
        (A | {"where": "node"}, "each process counts by itself now"),
        (A | {"name": "b"}, "they were kept under a"),
        (A | {"mode": "off"}, None),
        (A | {"limit": "unlimited"}, None),
    ],
)
def test_a_change_that_resets_counts_gives_the_reason(new: dict[str, object], why: str | None) -> None:
    (change,) = compare(book(A), book(new)).rules
    assert change.restart_reason == why
    assert change.kind == ("renamed" if new["name"] == "b" else "changed")


def by(attribute: str, otherwise: str = "5/minute", **cases: str) -> dict[str, object]:
    return A | {"limit": {"by": attribute, "cases": cases, "otherwise": otherwise}}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (by("plan", pro="9/minute"), by("plan", "6/minute", pro="20/hour"), None),
        (by("plan", pro="9/minute"), by("plan", trial="9/minute"), "case trial is new, case pro is gone"),
        (by("plan", pro="9/minute"), by("method", GET="9/minute"), "case GET is new, case pro is gone"),
        (by("plan", pro="9/minute"), by("argument.plan", pro="9/minute"), None),
        (by("plan", ann="9/minute"), by("user", ann="9/minute"), "case ann is gone"),
        (A, by("user", ann="9/minute"), None),
        (by("user", ann="9/minute"), by("user", bob="9/minute"), None),
        (A, by("plan", pro="9/minute"), "case pro is new"),
        (by("plan", pro="9/minute"), A, "case pro is gone"),
        (A, by("plan", staff="unlimited"), None),
        (by("plan", staff="unlimited"), by("plan", staff="9/minute"), None),
        (A | {"limit": "unlimited"}, by("plan", pro="9/minute"), None),
        (by("plan", pro="9/minute"), A | {"limit": "unlimited"}, None),
        (by("plan", pro="9/minute"), by("plan", pro="9/minute; 99/day"), "limit 2 is new in case pro"),
        (
            by("plan", pro="9/minute"),
            by("plan", pro="9/minute log"),
            "a sliding log cannot go on with the counts of a token bucket in case pro",
        ),
        (
            by("plan", pro="9/minute log"),
            by("plan", "5/minute log", pro="9/minute log"),
            "a sliding log cannot go on with the counts of a token bucket",
        ),
        (
            A,
            by("user", ann="9/minute log"),
            "a sliding log cannot go on with the counts of a token bucket",
        ),
    ],
)
def test_cases_have_separate_counts_unless_the_key_decides_between_them(
    old: dict[str, object], new: dict[str, object], why: str | None
) -> None:
    (change,) = compare(book(old), book(new)).rules
    assert change.restart_reason == why


def test_another_rule_order_is_reported_once() -> None:
    b = A | {"name": "b", "limit": "1/s"}
    differences = compare(book(A, b), book(b, A))
    assert [field.name for field in differences.book] == ["order"]
    assert differences.rules == ()
    assert not compare(book(A, b), book(A, b))


def test_the_text_output_shows_a_warning_under_its_rule(prompt: Prompt, write: Write) -> None:
    old = write("rules: [{name: a, limit: 10/s}]", "old.yaml")
    new = write("rules: [{name: a, limit: 10/s fixed}]", "new.yaml")
    prompt("rules", "diff", old, new)
    assert prompt.out.splitlines() == [
        "~ a: changed",
        "    limit: 10/s -> 10/s fixed",
        "    counts start anew: a fixed window cannot go on with the counts of a token bucket",
    ]
