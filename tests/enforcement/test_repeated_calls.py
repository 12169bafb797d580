"""Compares the plans of repeated calls with those of the plain path: the charges must be the same."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Limiter
from headgate.enforcement import repeated_calls
from headgate.enforcement.call_plan import REMOTE, CallPlan
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.limit_syntax import parse
from headgate.rules import load
from headgate.rules.attributes import Attributes

RULES: list[dict[str, Any]] = [
    {"name": "all", "limit": "100/s"},
    {"name": "user", "key": "user", "missing": "skip", "limit": "10/s; 100/h"},
    {"name": "must", "key": ["user", "address/24"], "missing": "deny", "limit": "5/s"},
    {
        "name": "blank",
        "key": "address",
        "missing": "one",
        "limit": "5/s",
        "mode": {"enforce": 40, "shadow": 30},
    },
    {"name": "item", "when": {"path": "/items/{sku}"}, "key": "sku", "limit": "3/s", "candidate": "2/s"},
    {"name": "get", "when": {"method": "GET", "path": "/items/**"}, "except": {"user": "bob"}, "limit": "4/s"},
    {"name": "plan", "key": "user", "limit": {"by": "plan", "cases": {"pro": "9/s"}, "otherwise": "1/s"}},
    {"name": "size", "key": "user", "cost": "size", "missing": "deny", "limit": "50/s"},
    {"name": "vip", "when": {"plan": "pro"}, "key": "user", "limit": "20/s", "replaces": ["user"]},
    {"name": "none", "when": {"header.x-free": True}, "limit": "unlimited", "replaces": ["all"]},
    {"name": "here", "where": "node", "key": "address", "limit": "2/s"},
    {"name": "jobs", "when": {"path": "/jobs"}, "limit": "2 slots"},
]
ATTRIBUTES: dict[str, list[Any]] = {
    "method": ["GET", "get", "POST"],
    "path": ["/items/7", "/items/7/", "/items/8", "/jobs", "/"],
    "user": ["ann", "bob", "a|b", ""],
    "address": ["192.0.2.1", "192.0.2.9", "2001:db8::1", "x"],
    "plan": ["free", "pro"],
    "size": ["3", "x", 3],
    "header.x-free": ["1", ""],
    "Header-That-No-Rule-Uses": ["1", "2"],
}
CALLS = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in ATTRIBUTES.items()})


def described(plan: CallPlan) -> Any:
    charges = [(meter.name, meter.limit.text, key, cost) for meter, key, cost in plan.charges]
    denied = [(before, match.rule.name, match.denial_reason) for before, match in plan.denied_matches]
    return charges, plan.labels, denied, plan.is_single_request, plan.attributes, plan.stated_cost, plan._stages


def planned_anew(limiter: RuleLimiter, attributes: Any, cost: int | None) -> CallPlan:
    compiled = limiter.compiled_rulebook
    return CallPlan(compiled, compiled.match(attributes, cost), attributes, cost)


def kept(limiter: RuleLimiter) -> int:
    assert limiter._repeated_calls is not None
    return len(limiter._repeated_calls._plans)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(RULES), unique_by=lambda rule: rule["name"], min_size=1),
    st.lists(st.tuples(CALLS, st.sampled_from([None, None, 1, 3]), st.booleans()), min_size=1, max_size=12),
)
def test_a_repeated_call_is_charged_as_by_the_plain_path(rules: list[dict[str, Any]], calls: list[Any]) -> None:
    names = {rule["name"] for rule in rules}
    rules = [{**rule, "replaces": [name for name in rule.get("replaces", []) if name in names]} for rule in rules]
    limiter = Limiter.from_rules({"defaults": {"missing": "skip"}, "rules": rules})
    for _ in range(3):
        for attributes, cost, in_normal_form in calls:
            given_attributes = Attributes(attributes) if in_normal_form else attributes
            plan = limiter.plan_call(given_attributes, cost)
            assert described(plan) == described(planned_anew(limiter, given_attributes, cost))
    assert kept(limiter)


def test_a_new_rulebook_is_followed_at_once() -> None:
    limiter = Limiter.from_rules({"rules": [RULES[1]]})
    for _ in range(3):
        assert limiter.check({"user": "ann"}).rule == "user"
    limiter.replace(load.from_mapping({"rules": [{"name": "other", "limit": "3/s"}]}))
    for _ in range(3):
        assert limiter.check({"user": "ann"}).rule == "other"


def test_what_is_done_to_one_plan_is_not_seen_by_the_next() -> None:
    limiter = Limiter.from_rules({"rules": [RULES[1]]})
    for _ in range(3):
        plan = limiter.plan_call({"user": "ann"})
        assert len(plan.charges) == 2
        plan.charges = []


@pytest.mark.parametrize("way", ["add", "join"])
def test_a_charge_that_is_added_to_one_plan_is_not_in_the_next(way: str) -> None:
    limiter = Limiter.from_rules({"rules": [RULES[1], RULES[2]]})
    compiled = limiter.compiled_rulebook
    for _ in range(4):
        plan = limiter.plan_call({"user": "ann"})
        assert described(plan) == described(planned_anew(limiter, {"user": "ann"}, None))
        if way == "add":
            plan.add((REMOTE, ("here", None), [compiled.caller_meter(parse("5/s"), "here")]), "ann", 1)
        else:
            plan.join(planned_anew(limiter, {"user": "bob"}, None))
        assert len(plan.charges) > 2


def test_a_share_that_changes_is_planned_each_time() -> None:
    split = {"name": "split", "where": "split", "limit": "10/s"}
    assert Limiter.from_rules({"rules": [split]})._repeated_calls is None
    assert Limiter.from_rules({"rules": [{**split, "nodes": 2}]})._repeated_calls is not None


def test_a_book_of_many_attributes_is_planned_each_time() -> None:
    rules = [
        {"name": f"r{number}", "key": f"header.x-{number}", "missing": "skip", "limit": "1/s"}
        for number in range(13)
    ]
    assert Limiter.from_rules({"rules": rules[:12]})._repeated_calls is not None
    assert Limiter.from_rules({"rules": rules})._repeated_calls is None


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_calls, "MAX_CALLS", 100)
    limiter = Limiter.from_rules({"rules": [RULES[1]]})
    for number in range(1000):
        for _ in range(2):
            limiter.plan_call({"user": f"user-{number}"})
        assert kept(limiter) <= 100
        assert limiter._repeated_calls is not None
        assert len(limiter._repeated_calls._seen_hashes) <= 100


def test_a_call_that_comes_once_or_is_long_is_not_kept() -> None:
    limiter = Limiter.from_rules({"rules": [RULES[1]]})
    limiter.plan_call({"user": "ann"})
    for _ in range(3):
        limiter.plan_call({"user": "a" * 513})
    assert kept(limiter) == 0
