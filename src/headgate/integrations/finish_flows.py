"""The flows that end a request: give charges back; refund, settle and release once the response has ended.

Adaptive rules learn how the request went from its status:

    503, 504                                  dropped
    any other from 500 on, 499, 101           ignored: an error, a client that went away, a WebSocket
    everything else                           success
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from headgate.algorithms.slots import Slots
from headgate.enforcement import adaptive_rules
from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.errors import CorruptState, EngineUnavailable, LeaseLost
from headgate.flow import Flow
from headgate.integrations.request_parts import EMPTY
from headgate.integrations.request_record import RequestRecord

L = TypeVar("L", RuleLimiter, AsyncRuleLimiter)

_log = logging.getLogger("headgate")


_DROPPED_STATUSES = frozenset({503, 504})
_SWITCHING_PROTOCOLS, _CLIENT_CLOSED_REQUEST, _SERVER_ERROR = 101, 499, 500


class FinishFlows(Generic[L]):
    """The end of requests; RequestFlows has their beginning."""

    @property
    def limiter(self) -> L:
        """The limiter of the application."""
        raise NotImplementedError

    def _give_back(self, record: RequestRecord) -> Flow[None]:
        """Gives back what earlier stages charged."""
        earlier, record.decisions, record.refunds = record.decisions, [], ()
        record.costs_after, record.estimates, record.real_costs, record.calls = (), (), EMPTY, ()
        yield from self._release(record)
        for decision in earlier:
            if not (holds_slots(decision) and len(decision.counter_decisions) == 1):
                with suppress(EngineUnavailable, CorruptState):  # the refusal matters more; they expire
                    yield partial(self.limiter.refund, decision)

    def _release(self, record: RequestRecord) -> Flow[None]:
        holdings, record.holdings = record.holdings, ()
        for holding in holdings:
            try:
                yield partial(self._leave, holding)
            except (LeaseLost, EngineUnavailable, CorruptState) as error:
                _log.warning("headgate: %s", error)

    def _finish(self, record: RequestRecord, status: int, response: Any) -> Flow[None]:
        """Refunds, settles and releases after the response, and reports its status."""
        self.end_calls(record, status)
        try:
            yield from self._change_counts(record, status, response)
        finally:
            if record.reported:
                self._report_response(record, status)

    def measure_calls(self, record: RequestRecord, decision: RuleDecision) -> None:
        """Measures a request for adaptive rules from now on: what it waited for is no work of the application."""
        if adaptive_rules.has_calls(decision):
            adaptive_rules.restart(decision)
            record.calls = (*record.calls, decision)

    def end_calls(self, record: RequestRecord, status: int) -> None:
        """Tells adaptive rules how the request went; once."""
        calls, record.calls = record.calls, ()
        for decision in calls:
            adaptive_rules.end(decision, outcome_of(status))

    def _change_counts(self, record: RequestRecord, status: int, response: Any) -> Flow[None]:
        """Refunds by the response, releases slots, and settles what the request really cost."""
        record.status = status
        yield from self._return_units(record, status, response)
        costs_after, record.costs_after = record.costs_after, ()
        real_costs, record.real_costs = dict(record.real_costs), EMPTY
        for rule in record.refunded:
            real_costs.pop(rule, None)
            costs_after = tuple(each for each in costs_after if each[2] != rule)
        for limit, decision, rule in costs_after:
            if rule not in real_costs and limit.cost_after is not None:
                cost = yield partial(self._call, limit.cost_after, record)
                if cost is not None:
                    limit.check_returned_cost(cost)
                    yield from self._after_response(rule, partial(self.limiter.settle, decision, cost, rule))
        for rule, cost in real_costs.items():
            for decision in record.decisions:
                if any(rule == name for name, _ in decision.labels):
                    yield from self._after_response(rule, partial(self.limiter.settle, decision, cost, rule))

    def _return_units(self, record: RequestRecord, status: int, response: Any) -> Flow[None]:
        """Releases slots and refunds by the response: what its status and header fields decide."""
        refunds, record.refunds = record.refunds, ()
        yield from self._release(record)
        for applies, decision, rule in refunds:
            if (yield partial(self._call, applies, status, response)):
                record.refunded = (*record.refunded, rule)
                yield from self._after_response(rule, partial(self.limiter.refund, decision.only({rule})))

    def _report_response(self, record: RequestRecord, status: int) -> None:
        """Reports the status of the response to the observers."""
        reported, record.reported = record.reported, ()
        observers = self.limiter.observers
        if observers is not None:
            ended_ns = perf_counter_ns()
            for decision, decided_ns in reported:
                observers.responded(decision, status, (ended_ns - decided_ns) // 1000)

    def _after_response(self, rule: str, change: Callable[[], Any]) -> Flow[None]:
        """Refunds or settles a charge. The response is gone, so an engine that does not answer is only logged."""
        try:
            yield change
        except (EngineUnavailable, CorruptState) as error:
            _log.warning('headgate: a charge of "%s" could not be refunded or settled: %s', rule, error)

    # What differs between sync and async:
    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the application."""
        raise NotImplementedError

    def _leave(self, holding: Any) -> Any:
        raise NotImplementedError


def outcome_of(status: int) -> str:
    """Returns what a response says about the service that gave it."""
    if status in _DROPPED_STATUSES:
        return DROPPED
    ignored = status >= _SERVER_ERROR or status in (_SWITCHING_PROTOCOLS, _CLIENT_CLOSED_REQUEST)
    return IGNORED if ignored else SUCCESS


def holds_slots(decision: RuleDecision) -> bool:
    """Returns whether a decision holds slots, which are released and not refunded."""
    return any(isinstance(meter.limit, Slots) for meter, _, _ in decision.charges)
