"""The public API: readable decisions, limiters by URL, and names that keep counts together."""

import asyncio

import pytest

import headgate
from headgate import AsyncLimiter, Charge, Decision, Limiter, ManualClock, RateLimited, TokenBucket, Verdict
from headgate.errors import HeadgateError, InvalidCharge, InvalidRule
from tests.servers import RedisServer


def test_a_decision_is_true_if_the_call_may_pass() -> None:
    limiter = Limiter("2/s", clock=ManualClock())
    passed, refused = limiter.take("key", 2), limiter.take("key")
    assert (bool(passed), bool(refused)) == (True, False)
    assert (passed.allowed, passed.remaining, passed.retry_after, passed.reset_after, passed.delay) == (
        True,
        0,
        0,
        1,
        0,
    )
    assert (refused.allowed, refused.remaining, refused.retry_after, refused.reset_after) == (False, 0, 0.5, 1)
    assert (passed.limit, passed.key, passed.cost, passed.rule, passed.degraded) == (
        TokenBucket(2),
        "key",
        2,
        None,
        False,
    )


def test_a_decision_reads_as_a_sentence() -> None:
    limiter = Limiter("2/s", clock=ManualClock())
    assert str(limiter.take("key")) == "allowed by 2/s, 1 remaining"
    assert str(limiter.reserve("key", 2).decision) == "allowed after 0.5 s by 2/s, 0 remaining"
    assert str(limiter.take("key")) == "refused by 2/s: retry after 1 s"
    assert str(limiter.take("key", 3)) == "refused by 2/s: a cost of 3 is too large, at most 2 can ever pass"
    assert repr(limiter.take("key", 3)).startswith("<Decision refused by 2/s: ")


def test_or_raise_passes_or_raises() -> None:
    limiter = Limiter("1/s", clock=ManualClock())
    passed = limiter.take("key")
    assert passed.or_raise() is passed
    refused = limiter.take("key")
    with pytest.raises(RateLimited) as raised:
        refused.or_raise()
    assert raised.value.decision is refused
    assert str(raised.value) == str(refused)
    assert isinstance(raised.value, HeadgateError)


def test_a_verdict_for_each_charge() -> None:
    limiter = Limiter("3/s; 10/hour", clock=ManualClock())
    decision = limiter.take("key", 2)
    first, second = decision.verdicts
    assert isinstance(first, Verdict)
    assert (first.remaining, first.limit, first.key, first.cost) == (1, TokenBucket(3), "key", 2)
    assert (second.remaining, second.reset_after, second.retry_after, second.delay) == (8, 720, 0, 0)
    assert Limiter("1/s").take("key", 2).verdicts[0].retry_after is None


def test_the_limit_that_spoke() -> None:
    """Allowed, the one nearest to its end; refused, the one that refuses longest."""
    limiter = Limiter("3/s; 4/hour", clock=ManualClock())
    assert str(limiter.take("key").limit) == "3/s"
    limiter = Limiter("5/s; 4/hour", clock=ManualClock())
    assert str(limiter.take("key").limit) == "4/hour"
    limiter = Limiter("1/s; 1/hour", clock=ManualClock())
    limiter.take("key")
    refused = limiter.take("key")
    assert (str(refused.limit), refused.retry_after, refused.delay) == ("1/hour", 3600, 0)


def test_a_limit_as_text_object_or_several() -> None:
    clock = ManualClock()
    assert Limiter(TokenBucket(2), clock=clock).take("key").remaining == 1
    assert Limiter([TokenBucket(2), TokenBucket(5, 60)], clock=clock).take("key").remaining == 1
    assert Limiter("2/s; 5/minute", clock=clock).take("key").remaining == 1


def test_a_limiter_has_separate_memory_by_default() -> None:
    one, other = Limiter("1/hour"), Limiter("1/hour")
    assert one.take("key")
    assert other.take("key")
    shared = Limiter("1/hour", one.engine)
    assert not shared.take("key")


def test_a_name_keeps_the_count_over_a_changed_limit() -> None:
    clock = ManualClock()
    limiter = Limiter("10/minute log", clock=clock, name="api")
    limiter.take("key", 10)
    limiter.set_limit("15/minute log")
    assert limiter.take("key", 5)
    assert not limiter.take("key")
    assert not Limiter("15/minute log", limiter.engine, clock=clock, name="api").take("key")
    assert Limiter("15/minute log", limiter.engine, clock=clock).take("key")


