"""Wrong adaptive limits: the error states what was found, what is expected, and the nearest valid form."""

from __future__ import annotations

import pytest

from headgate.errors import InvalidRule
from headgate.rules import load

PERCENTILE = "A target is for a percentile from p50 to p99.9, with at most one decimal; not {}."
BOUND = "A bound is a whole number from 1 to 1,000,000, not {}."
EXAMPLE = "Write {adaptive: concurrency, target: p99 200ms, between: [5, 500]}."
ALONE = "An adaptive limit stands alone: it is no case of a choice, and not one of several limits."
UNITS = "Write a number and a unit, such as 50ms, 30s or 10m."


@pytest.mark.parametrize(
    ("target", "sentence", "hint"),
    [
        ("p100 200ms", PERCENTILE.format("p100"), "Did you mean p99.9 200ms?"),
        ("p99.99 200ms", PERCENTILE.format("p99.99"), "Did you mean p99.9 200ms?"),
        ("p0 200ms", PERCENTILE.format("p0"), "Did you mean p50 200ms?"),
        ("p99", '"p99" is not a target.', "Write a percentile and a length of time, such as p99 200ms."),
        ("200", '"200" is not a target.', "Did you mean p99 200ms?"),
        ("0.2", '"0.2" is not a target.', "Did you mean p99 0.2s?"),
        ("200ms", '"200ms" is not a target.', "Did you mean p99 200ms?"),
        ("P99 200ms", '"P99 200ms" is not a target.', "Did you mean p99 200ms?"),
        ("99% 200ms", '"99% 200ms" is not a target.', "Did you mean p99 200ms?"),
        ("100% 200ms", '"100% 200ms" is not a target.', "Did you mean p99.9 200ms?"),
        ("99.9th percentile 200ms", '"99.9th percentile 200ms" is not a target.', "Did you mean p99.9 200ms?"),
        ("median 200ms", '"median 200ms" is not a target.', "Did you mean p50 200ms?"),
        ("p99=200ms", '"p99=200ms" is not a target.', "Did you mean p99 200ms?"),
        ("p99 < 200ms", '"< 200ms" is not a length of time.', "Did you mean p99 200ms?"),
        ("p99 200msec", '"200msec" is not a length of time.', f"{UNITS} Did you mean 200ms?"),
        ("p99 0ms", '"0ms" must be more than 0.', UNITS),
        ("p99 400d", "A target is at most 366 days, not 400d.", "Did you mean p99 200ms?"),
        ("[p99 200ms]", "target is a text, not a list.", "Write p99 200ms without brackets."),
    ],
)
def test_a_wrong_target(target: str, sentence: str, hint: str) -> None:
    assert _problem(f"{{adaptive: concurrency, target: {target}}}") == (sentence, hint)


@pytest.mark.parametrize(
    ("between", "sentence", "hint"),
    [
        ("5-500", 'between is a list of two numbers, not "5-500".', "Write between: [5, 500]."),
        ("{min: 5, max: 10}", "between is a list of two numbers, not a mapping.", "Write between: [5, 10]."),
        (
            "[5]",
            "between is a list of two numbers, not of 1.",
            "Write the least and the most, such as between: [5, 500].",
        ),
        ("[500, 5]", "between begins at 500, above its end.", "Write between: [5, 500]."),
        ("[0, 10]", BOUND.format('"0"'), "Write between: [1, 10]."),
        ("[5/s, 10/s]", BOUND.format('"5/s"'), "Write between: [5, 10]."),
        ("[1.5, 10]", BOUND.format('"1.5"'), "Write the least and the most, such as between: [5, 500]."),
        ("[5, 2000000]", BOUND.format('"2000000"'), "Write between: [5, 1000000]."),
    ],
)
def test_wrong_bounds(between: str, sentence: str, hint: str) -> None:
    assert _problem(f"{{adaptive: concurrency, between: {between}}}") == (sentence, hint)


@pytest.mark.parametrize(
    ("limit", "sentence", "hint"),
    [
        ("{adaptive: [concurrency]}", "adaptive is a text, not a list.", "Write concurrency without brackets."),
        ("{adaptive: true}", "adaptive cannot be true.", "Known here: concurrency, rate."),
        ("{adaptive: }", "adaptive cannot be empty.", "Known here: concurrency, rate."),
        ("{adaptive: rps}", 'adaptive cannot be "rps".', "Known here: concurrency, rate."),
        (
            "{adaptive: concurrency, floor: 5}",
            'An adaptive limit has no field "floor".',
            "Write between: [5, 500] for both.",
        ),
        ("[{adaptive: concurrency}]", ALONE, "Write it without brackets."),
        ("[{adaptive: concurrency}, 5/s]", ALONE, "Make it a rule of its own, with when."),
        ("concurrency", '"concurrency" is not a limit.', EXAMPLE),
        ("adaptive", '"adaptive" is not a limit.', EXAMPLE),
        (
            "{adaptive: concurrency, priority: plan}",
            'priority is a mapping, not "plan".',
            "Write priority: {by: plan, order: [pro, free]}.",
        ),
        (
            "{adaptive: concurrency, priority: {by: plan}}",
            "priority lacks the field order.",
            "Write priority: {by: plan, order: [pro, free]}.",
        ),
    ],
)
def test_a_wrong_form(limit: str, sentence: str, hint: str) -> None:
    assert _problem(limit) == (sentence, hint)


@pytest.mark.parametrize(
    ("pausable", "hint"),
    [
        ("maybe", "Write true, false, or a length of time such as 2h."),
        ("yes", "Write true, without quotes."),
        ("off", "Write false, without quotes."),
        ("[true]", "Write true, false, or a length of time such as 2h."),
    ],
)
def test_a_wrong_pausable(pausable: str, hint: str) -> None:
    found = "a list" if pausable.startswith("[") else f'"{pausable}"'
    sentence = f"pausable is true, false or the longest pause, not {found}."
    assert _problem(f"5/s\n    pausable: {pausable}") == (sentence, hint)


def _problem(limit: str) -> tuple[str, str]:
    """Returns the sentence and the hint of the first problem of a rule with this limit."""
    with pytest.raises(InvalidRule) as refused:
        load.parse(f"rules:\n  - name: app\n    limit: {limit}\n")
    lines = str(refused.value).split("\n")
    return lines[0].partition('rule "app": ')[2], lines[1].strip()
