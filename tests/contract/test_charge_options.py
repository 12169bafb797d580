"""Charge options, on every engine: shadows, lockouts, overrides, and previews without commit."""

from collections.abc import Iterator

import pytest

from headgate.algorithms.decision import (
    ALLOWED,
    REMAINING,
    RETRY_AFTER_US,
    LockedOutcome,
    Outcome,
    OverriddenOutcome,
    Receipt,
)
from headgate.algorithms.limit import HOUR, MINUTE, SECOND
from headgate.algorithms.lockout import Lockout
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import Engine, Meter
from headgate.errors import InvalidCharge, InvalidRule
from headgate.limit_syntax import parse, parse_all
from headgate.testing.sync_adapter import SyncAdapter
from tests.contract.engine_harness import EngineHarness

THRICE = Lockout(after=3, within_us=10 * MINUTE, for_us=HOUR)


@pytest.fixture
def engine(harness: EngineHarness) -> Iterator[Engine]:
    if not harness.awaited:
        yield harness.engine
        return
    blocking = SyncAdapter(harness.async_engine)
    yield blocking
    blocking.close()


def charges(
    engine: Engine, terms: ChargeOptions | None, text: str, key: str, cost: int = 1
) -> list[tuple[Meter, str, int]]:
    name = "plain" if terms is None else terms.rule
    limits = enumerate(parse_all(text))
    return [
        (engine.meter(limit, f"{name}#{index}" if index else name, terms), key, cost) for index, limit in limits
    ]


def allowed(outcomes: list[Outcome]) -> list[bool]:
    return [each[ALLOWED] for each in outcomes]


def left(outcomes: list[Outcome]) -> list[int]:
    return [each[REMAINING] for each in outcomes]


def kinds(outcomes: list[Outcome]) -> list[type]:
    return [type(each) for each in outcomes]


def override_texts(outcomes: list[Outcome]) -> list[str | None]:
    """The texts of the limits that decided in place of the rule's."""
    return [str(each.limit) if isinstance(each, OverriddenOutcome) else None for each in outcomes]


def test_a_shadow_charge_is_kept_if_the_call_is_refused(engine: Engine) -> None:
    shadow = charges(engine, ChargeOptions("shadow", is_shadow=True), "5/hour; 9/hour log", "anna")
    full = charges(engine, None, "1/hour", "anna")
    assert left(engine.decide_all([*full, *shadow])) == [0, 4, 8]
    refused = engine.decide_all([*full, *shadow])
    assert (allowed(refused), left(refused)) == ([False, True, True], [0, 3, 7])
    assert left(engine.decide_all([*shadow, *full])) == [2, 6, 0]


def test_a_shadow_refusal_charges_none_of_its_limits_and_blocks_no_call(engine: Engine) -> None:
    shadow = charges(engine, ChargeOptions("shadow", is_shadow=True), "1/hour; 9/hour log", "anna")
    live = charges(engine, None, "5/hour", "anna")
    assert left(engine.decide_all([*shadow, *live])) == [0, 8, 4]
    answer = engine.decide_all([*shadow, *live])
    # The second limit of the shadow would have passed, and tells how it stands: nothing of it was taken.
    assert (allowed(answer), left(answer)) == ([False, True, True], [0, 8, 3])


def test_the_third_refusal_locks_the_key_and_reports_it(engine: Engine, harness: EngineHarness) -> None:
    (meter, *_), *_ = charges(engine, ChargeOptions("login", lockout=THRICE), "2/hour burst 1", "anna")
    assert meter.decide("anna", 1)[ALLOWED]
    assert [type(meter.decide("anna", 1)) for _ in range(2)] == [tuple, tuple]
    locked = meter.decide("anna", 1)
    assert isinstance(locked, LockedOutcome)
    assert locked == (False, 0, HOUR, HOUR, 0, harness.clock.now_us(), 0)
    harness.advance(3599)
    for cost in (1, 0, 5):
        assert (meter.decide("anna", cost)[RETRY_AFTER_US], meter.decide("bob", 0)[ALLOWED]) == (SECOND, True)
    harness.advance(1)
    assert meter.decide("anna", 1)[ALLOWED]
    assert type(meter.decide("anna", 1)) is tuple


def test_a_rule_counts_one_refusal_whatever_the_others_say(engine: Engine) -> None:
    login = charges(engine, ChargeOptions("login", lockout=THRICE), "1/hour; 1/day log", "anna")
    other = charges(engine, ChargeOptions("other", lockout=THRICE), "9/hour", "anna")
    full = charges(engine, None, "1/day", "anna")
    assert allowed(engine.decide_all([*login, *other, *full])) == [True] * 4
    for _ in range(2):
        assert allowed(engine.decide_all([*full, *login, *other])) == [False, False, False, True]
    outcomes = engine.decide_all([*full, *login, *other])
    assert kinds(outcomes) == [tuple, LockedOutcome, LockedOutcome, tuple]
    for _ in range(9):  # it was never refused itself
        outcomes = engine.decide_all([*full, *other])
    assert kinds(outcomes) == [tuple, tuple]


