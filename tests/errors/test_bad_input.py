"""Bad keys, costs, limits and timeouts get a sentence and change nothing, on every engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, cast

import pytest

from headgate.algorithms.decision import Charge
from headgate.algorithms.token_bucket import TokenBucket
from headgate.clock import ManualClock
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import HeadgateError, InvalidCharge, InvalidRule
from headgate.limiter import AsyncLimiter, Limiter
from headgate.validation import limits_of
from tests.servers import RedisServer

COSTS: list[tuple[Any, str]] = [
    (-1, "A cost is at least 0, not -1. To give units back, use refund."),
    (1.5, "A cost is a whole number, not 1.5."),
    (1.0, "A cost is a whole number, not 1.0."),
    (math.nan, "A cost is a whole number, not nan."),
    (math.inf, "A cost is a whole number, not inf."),
    (True, "A cost is a whole number, not True."),
    ("1", "A cost is a whole number, not '1'."),
    (None, "A cost is a whole number, not None."),
    (Decimal(1), "A cost is a whole number, not Decimal('1')."),
]
KEYS: list[tuple[Any, str]] = [
    ("", "A key must not be empty: everybody without a name would share one count."),
    (1, "A key is a string, not int. Name whose count this is."),
    (None, "A key is a string, not NoneType. Name whose count this is."),
    (b"bytes", "A key is a string, not bytes. Name whose count this is."),
    (True, "A key is a string, not bool. Name whose count this is."),
    (("a", "b"), "A key is a string, not tuple. Name whose count this is."),
]
TIMEOUTS: list[Any] = [-1, -0.1, math.nan, True, "5", b"5"]


class WatchedLimiters:
    """A limiter on the embedded engine, and whether anything in it changed."""

    def __init__(self) -> None:
        self.engine = MemoryEngine(ManualClock())
        self.limiter = Limiter("10/s; 500/hour", self.engine, clock=ManualClock())
        self.single = Limiter("10/s", self.engine, clock=ManualClock())
        self.slots = Limiter("2 slots", self.engine, clock=ManualClock())

    def says(self, sentence: str, call: Callable[[], object], kind: type[HeadgateError] = InvalidCharge) -> None:
        with pytest.raises(kind) as refused:
            call()
        assert str(refused.value) == sentence
        assert isinstance(refused.value, ValueError)
        assert len(self.engine) == 0


@pytest.mark.parametrize(("cost", "sentence"), COSTS)
def test_a_cost_that_is_none(cost: Any, sentence: str) -> None:
    at = WatchedLimiters()
    spends = sentence.replace("at least 0", "at least 1")
    for limiter in (at.single, at.limiter):
        at.says(sentence, partial(limiter.take, "key", cost))
        at.says(sentence, partial(limiter.take_all, [Charge("other"), Charge("key", None, cost)]))
        at.says(sentence, limiter.guard("key", cost).__enter__)
        at.says(spends, partial(limiter.wait, "key", cost))
        at.says(spends, partial(limiter.reserve, "key", cost))


def test_a_wait_of_cost_0_is_refused() -> None:
    at = WatchedLimiters()
    at.says("A cost is at least 1, not 0. To look without charging, use peek.", lambda: at.single.wait("key", 0))


@pytest.mark.parametrize(("key", "sentence"), KEYS)
def test_a_key_that_is_none(key: Any, sentence: str) -> None:
    at = WatchedLimiters()
    calls: list[Callable[[], object]] = []
    for limiter in (at.single, at.limiter):
        verbs = (limiter.take, limiter.peek, limiter.wait, limiter.reserve, limiter.reset)
        calls += [partial(verb, key) for verb in verbs]
        calls.append(partial(limiter.take_all, [Charge("fine"), Charge(key)]))
        calls.append(partial(limiter.take_all, [Charge("fine"), (key, "9/s")]))
    calls += [partial(verb, key) for verb in (at.slots.acquire, at.slots.peek, at.slots.reset)]
    for call in calls:
        at.says(sentence, call)


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_a_timeout_that_is_none(timeout: Any) -> None:
    at = WatchedLimiters()
    sentence = f"A timeout is a number of seconds of at least 0, or None; not {timeout!r}."
    at.says(sentence, lambda: at.single.wait("key", timeout=timeout))
    at.says(sentence, lambda: at.single.reserve("key", timeout=timeout))
    at.says(sentence, lambda: at.slots.acquire("key", timeout=timeout))


def test_an_endless_timeout_is_no_timeout() -> None:
    limiter = Limiter("1/hour", clock=ManualClock())
    limiter.take("key")
    assert limiter.reserve("key", timeout=math.inf).delay == 3600
    assert limiter.reserve("key", timeout=1e300).delay == 7200


@pytest.mark.parametrize("cost", [2**53, 2**53 + 1, 10**20, 10**400])
@pytest.mark.parametrize(
    "text", ["10/s", "7/s burst 9", "10/s queue 9", "10/s fixed", "10/s sliding", "10/s log", "10/s smooth"]
)
def test_a_cost_beyond_all_bounds_can_never_pass(text: str, cost: int, driven_server: RedisServer) -> None:
    for limiter in (Limiter(text, clock=ManualClock()), Limiter(text, driven_server.unix_url)):
        with limiter:
            refused = limiter.take("key", cost)
            assert (refused.allowed, refused.retry_after) == (False, None)
            assert not limiter.wait("key", cost)
            joint = limiter.take_all([Charge("key", None, cost), Charge("key", "9/s")])
            assert [verdict.allowed for verdict in joint.verdicts] == [False, True]
            assert limiter.take("key")


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ("10/minit", "Did you mean 10/minute?"),
        ("10/secnd", "Did you mean 10/second?"),
        ("10 slts", "is not a limit"),
        ("0/s", "The amount of a token bucket must be a whole number of at least 1, not 0."),
        ("-1/s", "is not a limit"),
        ("1/0s", "at least one"),
        ("1.5/s", "1.5 is not a whole number."),
        ("", "It is empty."),
        (" ; ", "It is empty."),
        ("10/s; 5/huor", "Did you mean 5/hour?"),
        ("10000000000000001/s", "cannot be exact"),
        ("9999999999999999999999/s", "cannot be exact"),
        ("0 slots", "at least 1"),
        ("2 slots ttl 0s", "at least one"),
        (None, "A limit is a Limit or its text, such as 10/minute; not None."),
        (10, "not 10."),
        ([], "not []."),
        (["10/s"], "not ['10/s']."),
        (b"10/s", "not b'10/s'."),
    ],
)
def test_a_limit_that_cannot_be(limit: Any, sentence: str) -> None:
    for make in (Limiter, AsyncLimiter):
        with pytest.raises(InvalidRule) as refused:
            make(limit)
        assert sentence in str(refused.value)
    at = WatchedLimiters()
    with pytest.raises(InvalidRule):
        at.single.set_limit(limit)
    assert len(at.engine) == 0


def test_slots_stand_alone() -> None:
    with pytest.raises(InvalidCharge, match="give it a limiter of its own"):
        Limiter("10/s; 2 slots")
    with pytest.raises(InvalidCharge, match="give it a limiter of its own"):
        Limiter("2 slots; 3 slots")


def test_slots_are_not_taken_together() -> None:
    with pytest.raises(InvalidCharge, match='"2 slots" is held, not taken'):
        Limiter("2 slots").take_all([Charge("key")])


def test_a_name_that_is_empty() -> None:
    with pytest.raises(InvalidRule, match="name must not be empty"):
        Limiter("10/s", name="")


def test_set_limit_that_cannot_be_changes_nothing() -> None:
    at = WatchedLimiters()
    with pytest.raises(InvalidRule, match="2 limits cannot become 1"):
        at.limiter.set_limit("10/s")
    with pytest.raises(InvalidRule):
        at.single.set_limit("10/minit")
    with pytest.raises(InvalidCharge, match="A key must not be empty"):
        at.single.set_limit("99/s", "fine", "")
    assert str(at.single.peek("key").limit) == "10/s"


@pytest.mark.parametrize("cost", [-1, 1.5, True, "1", math.nan])
def test_a_refund_of_nonsense(cost: Any) -> None:
    limiter = Limiter("10/s", clock=ManualClock())
    taken = limiter.take("key", 4)
    with pytest.raises(InvalidCharge, match="A cost to give back is"):
        limiter.refund(taken, cost)
    assert limiter.peek("key").remaining == 6
    limiter.refund(taken, 0)
    assert limiter.peek("key").remaining == 6


@pytest.mark.parametrize("charges", ["user", "u", ["user"], [5], [()], [("key", "1/s", 1, "name", "more")], None])
def test_charges_that_are_none(charges: Any) -> None:
    limiter = Limiter("10/s", clock=ManualClock())
    with pytest.raises(InvalidCharge):
        limiter.take_all(charges)
    assert len(cast(MemoryEngine, limiter.engine)) == 0


def test_the_nearest_limit_that_can_be_is_named() -> None:
    with pytest.raises(InvalidRule, match="cannot be exact"):
        TokenBucket(10**9 + 7, 1, burst=10**9)
    assert limits_of("10/s; 500/hour") == limits_of([TokenBucket(10), TokenBucket(500, 3600)])


async def test_async_says_the_same() -> None:
    limiter = AsyncLimiter("10/s")
    with pytest.raises(InvalidCharge, match="A cost is at least 0, not -1"):
        await limiter.take("key", -1)
    with pytest.raises(InvalidCharge, match="A key must not be empty"):
        await limiter.take("")
    with pytest.raises(InvalidCharge, match="A key is a string, not int"):
        await limiter.wait(cast(str, 5))
    with pytest.raises(InvalidCharge, match="A key must not be empty"):
        await limiter.set_limit("99/s", "")
    assert str((await limiter.peek("key")).limit) == "10/s"


def test_a_server_hears_nothing_of_it(server: RedisServer) -> None:
    server.call("CONFIG", "RESETSTAT")
    with Limiter("10/s", server.unix_url) as limiter:
        for key, cost in (("", 1), ("key", -1), ("key", True), (5, 1)):
            with pytest.raises(InvalidCharge):
                limiter.take(cast(str, key), cost)
    stats = server.call("INFO", "commandstats")
    assert isinstance(stats, bytes)
    assert b"evalsha" not in stats
