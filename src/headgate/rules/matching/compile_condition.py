"""Conditions as plain functions: the same answers as `holds`, without walking through their parts.

Law: compiled(condition)(attributes) is condition.holds(attributes).
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.rules.condition import All, AnyOf, Attributes, Condition, Predicate, Test


def compile_condition(condition: Condition) -> Predicate:
    """A function for one condition."""
    if isinstance(condition, Test):
        return condition.holds
    if isinstance(condition, All):
        return condition.holds if condition.captures else compile_all(condition.in_order)
    if isinstance(condition, AnyOf):
        return _some([compile_condition(part) for part in condition.parts])
    part = compile_condition(condition.part)
    return lambda attributes: not part(attributes)


def compile_all(conditions: Sequence[Condition]) -> Predicate:
    """A function for several that capture nothing and must all hold."""
    parts = [compile_condition(condition) for condition in conditions]
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        first, second = parts
        return lambda attributes: first(attributes) and second(attributes)

    def holds(attributes: Attributes) -> bool:
        for part in parts:  # noqa: SIM110 (all() with a generator takes twice as long)
            if not part(attributes):
                return False
        return True

    return holds


def _some(parts: Sequence[Predicate]) -> Predicate:
    def holds(attributes: Attributes) -> bool:
        for part in parts:  # noqa: SIM110 (as above)
            if part(attributes):
                return True
        return False

    return holds