def test_several_limits_change_together() -> None:
    limiter = Limiter("1/s; 5/minute", clock=ManualClock(), name="api")
    limiter.set_limit("2/s; 6/minute", "key")
    assert [verdict.remaining for verdict in limiter.take("key").verdicts] == [1, 5]


def test_slots_of_a_limiter() -> None:
    limiter = Limiter("1 slot", clock=ManualClock())
    assert limiter.holds_slots
    assert not Limiter("1/s").holds_slots
    with limiter.acquire("key") as lease:
        assert lease.decision.allowed
        assert limiter.peek("key").remaining == 0


async def test_async_is_the_same_but_for_the_await() -> None:
    clock = ManualClock()
    async with AsyncLimiter("2/s; 5/minute", clock=clock) as limiter:
        decision = await limiter.take("key", 2)
        assert isinstance(decision, Decision)
        assert [verdict.remaining for verdict in decision.verdicts] == [0, 3]
        assert not await limiter.take("key")
        waited = await limiter.wait("key")
        assert waited.delay == 0.5
        await limiter.refund(decision)
        reservation = await limiter.reserve("key")
        await reservation.cancel()
        await limiter.reset("key")
        assert (await limiter.peek("key")).remaining == 2
        assert await limiter.take_all([Charge("key"), ("other", "1/s")])
        await limiter.set_limit("4/s; 9/minute", "key")
        assert not limiter.holds_slots


async def test_async_waiters_share_one_loop() -> None:
    limiter = AsyncLimiter("100/s burst 1")
    started = asyncio.get_running_loop().time()
    decisions = await asyncio.gather(*(limiter.wait("key") for _ in range(5)))
    assert [decision.allowed for decision in decisions] == [True] * 5
    assert asyncio.get_running_loop().time() - started >= 0.039


def test_every_verb_of_one_is_a_verb_of_the_other() -> None:
    def verbs(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert verbs(Limiter) == verbs(AsyncLimiter)
    assert verbs(headgate.Lease) == verbs(headgate.AsyncLease)
    assert verbs(headgate.Reservation) == verbs(headgate.AsyncReservation)


@pytest.mark.parametrize("scheme", ["redis", "valkey", "unix", "redis+unix", "valkey+unix"])
async def test_engines_by_url(scheme: str, server: RedisServer) -> None:
    url = server.unix_url if "unix" in scheme else server.url
    url = url.replace(url.partition("://")[0], scheme, 1)
    with Limiter("2/hour", url) as limiter:
        assert limiter.take("key")
    async with AsyncLimiter("2/hour", url) as limiter_too:
        assert (await limiter_too.take("key")).remaining == 0


def test_an_engine_by_another_name_is_suggested() -> None:
    with pytest.raises(InvalidRule, match=r"redes://… is not an engine URL\. .* Did you mean redis://\?"):
        Limiter("1/s", "redes://localhost")


def _asking(server: RedisServer) -> int:
    """The connections whose last command was a decision."""
    clients = server.call("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return clients.count(b"cmd=evalsha")


def test_limiters_share_one_connection_of_an_engine(server: RedisServer) -> None:
    before = _asking(server)  # of other tests: a connection that nobody closed stays open
    with Limiter("2/hour", server.unix_url) as limiter:
        assert limiter.take("key")
        other = Limiter("3/hour", limiter.engine)
        assert other.take("key")
        assert _asking(server) == before + 1


def test_charges_by_limit_objects_are_decided_by_those_limits() -> None:
    limiter = Limiter("9/minute", clock=ManualClock())
    small, large = headgate.parse("1/minute fixed"), headgate.parse("9/hour fixed")
    for _ in range(3000):  # limits that were collected leave their ids to others
        small, large = headgate.parse("1/minute fixed"), headgate.parse("9/hour fixed")
        decision = limiter.take_all([("ann", small), ("ann", large)])
        assert [verdict.limit.text for verdict in decision.verdicts] == [small.text, large.text]
    limiter = Limiter("9/minute", clock=ManualClock())
    charges = [("ann", small), ("bob", small), ("ann", large)]
    assert [limiter.take_all(charges).allowed for _ in range(3)] == [True, False, False]
    assert limiter.take_all([("cid", small), ("cid", small)]).allowed is False  # one count, charged twice
    with pytest.raises(InvalidCharge, match="A key must not be empty"):
        limiter.take_all([("", small)])
