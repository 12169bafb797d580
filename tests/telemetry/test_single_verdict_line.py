"""The fast path of the decision log writes the line that the plain path writes, or none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter, ManualClock
from headgate.algorithms.decision import Decision
from headgate.observer import Observer
from headgate.telemetry.decision_record import DecidedCall, RecordMaker

texts = st.text(max_size=12)
values = st.one_of(texts, st.integers(), st.none(), st.just("x" * 3000))
RULES: dict[str, Any] = {
    "rules": [
        {"name": "api", "key": "user", "missing": "skip", "limit": "3/minute"},
        {"name": "pro", "when": {"plan": "pro"}, "key": "user", "missing": "skip", "limit": "2/hour fixed"},
        {"name": "trial", "when": {"plan": "new"}, "limit": "1/hour", "mode": "shadow"},
        {"name": "strict", "when": {"plan": "old"}, "key": "address", "missing": "deny", "limit": "9/s queue 5"},
    ]
}


class KeptDecisions(Observer):
    """Keeps every decision."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    def decided(self, decision: Decision, latency_us: int | None, response_follows: bool) -> None:
        self.decisions.append(decision)


# One maker for all tests: it keeps parts of lines, and must not confuse those of different limiters.
makers: dict[tuple[float, str | None], RecordMaker] = {}


def lines_of(call: DecidedCall, sample: float = 1.0, salt: str | None = None) -> tuple[str | None, str]:
    """The line of the fast path, if any, and that of the plain path."""
    maker = makers.setdefault((sample, salt), RecordMaker(sample, salt))
    record = RecordMaker(sample, salt).record(call)
    return maker.short_line(call), json.dumps(record, separators=(",", ":"))


def decided_call(decision: Decision, **more: Any) -> DecidedCall:
    return DecidedCall(decision, decision.attributes, 17, 23, 4)._replace(**more)


@given(
    st.lists(st.tuples(texts.filter(bool), st.integers(1, 4)), min_size=1, max_size=6), st.sampled_from([1, 0.1])
)
def test_calls_of_a_limiter_without_rules(calls: list[tuple[str, int]], sample: float) -> None:
    kept = KeptDecisions()
    limiter = Limiter("3/minute", name="api", clock=ManualClock(1_700_000_000_000_000), observers=[kept])
    for key, cost in calls:
        limiter.take(key, cost)
    for decision in kept.decisions:
        short, plain = lines_of(decided_call(decision), sample)
        assert short is None if len(decision.key) > 2048 else short == plain


@given(
    st.lists(
        st.tuples(
            st.fixed_dictionaries(
                {}, optional={"user": values, "plan": st.sampled_from(["pro", "new", "old"]), "path": texts}
            ),
            st.sampled_from([None, 1, 2]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_calls_by_rules(calls: list[tuple[dict[str, Any], int | None]]) -> None:
    kept = KeptDecisions()
    limiter = Limiter.from_rules(RULES, clock=ManualClock(1_700_000_000_000_000), observers=[kept])
    for attributes, cost in calls:
        limiter.check(attributes, cost)
    for decision in kept.decisions:
        short, plain = lines_of(decided_call(decision))
        assert short in (None, plain)


def test_the_usual_call_takes_the_fast_path_and_others_do_not() -> None:
    kept = KeptDecisions()
    limiter = Limiter.from_rules(RULES, clock=ManualClock(1_700_000_000_000_000), observers=[kept])
    limiter.check({"user": "ann"})
    [decision] = kept.decisions
    short, plain = lines_of(decided_call(decision))
    assert short == plain
    assert lines_of(decided_call(decision), salt="a salt of some length")[0] is None
    assert (
        lines_of(decided_call(decision, latency_us=None))[0]
        == lines_of(decided_call(decision, latency_us=None))[1]
    )
    for more in ({"status": 200}, {"duration_us": 5}, {"attributes": None}):
        assert lines_of(decided_call(decision, **more))[0] is None
    for attributes in ({"user": "ann", "plan": "pro"}, {"plan": "old"}, {"plan": "new"}, {"user": "x" * 3000}, {}):
        limiter.check(attributes)
        assert lines_of(decided_call(kept.decisions[-1]))[0] is None


@pytest.mark.parametrize("text", ['"', "\\", "\n", "ü", "\u2028", "\ud800", "\x00", "😀"])
def test_every_text_is_quoted_as_json_does(text: str) -> None:
    kept = KeptDecisions()
    Limiter("3/minute", clock=ManualClock(1), observers=[kept]).take(f"a{text}")
    short, plain = lines_of(decided_call(kept.decisions[0]))
    assert short == plain
