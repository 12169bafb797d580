"""Compiles conditions into closures with the results of `holds`, faster than a walk through the parts.

Law: compile_condition(condition)(attributes) == condition.holds(attributes).
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.rules.condition import All, AnyOf, Attributes, Condition, Predicate, Test


def compile_condition(condition: Condition) -> Predicate:
    """Returns a predicate for one condition."""
    if isinstance(condition, Test):
        return condition.holds
    if isinstance(condition, All):
        return condition.holds if condition.captures else compile_all(condition.in_order)
    if isinstance(condition, AnyOf):
        return _compile_any([compile_condition(predicate) for predicate in condition.parts])
    predicate = compile_condition(condition.part)
    return lambda attributes: not predicate(attributes)


def compile_all(conditions: Sequence[Condition]) -> Predicate:
    """Returns a predicate for several conditions that capture nothing and must all hold."""
    predicates = [compile_condition(condition) for condition in conditions]
    if len(predicates) == 1:
        return predicates[0]
    if len(predicates) == 2:
        first, second = predicates
        return lambda attributes: first(attributes) and second(attributes)

    def holds(attributes: Attributes) -> bool:
        for predicate in predicates:  # noqa: SIM110 (all() with a generator takes twice as long)
            if not predicate(attributes):
                return False
        return True

    return holds


def _compile_any(predicates: Sequence[Predicate]) -> Predicate:
    def holds(attributes: Attributes) -> bool:
        for predicate in predicates:  # noqa: SIM110 (as above)
            if predicate(attributes):
                return True
        return False

    return holds
