"""Every public name says what it does, and shows it by an example (tests/docs/test_examples.py runs them)."""

from __future__ import annotations

import inspect

import pytest

from headgate.algorithms.limit import Limit
from headgate.observer import Observer
from tests.repo_rules.public_names import documentation, public_names

NAMES = dict(public_names())

# Verbs of an engine, a clock or a limit, which limiters call, and what only the service asks of a limiter.
CALLED_BY_HEADGATE = {
    *("headgate.SystemClock.now_us", "headgate.SystemClock.sleep_us", "headgate.SystemClock.asleep_us"),
    *("headgate.ManualClock.sleep_us", "headgate.ManualClock.asleep_us", "headgate.FixedWindow.at"),
    *(
        name
        for name in NAMES
        if name.startswith(
            ("headgate.testing.SyncAdapter.", "headgate.testing.TurnedClock.", "headgate.Observer.")
        )
    ),
    *(f"headgate.Counts.{name}" for name in vars(Observer) if not name.startswith("_")),
    *(name for name in NAMES if name.rpartition(".")[2] in vars(Limit)),
    "headgate.http.headers.LimitFields.state",
    "headgate.Counts.count_passes",
    *(
        f"headgate.AsyncRuleLimiter.{name}"
        for name in (
            "plan_call",
            "counters_of",
            "decide_plan",
            "decide_batch",
            "peek_batch",
            "plan_batch",
        )
    ),
}


def sync_twin(name: str) -> str:
    """The same verb of the class that is not awaited: it shows what the awaited one does."""
    return name.replace(".Async", ".")


def is_verb(name: str) -> bool:
    """A function, class or method; not a property, which its class shows."""
    thing = NAMES[name]
    return inspect.isclass(thing) or inspect.isfunction(getattr(thing, "__func__", thing))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_says_what_it_does(name: str) -> None:
    first, *more = documentation(NAMES[name]).split("\n")
    assert first, f"{name} has no docstring."
    assert first[0].isupper(), first
    assert not first.startswith(("What ", "Who ", "The same")), f"{name}: say what it does, not: {first}"
    assert not more or first.endswith((".", ":")) or more[0], f"{name}: the first line is a sentence, not: {first}"


@pytest.mark.parametrize("name", [name for name in NAMES if is_verb(name) and name not in CALLED_BY_HEADGATE])
def test_a_public_name_shows_it(name: str) -> None:
    shown = [name, *([sync_twin(name)] if not inspect.isclass(NAMES[name]) else [])]
    assert any(">>> " in documentation(NAMES[each]) for each in shown if each in NAMES), f"{name} has no example."
