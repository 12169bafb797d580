"""Finds conditions that can never hold, as far as their texts alone show it.

    {header.x-plan: gold, plan: free}                 possible: two attributes
    all: [{plan: gold}, {plan: free}]                 impossible: one attribute, no text in common
    all: [{plan: true}, {plan: false}]                impossible
    {is: internal, not: internal}                     impossible

Law: a condition that is reported holds for no call. (Not the other way round.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headgate.rules.condition import All, AnyOf, Condition, Not, Test


def contradiction(condition: Condition) -> str | None:
    """Returns why a condition can never hold, or captures a name twice; None if no reason is found."""
    parts = list(_flatten(condition))
    repeated = [
        name for name, times in Counter(name for part in parts for name in part.captures).items() if times > 1
    ]
    if repeated:
        return f"Two patterns that must both hold capture {{{repeated[0]}}}: give each a name of its own."
    for part in parts:
        if isinstance(part, Not) and part.part in parts:
            return f"This can never hold: {part.part}, and not."
    tests: dict[str, list[Test]] = {}
    for part in parts:
        if isinstance(part, Test):
            tests.setdefault(part.attribute, []).append(part)
    for same_attribute in tests.values():
        if len(same_attribute) > 1 and _exclude_each_other(same_attribute):
            return f"This can never hold: {' and '.join(map(str, same_attribute))}."
    return None


def excludes_all(when: Condition | None, unless: Condition | None) -> bool:
    """Returns whether `except` covers all that `when` matches."""
    if when is None or unless is None:
        return False
    exceptions = unless.parts if isinstance(unless, AnyOf) else (unless,)
    return unless == when or any(part in exceptions for part in (when, *_flatten(when)))


def always_captured(condition: Condition | None) -> frozenset[str]:
    """Returns the names that are captured whenever the condition holds."""
    if isinstance(condition, Test) and condition.patterns:
        return frozenset.intersection(*(frozenset(pattern.captures) for pattern in condition.patterns))
    if isinstance(condition, All):
        return frozenset().union(*map(always_captured, condition.parts))
    if isinstance(condition, AnyOf):
        return frozenset.intersection(*map(always_captured, condition.parts))
    return frozenset()


def _flatten(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, All):
        for part in condition.parts:
            yield from _flatten(part)
    else:
        yield condition


def _exclude_each_other(tests: list[Test]) -> bool:
    if any(test.expected is False for test in tests):
        return any(test.expected is not False for test in tests)
    sets = [exact for test in tests if (exact := _exact_texts(test)) is not None]
    if not sets:
        return False
    return not any(all(_passes(test, text) for test in tests) for text in frozenset.intersection(*sets))


def _exact_texts(test: Test) -> frozenset[str] | None:
    """Returns all texts that pass the test; None if wildcards make them unlimited."""
    if test.attribute != "path":
        return test.exact
    rows = [[step.exact if step else None for step in pattern.head] for pattern in test.patterns]
    if (
        not rows
        or any(pattern.tail is not None for pattern in test.patterns)
        or any(None in globs for globs in rows)
    ):
        return None
    return frozenset("/" + "/".join(str(step) for step in globs) for globs in rows)


def _passes(test: Test, text: str) -> bool:
    return test.holds({test.attribute: text})


def covering_case(case: Test, earlier: list[Test]) -> str | None:
    """Returns the text of an earlier case that holds wherever this one does; None if none is found."""
    for other in earlier:
        covers = other.expected == case.expected or (
            case.exact is not None and all(_passes(other, text) for text in case.exact)
        )
        if covers or (other.expected == ("*",) and case.attribute not in ("path", "address")):
            return str(other.expected[0]) if isinstance(other.expected, tuple) else None
    return None
