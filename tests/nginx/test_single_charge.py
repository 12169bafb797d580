"""The fast path of a request that meets one rule answers as the plain path does.

Two gateways follow one book under one clock that stands still: one with single_charge.lua, and one in which it
declines every request, so that each goes the plain way.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nginx.gateway_harness import NginxGateway
from tests.servers import DrivenClock
from tests.servers.driven_clock import BASE_US

PLAIN = """attributes = (function()
  require("resty.headgate.single_charge").decide = function() return nil end
  return {}
end)()"""
RULES: list[dict[str, Any]] = [
    {"name": "tight", "when": {"path": "/tight/**"}, "limit": "2/minute fixed"},
    {"name": "wide", "when": {"path": "/wide/**"}, "limit": "1000/s"},
    {"name": "slow", "when": {"path": "/slow/**"}, "limit": "1000/s queue 5", "cost": 1},
    {"name": "slots", "when": {"path": "/slots/**"}, "limit": "20 slots"},
    {"name": "shadow", "when": {"path": "/shadow/**"}, "limit": "1/minute fixed", "mode": "shadow"},
    {"name": "dear", "when": {"path": "/dear/**"}, "limit": "3/minute", "cost": 5},
    {"name": "two", "when": {"path": "/two/**"}, "limit": ["2/minute fixed", "3/hour log"]},
    {
        "name": "keyed",
        "when": {"path": "/keyed/**"},
        "key": "header.user",
        "missing": "deny",
        "limit": "1/hour log",
    },
    {
        "name": "own",
        "when": {"path": "/own/**"},
        "limit": "1/day fixed",
        "refuse": {"status": 503, "body": "later"},
    },
    {"name": "sent", "when": {"path": "/sent/**"}, "limit": "1/day fixed", "refuse": {"redirect": "/wait"}},
]
FORMS = ("draft-11", "legacy", "envoy", "spring", "off")
IGNORED = ("date", "connection", "server")


class SingleCall(NamedTuple):
    rule: str
    user: str | None
    accept: str


CALLS = st.builds(
    SingleCall,
    st.sampled_from([str(rule["name"]) for rule in RULES] + ["none"]),
    st.sampled_from([None, "ada", "bob"]),
    st.sampled_from(["*/*", "application/json"]),
)


class GatewayPair:
    """A gateway with the fast path and one without, and how many calls each has answered."""

    def __init__(self, fast: NginxGateway, plain: NginxGateway) -> None:
        self.fast, self.plain, self.calls = fast, plain, 0

    def new_lines(self, count: int) -> tuple[list[str], list[str]]:
        """The lines of so many calls in both access logs."""
        before, self.calls = self.calls, self.calls + count
        fast, plain = (gate.lines(self.calls)[before:] for gate in (self.fast, self.plain))
        return fast, plain


@pytest.fixture(scope="module", params=FORMS)
def pair(request: pytest.FixtureRequest) -> Iterator[GatewayPair]:
    book = {"headers": request.param, "rules": RULES}
    with ExitStack() as stack:
        clock = stack.enter_context(DrivenClock(BASE_US))
        first, second = (
            stack.enter_context(NginxGateway(book, options=options, driven=clock)) for options in ("", PLAIN)
        )
        yield GatewayPair(first, second)


def answer(gate: NginxGateway, call: SingleCall) -> Any:
    headers = {"accept": call.accept} | ({} if call.user is None else {"user": call.user})
    reply = gate.get(f"/{call.rule}/x", headers)
    return reply.status, {name: value for name, value in reply.headers.items() if name not in IGNORED}, reply.body


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(CALLS, min_size=1, max_size=12))
def test_both_paths_answer_alike(pair: GatewayPair, calls: list[SingleCall]) -> None:
    answers = [(answer(pair.fast, call), answer(pair.plain, call)) for call in calls]
    fast_lines, plain_lines = pair.new_lines(len(calls))
    assert [fast for fast, _ in answers] == [plain for _, plain in answers]
    assert fast_lines == plain_lines
