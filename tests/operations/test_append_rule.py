"""A rule is added behind all others; every other line stays as it was."""

import json

import pytest

from headgate.errors import InvalidRule
from headgate.operations.append_rule import with_appended_rule
from headgate.rules import load
from headgate.rules.rule import SHADOW, Rule

BOOK = """\
# What the shop allows.
name: shop
defaults: {missing: skip}
rules:
- name: login   # careful
  key: address
  limit: 5/minute

# to be decided: search
headers: legacy
"""
TOML = '# the shop\nname = "shop"\n\n[[rules]]\nname = "login"\nkey = "address"\nlimit = "5/minute"\n'


def new_rule(name: str = "per-address") -> Rule:
    where, what = "when: {path: '/a b/**'}, key: [address, user]", "limit: 2/s burst 9"
    text = f"{{name: {name}, {where}, missing: skip, {what}, mode: {SHADOW}}}"
    return load.parse(f"rules: [{text}]").rules[0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (BOOK, "yaml"),
        ("rules:\n  - name: a\n    limit: 1/s\n", "yaml"),
        ("rules:\n    - name: a\n      limit: 1/s\n\n\n", "yaml"),
        ("rules: []\n", "yaml"),
        ("rules:\n  - {name: a, limit: 1/s}", "yaml"),
        (TOML, "toml"),
        ('{"rules": [{"name": "a", "limit": "1/s"}]}', "json"),
    ],
)
def test_the_book_keeps_its_rules_and_gets_one_more(text: str, kind: str) -> None:
    before = load.parse(text, format=kind)
    after = load.parse(with_appended_rule(text, kind, new_rule()), format=kind)
    assert after.rules == (*before.rules, new_rule())
    assert (after.name, after.headers) == (before.name, before.headers)


@pytest.mark.parametrize(("text", "kind"), [(BOOK, "yaml"), (TOML, "toml")])
def test_every_other_line_stays(text: str, kind: str) -> None:
    lines = with_appended_rule(text, kind, new_rule()).splitlines()
    kept = iter(lines)
    assert all(line in kept for line in text.splitlines())


def test_a_name_that_is_taken_gets_a_number() -> None:
    text = "rules:\n  - name: per-address\n    limit: 1/s\n  - name: per-address-2\n    limit: 1/s\n"
    after = load.parse(with_appended_rule(text, "yaml", new_rule()))
    assert [rule.name for rule in after.rules] == ["per-address", "per-address-2", "per-address-3"]


@pytest.mark.parametrize(
    "text", ["rules: [{name: a, limit: 1/s}]\n", '{"rules": [{"name": "a", "limit": "1/s"}]}']
)
def test_a_text_that_is_written_unusually_is_left_alone(text: str) -> None:
    with pytest.raises(InvalidRule, match=r"Add it by hand: .*per-address"):
        with_appended_rule(text, "yaml", new_rule())


def test_json_is_json_again() -> None:
    text = with_appended_rule('{"rules": []}', "json", new_rule())
    assert json.loads(text)["rules"][0]["limit"] == "2/s burst 9"