def test_a_locked_live_rule_refuses_the_call_and_a_locked_shadow_does_not(engine: Engine) -> None:
    strict = Lockout(1, SECOND, MINUTE)
    beside = charges(engine, ChargeOptions("beside", is_shadow=True, lockout=strict), "1/day", "anna")
    login = charges(engine, ChargeOptions("login", lockout=strict), "1/day", "anna")
    live = charges(engine, None, "9/day", "anna")
    assert left(engine.decide_all([*beside, *live])) == [0, 8]
    assert kinds(engine.decide_all([*beside, *live])) == [LockedOutcome, tuple]
    assert left(engine.decide_all([*beside, *live])) == [0, 6]
    assert left(engine.decide_all([*login, *live])) == [0, 5]
    assert left(engine.decide_all([*login, *live])) == [0, 5]
    refused = engine.decide_all([*live, *login])
    assert (allowed(refused), left(refused)) == ([True, False], [5, 0])


def test_a_peek_leaves_no_trace(engine: Engine, harness: EngineHarness) -> None:
    strict = Lockout(1, SECOND, MINUTE)
    login = charges(engine, ChargeOptions("login", lockout=strict), "2/day", "anna", 2)
    shadow = charges(engine, ChargeOptions("shadow", is_shadow=True), "3/day log", "anna")
    before = harness.stored()
    outcomes = engine.decide_all([*login, *shadow], commit=False)
    assert (allowed(outcomes), left(outcomes), harness.stored()) == ([True, True], [2, 3], before)
    engine.decide_all([*login, *shadow])
    before = harness.stored()
    for _ in range(3):
        outcomes = engine.decide_all([*login, *shadow], commit=False)
        assert (allowed(outcomes), kinds(outcomes)) == ([False, True], [tuple, tuple])
    assert harness.stored() == before
    engine.decide_all(login)
    before = harness.stored()
    assert isinstance(engine.decide_all(login, commit=False)[0], LockedOutcome)
    assert harness.stored() == before


def test_a_step_back_locks_nobody_for_longer(engine: Engine, harness: EngineHarness) -> None:
    (meter, *_), *_ = charges(engine, ChargeOptions("login", lockout=Lockout(2, MINUTE, MINUTE)), "1/s", "anna")
    assert [meter.decide("anna", 1)[ALLOWED] for _ in range(3)] == [True, False, False]
    harness.advance(-1000)
    assert meter.decide("anna", 1)[RETRY_AFTER_US] == MINUTE
    harness.advance(59)
    assert meter.decide("anna", 1)[RETRY_AFTER_US] == SECOND
    harness.advance(1)
    # Nobody looked at the count while the door was bolted: it is put right by the first who comes.
    assert (type(outcome := meter.decide("anna", 1)), outcome[RETRY_AFTER_US]) == (tuple, SECOND)
    harness.advance(1)
    assert meter.decide("anna", 1)[ALLOWED]


def test_a_reset_lifts_the_lock_and_leaves_the_override(engine: Engine) -> None:
    (meter, *_), *_ = charges(
        engine, ChargeOptions("login", lockout=Lockout(1, MINUTE, HOUR), overrides=True), "1/day", "anna"
    )
    engine.overrides("login").set("anna", "2/day")
    assert [meter.decide("anna", 1)[ALLOWED] for _ in range(4)] == [True, True, False, False]
    meter.reset("anna")
    assert left([meter.decide("anna", 1)]) == [1]


def test_an_override_decides_by_position(engine: Engine) -> None:
    rule = charges(engine, ChargeOptions("api", overrides=True), "1/hour; 2/hour log; 3/hour fixed", "anna")
    ours = engine.overrides("api")
    assert override_texts(engine.decide_all(rule, commit=False)) == [None, None, None]
    assert ours.set("anna", "10/hour; 20/hour; 30/hour fixed; 40/hour")
    outcomes = engine.decide_all(rule)
    assert override_texts(outcomes) == [
        "10/hour",
        None,
        "30/hour fixed",
    ]  # a log is not a bucket, and nobody asks for a fourth
    assert left(outcomes) == [9, 1, 29]
    assert ours.set("anna", "10/hour")
    assert override_texts(engine.decide_all(rule)) == ["10/hour", None, None]
    refused = engine.decide_all(rule)
    assert (allowed(refused), override_texts(refused), left(refused)) == (
        [True, False, True],
        ["10/hour", None, None],
        [8, 0, 1],
    )
    assert ours.unset("anna")
    # The count goes on under the rule's own limit: what was taken meanwhile is not forgotten.
    assert (override_texts(engine.decide_all(rule)), allowed(engine.decide_all(rule))) == (
        [None] * 3,
        [False, False, True],
    )


