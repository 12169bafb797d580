"""The record of one request: what was decided about it, for the response and for the application.

An application reads it from its request (request.state.headgate, flask.g.headgate, request.headgate). It is always
true, unlike a refused Decision: `record.fields()` has the header fields of allowed and refused requests alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from headgate.enforcement.rule_decision import RuleDecision
from headgate.http.headers import Fields, merged_headers
from headgate.http.refusal_body import RefusalResponse
from headgate.integrations.code_limit import CodeLimit
from headgate.integrations.request_parts import RequestParts
from headgate.rules.rule import Headers


class RequestRecord:
    """What was decided about one request.

    decisions   one for each stage; of a refused request only the one that refused
    answer      the response of a refused request, without the header fields; else None
    exempt      whether the path is exempt from all limits
    """

    __slots__ = (
        "answer", "attributes",
        "decided", "decisions", "exempt", "form", "holdings", "parts", "refunds", "user",
    )  # fmt: skip

    def __init__(self, parts: RequestParts, exempt: bool) -> None:
        self.parts: RequestParts = parts
        self.exempt: bool = exempt
        self.decisions: list[RuleDecision] = []
        self.answer: RefusalResponse | None = None
        self.form: Headers | None = None
        self.user: tuple[Any] | None = None  # what the resolver returned; None: it was not called yet
        self.attributes: Mapping[str, Any] | None = None
        self.decided: Collection[CodeLimit] = ()  # limits in code that need not be decided again
        self.holdings: list[Any] = []
        self.refunds: list[tuple[Callable[[int, Any], object], RuleDecision, str]] = []

    @property
    def decision(self) -> RuleDecision | None:
        """The decision that refused, or the latest one; None if no limit applied."""
        return self.decisions[-1] if self.decisions else None

    @property
    def allowed(self) -> bool:
        """Whether the request may pass, as far as it was decided."""
        return self.answer is None

    @property
    def retry_after(self) -> float | None:
        """The seconds after which a refused request would pass; None if it passed, or if no wait can help."""
        decision = self.decision
        return None if decision is None or decision.allowed else decision.retry_after

    def fields(self) -> Fields:
        """Returns the header fields of the response: one set for all decisions."""
        return merged_headers(self.decisions, self.form or "draft-11") if self.decisions else []

    def response(self) -> tuple[int, Fields, bytes]:
        """Returns status, all header fields and body of the response to a refused request."""
        assert self.answer is not None
        return self.answer.status, [*self.answer.headers, *self.fields()], self.answer.body
