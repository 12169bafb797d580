"""A call that no limit applies to: library, header fields, service and client say the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headgate import Limiter, RuleDecision
from headgate.client import Answer, Client
from headgate.http.headers import headers
from tests.service.service_harness import Service

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "login", "when": {"path": "/login"}, "key": "user", "missing": "deny", "limit": "2/hour"},
        {"name": "spared", "when": {"path": "/spared"}, "limit": "unlimited"},
        {"name": "shadow", "when": {"path": "/shadow"}, "limit": "1/hour", "mode": "shadow"},
    ]
}
# path, then allowed, rule, limit, remaining, retry_after, reset_after, delay
UNMET = [
    ("/", True, None, None, None, 0.0, 0.0, 0.0),
    ("/spared", True, None, None, None, 0.0, 0.0, 0.0),
    ("/shadow", True, None, None, None, 0.0, 0.0, 0.0),
    ("/login", False, "login", None, None, None, 0.0, 0.0),  # without a user: refused without its limit
]


def answer_fields(path: str, answer: RuleDecision | Answer) -> tuple[Any, ...]:
    return (
        *(path, answer.allowed, answer.rule, answer.limit, answer.remaining),
        *(answer.retry_after, answer.reset_after, answer.delay),
    )


@pytest.mark.parametrize("verb", ["check", "peek", "reserve"])
def test_nothing_is_left_where_nothing_is_limited(verb: str) -> None:
    limiter = Limiter.from_rules(BOOK)
    answers = [answer_fields(path, getattr(limiter, verb)({"path": path})) for path, *_ in UNMET]
    assert answers == UNMET


def test_the_service_and_its_client_say_the_same() -> None:
    with Service(BOOK) as service, Client(service.url, timeout=20) as gate:
        assert [answer_fields(path, gate.check({"path": path})) for path, *_ in UNMET] == UNMET


def test_header_fields_say_nothing() -> None:
    limiter = Limiter.from_rules(BOOK)
    for path, *_ in UNMET:
        for form in ("draft-11", "legacy", "envoy", "spring"):
            call: Mapping[str, str] = {"path": path}
            assert headers(limiter.check(call), form) == []


def test_a_limited_call_reports_what_remains() -> None:
    limiter = Limiter.from_rules(BOOK)
    decision = limiter.check({"path": "/login", "user": "ann"})
    assert (decision.remaining, str(decision.limit)) == (1, "2/hour")
