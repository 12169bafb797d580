"""Each rule uses its own fallback: alone, together with others, as a shadow; without one it behaves as if there
were no layer.
"""

import logging
from collections.abc import Iterator

import pytest

from headgate.algorithms.decision import ALLOWED, REMAINING, Receipt
from headgate.algorithms.lockout import Lockout
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback.breaker import OPEN, SETTLING
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable
from headgate.limit_syntax import parse
from tests.engines.layers.fallback_harness import DAY, FallbackHarness, allowed_and_remaining, assert_unavailable


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def harness(request: pytest.FixtureRequest) -> Iterator[FallbackHarness]:
    harness = FallbackHarness(awaited=request.param)
    yield harness
    harness.engine.close()


def test_each_rule_alone_by_its_fallback(harness: FallbackHarness) -> None:
    allow, deny, local, none = [harness.rule(str(word), word) for word in ("allow", "deny", "local", None)]
    assert all(meter.decide("k", 1)[:2] == (True, 9) for meter in (allow, deny, local, none))
    harness.outage()
    for _ in range(5):
        assert allowed_and_remaining(allow.decide("k", 100)) == (True, 0)
        assert allowed_and_remaining(deny.decide("k", 1)) == (False, 0)
        assert_unavailable(lambda: none.decide("k", 1))
    assert [allowed_and_remaining(local.decide("k", 1)) for _ in range(6)] == [
        *((True, n) for n in (4, 3, 2, 1, 0)),
        (False, 0),
    ]


@pytest.mark.parametrize("mode", ["allow", "deny", "local", None])
def test_a_rule_without_a_fallback_uses_that_of_the_engine(mode: FallbackMode | None) -> None:
    harness = FallbackHarness(mode)
    silent, bare = harness.rule("silent"), harness.engine.meter(DAY, "bare")
    spoken = harness.rule("spoken", "deny")
    harness.outage()
    for meter in (silent, bare):
        assert meter.fallback == mode
        if mode is None:
            assert_unavailable(lambda meter=meter: meter.decide("k", 1))  # type: ignore[misc]
        else:
            assert allowed_and_remaining(meter.decide("k", 1))[0] is (mode != "deny")
    assert allowed_and_remaining(spoken.decide("k", 1)) == (False, 0)


def test_without_any_it_is_as_if_it_were_not_there(harness: FallbackHarness) -> None:
    meter, slots = harness.rule("none"), harness.engine.slots(parse_slots(), "s")
    receipt = Receipt.from_outcome(meter.decide("k", 1), 1)
    harness.outage()
    before = harness.wire.calls
    for _ in range(10):
        assert_unavailable(lambda: meter.decide("k", 1))
        assert_unavailable(lambda: meter.decide("k", 0))
        assert_unavailable(lambda: meter.refund("k", 1, receipt))
        assert_unavailable(lambda: meter.reset("k"))
        assert_unavailable(lambda: meter.retune("k"))
        assert_unavailable(lambda: harness.together((meter, "k", 1), (meter, "l", 1)))
        assert_unavailable(lambda: slots.acquire("k"))
    assert harness.wire.calls == before + 70  # however often it failed
    harness.wire.down = False
    assert meter.decide("k", 1)[:2] == (True, 8)  # at once
    assert harness.inside.opened_count == harness.inside.degraded_count == 0


def parse_slots() -> Slots:
    limit = parse("3 slots")
    assert isinstance(limit, Slots)
    return limit


def test_together_each_by_its_fallback_and_a_share_that_refuses_refuses_for_all(harness: FallbackHarness) -> None:
    allow, one, two = harness.rule("allow", "allow"), harness.rule("one", "local"), harness.rule("two", "local")
    harness.outage()
    assert list(map(allowed_and_remaining, harness.together((allow, "k", 9), (one, "k", 2), (two, "k", 3)))) == [
        (True, 0),
        (True, 3),
        (True, 2),
    ]
    assert list(map(allowed_and_remaining, harness.together((one, "k", 3), (two, "k", 3), (allow, "k", 1)))) == [
        (True, 3),  # it would have passed, and was not charged
        (False, 2),
        (True, 0),
    ]
    assert (harness.left(one), harness.left(two)) == (3, 2)
    harness.back()
    harness.together((allow, "k", 1), (one, "k", 1), (two, "k", 1))
    engine = harness.wire.engine
    assert engine.meter(DAY, "one").decide("k", 0)[REMAINING] == 10 - 2 - 1  # it was told, and asked
    assert engine.meter(DAY, "two").decide("k", 0)[REMAINING] == 10 - 3 - 1
    assert engine.meter(DAY, "allow").decide("k", 0)[REMAINING] == 10 - 1  # nobody keeps account of it


def test_one_that_is_denied_refuses_for_all_and_no_share_is_charged(harness: FallbackHarness) -> None:
    deny, local, empty = (
        harness.rule("deny", "deny"),
        harness.rule("local", "local"),
        harness.rule("empty", "local"),
    )
    harness.outage()
    empty.decide("k", 5)
    for _ in range(4):
        answers = harness.together((local, "k", 1), (deny, "k", 1), (empty, "k", 1))
        assert list(map(allowed_and_remaining, answers)) == [(True, 5), (False, 0), (False, 0)]
    assert harness.left(local) == 5
    assert {tag[0]: count.unsettled_units for tag, count in harness.inside.shards[0].unsettled.items()} == {
        "k": 5
    }  # the empty one's


