"""check() by a rulebook, mostly in memory: which rules are charged, which one decides, which run as shadows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.clock import ManualClock
from headgate.enforcement.call_plan import counter_names
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.errors import InvalidCharge, RateLimited
from headgate.limiter import AsyncLimiter, Limiter
from headgate.rules import load
from tests.servers import RedisServer


def limiter(*rules: dict[str, Any], clock: ManualClock | None = None, **book: Any) -> RuleLimiter:
    return Limiter.from_rules({"rules": list(rules), **book}, clock=clock or ManualClock(1_000_000_000))


USER = {"name": "user", "key": "user", "missing": "skip", "limit": "3/minute"}
ITEM = {"name": "item", "when": {"path": "/items/{sku}"}, "key": "sku", "limit": "2/minute"}
CALL = {"method": "GET", "path": "/items/7", "user": "ann"}


def test_all_rules_that_apply_are_charged_together_or_none() -> None:
    gate = limiter(USER, ITEM)
    assert [verdict.rule for verdict in gate.check(CALL).verdicts] == ["user", "item"]
    assert gate.check(CALL)
    refused = gate.check(CALL)
    assert not refused
    assert refused.rule == "item"
    assert [(each.rule, each.allowed, each.remaining) for each in refused.verdicts] == [
        ("user", True, 1),
        ("item", False, 0),
    ]
    assert gate.check({**CALL, "path": "/other"}).remaining == 0  # the refused one was not charged to the user


def test_a_call_that_no_rule_applies_to_passes() -> None:
    decision = limiter(ITEM).check({"path": "/"})
    assert decision.allowed
    assert decision.rule is None
    assert decision.verdicts == ()
    assert decision.refusal is None
    assert str(decision) == "allowed: no limit applies"


def test_the_rule_that_refuses_longest_speaks_and_of_equals_the_first() -> None:
    gate = limiter(
        {"name": "short", "limit": "1/minute"},
        {"name": "long", "limit": "1/hour"},
        {"name": "same", "limit": "1/hour"},
    )
    gate.check({})
    assert gate.check({}).rule == "long"
    assert str(gate.check({})) == 'refused by rule "long" (1/hour): retry after 3600 s'


def test_of_a_call_that_passes_the_nearest_to_its_limit_speaks() -> None:
    gate = limiter({"name": "wide", "limit": "4/minute"}, {"name": "narrow", "limit": "10/minute"})
    first = gate.check({})
    assert (first.rule, first.remaining) == ("wide", 3)


def test_several_limits_of_a_rule_are_counted_apart_and_decided_together() -> None:
    clock = ManualClock(1_000_000_000)
    gate = limiter({"name": "both", "limit": ["2/s", "3/minute"]}, clock=clock)
    assert gate.check({})
    assert gate.check({})
    assert str(gate.check({}).limit) == "2/s"
    clock.advance(1)
    assert gate.check({})
    assert str(gate.check({}).limit) == "3/minute"


def test_a_refused_decision_has_the_response_of_its_rule() -> None:
    gate = limiter(
        {"name": "sale", "limit": "1/hour", "refuse": {"status": 503, "body": "Sold out", "type": "text/plain"}}
    )
    assert gate.check({}).refusal is None
    refusal = gate.check({}).refusal
    assert refusal is not None
    assert (refusal.status, refusal.body, refusal.type) == (503, "Sold out", "text/plain")


def test_a_missing_dimension_that_denies_needs_no_request() -> None:
    gate = limiter({**USER, "missing": "deny"}, {"name": "all", "limit": "1/hour"})
    refused = gate.check({})
    assert refused.rule == "user"
    assert refused.why is not None
    assert "user" in refused.why
    assert refused.retry_after is None
    assert gate.check({"user": "ann"})  # nothing was charged to `all`


def test_a_shadow_refuses_no_call_and_counts_by_its_verdict() -> None:
    gate = limiter({"name": "live", "limit": "3/hour"}, {"name": "tight", "limit": "1/hour", "mode": "shadow"})
    for tight in (True, False, False):
        decision = gate.check({})
        assert decision.allowed
        assert [(each.rule, each.shadow_kind, each.allowed) for each in decision.shadow_verdicts] == [
            ("tight", "shadow", tight)
        ]
    assert [each.rule for each in gate.check({}).verdicts] == ["live"]


def test_a_candidate_is_decided_even_if_the_live_limit_refuses() -> None:
    gate = limiter({"name": "live", "limit": "1/hour", "candidate": "3/hour"})
    outcomes = [(gate.check({}).allowed, gate.check({}).shadow_verdicts[0].remaining) for _ in range(2)]
    assert outcomes == [(True, 1), (False, 0)]
    aside = gate.check({}).shadow_verdicts[0]
    assert (aside.rule, aside.shadow_kind, aside.allowed) == ("live", "candidate", False)


def test_a_peek_charges_nothing_not_even_a_shadow() -> None:
    gate = limiter({"name": "live", "limit": "2/hour", "candidate": "2/hour"}, {**USER, "mode": "shadow"})
    for _ in range(5):
        peeked = gate.peek({"user": "ann"})
        assert peeked.allowed
    assert gate.check({"user": "ann"}).remaining == 1
    assert gate.peek({"user": "ann"}, cost=2).allowed is False


def test_the_cost_of_the_caller_is_times_what_a_rule_states() -> None:
    gate = limiter({"name": "plain", "limit": "10/hour"}, {"name": "stated", "limit": "10/hour", "cost": 4})
    assert [each.remaining for each in gate.check({}, cost=2).verdicts] == [8, 2]
    with pytest.raises(InvalidCharge, match="at least 0"):
        gate.check({}, cost=-1)


def test_a_lockout_refuses_for_longer_than_the_window() -> None:
    clock = ManualClock(1_000_000_000)
    gate = limiter(
        {"name": "login", "limit": "1/minute", "lockout": {"after": 2, "within": "10m", "for": "1h"}}, clock=clock
    )
    assert gate.check({})
    assert gate.check({}).retry_after == 60
    locked = gate.check({})
    assert locked.locked
    assert locked.retry_after == 3600
    assert "locked out" in str(locked)
    clock.advance(3599)
    assert not gate.check({})
    clock.advance(1)
    assert gate.check({})


def test_an_override_gives_one_key_a_separate_limit() -> None:
    gate = limiter({**USER, "overrides": True})
    gate.overrides("user").set("user=ann", "100/minute")
    first = gate.check({"user": "ann"})
    assert (first.remaining, str(first.limit)) == (99, "100/minute")
    gate.refund(first)
    assert gate.peek({"user": "ann"}, cost=100).allowed
    assert gate.check({"user": "bob"}).remaining == 2


def test_a_refund_gives_back_under_every_rule_and_candidate() -> None:
    gate = limiter(USER, {"name": "all", "limit": "5/hour", "candidate": "4/hour"})
    decision = gate.check({"user": "ann"}, cost=2)
    gate.refund(decision)
    after = gate.peek({"user": "ann"})
    assert [each.remaining for each in (*after.verdicts, *after.shadow_verdicts)] == [3, 5, 4]


def test_waiting_is_for_all_rules() -> None:
    clock = ManualClock(1_000_000_000)
    gate = limiter({"name": "a", "limit": "1/s"}, {"name": "b", "limit": "1/minute"}, clock=clock)
    gate.check({})
    assert not gate.wait({}, timeout=30)
    before_us = clock.now_us()
    assert gate.wait({}, timeout=60)
    assert clock.now_us() - before_us == 60_000_000


def test_slots_are_held_as_long_as_the_block_lasts() -> None:
    gate = limiter(
        {"name": "uploads", "key": "user", "missing": "skip", "limit": "1 slots"},
        {"name": "all", "limit": "3/hour"},
    )
    with gate.hold({"user": "ann"}) as held:
        assert [each.rule for each in held.verdicts] == ["uploads", "all"]
        refused = gate.check({"user": "ann"})
        assert refused.rule == "uploads"
        with pytest.raises(RateLimited), gate.hold({"user": "ann"}):
            pass
    decision = gate.check({"user": "ann"})
    assert decision
    assert decision.remaining == 0
    gate.release(decision)
    gate.release(decision)
    assert gate.check({"user": "bob"})
    assert not gate.check({"user": "ann"})  # of `all` nothing is left
    assert gate.peek({"user": "ann"}).verdicts[0].remaining == 1  # and the slot was given back


def test_reset_forgets_the_counts_of_a_call_and_its_lockout() -> None:
    gate = limiter({**USER, "limit": "1/hour", "lockout": {"after": 1, "for": "1d"}})
    assert gate.check(CALL)
    assert gate.check(CALL).locked
    gate.reset(CALL)
    assert gate.check(CALL)


def test_another_book_keeps_the_counts() -> None:
    gate = limiter({"name": "all", "limit": "10/hour fixed"})
    for _ in range(5):
        gate.check({})
    gate.replace(load.from_mapping({"rules": [{"name": "all", "limit": "6/hour fixed"}]}))
    assert gate.check({}).remaining == 0
    gate.replace(load.from_mapping({"rules": [{"name": "all", "limit": "20/hour fixed"}]}))
    assert gate.check({}).remaining == 13


KINDS = ("", " fixed", " sliding", " log")


def by_method(kind: str) -> dict[str, Any]:
    limit = {"by": "method", "cases": {"GET": f"4/s{kind}"}, "otherwise": f"6/minute{kind}"}
    return {"name": "api", "key": "user", "missing": "deny", "limit": limit, "candidate": limit}


def alternate(gate: RuleLimiter, advance_us: Callable[[int], object], kind: str) -> None:
    """For two minutes GET and POST in turn, three of each every half second."""
    passed = {"GET": 0, "POST": 0, "GET beside": 0, "POST beside": 0}
    for _ in range(240):
        for _ in range(3):
            for method in ("GET", "POST"):
                decision = gate.check({"user": "ann", "method": method})
                passed[method] += decision.allowed
                passed[f"{method} beside"] += decision.shadow_verdicts[0].allowed
        advance_us(500_000)
    burst = 0 if kind == " log" else 6
    assert 2 * 6 <= passed["POST"] <= 2 * 6 + burst, "the slower limit is not forgotten by way of the faster"
    assert 2 * 240 <= passed["GET"] <= 2 * 240 + 4, "nor does it slow the faster down"
    assert (passed["POST beside"], passed["GET beside"]) == (passed["POST"], passed["GET"])


@pytest.mark.parametrize("kind", KINDS)
def test_alternating_between_cases_is_held_to_each_limit(kind: str) -> None:
    clock = ManualClock(1_000_000_000)
    alternate(limiter(by_method(kind), clock=clock), lambda us: clock.advance(us / 1_000_000), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_and_so_on_a_server(kind: str, driven_server: RedisServer) -> None:
    clock = driven_server.clock
    assert clock is not None
    with Limiter.from_rules({"rules": [by_method(kind)]}, driven_server.url) as gate:
        gate.reset({"user": "ann", "method": "GET"})
        gate.reset({"user": "ann", "method": "POST"})
        alternate(gate, clock.advance_us, kind)


TIERS = {
    "name": "api",
    "key": "user",
    "missing": "deny",
    "limit": {"by": "plan", "cases": {"free": "3/hour; 9/day", "pro": "3/hour"}, "otherwise": "3/hour"},
}


def test_a_case_has_separate_counts_also_where_limits_are_the_same() -> None:
    gate = limiter(TIERS)
    for plan in ("free", "pro", "gold"):
        assert [gate.check({"user": "ann", "plan": plan}).remaining for _ in range(2)] == [2, 1]
    assert not gate.check({"user": "ann", "plan": "free"}, cost=2)
    assert gate.peek({"user": "ann", "plan": "pro"}).remaining == 1
    gate.reset({"user": "ann", "plan": "free"})
    assert [gate.peek({"user": "ann", "plan": plan}).remaining for plan in ("free", "pro", "gold")] == [3, 1, 1]


def names(rule_fields: dict[str, Any], **call: str) -> list[str]:
    (rule,) = load.from_mapping({"rules": [rule_fields]}).rules
    beside = [] if rule.candidate is None else counter_names(rule, rule.candidate.choose(call), candidate=True)
    return counter_names(rule, rule.limit.choose(call)) + beside


def test_counter_names_of_cases() -> None:
    both = {**TIERS, "candidate": TIERS["limit"]}
    assert names(both, plan="free") == ["api@free", "api#1@free", "api~@free", "api~#1@free"]
    assert names(both, plan="gold") == ["api", "api~"]
    by_key = {**TIERS, "key": ["user", "plan"], "candidate": "1/s"}
    assert names(by_key, plan="free") == ["api", "api#1", "api~"]
    assert names(by_key, plan="pro") == ["api", "api~"]


def test_a_network_in_the_key_does_not_decide_between_its_addresses() -> None:
    cases = {"by": "address", "cases": {"192.0.2.7": "9/hour"}, "otherwise": "1/hour"}
    near = {"name": "near", "key": "address/24", "limit": cases}
    assert names(near, address="192.0.2.7") == ["near@192.0.2.7"]
    assert names(near, address="192.0.2.8") == ["near"]


def test_a_lockout_and_an_override_are_the_keys_whatever_the_case() -> None:
    gate = limiter({**TIERS, "overrides": True, "lockout": {"after": 2, "for": "1h"}})
    gate.overrides("api").set("user=ann", "1/hour")
    for plan in ("free", "pro"):
        first = gate.check({"user": "ann", "plan": plan})
        assert (first.remaining, str(first.limit)) == (0, "1/hour")
    assert not gate.check({"user": "ann", "plan": "free"}).locked
    assert gate.check({"user": "ann", "plan": "pro"}).locked
    assert gate.check({"user": "ann"}).locked


def test_attributes_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(InvalidCharge, match="Attributes are a mapping"):
        limiter(USER).check("ann")  # type: ignore[arg-type]


async def test_awaited_it_is_the_same() -> None:
    gate = AsyncLimiter.from_rules({"rules": [USER, ITEM]}, clock=ManualClock(1_000_000_000))
    assert await gate.check(CALL)
    assert (await gate.check(CALL)).remaining == 0
    refused = await gate.check(CALL)
    assert refused.rule == "item"
    assert (await gate.peek({"user": "ann"})).remaining == 1
    async with gate.hold({"user": "bob"}) as held:
        assert held.rule == "user"
    await gate.reset(CALL)
    assert (await gate.wait(CALL, timeout=0)).remaining == 1
    await gate.close()
