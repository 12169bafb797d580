"""A cost that cannot be is refused by the sentence that fits it; one that is too large is called that."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import InvalidCharge, InvalidRule, Limiter, ManualClock, parse
from headgate.algorithms.limit import EXACT
from headgate.cli import main
from tests.servers import RedisServer

LIMITS = {
    "10/s burst 3": 3,
    "1/2s": 1,
    "6/s queue 3": 4,
    "5/s fixed": 5,
    "7/day fixed in Asia/Shanghai": 7,
    "6/s sliding": 6,
    "5/s log": 5,
    "9/s smooth": 9 * 366 * 86_400,
    "1/day smooth": 366,
}


@pytest.mark.parametrize("text", LIMITS)
def test_a_limit_knows_the_greatest_cost_that_can_pass(text: str, redis_server: RedisServer) -> None:
    most = LIMITS[text]
    assert parse(text).max_cost == most
    for engine in ("memory://", redis_server.url):
        limiter = Limiter(text, engine)
        assert limiter.take("key", most)
        for cost in (most + 1, EXACT + 1, 10**30, 10**5000):
            refused = limiter.take("other", cost)
            assert refused.retry_after is None
            shown = f"{cost}" if cost <= EXACT else "more than 2^53"
            assert (
                str(refused) == f"refused by {text}: a cost of {shown} is too large, at most {most} can ever pass"
            )


def test_a_rule_says_so_too() -> None:
    rules = {"rules": [{"name": "upload", "limit": "100/s", "cost": "size", "missing": "deny"}]}
    limiter = Limiter.from_rules(rules, clock=ManualClock())
    messages = {
        size: str(limiter.check({"size": size})) for size in ("101", "9" * 16, "9" * 40, "x", "-1", "1.5", "")
    }
    refused = 'refused by rule "upload"'
    assert messages["101"] == f"{refused} (100/s): a cost of 101 is too large, at most 100 can ever pass"
    for size in ("9" * 16, "9" * 40):
        assert messages[size] == f"{refused}, because size, the cost, is more than 2^53"
    for size in ("x", "-1", "1.5"):
        assert messages[size] == f"{refused}, because size, the cost, is no whole number"
    assert messages[""] == f"{refused}, because size, the cost, is missing"


@pytest.mark.parametrize("cost", [1.5, 3.0, True, "3", None, -1])
def test_invalid_costs_are_refused(cost: Any) -> None:
    limiter = Limiter("3/s")
    decision = limiter.take("key")
    with pytest.raises(InvalidCharge) as raised:
        limiter.take("key", cost)
    if cost == -1:
        assert str(raised.value) == "A cost is at least 0, not -1. To give units back, use refund."
        with pytest.raises(InvalidCharge, match=r"^A cost to give back is at least 0, not -1\.$"):
            limiter.refund(decision, cost)
    else:
        assert str(raised.value) == f"A cost is a whole number, not {cost!r}."


def test_nothing_is_no_cost_to_wait_for() -> None:
    for verb in (Limiter("3/s").wait, Limiter("3/s").reserve):
        with pytest.raises(
            InvalidCharge, match=r"^A cost is at least 1, not 0\. To look without charging, use peek"
        ):
            verb("key", 0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("9" * 60 + "/s", "An amount has at most 30 digits."),
        ("9" * 60 + " slots", "An amount has at most 30 digits."),
        ("3/s burst " + "9" * 60, "An amount has at most 30 digits."),
        ("3/" + "9" * 30 + "s", "A period is at most 285 years."),
        ("3/0.1us", "A period is a whole number of microseconds, at least one."),
        ("1.5/s", "1.5 is not a whole number."),
    ],
)
def test_amounts_and_periods_that_are_too_large(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        parse(text)
    assert str(raised.value).endswith(sentence)


@pytest.mark.parametrize(
    ("cost", "sentence"),
    [
        ("0", "a whole number of at least 1, not '0'"),
        ("1.5", "a whole number of at least 1, not '1.5'"),
        ("9" * 16, f"at most 999999999999999, not '{'9' * 16}'"),
        ("9" * 60, f"at most 999999999999999, not '{'9' * 60}'"),
    ],
)
def test_the_command_line(cost: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["take", "ann", "--limit", "3/s", "--engine", "memory://", "--cost", cost]) == 2
    assert capsys.readouterr().err == f"headgate: Argument --cost: {sentence}. See headgate take --help.\n"
