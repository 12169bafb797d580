"""Explaining: of every rule of a book, why it does not apply to a call, in a sentence."""

from typing import Any
from zlib import crc32

import pytest

from headgate.rules import load
from headgate.rules.condition import AnyOf
from headgate.rules.match import Matcher
from headgate.rules.matching.explain_match import describe_failure, display_value

NUMBER = crc32(b"r|user=ada") % 10_000


def why(attributes: dict[str, Any], *rules: dict[str, Any]) -> list[str]:
    book = load.from_mapping({"rules": [{"name": "r", "limit": "10/s", **rule} for rule in rules]})
    return [explanation.why for explanation in Matcher(book).explain(attributes)]


@pytest.mark.parametrize(
    ("rule", "attributes", "sentence"),
    [
        ({"when": {"path": "/login"}}, {"path": "/items"}, "path is /items, not /login"),
        ({"when": {"path": ["/a", "/b"]}}, {"path": "/c"}, "path is /c, not /a or /b"),
        ({"when": {"path": "/a"}}, {}, "path is absent, not /a"),
        ({"when": {"user": True}}, {"user": ""}, "user is absent, not present"),
        ({"when": {"user": False}}, {"user": "ada"}, "user is ada, not absent"),
        ({"when": {"not": {"user": "ada"}}}, {"user": "ada"}, "user is ada, and must not be"),
        ({"when": {"user": "ada", "plan": "pro"}}, {"user": "ada", "plan": "x"}, "plan is x, not pro"),
        ({"when": {"path": "/{sku}", "sku": "a*"}}, {"path": "/b"}, "sku is b, not a*"),
        ({"when": [{"user": "ada"}, {"plan": "pro"}]}, {}, "user is absent, not ada; plan is absent, not pro"),
        ({"except": {"user": ["ada", "bob"]}}, {"user": "bob"}, "exempt: user is ada or bob"),
        ({"key": "user", "missing": "skip"}, {}, "user is missing, so the rule is skipped"),
        ({"mode": "off"}, {}, "mode is off"),
        ({"cost": "size", "missing": "skip"}, {}, "size, the cost, is missing, so the rule is skipped"),
        ({"cost": "size", "missing": "skip"}, {"size": "0"}, "its cost is 0"),
        (
            {"key": "user", "missing": "one", "mode": {"enforce": NUMBER / 100 - 1, "shadow": 1}},
            {"user": "ada"},
            f"off for user=ada, which is number {NUMBER} of 10000: on below {NUMBER}",
        ),
        ({}, {}, "applies: key all, 10/s"),
        ({"limit": "unlimited"}, {}, "applies: key all, unlimited"),
        ({"cost": 3, "limit": "10/s; 50/m"}, {}, "applies: key all, cost 3, 10/s; 50/minute"),
        ({"candidate": "3/s", "mode": "shadow"}, {}, "applies: key all, 10/s, candidate 3/s, as a shadow"),
        ({"candidate": "unlimited"}, {}, "applies: key all, 10/s, candidate unlimited"),
        ({"key": "user", "missing": "deny"}, {}, "applies: key user=, 10/s, denied: user is missing"),
        (
            {"key": "user", "missing": "deny", "cost": {"by": "plan", "cases": {"x": 1}, "otherwise": 0}},
            {},
            "its cost is 0",
        ),
    ],
)
def test_a_rule_says_why(rule: dict[str, Any], attributes: dict[str, Any], sentence: str) -> None:
    assert why(attributes, rule) == [sentence]


def test_a_rule_that_was_replaced_says_by_whom() -> None:
    assert why({}, {}, {"name": "s", "replaces": ["r"]}) == ["replaced by s", "applies: key all, 10/s"]


def test_nothing_can_hold_of_no_conditions() -> None:
    assert describe_failure(AnyOf(()), {}) == "none of no conditions can hold"


def test_values_are_shown_so_that_they_can_be_read() -> None:
    assert display_value(None) == display_value("") == "absent"
    assert display_value("é b") == "é b"
    assert display_value("a\x1b[31m\n") == "a\\x1b[31m\\n"
    assert display_value("\udcff") == "\\udcff"
    assert display_value("a" * 1000) == "a" * 80 + "... (1000 characters)"
