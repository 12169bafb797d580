"""Each rule by its own fallback: alone, together with others, aside; and where there is none, it is as if nothing
stood around the engine."""

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
from tests.engines.layers.fallback_harness import DAY, Room, fails, told


@pytest.fixture(params=[False, True], ids=["blocking", "awaited"])
def room(request: pytest.FixtureRequest) -> Iterator[Room]:
    room = Room(awaited=request.param)
    yield room
    room.engine.close()


def test_each_rule_alone_by_its_own(room: Room) -> None:
    allow, deny, local, none = [room.rule(str(word), word) for word in ("allow", "deny", "local", None)]
    assert all(meter.decide("k", 1)[:2] == (True, 9) for meter in (allow, deny, local, none))
    room.outage()
    for _ in range(5):
        assert told(allow.decide("k", 100)) == (True, 0)
        assert told(deny.decide("k", 1)) == (False, 0)
        fails(lambda: none.decide("k", 1))
    assert [told(local.decide("k", 1)) for _ in range(6)] == [*((True, n) for n in (4, 3, 2, 1, 0)), (False, 0)]


@pytest.mark.parametrize("own", ["allow", "deny", "local", None])
def test_what_a_rule_does_not_say_the_engine_does(own: FallbackMode | None) -> None:
    room = Room(own)
    silent, bare = room.rule("silent"), room.engine.meter(DAY, "bare")
    spoken = room.rule("spoken", "deny")
    room.outage()
    for meter in (silent, bare):
        assert meter.fallback == own
        if own is None:
            fails(lambda meter=meter: meter.decide("k", 1))  # type: ignore[misc]
        else:
            assert told(meter.decide("k", 1))[0] is (own != "deny")
    assert told(spoken.decide("k", 1)) == (False, 0)


def test_without_any_it_is_as_if_it_were_not_there(room: Room) -> None:
    meter, slots = room.rule("none"), room.engine.slots(parse_slots(), "s")
    receipt = Receipt.from_outcome(meter.decide("k", 1), 1)
    room.outage()
    asked = room.wire.asked
    for _ in range(10):
        fails(lambda: meter.decide("k", 1))
        fails(lambda: meter.decide("k", 0))
        fails(lambda: meter.refund("k", 1, receipt))
        fails(lambda: meter.reset("k"))
        fails(lambda: meter.retune("k"))
        fails(lambda: room.together((meter, "k", 1), (meter, "l", 1)))
        fails(lambda: slots.acquire("k"))
    assert room.wire.asked == asked + 70  # however often it failed
    room.wire.down = False
    assert meter.decide("k", 1)[:2] == (True, 8)  # at once
    assert room.inside.opened_count == room.inside.degraded_count == 0


def parse_slots() -> Slots:
    found = parse("3 slots")
    assert isinstance(found, Slots)
    return found


def test_together_each_by_its_own_and_a_share_that_refuses_refuses_for_all(room: Room) -> None:
    allow, one, two = room.rule("allow", "allow"), room.rule("one", "local"), room.rule("two", "local")
    room.outage()
    assert list(map(told, room.together((allow, "k", 9), (one, "k", 2), (two, "k", 3)))) == [
        (True, 0),
        (True, 3),
        (True, 2),
    ]
    assert list(map(told, room.together((one, "k", 3), (two, "k", 3), (allow, "k", 1)))) == [
        (True, 3),  # it would have passed, and was not charged
        (False, 2),
        (True, 0),
    ]
    assert (room.left(one), room.left(two)) == (3, 2)
    room.back()
    room.together((allow, "k", 1), (one, "k", 1), (two, "k", 1))
    engine = room.wire.engine
    assert engine.meter(DAY, "one").decide("k", 0)[REMAINING] == 10 - 2 - 1  # it was told, and asked
    assert engine.meter(DAY, "two").decide("k", 0)[REMAINING] == 10 - 3 - 1
    assert engine.meter(DAY, "allow").decide("k", 0)[REMAINING] == 10 - 1  # nobody keeps account of it


def test_one_that_is_denied_refuses_for_all_and_no_share_is_charged(room: Room) -> None:
    deny, local, empty = room.rule("deny", "deny"), room.rule("local", "local"), room.rule("empty", "local")
    room.outage()
    empty.decide("k", 5)
    for _ in range(4):
        answers = room.together((local, "k", 1), (deny, "k", 1), (empty, "k", 1))
        assert list(map(told, answers)) == [(True, 5), (False, 0), (False, 0)]
    assert room.left(local) == 5
    assert {tag[0]: count.unsettled_units for tag, count in room.inside.shards[0].unsettled.items()} == {
        "k": 5
    }  # the empty one's


