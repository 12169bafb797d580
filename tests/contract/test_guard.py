"""Guards around blocks and functions, on every engine: rates and slots, sync and async."""

import pytest

from headgate.algorithms.decision import Decision
from headgate.errors import EngineUnavailable, InvalidCharge, RateLimited
from headgate.lease import Lease
from tests.contract.engine_harness import EngineHarness


def test_around_a_block(harness: EngineHarness) -> None:
    limiter = harness.limiter("2/s")
    with limiter.guard("key") as decision:
        assert decision.remaining == 1
    with limiter.guard("key", cost=1):
        pass
    with pytest.raises(RateLimited) as refused, limiter.guard("key"):
        raise AssertionError("the block must not run")
    assert refused.value.decision.retry_after == 0.5
    assert str(refused.value) == "refused by 2/s: retry after 0.5 s"


def test_an_exception_of_the_block_propagates(harness: EngineHarness) -> None:
    limiter = harness.limiter("2/s")
    with pytest.raises(ZeroDivisionError), limiter.guard("key"):
        _ = 1 / 0
    assert limiter.peek("key").remaining == 1  # it passed, so it is charged


def test_a_guard_serves_the_delay_of_a_queue(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s queue 5")
    with limiter.guard("key"):
        assert harness.seconds() == 0
    with limiter.guard("key", cost=2):
        assert harness.seconds() == 0.2


def test_a_slot_is_held_while_the_block_lasts(harness: EngineHarness) -> None:
    limiter = harness.limiter("1 slot")
    guard = limiter.guard("key")
    for _ in range(2):
        with guard as decision:
            assert isinstance(decision, Decision)
            assert limiter.peek("key").remaining == 0
            with pytest.raises(RateLimited), limiter.guard("key"):
                pass
    assert limiter.peek("key").remaining == 1
    with pytest.raises(ZeroDivisionError), limiter.guard("key"):
        _ = 1 / 0
    assert limiter.peek("key").remaining == 1


def test_a_guard_waits_for_a_slot(harness: EngineHarness) -> None:
    limiter = harness.limiter("1 slot ttl 2s")
    limiter.acquire("key")
    with limiter.guard("key", timeout=3):
        assert 2 <= harness.seconds() <= 2.2
    limiter.acquire("key")
    before = harness.seconds()
    with pytest.raises(RateLimited), limiter.guard("key", timeout=1):
        pass
    assert harness.seconds() == pytest.approx(before + 1, abs=0.2)


def test_a_function_as_key_needs_a_call(harness: EngineHarness) -> None:
    with (
        pytest.raises(InvalidCharge, match="use guard as a decorator"),
        harness.limiter("1/s").guard(lambda: "key"),
    ):
        pass


def test_around_a_function(harness: EngineHarness) -> None:
    if harness.awaited:
        return harness.run(_around_a_coroutine_function(harness))
    limiter = harness.limiter("2/s")

    @limiter.guard(lambda user, *, times: f"{user}")
    def greet(user: str, *, times: int) -> str:
        """Says hello."""
        return f"hello {user} " * times

    assert greet("anna", times=2) == "hello anna hello anna "
    assert greet("bob", times=1) == "hello bob "
    greet("anna", times=1)
    with pytest.raises(RateLimited):
        greet("anna", times=1)
    assert (greet.__name__, greet.__doc__) == ("greet", "Says hello.")
    return None


async def _around_a_coroutine_function(harness: EngineHarness) -> None:
    limiter = harness.async_limiter("2/s")

    @limiter.guard(lambda user: user, cost=2)
    async def greet(user: str) -> str:
        return f"hello {user}"

    assert [await greet("anna"), await greet("bob")] == ["hello anna", "hello bob"]
    with pytest.raises(RateLimited):
        await greet("anna")
    slots = harness.async_limiter("1 slot")

    @slots.guard("all")
    async def alone() -> int:
        return (await slots.peek("all")).remaining

    assert [await alone(), await alone()] == [0, 0]
    assert (await slots.peek("all")).remaining == 1


def test_calls_of_one_decorated_function_do_not_meet(harness: EngineHarness) -> None:
    """Each call has its own lease, also while another is under way."""
    if harness.awaited:
        return
    limiter = harness.limiter("2 slots")

    @limiter.guard("key")
    def nested(depth: int) -> list[int]:
        free = limiter.peek("key").remaining
        return [free, *(nested(depth - 1) if depth else [])]

    assert nested(1) == [1, 0]
    assert limiter.peek("key").remaining == 2
    with pytest.raises(RateLimited):
        nested(2)
    assert limiter.peek("key").remaining == 2


def test_one_guard_can_be_entered_again_while_inside(harness: EngineHarness) -> None:
    limiter = harness.limiter("2 slots")
    guard = limiter.guard("key")
    with guard:
        with guard:
            assert limiter.peek("key").remaining == 0
        assert limiter.peek("key").remaining == 1
    assert limiter.peek("key").remaining == 2


def test_a_lost_slot_does_not_hide_what_the_block_raised(
    monkeypatch: pytest.MonkeyPatch, harness: EngineHarness
) -> None:
    if harness.awaited:
        return
    limiter = harness.limiter("1 slot")

    def unreachable(lease: Lease) -> bool:
        raise EngineUnavailable("nobody answers")

    monkeypatch.setattr(Lease, "release", unreachable)
    with pytest.raises(ZeroDivisionError) as raised, limiter.guard("key"):
        _ = 1 / 0
    assert "could not be released" in "".join(raised.value.__notes__)
