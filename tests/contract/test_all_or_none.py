"""Several limits and several charges: all or none, a verdict for each, and no trace of a refused one."""

import pytest

from headgate.algorithms.decision import Charge
from headgate.errors import InvalidCharge
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import EXAMPLES

US = 1e-6
MIXED = [
    Charge("anna", "5/s", 2),
    Charge("anna", "6/s queue 4", 2),
    Charge("shop", "7/s fixed", 3),
    Charge("shop", "700/month fixed in Asia/Shanghai", 3),
    Charge("shop", "8/s sliding", 2),
    Charge("item", "9/s log", 2),
    Charge("item", "10/s smooth", 2),
]


def test_mixed_algorithms_pass_together(harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s")
    together = limiter.take_all(MIXED)
    assert together
    assert [verdict.allowed for verdict in together.verdicts] == [True] * 7
    assert [verdict.remaining for verdict in together.verdicts] == [3, 3, 4, 697, 6, 7, 0]
    assert [(verdict.key, verdict.cost) for verdict in together.verdicts] == [(each[0], each[2]) for each in MIXED]
    assert (together.remaining, together.delay) == (0, 0.166)  # nginx counts milliseconds
    assert len({verdict.at_us for verdict in together.verdicts}) == 1


@pytest.mark.parametrize("refuses", range(len(MIXED)))
def test_one_refusal_leaves_no_trace_of_any(refuses: int, harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s")
    charges = list(MIXED)
    # A log of nine: two pass, eight are refused for now.
    charges[refuses] = charges[refuses]._replace(limit="9/s log", key="full", cost=8)
    limiter.take_all([Charge("full", "9/s log", 2)])
    before = harness.stored()
    refused = limiter.take_all(charges)
    assert [verdict.allowed for verdict in refused.verdicts] == [n != refuses for n in range(len(MIXED))]
    assert (refused.allowed, str(refused.limit), refused.retry_after) == (False, "9/s log", 1)
    assert harness.stored() == before
    # Those that would have passed tell how things stand, for nothing was taken.
    fresh = [5, 5, 7, 700, 8, 9, 1]
    assert [verdict.remaining for n, verdict in enumerate(refused.verdicts) if n != refuses] == [
        left for n, left in enumerate(fresh) if n != refuses
    ]


def test_never_outlasts_every_other_refusal(harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s")
    limiter.take_all([("key", "1/minute")])
    refused = limiter.take_all([("key", "1/minute"), Charge("key", "2/s", 3)])
    assert (refused.retry_after, str(refused.limit)) == (None, "2/s")
    assert [verdict.retry_after for verdict in refused.verdicts] == [60, None]


def test_several_limits_on_one_key(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s; 12/hour")
    assert [limiter.take("key", 5).remaining for _ in range(2)] == [5, 0]
    harness.advance(1)
    last = limiter.take("key", 2)
    assert (last.allowed, last.remaining, str(last.limit)) == (True, 0, "12/hour")
    before = harness.stored()
    refused = limiter.take("key")
    assert [verdict.allowed for verdict in refused.verdicts] == [True, False]
    assert [verdict.remaining for verdict in refused.verdicts] == [8, 0]
    assert str(refused) == f"refused by 12/hour: retry after {refused.retry_after:g} s"
    assert harness.stored() == before
    harness.advance(refused.retry_after or 0)
    assert limiter.take("key")


def test_a_joint_decision_is_refunded_whole(harness: EngineHarness) -> None:
    limiter = harness.limiter("10/s; 100/hour log")
    taken = limiter.take("key", 4)
    assert [verdict.remaining for verdict in taken.verdicts] == [6, 96]
    limiter.refund(taken, 1)
    assert [verdict.remaining for verdict in limiter.peek("key").verdicts] == [7, 97]
    limiter.refund(taken)
    limiter.refund(taken)
    assert [verdict.remaining for verdict in limiter.peek("key").verdicts] == [10, 100]


def test_charges_on_one_count_see_each_other(harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s")
    refused = limiter.take_all([Charge("key", "3/s", 2), Charge("key", "3/s", 2)])
    assert [verdict.allowed for verdict in refused.verdicts] == [False, False]
    taken = limiter.take_all([Charge("key", "3/s", 2), Charge("key", "3/s", 1), Charge("other", "3/s", 1)])
    assert [verdict.remaining for verdict in taken.verdicts] == [0, 0, 2]
    limiter.refund(taken)
    assert limiter.take_all([Charge("key", "3/s", 3)])


def test_charges_on_one_count_are_not_given_back_twice(harness: EngineHarness) -> None:
    """Five were taken in two parts, three drained, others took three: only two of the five are still there."""
    limiter = harness.limiter("5/s", "count")
    taken = limiter.take_all([Charge("key", None, 2), Charge("key", None, 3)])
    harness.advance(0.6)
    assert limiter.take("key", 3).remaining == 0
    limiter.refund(taken)
    assert limiter.peek("key").remaining == 2


def test_limits_that_share_a_name_must_be_one(harness: EngineHarness) -> None:
    limiter = harness.limiter("1/s")
    with pytest.raises(InvalidCharge, match='"mine" cannot be 3/s and 4/s at once'):
        limiter.take_all([Charge("key", "3/s", 1, "mine"), Charge("key", "4/s", 1, "mine")])
    # Different algorithms keep different things, so each has its own count.
    assert limiter.take_all([Charge("key", "3/s", 1, "ours"), Charge("key", "3/s log", 1, "ours")])
    assert limiter.take_all([Charge("key", "3/s", 2, "ours"), Charge("key", "3/s log", 2, "ours")])


def test_there_must_be_something_to_decide(harness: EngineHarness) -> None:
    with pytest.raises(InvalidCharge, match="There is nothing to decide"):
        harness.limiter("1/s").take_all([])


@pytest.mark.parametrize("text", [example.text for example in EXAMPLES.values()], ids=list(EXAMPLES))
def test_taking_three_is_taking_one_three_times(text: str, harness: EngineHarness) -> None:
    if "smooth" in text:
        harness.limiter(text).take("whole")
        harness.limiter(text).take("parts")
        harness.advance(2)
    limiter = harness.limiter(text)
    whole = limiter.take("whole", 3)
    parts = [limiter.take("parts") for _ in range(3)]
    assert parts[-1].outcome[:4] == whole.outcome[:4]
    assert limiter.peek("whole").outcome == limiter.peek("parts").outcome
