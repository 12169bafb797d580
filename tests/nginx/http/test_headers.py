"""Header fields in Lua: those that Python writes, whatever was decided, in every form."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.algorithms.decision import Verdict
from headgate.algorithms.limit import SECOND, Limit
from headgate.http.headers import headers
from headgate.limit_syntax import parse
from tests.http.test_headers import FORMS, LIMITS, START_US, StubDecision, passed, refused
from tests.nginx.pure_modules_process import bundle_entry, start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

NEVER, LOCKED_OUT = -1, -3


@pytest.fixture(scope="module")
def lua() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def verdict_fields(verdict: Verdict, locked: bool = False) -> dict[str, Any]:
    """A verdict as the gateway has it. Without a rule it goes by the limit's text."""
    wait_us = NEVER if verdict.retry_after_us is None else verdict.retry_after_us
    allowed = 1 if verdict.allowed else LOCKED_OUT if locked else 0
    outcome = [allowed, verdict.remaining, wait_us, verdict.reset_after_us, verdict.delay_us, verdict.at_us, 0]
    fields = {"limit": bundle_entry(verdict.limit), "outcome": outcome, "cost": verdict.cost}
    return fields if verdict.rule is None else fields | {"rule": verdict.rule}


def fields(
    lua: LuajitProcess, decision: StubDecision, form: str, locked: Sequence[bool] = ()
) -> list[tuple[str, str]]:
    wait_us = decision.outcome[2]
    verdicts = [
        verdict_fields(verdict, at < len(locked) and locked[at]) for at, verdict in enumerate(decision.verdicts)
    ]
    wait = {} if wait_us is None else {"wait": wait_us}
    answer = lua.call_driver("headers", form=form, verdicts=verdicts, allowed=decision.allowed, **wait)
    return [(name, value) for name, value in answer]


limits = st.sampled_from([parse(text) for text in LIMITS])
times_us = st.integers(0, 400 * 86400 * SECOND) | st.sampled_from([0, 1, SECOND, SECOND + 1, 10**15, 10**16])
rules = st.sampled_from(["login", "items", "x", "x#1", "", 'say "hé"\\\n', "登录"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
amounts = st.integers(0, 50) | st.integers(0, 2**53) | st.sampled_from([10**14 - 1, 10**14, 10**15 - 1, 10**15])


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    allowed = draw(st.booleans())
    wait_us = 0 if allowed else draw(st.none() | times_us)
    limit: Limit = draw(limits)
    rule = draw(st.none() | rules)
    return Verdict(
        allowed, draw(amounts), wait_us, draw(times_us), 0, START_US, 0, limit, "key", draw(amounts), rule
    )


@settings(max_examples=2000, deadline=None)
@given(st.lists(verdicts(), max_size=4), st.sampled_from(FORMS), st.lists(st.booleans(), max_size=4))
@example([passed("10/s", 5, 0.5, "api"), passed("10/s", 4, 0.5, "api"), passed("10/s", 3, 1, "x")], "draft-11", [])
@example([refused("10/minute", 0, 5.2, 60, "login", cost=2), passed("10/s", 9, 0.1, "daily")], "draft-11", [])
@example([refused("10/minute", 10, None, 0, "login", cost=11), refused("10/s", 0, 3, 1, "x")], "legacy", [])
@example([refused("20 slots", 0, 12.5, 30, "room")], "draft-11", [True])
@example([passed("9/s", 3, 1, "a"), passed("9/s", 0, 0, "a"), passed("9/s", 2, 1, "a")], "envoy", [])
@example([passed("9/s", 0, 0, "a")], "draft-11", [])
def test_the_fields_are_pythons(lua: LuajitProcess, drawn: list[Verdict], form: str, locked: list[bool]) -> None:
    decision = StubDecision(*drawn)
    assert fields(lua, decision, form, locked) == headers(decision, form)  # type: ignore[arg-type]


@settings(deadline=None)
@given(st.lists(verdicts(), max_size=3), st.sampled_from(FORMS))
def test_a_call_that_was_refused_without_a_count(lua: LuajitProcess, drawn: list[Verdict], form: str) -> None:
    """A rule that refuses because the key is missing: no wait can help, whatever the others say."""
    decision = StubDecision(*drawn)
    decision.outcome = (False, 0, None, 0, 0, 0, 0)
    assert fields(lua, decision, form) == headers(decision, form)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
def test_a_wait_of_minus_one_is_never(lua: LuajitProcess, form: str) -> None:
    verdict = refused("10/minute", 10, None, 0, "login", cost=11)
    answer = lua.call_driver("headers", form=form, verdicts=[verdict_fields(verdict)], allowed=False, wait=NEVER)
    assert [tuple(field) for field in answer] == headers(StubDecision(verdict), form)  # type: ignore[arg-type]


def test_a_cached_policy_names_its_rule_only(lua: LuajitProcess) -> None:
    """Two rules share a limit, and one has it twice: in any order, again and again."""
    for names in (["a"], ["b", "a"], ["a", "a"], ["a", "b", "a"], ["a"], [None, None]):
        decision = StubDecision(*(passed("7/s burst 10", 3, 1, name) for name in names))
        for form in FORMS:
            assert fields(lua, decision, form) == headers(decision, form)  # type: ignore[arg-type]


def test_an_unknown_form_is_named(lua: LuajitProcess) -> None:
    answer = lua.call_driver("headers", form="draft-99", verdicts=[], allowed=True)
    assert answer["error"] == (
        '"draft-99" is not a form of headers. Known are draft-11, legacy, envoy, spring and off.'
    )


def test_fields_of_a_limit_are_computed_once(lua: LuajitProcess) -> None:
    first, second = (
        verdict_fields(passed("10/minute", 5, 30, "login")),
        verdict_fields(passed("10/minute", 4, 36, "login")),
    )
    other = verdict_fields(passed("10/minute", 4, 36, "other"))
    assert lua.call_driver("kept", one=first, other=second) is True
    assert lua.call_driver("kept", one=first, other=other) is False
