"""Errors, decisions, charges and limits can be pickled and copied, with all that they say."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import headgate
from headgate import (
    Charge,
    CorruptState,
    Decision,
    EngineUnavailable,
    HeadgateError,
    InvalidCharge,
    InvalidRule,
    InvalidRulebook,
    LeaseLost,
    Limiter,
    ManualClock,
    MissingExtra,
    RateLimited,
    parse,
)
from headgate.client import Answer, Refused
from headgate.errors import InvalidSetting
from headgate.rules import load
from headgate.rules.distribution.published_versions import VersionConflict
from headgate.rules.find_rule import NoSuchRule
from headgate.slot_renewal import SlotHold
from tests.servers import RedisServer

LIMITS = (
    *("10/s burst 3", "1/2s", "6/s queue 3", "6/s queue 5 delay 2", "5/s fixed", "7/day fixed in Asia/Shanghai"),
    *("6/s sliding", "5/s log", "9/s smooth", "9/s smooth warmup 2s", "3 slots ttl 9s"),
)
RULES = {
    "rules": [
        {"name": "login", "key": "user", "missing": "deny", "limit": "2/minute", "refuse": {"body": "No."}},
        {"name": "vip", "key": "user", "missing": "skip", "limit": "9/minute", "overrides": True},
        {"name": "all", "limit": "100/s", "candidate": "1/s"},
        {"name": "jobs", "when": {"path": "/jobs"}, "limit": "1 slots"},
        {"name": "shadow", "key": "plan", "missing": "deny", "limit": "1/s", "mode": "shadow"},
        {"name": "plan", "when": {"path": "/plan"}, "key": "plan", "missing": "deny", "limit": "1/s"},
    ]
}
FACTS = (
    *("allowed", "remaining", "retry_after", "reset_after", "delay", "degraded", "atomic", "limit", "verdicts"),
    *("key", "cost", "rule", "shadow_kind", "lost", "refunded_units"),
)
RULED_FACTS = (*FACTS, "shadow_verdicts", "refusal", "why", "locked")

ways = pytest.mark.parametrize(
    "way",
    [
        lambda it: pickle.loads(pickle.dumps(it)),
        lambda it: pickle.loads(pickle.dumps(it, 2)),
        copy.copy,
        copy.deepcopy,
    ],
    ids=["pickle", "pickle 2", "copy", "deepcopy"],
)
Way = Callable[[Any], Any]


def clock_for(engine: str) -> ManualClock | None:
    """A server has its own."""
    return ManualClock() if engine == "memory://" else None


def decisions(engine: str) -> list[Decision]:
    clock = clock_for(engine)
    limiter = Limiter("2/minute; 3/hour", engine, clock=clock)
    found = [limiter.take("ann"), limiter.take("ann", 5), limiter.peek("ann"), limiter.reserve("ann", 2).decision]
    found.append(limiter.take_all([Charge("bob"), Charge("cat", "5/s", 2)]))
    found += [Limiter(text, engine, clock=clock).take("ann") for text in LIMITS[:-1]]
    found.append(Limiter(LIMITS[-1], engine, clock=clock).acquire("ann").decision)
    return found


def ruled_decisions(engine: str) -> list[Decision]:
    limiter = Limiter.from_rules(RULES, engine, clock=clock_for(engine))
    limiter.overrides("vip").set("user=vip", "1/minute")
    calls: list[dict[str, str]] = [{}, {"user": "ann"}, {"user": "ann"}, {"user": "ann"}, {"user": "vip"}]
    calls += [{"user": "vip"}, {"user": "bob", "path": "/jobs"}, {"user": "bob", "path": "/plan"}]
    answered: list[Decision] = [limiter.check(call) for call in calls]
    answered.append(Limiter.from_rules({"rules": []}).check({}))
    return answered


@ways
def test_a_decision_says_the_same(way: Way, redis_server: RedisServer) -> None:
    for engine in ("memory://", redis_server.url):
        for decision in decisions(engine):
            again = way(decision)
            assert type(again) is type(decision)
            assert [getattr(again, name) for name in FACTS] == [getattr(decision, name) for name in FACTS]
            assert (str(again), repr(again), bool(again)) == (str(decision), repr(decision), bool(decision))
            assert [str(part) for part in again.counter_decisions] == [
                str(part) for part in decision.counter_decisions
            ]


@ways
def test_a_decision_of_rules_says_the_same(way: Way, redis_server: RedisServer) -> None:
    for engine in ("memory://", redis_server.url):
        for decision in ruled_decisions(engine):
            again = way(decision)
            names = RULED_FACTS if isinstance(decision, headgate.RuleDecision) else FACTS
            assert type(again) is type(decision)
            assert [getattr(again, name) for name in names] == [getattr(decision, name) for name in names]
            assert (str(again), repr(again), bool(again)) == (str(decision), repr(decision), bool(decision))


@ways
def test_a_copy_gives_nothing_back(way: Way) -> None:
    """Or the same units would come back twice."""
    limiter, ruled = Limiter("3/hour"), Limiter.from_rules(RULES)
    taken, checked = limiter.take("ann"), ruled.check({"user": "ann"})
    for verb, decision in ((limiter.refund, taken), (ruled.refund, checked), (ruled.cancel, checked)):
        with pytest.raises(InvalidCharge, match=r"^This decision was copied or pickled"):
            verb(way(decision))
    limiter.refund(taken)
    assert limiter.peek("ann").remaining == 3


@ways
@pytest.mark.parametrize("text", LIMITS)
def test_limits_and_charges(way: Way, text: str) -> None:
    limit = parse(text)
    again = way(limit)
    assert (again, str(again), hash(again), again.args) == (limit, text, hash(limit), limit.args)
    made, before = Limiter(again, clock=ManualClock()), Limiter(limit, clock=ManualClock())
    if not made.holds_slots:
        assert str(made.take("key")) == str(before.take("key"))
    charge = Charge("key", limit, 2, "name")
    assert way(charge) == charge
    for verdict in Limiter("3/s; 5/hour").take("key").verdicts:
        assert way(verdict) == verdict


@ways
def test_rules_and_rulebooks(way: Way) -> None:
    book = load.from_mapping(RULES)
    again = way(book)
    assert again == book
    assert str(Limiter.from_rules(again).check({"user": "ann"})) == str(
        Limiter.from_rules(book).check({"user": "ann"})
    )


def errors() -> list[HeadgateError]:
    unavailable = EngineUnavailable("No answer.")
    unavailable.key = "ann"
    limiter = Limiter("1/hour")
    limiter.take("key")
    answer = Answer(allowed=False, rule="login", retry_after=2.0, refusal={"status": 429})
    plain = (
        MissingExtra,
        CorruptState,
        HeadgateError,
        InvalidCharge,
        InvalidRule,
        InvalidSetting,
        LeaseLost,
        NoSuchRule,
        VersionConflict,
    )
    return [
        *(kind("A sentence.") for kind in plain),
        unavailable,
        RateLimited(limiter.take("key")),
        RateLimited(ruled_decisions("memory://")[3]),
        InvalidRulebook([(1, "Bad."), (None, "Worse.")], "rules.yaml"),
        headgate.errors.InvalidLog("access.log is empty."),
        Refused(answer),
    ]


@ways
def test_errors_keep_what_they_carry(way: Way) -> None:
    for error in errors():
        error.add_note("while testing")
        again = way(error)
        assert type(again) is type(error)
        assert (str(again), again.__notes__) == (str(error), ["while testing"])
        shown = {name: str(value) for name, value in vars(error).items()}
        assert {name: str(value) for name, value in vars(again).items()} == shown


def test_no_error_was_left_out() -> None:
    tried = {type(error) for error in errors()}
    public = {
        value
        for value in (*vars(headgate.errors).values(), *vars(headgate.client).values())
        if isinstance(value, type) and issubclass(value, HeadgateError)
    }
    assert public - tried == set()


@ways
def test_an_answer_of_the_service(way: Way) -> None:
    held = Answer(allowed=True, rule="jobs", receipt="r", expires_after=9.0, slot_hold=SlotHold("A slot", 9.0))
    for answer in (held, Answer(allowed=False, verdicts=[{"rule": "a"}], refusal={"status": 429})):
        assert way(answer) == answer
        assert way(answer).lost is False


def refuse(key: str) -> None:
    limiter = Limiter("1/hour")
    limiter.take(key).or_raise()
    limiter.take(key).or_raise()


def refuse_by_rules(user: str) -> None:
    limiter = Limiter.from_rules(RULES)
    for _ in range(3):
        limiter.check({"user": user}).or_raise()


def test_rate_limited_comes_out_of_another_process() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(RateLimited, match=r"^refused by 1/hour: retry after ") as raised:
            pool.submit(refuse, "ann").result()
        decision = raised.value.decision
        assert (decision.allowed, decision.key, decision.limit) == (False, "ann", parse("1/hour"))
        assert decision.retry_after is not None
        assert 3000 < decision.retry_after <= 3600
        with pytest.raises(RateLimited, match=r'^refused by rule "login"') as raised:
            pool.submit(refuse_by_rules, "ann").result()
        assert isinstance(raised.value.decision, headgate.RuleDecision)
        assert raised.value.decision.refusal is not None
        assert raised.value.decision.refusal.body == "No."
