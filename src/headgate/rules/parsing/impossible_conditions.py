"""Conditions that cannot be, as far as that can be seen from their words alone.

    {header.x-plan: gold, plan: free}                 may be: two attributes
    all: [{plan: gold}, {plan: free}]                 cannot: one attribute, no text in common
    all: [{plan: true}, {plan: false}]                cannot
    {is: internal, not: internal}                     cannot

Law: what is called impossible holds for no call. (Not the other way round.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headgate.rules.condition import All, AnyOf, Condition, Not, Test


def contradiction(condition: Condition) -> str | None:
    """Why the condition can never hold, or cannot be told apart; None if neither is seen."""
    parts = list(_flat(condition))
    twice = [
        name for name, times in Counter(name for part in parts for name in part.captures).items() if times > 1
    ]
    if twice:
        return f"Two patterns that must both hold capture {{{twice[0]}}}: give each a name of its own."
    for part in parts:
        if isinstance(part, Not) and part.part in parts:
            return f"This can never hold: {part.part}, and not."
    tests: dict[str, list[Test]] = {}
    for part in parts:
        if isinstance(part, Test):
            tests.setdefault(part.attribute, []).append(part)
    for several in tests.values():
        if len(several) > 1 and _exclude(several):
            return f"This can never hold: {' and '.join(map(str, several))}."
    return None


def excludes_all(when: Condition | None, unless: Condition | None) -> bool:
    """Whether what is excepted is all that is meant."""
    if when is None or unless is None:
        return False
    exceptions = unless.parts if isinstance(unless, AnyOf) else (unless,)
    return unless == when or any(part in exceptions for part in (when, *_flat(when)))


def always_captured(condition: Condition | None) -> frozenset[str]:
    """The names that are captured whenever it holds."""
    if isinstance(condition, Test) and condition.patterns:
        return frozenset.intersection(*(frozenset(pattern.captures) for pattern in condition.patterns))
    if isinstance(condition, All):
        return frozenset().union(*map(always_captured, condition.parts))
    if isinstance(condition, AnyOf):
        return frozenset.intersection(*map(always_captured, condition.parts))
    return frozenset()


def _flat(condition: Condition) -> Iterator[Condition]:
    if isinstance(condition, All):
        for part in condition.parts:
            yield from _flat(part)
    else:
        yield condition


def _exclude(tests: list[Test]) -> bool:
    if any(test.wanted is False for test in tests):
        return any(test.wanted is not False for test in tests)
    sets = [found for test in tests if (found := _exact(test)) is not None]
    if not sets:
        return False
    return not any(all(_passes(test, text) for test in tests) for text in frozenset.intersection(*sets))


def _exact(test: Test) -> frozenset[str] | None:
    """All the texts that pass, if they can be counted."""
    if test.attribute != "path":
        return test.exact
    steps = [[step.exact if step else None for step in pattern.head] for pattern in test.patterns]
    if (
        not steps
        or any(pattern.tail is not None for pattern in test.patterns)
        or any(None in row for row in steps)
    ):
        return None
    return frozenset("/" + "/".join(str(step) for step in row) for row in steps)


def _passes(test: Test, text: str) -> bool:
    return test.holds({test.attribute: text})


def covering_case(case: Test, before: list[Test]) -> str | None:
    """The text of the case that comes before and holds wherever this one does, if one is seen."""
    for other in before:
        same = other.wanted == case.wanted or (
            case.exact is not None and all(_passes(other, text) for text in case.exact)
        )
        if same or (other.wanted == ("*",) and case.attribute not in ("path", "address")):
            return str(other.wanted[0]) if isinstance(other.wanted, tuple) else None
    return None
