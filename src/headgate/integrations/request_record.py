"""The record of one request: what was decided about it, for the response and for the application.

An application reads it from its request (request.state.headgate, flask.g.headgate, request.headgate). It is always
true, unlike a refused Decision: `record.fields()` has the header fields of allowed and refused requests alike.

What a request really cost may be known only when it is answered: `record.settle(cost)` says so, any number of
times until the response has ended, and the last one counts. It is charged then, also if the client went away or
the application failed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from headgate.enforcement.rule_decision import RuleDecision
from headgate.errors import InvalidCharge
from headgate.http.headers import Fields, merged_headers
from headgate.http.refusal_body import RefusalResponse
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_parts import EMPTY, RequestParts
from headgate.integrations.request_plan_cache import AddressPlan, EncodedFields
from headgate.rules.rule import Headers
from headgate.validation import check_cost

# A function of the record that returns the real cost, the decision that charged the estimate, and its rule.
CostAfter = tuple[CodeLimit, RuleDecision, str]

DRAFT_11: Headers = "draft-11"


class RequestRecord:
    """The decisions about one request.

    decisions   one for each stage; of a refused request only the one that refused
    answer      the response of a refused request, without the header fields; else None
    exempt      whether the path is exempt from all limits
    status      the status of the response; None until it has ended
    bytes_sent  how many bytes of its body were sent
    """

    # Every request has a record, so it sets only what differs: these are the values of most requests.
    form: Headers | None = None
    user: tuple[Any] | None = None  # what the resolver returned; None: it was not called yet
    attributes: Mapping[str, Any] | None = None
    answer: RefusalResponse | None = None
    status: int | None = None
    bytes_sent: int = 0
    decided: Collection[CodeLimit] = ()  # limits in code that need not be decided again
    holdings: tuple[Any, ...] = ()
    calls: tuple[RuleDecision, ...] = ()  # of adaptive rules, that end with the response
    refunds: tuple[tuple[Callable[[int, Any], object], RuleDecision, str], ...] = ()
    refunded: Collection[str] = ()  # rules and limits whose charge was given back: they settle nothing
    sees_end: bool = True  # whether somebody finishes it when the response has ended
    rule_names: Collection[str] = ()  # all rules and limits of the application, once it was decided
    states_cost: bool = False  # whether one of those that were decided states a cost
    estimates: tuple[str, ...] = ()  # those that stated a cost and charged the request
    costs_after: tuple[CostAfter, ...] = ()
    real_costs: Mapping[str, int] = EMPTY  # by rule, as the application said
    reported: tuple[tuple[RuleDecision, int], ...] = ()  # to observers that wait for the response, and when
    address_plan: AddressPlan | None = None  # of the only decision, if it followed one

    def __init__(self, parts: RequestParts, exempt: bool) -> None:
        self.parts: RequestParts = parts
        self.exempt: bool = exempt
        self.decisions: list[RuleDecision] = []

    def add(self, decision: RuleDecision, address_plan: AddressPlan | None = None) -> None:
        """Adds the decision of a stage that the request has passed."""
        self.address_plan = None if self.decisions else address_plan
        self.decisions.append(decision)

    @property
    def unfinished(self) -> bool:
        """Returns whether something is to be refunded, settled, released, ended or reported after the response."""
        return bool(
            self.refunds or self.holdings or self.costs_after or self.real_costs or self.calls or self.reported
        )

    @property
    def returns_units(self) -> bool:
        """Returns whether something is to be refunded or released before the last byte of the response."""
        return bool(self.refunds or self.holdings)

    @property
    def changes_counts(self) -> bool:
        """Returns whether something is to be refunded, settled or released when the response has ended."""
        return bool(self.refunds or self.holdings or self.costs_after or self.real_costs)

    def settle(self, cost: int, rule: str | None = None) -> None:
        """Says what the request really cost: it is charged when the response has ended. The last word counts.

        Without `rule` it is the cost of the limit that states one, by `cost` or `cost_after`. If that does not
        apply to this request, nothing is charged.
        """
        check_cost(cost)
        if not self.sees_end:
            raise InvalidCharge(
                "To settle a cost, HeadgateMiddleware must be in MIDDLEWARE: it sees the response end."
            )
        estimates = list(dict.fromkeys(self.estimates)) if rule is None else [rule]
        if len(estimates) > 1:
            raise InvalidCharge(f"{_names(estimates)} state a cost: name one of them, settle({cost}, rule=...).")
        if rule is None and not self.states_cost and self.rule_names:
            raise InvalidCharge(
                "No limit of this request states a cost: write limit(..., cost=...), or name the limit, "
                f"settle({cost}, rule=...)."
            )
        if rule is not None and self.rule_names and rule not in self.rule_names:
            raise InvalidCharge(f"There is no limit {rule!r}; there are {_names(self.rule_names)}.")
        charged = {name for decision in self.decisions for name, _ in decision.labels}
        if self.answer is None and charged.intersection(estimates):
            self.real_costs = {**self.real_costs, estimates[0]: cost}

    @property
    def decision(self) -> RuleDecision | None:
        """The decision that refused, or the latest one; None if no limit applied."""
        return self.decisions[-1] if self.decisions else None

    @property
    def allowed(self) -> bool:
        """Returns whether the request may pass, as far as it was decided."""
        return self.answer is None

    @property
    def retry_after(self) -> float | None:
        """The seconds after which a refused request would pass; None if it passed, or if no wait can help."""
        decision = self.decision
        return None if decision is None or decision.allowed else decision.retry_after

    def fields(self) -> Fields:
        """Returns the header fields of the response: one set for all decisions."""
        return merged_headers(self.decisions, self.form or DRAFT_11) if self.decisions else []

    def encoded_fields(self) -> EncodedFields:
        """Returns the header fields in bytes, with names in lower case, as ASGI has them."""
        plan = self.address_plan
        if plan is not None and len(self.decisions) == 1 and self.form == DRAFT_11 and self.answer is None:
            fields = plan.fields(self.decisions[0])
            if fields is not None:
                return fields
        return [(encode_name(name), value.encode("latin-1", "replace")) for name, value in self.fields()]

    def response(self) -> tuple[int, Fields, bytes]:
        """Returns status, all header fields and body of the response to a refused request."""
        assert self.answer is not None
        return self.answer.status, [*self.answer.headers, *self.fields()], self.answer.body


@lru_cache(maxsize=64)
def encode_name(name: str) -> bytes:
    """Returns the name of a header field in bytes, in lower case."""
    return name.lower().encode("latin-1")


def _names(names: Iterable[str]) -> str:
    return " and ".join(f'"{name}"' for name in names)