def test_one_without_a_fallback_fails_for_all(harness: FallbackHarness) -> None:
    none, local, allow = harness.rule("none"), harness.rule("local", "local"), harness.rule("allow", "allow")
    harness.outage()
    for _ in range(3):
        assert_unavailable(lambda: harness.together((local, "k", 1), (none, "k", 1), (allow, "k", 1)))
    assert harness.inside.state() is OPEN
    before = harness.wire.calls
    with pytest.raises(EngineUnavailable, match=r'tried again only .* and "none" has no fallback'):
        harness.together((allow, "k", 1), (none, "k", 1))
    assert harness.wire.calls == before
    assert harness.left(local) == 5
    assert not harness.inside.shards[0].unsettled


def test_shadow_charges_block_no_call_in_an_outage(harness: FallbackHarness) -> None:
    aside, local = harness.rule("aside", "deny", is_shadow=True), harness.rule("local", "local")
    silent, none = harness.rule("silent", is_shadow=True), harness.rule("none")
    assert [
        outcome[ALLOWED] for outcome in harness.together((aside, "k", 11), (local, "k", 1), (silent, "k", 11))
    ] == [
        False,
        True,
        False,
    ]
    harness.outage()
    assert (
        allowed_and_remaining(aside.decide("k", 100))
        == allowed_and_remaining(silent.decide("k", 100))
        == (True, 0)
    )
    assert list(
        map(allowed_and_remaining, harness.together((aside, "k", 1), (local, "k", 1), (silent, "k", 1)))
    ) == [
        (True, 0),
        (True, 4),
        (True, 0),
    ]
    assert list(map(allowed_and_remaining, harness.together((aside, "k", 1), (silent, "k", 1)))) == [(True, 0)] * 2
    before = harness.wire.calls
    for _ in range(4):  # nothing but the engine can answer for what is not aside
        assert_unavailable(lambda: harness.together((aside, "k", 1), (none, "k", 1)))
    assert harness.wire.calls >= before + 4
    assert len(harness.inside.shards[0].unsettled) == 1


def test_shadow_charges_are_not_settled() -> None:
    harness = FallbackHarness()
    local = harness.rule("n", "local")
    shadow, free = harness.rule("n", "local", is_shadow=True), harness.rule("n", "allow")
    harness.outage()
    local.decide("k", 2)
    shadow.decide("k", 3)
    free.decide("k", 3)
    harness.together((shadow, "k", 1), (free, "k", 1))
    assert [count.unsettled_units for count in harness.inside.shards[0].unsettled.values()] == [2]


def test_a_question_that_commits_nothing_charges_nothing(harness: FallbackHarness) -> None:
    local, allow, deny, none = [harness.rule(str(word), word) for word in ("local", "allow", "deny", None)]
    harness.together((local, "k", 1), (none, "k", 1))
    assert [f[:2] for f in harness.together((local, "k", 3), (none, "k", 3), commit=False)] == [(True, 9)] * 2
    harness.outage()
    for _ in range(4):
        assert list(
            map(allowed_and_remaining, harness.together((local, "k", 3), (allow, "k", 3), commit=False))
        ) == [
            (True, 5),
            (True, 0),
        ]
        assert list(map(allowed_and_remaining, harness.together((local, "k", 6), commit=False))) == [(False, 5)]
        assert list(
            map(allowed_and_remaining, harness.together((local, "k", 1), (deny, "k", 1), commit=False))
        ) == [
            (True, 5),
            (False, 0),
        ]
        assert_unavailable(lambda: harness.together((local, "k", 1), (none, "k", 1), commit=False))
    assert not harness.inside.shards[0].unsettled
    local.decide("k", 1)
    harness.back()
    assert harness.together((local, "k", 1), commit=False)[0][:2] == (True, 8)  # it was told before
    assert harness.inside.state() is SETTLING
    share = harness.share(local)
    before = share.decide("k", 0)
    harness.together((local, "k", 1), commit=False)
    harness.together((local, "k", 99), commit=False)
    harness.outage()
    harness.together((local, "k", 1), commit=False)
    assert share.decide("k", 0) == before


def test_the_guarantee_text_of_a_fallback(caplog: pytest.LogCaptureFixture) -> None:
    harness = FallbackHarness()
    engine = harness.inside
    words = dict(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="local", lockout=Lockout(1, 1, 1))))[
        "fallback"
    ]
    assert "goes on with 5/day fixed" in words
    assert words.endswith("meanwhile no key is locked out")
    assert list(engine.guarantees(DAY, 2)) == list(engine.guarantees(DAY, 2, ChargeOptions("a"))) == []
    assert list(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="deny", is_shadow=True))) == []
    assert "passes" in dict(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="allow")))["fallback"]
    one, two = harness.rule("one", "local"), harness.rule("two", "deny")
    harness.outage()
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(3):
            harness.together((one, "k", 1), (two, "k", 1))
    assert "Doing what each rule says until it answers." in caplog.text


def test_parts_fail_apart_for_rules_too() -> None:
    harness = FallbackHarness(parts=True)
    local, none = harness.rule("local", "local"), harness.rule("none")
    harness.wire.down_parts = {"b"}
    for _ in range(4):
        assert_unavailable(lambda: harness.together((none, "a", 1), (local, "b", 1)))
    assert none.decide("a", 0)[REMAINING] == 10
    assert allowed_and_remaining(local.decide("b", 1)) == (True, 4)
