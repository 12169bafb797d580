"""Charges that are decided together, with charge options, and refunded: stories on the shared dict."""

from headgate.algorithms.limit import SECOND
from headgate.algorithms.lockout import Lockout
from headgate.engines.charge_options import ChargeOptions
from headgate.limit_syntax import parse
from tests.nginx.engines.shared.shared_harness import SharedDictMeter, SharedDictNginx
from tests.servers import BASE_US


def test_all_or_none(nginx: SharedDictNginx) -> None:
    """The second refuses, so the first is not charged; and says that it would have passed."""
    wide, narrow = SharedDictMeter(parse("10/minute"), "wide"), SharedDictMeter(parse("1/minute fixed"), "narrow")
    assert [one.allowed for one in nginx.decide([(wide, "a", 1), (narrow, "a", 1)])] == [1, 1]
    first, second = nginx.decide([(wide, "a", 1), (narrow, "a", 1)])
    assert (first.allowed, first.remaining, second.allowed) == (1, 9, 0)
    assert nginx.take(wide, "a", 0).remaining == 9
    assert nginx.take(narrow, "b", 0).remaining == 1


def test_several_keys_are_charged_at_once(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(parse("3/minute log"), "keys")
    keys = [f"key{number}" for number in range(40)]
    assert [one.remaining for one in nginx.decide([(meter, key, 1) for key in keys])] == [2] * 40
    assert nginx.take(meter, "key7", 3).allowed == 0
    refused = nginx.decide([(meter, key, 3 if key == "key7" else 1) for key in keys])
    assert [one.allowed for one in refused].count(0) == 1
    assert [nginx.take(meter, key, 0).remaining for key in keys] == [2] * 40


def test_a_peek_leaves_no_trace(nginx: SharedDictNginx) -> None:
    terms = ChargeOptions("told", lockout=Lockout(1, SECOND, SECOND))
    meter = SharedDictMeter(parse("1/minute"), "told", terms)
    for _ in range(3):
        outcome = nginx.decide([(meter, "a", 1)], commit=False)[0]
        assert (outcome.allowed, outcome.remaining) == (1, 1)
    assert nginx.take(meter, "a").allowed == 1
    for _ in range(3):
        assert nginx.decide([(meter, "a", 1)], commit=False)[0].allowed == 0
    assert not [name for name in nginx.names() if ":lt:" in name]


def test_a_shadow_charge_has_its_verdict(nginx: SharedDictNginx) -> None:
    """A shadow that refuses is in nobody's way; one that passes is charged though the live rule refuses."""
    live = SharedDictMeter(parse("2/minute"), "live")
    tight = SharedDictMeter(parse("1/minute"), "tight", ChargeOptions("tight", is_shadow=True))
    wide = SharedDictMeter(parse("9/minute"), "wide aside", ChargeOptions("wide", is_shadow=True))
    charges = [(live, "a", 1), (tight, "a", 1), (wide, "a", 1)]
    assert [[one.allowed for one in nginx.decide(charges)] for _ in range(3)] == [[1, 1, 1], [1, 0, 1], [0, 0, 1]]
    assert nginx.take(wide, "a", 0).remaining == 6
    assert [nginx.take(tight, "a").allowed, nginx.take(wide, "a").remaining] == [0, 5]


def test_too_many_refusals_lock_the_key(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(
        parse("1/s"), "login", ChargeOptions("login", lockout=Lockout(3, 10 * SECOND, 60 * SECOND))
    )
    assert [nginx.take(meter, "eve").allowed for _ in range(4)] == [1, 0, 0, -3]
    nginx.at(BASE_US + 30 * SECOND)
    locked = nginx.take(meter, "eve")
    assert (locked.allowed, locked.retry_after_us) == (-3, 30 * SECOND)
    assert nginx.take(meter, "adam").allowed == 1
    nginx.at(BASE_US + 60 * SECOND)
    assert nginx.take(meter, "eve").allowed == 1


def test_a_refusal_of_another_rule_is_not_counted(nginx: SharedDictNginx) -> None:
    locks = SharedDictMeter(parse("9/s"), "locks", ChargeOptions("locks", lockout=Lockout(1, SECOND, 60 * SECOND)))
    other = SharedDictMeter(parse("1/minute"), "other", ChargeOptions("other"))
    assert [[one.allowed for one in nginx.decide([(locks, "a", 1), (other, "a", 1)])] for _ in range(3)] == [
        [1, 1],
        [1, 0],
        [1, 0],
    ]


def test_a_refund_gives_back_what_was_taken(nginx: SharedDictNginx) -> None:
    for text in ("3/minute", "3/minute fixed", "3/minute sliding", "3/minute log"):
        meter = SharedDictMeter(parse(text), f"refunded {text}")
        taken = nginx.take(meter, "a", 2)
        assert nginx.take(meter, "a", 2).allowed == 0
        assert nginx.refund(meter, "a", 2, taken).remaining == 3
        assert nginx.take(meter, "a", 3).remaining == 0


def test_a_refusal_gives_nothing_back(nginx: SharedDictNginx) -> None:
    meter = SharedDictMeter(parse("3/minute"), "refused")
    nginx.take(meter, "a", 3)
    refused = nginx.take(meter, "a", 2)
    assert (refused.allowed, nginx.refund(meter, "a", 2, refused).remaining) == (0, 0)


def test_a_count_dies_when_it_says_nothing_any_more(nginx: SharedDictNginx) -> None:
    texts = ("3/s", "7/s", "3/s fixed", "3/s log", "3/s sliding", "3/s queue 2")
    meters = [SharedDictMeter(parse(text), f"dies {text}") for text in texts]
    for meter in meters:
        nginx.take(meter, "mortal")
    assert sum("mortal" in name for name in nginx.names()) == len(meters)
    nginx.at(BASE_US + 2 * SECOND)
    assert sum("mortal" in name for name in nginx.names()) == 0


def test_it_lives_to_the_millisecond(nginx: SharedDictNginx) -> None:
    """1001 ms are 1.001 s, and 1000.9999 ms in doubles; the last 100 of them are for clocks that swing."""
    nginx.at(BASE_US - 901 * 1000)
    nginx.take(SharedDictMeter(parse("3/10s fixed"), "ms"), "a")
    assert nginx.entry("chg2:fw:ms:{a}")[1] == 1001