def test_one_without_a_fallback_fails_for_all(room: Room) -> None:
    none, local, allow = room.rule("none"), room.rule("local", "local"), room.rule("allow", "allow")
    room.outage()
    for _ in range(3):
        fails(lambda: room.together((local, "k", 1), (none, "k", 1), (allow, "k", 1)))
    assert room.inside.state() is OPEN
    asked = room.wire.asked
    with pytest.raises(EngineUnavailable, match=r'not asked again .* and "none" has no fallback'):
        room.together((allow, "k", 1), (none, "k", 1))
    assert room.wire.asked == asked
    assert room.left(local) == 5
    assert not room.inside.shards[0].unsettled


def test_what_is_aside_stands_in_nobodys_way(room: Room) -> None:
    aside, local = room.rule("aside", "deny", is_shadow=True), room.rule("local", "local")
    silent, none = room.rule("silent", is_shadow=True), room.rule("none")
    assert [facts[ALLOWED] for facts in room.together((aside, "k", 11), (local, "k", 1), (silent, "k", 11))] == [
        False,
        True,
        False,
    ]
    room.outage()
    assert told(aside.decide("k", 100)) == told(silent.decide("k", 100)) == (True, 0)
    assert list(map(told, room.together((aside, "k", 1), (local, "k", 1), (silent, "k", 1)))) == [
        (True, 0),
        (True, 4),
        (True, 0),
    ]
    assert list(map(told, room.together((aside, "k", 1), (silent, "k", 1)))) == [(True, 0)] * 2
    asked = room.wire.asked
    for _ in range(4):  # nothing but the engine can answer for what is not aside
        fails(lambda: room.together((aside, "k", 1), (none, "k", 1)))
    assert room.wire.asked >= asked + 4
    assert len(room.inside.shards[0].unsettled) == 1


def test_what_is_aside_owes_nothing_even_under_the_same_name() -> None:
    room = Room()
    local = room.rule("n", "local")
    shadow, free = room.rule("n", "local", is_shadow=True), room.rule("n", "allow")
    room.outage()
    local.decide("k", 2)
    shadow.decide("k", 3)
    free.decide("k", 3)
    room.together((shadow, "k", 1), (free, "k", 1))
    assert [count.unsettled_units for count in room.inside.shards[0].unsettled.values()] == [2]


def test_a_question_that_commits_nothing_charges_nothing(room: Room) -> None:
    local, allow, deny, none = [room.rule(str(word), word) for word in ("local", "allow", "deny", None)]
    room.together((local, "k", 1), (none, "k", 1))
    assert [f[:2] for f in room.together((local, "k", 3), (none, "k", 3), commit=False)] == [(True, 9)] * 2
    room.outage()
    for _ in range(4):
        assert list(map(told, room.together((local, "k", 3), (allow, "k", 3), commit=False))) == [
            (True, 5),
            (True, 0),
        ]
        assert list(map(told, room.together((local, "k", 6), commit=False))) == [(False, 5)]
        assert list(map(told, room.together((local, "k", 1), (deny, "k", 1), commit=False))) == [
            (True, 5),
            (False, 0),
        ]
        fails(lambda: room.together((local, "k", 1), (none, "k", 1), commit=False))
    assert not room.inside.shards[0].unsettled
    local.decide("k", 1)
    room.back()
    assert room.together((local, "k", 1), commit=False)[0][:2] == (True, 8)  # it was told before
    assert room.inside.state() is SETTLING
    share = room.share(local)
    before = share.decide("k", 0)
    room.together((local, "k", 1), commit=False)
    room.together((local, "k", 99), commit=False)
    room.outage()
    room.together((local, "k", 1), commit=False)
    assert share.decide("k", 0) == before


def test_what_is_told_of_it(caplog: pytest.LogCaptureFixture) -> None:
    room = Room()
    engine = room.inside
    words = dict(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="local", lockout=Lockout(1, 1, 1))))[
        "fallback"
    ]
    assert "goes on with 5/day fixed" in words
    assert words.endswith("meanwhile nobody is locked out")
    assert list(engine.guarantees(DAY, 2)) == list(engine.guarantees(DAY, 2, ChargeOptions("a"))) == []
    assert list(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="deny", is_shadow=True))) == []
    assert "passes" in dict(engine.guarantees(DAY, 2, ChargeOptions("a", fallback="allow")))["fallback"]
    one, two = room.rule("one", "local"), room.rule("two", "deny")
    room.outage()
    with caplog.at_level(logging.WARNING, "headgate"):
        for _ in range(3):
            room.together((one, "k", 1), (two, "k", 1))
    assert "Doing what each rule says until it answers." in caplog.text


def test_parts_fail_apart_for_rules_too() -> None:
    room = Room(parts=True)
    local, none = room.rule("local", "local"), room.rule("none")
    room.wire.down_parts = {"b"}
    for _ in range(4):
        fails(lambda: room.together((none, "a", 1), (local, "b", 1)))
    assert none.decide("a", 0)[REMAINING] == 10
    assert told(local.decide("b", 1)) == (True, 4)
