"""Rates in words as a rulebook."""

import pytest

from headgate import InvalidRule
from headgate.limit_syntax import parse
from headgate.rules import imports
from tests.rules.imports.translate_and_load import document_and_notes, rules

ADDRESS = (
    "Calls are counted by address (IPv6 by /64), for all routes together: change the key if yours was not "
    "get_remote_address, and give routes with limits of their own a rule with a path."
)
CLOCK = (
    "fixed-window became fixed: there a window begins with the first call that is counted; here windows are cut "
    "by the clock."
)


def test_rates_are_one_rule() -> None:
    assert document_and_notes("5/second;100/hour", name="api") == (
        {"name": "api", "rules": [{"name": "api", "key": "address", "limit": ["5/s fixed", "100/hour fixed"]}]},
        [CLOCK, ADDRESS],
    )


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("10 per 2 minutes", "10/2m fixed"),
        ("1/day, 5/minute", ["1/day fixed", "5/minute fixed"]),
        ("1 per second | 9/ 3 hours", ["1/s fixed", "9/3h fixed"]),
        ('"2 Per Hour"', "2/hour fixed"),
        ("5/month", "5/30d fixed"),
        ("1/second\n7/minute\n", ["1/s fixed", "7/minute fixed"]),
        ("5/m; 10r/m; 3/s", ["5/minute fixed", "10/minute fixed", "3/s fixed"]),
        (
            "1/sec, 2/5min, 3/H, 4 per 2hr, 5/d",
            ["1/s fixed", "2/5m fixed", "3/hour fixed", "4/2h fixed", "5/day fixed"],
        ),
    ],
)
def test_how_a_rate_is_written(text: str, limit: object) -> None:
    assert rules(text)[0]["limit"] == limit


@pytest.mark.parametrize(
    ("strategy", "limit"),
    [
        ("moving-window", "5/minute log"),
        ("sliding-window-counter", "5/minute sliding"),
        ("fixed-window", "5/minute fixed"),
    ],
)
def test_strategies(strategy: str, limit: str) -> None:
    assert rules("5/minute", strategy=strategy)[0]["limit"] == limit
    assert rules(f'RATELIMIT_STRATEGY = "{strategy}"\nRATELIMIT_DEFAULT = "5/minute"')[0]["limit"] == limit
    assert parse(limit).text == limit


def test_the_settings_of_flask() -> None:
    text = """
app.config["RATELIMIT_DEFAULT"] = "200/day;50/hour"
RATELIMIT_APPLICATION: 1/second
RATELIMIT_STORAGE_URI = "redis://localhost"
RATELIMIT_STRATEGY = 'moving-window'
"""
    document, notes = document_and_notes(text)
    assert document["rules"][0]["limit"] == ["200/day log", "50/hour log", "1/s log"]
    assert notes == [ADDRESS, "line 4: RATELIMIT_STORAGE_URI is left out: it is not part of a rulebook."]


def test_months_and_years_have_their_days() -> None:
    notes = document_and_notes("1/year; 2/2 months", strategy="moving-window")[1]
    assert notes[1:] == [
        "line 1: a year is 360 days there, and so it is here: 360d.",
        "line 1: a month is 30 days there, and so it is here: 60d.",
    ]


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("5/fortnight", {}, 'line 1: "5/fortnight" is not a rate. Write 5/second or 10 per 2 minutes.'),
        ("1/sx", {}, 'line 1: "1/sx" is not a rate. Write 5/second or 10 per 2 minutes.'),
        (" ; ", {}, 'No rate was found. Write them as "5/second;100/hour" or "10 per 2 minutes".'),
        (
            "1/second",
            {"strategy": "guess"},
            '"guess" is not a strategy. Known are fixed-window, moving-window, sliding-window-counter.',
        ),
    ],
)
def test_an_invalid_rate_is_refused(text: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        imports.translate(text, "limits", **options)
    assert str(raised.value) == sentence


def test_no_rate_is_zero() -> None:
    with pytest.raises(InvalidRule):
        imports.translate("0/second")
