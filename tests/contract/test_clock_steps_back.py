"""A clock that steps back, on every engine: no unit is minted, no key is locked out for the length of the step.

The leaky bucket does as nginx does for two minutes: its queue stays full until the clock catches up.
"""

import pytest

from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES

HOUR = 3600
OURS = {name: example for name, example in EXAMPLES.items() if name != "LeakyBucket"}
examples = pytest.mark.parametrize("name", OURS)


@examples
def test_a_step_back_mints_nothing(name: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(OURS[name].text)
    limiter.take("key", 10)
    harness.advance(-HOUR)
    assert not limiter.take("key")
    assert limiter.peek("key").remaining == 0


@examples
def test_a_step_back_locks_nobody_out(name: str, harness: EngineHarness) -> None:
    """A call refused after the step passes at the stated retry_after, not an hour later."""
    limiter = harness.limiter(OURS[name].text)
    limiter.take("key", 10)
    harness.advance(-HOUR)
    refused = limiter.take("key")
    assert refused.retry_after is not None
    assert refused.retry_after <= 1.1
    harness.advance(refused.retry_after)
    assert limiter.take("key")


@examples
def test_charges_after_a_step_back_count_from_the_new_time(name: str, harness: EngineHarness) -> None:
    limiter = harness.limiter(OURS[name].text)
    limiter.take("key", 3)
    harness.advance(-HOUR)
    for _ in range(30):
        limiter.take("key")
        harness.advance(0.1)
    harness.advance(2)
    assert limiter.take("key")


def test_the_queue_of_nginx_waits_for_the_clock(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s queue 9")
    limiter.take("key", 10)
    harness.advance(-120)
    refused = limiter.take("key")
    assert refused.retry_after == pytest.approx(120.1, abs=0.001)
    harness.advance(119)
    assert not limiter.take("key")
    harness.advance(1.1)
    assert limiter.take("key")


def test_a_clock_step_back_delays_a_queue_by_at_most_two_minutes(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s queue 9")
    limiter.take("key", 10)
    harness.advance(-HOUR)
    refused = limiter.take("key")
    assert refused.retry_after is not None
    assert refused.retry_after <= 0.1
    harness.advance(refused.retry_after)
    assert limiter.take("key")


@examples
def test_a_clock_that_swings_frees_nothing(name: str, harness: EngineHarness) -> None:
    """Read a hundred times a millisecond apart, to and fro, as several workers do: as if time stood still."""
    limiter = harness.limiter(OURS[name].text)
    first = limiter.take("key", 10)
    assert first
    for _ in range(100):
        harness.advance(-0.001)
        assert not limiter.take("key")
        harness.advance(0.001)
        assert not limiter.take("key")