def test_only_the_overrides_of_the_rule_and_the_key_count(engine: Engine) -> None:
    engine.overrides("api").set("anna", "10/hour")
    for terms, key in (
        (ChargeOptions("api", overrides=True), "bob"),
        (ChargeOptions("web", overrides=True), "anna"),
        (None, "anna"),
    ):
        assert override_texts(engine.decide_all(charges(engine, terms, "1/hour", key))) == [None]
    assert override_texts(engine.decide_all(charges(engine, ChargeOptions("api"), "1/hour", "anna"))) == [None]
    (meter, *_), *_ = charges(engine, ChargeOptions("api", overrides=True), "1/hour", "anna")
    assert override_texts([meter.decide("anna", 1), meter.decide("bob", 1)]) == ["10/hour", None]


def test_a_calendar_keeps_its_edges(engine: Engine) -> None:
    month = charges(engine, ChargeOptions("bill", overrides=True), "5/month fixed in Asia/Shanghai", "anna")
    plain = charges(engine, ChargeOptions("bill", overrides=True), "5/hour fixed", "bob")
    ends = engine.decide_all(month, commit=False)[0][6]
    for text, enforced in (
        ("7/month fixed in Asia/Shanghai", "7/month fixed in Asia/Shanghai"),
        ("8/year fixed", "8/month fixed in Asia/Shanghai"),
    ):
        engine.overrides("bill").set("anna", text)
        (outcomes,) = engine.decide_all(month, commit=False)
        assert (override_texts([outcomes]), outcomes[6], outcomes[REMAINING]) == ([enforced], ends, int(text[0]))
    engine.overrides("bill").set("anna", "9/minute fixed")
    assert override_texts(engine.decide_all(month)) == ["9/minute fixed"]
    engine.overrides("bill").set("bob", "7/month fixed")
    assert (override_texts(engine.decide_all(plain)), left(engine.decide_all(plain))) == ([None], [3])


def test_a_charge_under_an_override_is_refunded_by_the_override(engine: Engine) -> None:
    (meter, key, _), *_ = charges(engine, ChargeOptions("api", overrides=True), "1/hour burst 50", "anna")
    engine.overrides("api").set("anna", "100/hour")
    outcome = meter.decide(key, 40)
    assert isinstance(outcome, OverriddenOutcome)
    by = engine.meter(outcome.limit, "api", meter.options)
    assert left([by.refund(key, 40, Receipt.from_outcome(outcome, 40))]) == [100]


def test_a_refusal_by_an_override_counts_for_the_lockout(engine: Engine) -> None:
    terms = ChargeOptions("login", lockout=Lockout(2, MINUTE, MINUTE), overrides=True)
    (meter, *_), *_ = charges(engine, terms, "9/hour", "anna")
    engine.overrides("login").set("anna", "1/hour")
    assert [type(meter.decide("anna", 1)) for _ in range(3)] == [
        OverriddenOutcome,
        OverriddenOutcome,
        LockedOutcome,
    ]


def test_overrides_are_set_got_unset_and_listed(engine: Engine, harness: EngineHarness) -> None:
    ours = engine.overrides("api")
    assert (ours.get("anna"), ours.unset("anna"), list(ours.list())) == (None, False, [])
    assert ours.set("anna", "10 per second; 5/minute log")
    assert ours.get("anna") == "10/s; 5/minute log"
    assert not ours.set("anna", "1/s", absent=True)
    assert ours.set("bob % {x}", "1/s", absent=True)
    assert sorted(ours.list()) == [("anna", "10/s; 5/minute log"), ("bob % {x}", "1/s")]
    assert (len(list(ours.list(1))), len(list(ours.list(0))), list(engine.overrides("ap").list())) == (1, 0, [])
    assert ours.set("anna", "3/s", ttl=1.5)
    harness.advance(1.499)
    assert ours.get("anna") == "3/s"
    harness.advance(0.002)
    assert (ours.get("anna"), ours.unset("anna"), list(ours.list())) == (None, False, [("bob % {x}", "1/s")])
    assert ours.set("anna", "4/s", absent=True)
    assert ours.unset("anna")
    assert ours.get("anna") is None


@pytest.mark.parametrize("text", ["10/minit", "", "5 slots", "10/s; 3 slots", 7])
def test_an_invalid_override_is_never_written(text: str, engine: Engine, harness: EngineHarness) -> None:
    with pytest.raises(InvalidRule):
        engine.overrides("api").set("anna", text)
    with pytest.raises(InvalidRule, match="The life of an override must be"):
        engine.overrides("api").set("anna", "1/s", ttl=0)
    with pytest.raises(InvalidCharge, match="belongs to a key"):
        engine.overrides("api").set("", "1/s")
    assert (engine.overrides("api").get("anna"), harness.stored()) == (None, {})


def test_a_meter_knows_its_terms(engine: Engine) -> None:
    terms = ChargeOptions("api", overrides=True)
    assert engine.meter(parse("1/s"), "api", terms).options is terms
    assert engine.meter(parse("1/s"), "api").options is None
