"""A fast path for calls with the attributes of an earlier one: they are charged the same, without a new plan.

What a call is charged follows from the attributes that the rulebook uses, from its cost, and from the rulebook. So
the charges of a call that comes for the second time are kept, by these attributes, as long as the rulebook stays.

Gain: half of the time of a check in memory by four rules of a thousand, and a tenth of a check on Redis. A call
that never comes again loses a microsecond.

    not kept: calls by a rulebook with a limit that is split among the processes that are alive, because its share
    changes; by one that uses more than MAX_ATTRIBUTES attributes; and calls whose attributes are long

Law (tests/enforcement/test_repeated_calls.py): calls are charged as without this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.rules.attributes import Attributes

MAX_CALLS = 4096  # then they are planned anew
MAX_ATTRIBUTES = 12
MAX_LENGTH = 512  # characters of all attributes of a call


class RepeatedCalls:
    """The charges of calls that came more than once, under one compiled rulebook."""

    __slots__ = ("_compiled", "_matcher", "_names", "_plans", "_seen_hashes")

    def __init__(self, compiled: CompiledRulebook) -> None:
        self._compiled = compiled
        self._matcher = compiled.matcher
        self._names: tuple[str, ...] = tuple(compiled.matcher.used_attributes)
        self._plans: dict[Any, CallPlan] = {}
        self._seen_hashes: set[int] = set()  # of calls that came once

    @classmethod
    def can_keep(cls, compiled: CompiledRulebook) -> bool:
        """Returns whether the charges of a call stay the same under this rulebook."""
        shares_change = any(rule.where == "split" and rule.nodes is None for rule in compiled.book.rules)
        return not shares_change and len(compiled.matcher.used_attributes) <= MAX_ATTRIBUTES

    def plan(self, attributes: Mapping[str, Any], cost: int | None) -> CallPlan:
        """Plans the charges of a call."""
        matcher = self._matcher
        values = attributes if type(attributes) is Attributes else matcher.read(attributes)
        key: tuple[Any, ...] = (cost, *map(values.get, self._names))
        plan = self._plans.get(key)
        if plan is not None:
            return plan.repeat(attributes)
        plan = CallPlan(self._compiled, matcher.match_values(values, cost), attributes, cost)
        digest = hash(key)
        if digest not in self._seen_hashes:
            if len(self._seen_hashes) >= MAX_CALLS:
                self._seen_hashes.clear()
            self._seen_hashes.add(digest)
        elif sum(len(value) for value in key[1:] if value) <= MAX_LENGTH:
            if len(self._plans) >= MAX_CALLS:
                self._plans.clear()
            self._plans[key] = plan.repeat(None)
        return plan
