"""Remembers how requests were planned that nothing but the client's address can tell apart.

Most applications limit by address, or count all callers together. Then every request of one address makes the same
charges: to read its attributes and to match them again would cost more than to decide. So the first request of an
address is planned by the plain path (request_flows.py), and what it made is kept here, with the header fields of
its limits, for those that follow.

    limits qualify that use no attribute but `address`, call no function of the application, and settle or refund
    nothing after the response. Limits that are split among processes do not: their share changes. Nor does a
    rulebook, whose rules look at the path

Gain: called in a loop, the ASGI middleware takes 5 us in memory; if it plans every request, it takes 24.
One charge in memory is decided without a coroutine (`decide_now`), and the middleware's `send` is none either:
together that saves 0.25 us of 5.

Law (tests/integrations/test_request_plan_cache.py): an application with these plans and one without them decide
alike, and send the same fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from headgate.algorithms.decision import ALLOWED, DELAY_US, REMAINING, RESET_AFTER_US, Outcome
from headgate.algorithms.limit import UNLIMITED
from headgate.enforcement.call_plan import CallPlan, CompiledRulebook
from headgate.enforcement.rule_decision import Charged, RuleDecision
from headgate.engines.memory.async_engine import AsyncMemoryMeter
from headgate.http.headers import LimitFields, policy_names
from headgate.integrations.code_limit import BoundLimit
from headgate.integrations.request_parts import PartsReader, RequestParts

MAX_ADDRESSES = 10_000  # for each tuple of limits; then the plans are made anew
MAX_LIMITS = 10_000

EncodedFields = list[tuple[bytes, bytes]]


class AddressPlan:
    """The charges of all requests of one address, and the header fields of their limits."""

    __slots__ = ("_limit_fields", "_policy", "charge", "decide_now", "plan")

    def __init__(self, plan: CallPlan) -> None:
        self.plan: CallPlan = plan
        self.charge: Charged | None = plan.charges[0] if len(plan.charges) == 1 else None  # the only one
        self.decide_now: Callable[[], Outcome] | None = None  # if that is in memory
        if self.charge is not None and isinstance(meter := self.charge[0], AsyncMemoryMeter):
            self.decide_now = partial(meter.meter.decide, *self.charge[1:])
        limits = [meter.limit for meter, _, _ in plan.charges]
        self._limit_fields: list[LimitFields] = []
        # Verdicts of shadows and unlimited rules have no fields: the plain path leaves them out.
        if UNLIMITED not in limits and all(shadow_kind is None for _, shadow_kind in plan.labels):
            rules = [rule for rule, _ in plan.labels]
            names = policy_names(list(zip(rules, limits, strict=True)))
            self._limit_fields = list(map(LimitFields, names, limits))
        policies = ", ".join(each.policy for each in self._limit_fields)
        self._policy = b"ratelimit-policy", policies.encode("latin-1", "replace")

    def passes_at_once(self, decision: RuleDecision) -> bool:
        """Returns whether the request passes, and nothing but its header fields remains to be done."""
        for outcome in decision.outcomes:
            if outcome is None or not outcome[ALLOWED] or outcome[DELAY_US]:
                return False
        return True

    def fields(self, decision: RuleDecision) -> EncodedFields | None:
        """Returns the header fields of a request that passed, as draft 11 has them; None if they are not plain."""
        if not self._limit_fields:
            return None
        states: list[str] = []
        for outcome in decision.outcomes:
            # An override has another limit. A call that passed uncounted, in an outage, has no fields.
            if outcome.__class__ is not tuple or not (outcome[REMAINING] or outcome[RESET_AFTER_US]):
                return None
            states.append(self._limit_fields[len(states)].state(outcome))
        return [self._policy, (b"ratelimit", ", ".join(states).encode("latin-1", "replace"))]


class _LimitPlans:
    """The plans of one tuple of limits, under one compiled rulebook."""

    __slots__ = ("all_of_request", "by_client", "by_peer", "compiled", "limits")

    def __init__(self, limits: Sequence[BoundLimit], compiled: CompiledRulebook) -> None:
        self.limits = limits  # kept, so that its id stays its own
        self.compiled = compiled
        # Whether nothing is missing if the rulebook is to be decided, too.
        self.all_of_request: bool = not (compiled.book.rules or compiled.rules_with_cost)
        self.by_peer: dict[str, AddressPlan] = {}
        self.by_client: dict[str, AddressPlan] = {}


class AddressPlans:
    """The plans of an application's requests, by limits and address."""

    def __init__(self, reader: PartsReader) -> None:
        self._reader = reader
        self._plans: dict[int, _LimitPlans] = {}  # by the id of a tuple of limits

    def find(
        self, parts: RequestParts, limits: Sequence[BoundLimit], compiled: CompiledRulebook, with_rules: bool
    ) -> AddressPlan | None:
        """Returns how requests of this address are planned; None if that is not known."""
        plans = self._plans.get(id(limits))
        if plans is None or plans.compiled is not compiled or not parts.peer:
            return None
        if with_rules and not plans.all_of_request:
            return None
        if not self._reader.is_forwarded(parts):
            return plans.by_peer.get(parts.peer)
        client, untrusted = self._reader.find_client(parts)
        plan = plans.by_client.get(client)
        if plan is not None and untrusted:
            self._reader.note_untrusted(client)
        return plan

    def keep(
        self, parts: RequestParts, limits: Sequence[BoundLimit], compiled: CompiledRulebook, plan: CallPlan
    ) -> None:
        """Keeps the plan of a request, if all requests of its address have the same."""
        if not parts.peer or type(limits) is not tuple or not plan.is_single_request or not plan.charges:
            return
        if not all(map(depends_on_address_alone, limits)):
            return
        plans = self._plans.get(id(limits))
        if plans is None or plans.compiled is not compiled:
            if len(self._plans) >= MAX_LIMITS:
                self._plans.clear()
            plans = self._plans[id(limits)] = _LimitPlans(limits, compiled)
        forwarded = self._reader.is_forwarded(parts)
        by_address = plans.by_client if forwarded else plans.by_peer
        if len(by_address) >= MAX_ADDRESSES:
            by_address.clear()
        by_address[self._reader.find_client(parts)[0] if forwarded else parts.peer] = AddressPlan(plan)


def depends_on_address_alone(bound: BoundLimit) -> bool:
    """Returns whether the charges of a limit are the same for all requests of one address, now and later."""
    limit, rule = bound.limit, bound.rule
    return (
        limit.uses <= {"address"}
        and limit.key_function is None
        and limit.cost_function is None
        and limit.exempt_function is None
        and limit.refunds is None
        and not limit.states_cost
        and rule.where == "cluster"
    )
