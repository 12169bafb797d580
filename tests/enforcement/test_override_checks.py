"""Overrides that would decide nothing are refused by the library, in the words of the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncLimiter, InvalidRule, Limiter, Rulebook
from headgate.cli import main
from tests.servers import RedisServer

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "items", "limit": "10/minute", "key": ["user", "sku"], "missing": "deny", "overrides": True},
        {"name": "fixed", "limit": "10/minute fixed", "overrides": True},
        {"name": "plain", "limit": "10/minute"},
        {"name": "callers", "limit": "10/minute", "key": "address", "missing": "deny", "overrides": True},
        {"name": "paths", "limit": "10/minute", "key": ["method", "path"], "missing": "one", "overrides": True},
        {
            "name": "plans",
            "limit": {"by": "plan", "cases": {"free": "5/hour"}, "otherwise": "unlimited"},
            "key": "plan",
            "missing": "skip",
            "overrides": True,
        },
        {"name": "off", "limit": "10/minute", "mode": "off", "overrides": True},
    ]
}
USELESS = [
    ("nobody", "user=ann|sku=7", "5/s"),
    ("plain", "all", "5/s"),
    ("items", "user=ann", "5/s"),
    ("items", "sku=7|user=ann", "5/s"),
    ("items", "user=ann|sku=7", "5/s fixed"),
    ("items", "user=ann|sku=7", "5/s; 9/hour"),
    ("fixed", "all", "9/month fixed"),
    ("callers", "address=2001:db8::1", "5/s"),
    ("callers", "address=2001:db8::1/64", "5/s"),
    ("callers", "address=999.1.1.1", "5/s"),
    ("callers", "address=banana", "5/s"),
    ("callers", "address=192.0.2.07", "5/s"),
    ("callers", "address=192.0.2.0/24", "5/s"),
    ("callers", "address=", "5/s"),
    ("paths", "method=post|path=/login", "5/s"),
    ("plans", "plan=pro", "5/s"),
    ("off", "all", "5/s"),
]
NEARLY = [
    ("callers", "address=2001:db8::1", "Did you mean address=2001:db8::/64?"),
    ("callers", "address=192.0.2.0/24", "Did you mean address=192.0.2.0?"),
    ("callers", "address=banana", "Write address=VALUE."),
    ("paths", "method=post|path=/login", "Did you mean method=POST|path=/login?"),
]
GOOD = [
    ("callers", "address=2001:db8::/64"),
    ("callers", "address=192.0.2.7"),
    ("paths", "method=POST|path=/login"),
    ("paths", "method=|path=/login"),
    ("plans", "plan=free"),
    ("items", "user=a%7Cb|sku=7%25"),
]


@pytest.mark.parametrize(("rule", "key", "limits"), USELESS)
async def test_an_override_without_effect_is_refused(
    rule: str,
    key: str,
    limits: str,
    server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    book = tmp_path / "rules.json"
    book.write_text(json.dumps(BOOK))
    words = ["overrides", "set", rule, key, limits, "--rules", str(book), "--engine", server.url]
    assert main(words) == 2
    message = capsys.readouterr().err.removeprefix("headgate: ").strip().replace(str(book), "the rulebook")
    for url in ("memory://", server.url):
        with Limiter.from_rules(BOOK, url) as limiter, pytest.raises(InvalidRule) as refused:
            limiter.overrides(rule).set(key, limits)
        assert str(refused.value) == message
        async with AsyncLimiter.from_rules(BOOK, url) as awaited:
            with pytest.raises(InvalidRule) as also:
                await awaited.overrides(rule).set(key, limits)
            assert str(also.value) == message
            assert await awaited.overrides(rule).get(key) is None


@pytest.mark.parametrize(("rule", "key", "hint"), NEARLY)
def test_the_key_that_was_meant_is_named(rule: str, key: str, hint: str) -> None:
    with Limiter.from_rules(BOOK) as limiter, pytest.raises(InvalidRule) as refused:
        limiter.overrides(rule).set(key, "5/s")
    assert str(refused.value).endswith(hint)


@pytest.mark.parametrize(("rule", "key"), GOOD)
def test_a_key_that_calls_have_can_be_set(rule: str, key: str) -> None:
    with Limiter.from_rules(BOOK) as limiter:
        assert limiter.overrides(rule).set(key, "5/s")


def test_an_effective_override_is_set() -> None:
    with Limiter.from_rules(BOOK) as limiter:
        overrides = limiter.overrides("items")
        assert overrides.set("user=ann|sku=7", "3/minute")
        assert not overrides.set("user=ann|sku=7", "4/minute", absent=True)
        assert limiter.check({"user": "ann", "sku": "7", "address": "192.0.2.7"}).remaining == 2
        assert list(overrides.list()) == [("user=ann|sku=7", "3/minute")]
        assert overrides.unset("user=ann|sku=7")


def test_overrides_of_a_rule_that_is_gone_can_be_unset() -> None:
    with Limiter.from_rules(BOOK) as limiter:
        limiter.overrides("items").set("user=ann|sku=7", "3/minute")
        limiter.replace(Rulebook(rules=limiter.rulebook.rules[1:]))
        gone = limiter.overrides("items")
        assert gone.get("user=ann|sku=7") == "3/minute"
        assert gone.unset("user=ann|sku=7")
        with pytest.raises(InvalidRule, match='There is no rule "items"'):
            gone.set("user=ann|sku=7", "3/minute")
