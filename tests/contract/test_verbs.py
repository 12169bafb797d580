"""Every verb with every algorithm on every engine: supported ones work as stated, the others raise a sentence."""

from collections.abc import Callable

import pytest

from headgate.algorithms.decision import Charge
from headgate.errors import InvalidCharge, RateLimited
from headgate.limiter import Limiter
from tests.contract.engine_harness import EngineHarness
from tests.contract.verb_table import ALGORITHMS, CELLS, EXAMPLES, SLOTS, TABLE, VerbExample, markdown, supported
from tests.repo_rules.repository import ROOT

US = 1e-6


@pytest.mark.parametrize(("verb", "algorithm"), CELLS)
def test_cell(verb: str, algorithm: str, harness: EngineHarness) -> None:
    if not supported(verb, algorithm):
        _refuses(verb, algorithm, harness)
    elif algorithm == "Slots":
        _SLOT_VERBS[verb](harness, harness.limiter(SLOTS, "slots", pausable=verb == "pause"))
    else:
        example = EXAMPLES[algorithm]
        _RATE_VERBS[verb](harness, harness.limiter(example.text, "rate", pausable=verb == "pause"), example)


@pytest.mark.parametrize(("verb", "algorithm"), [cell for cell in CELLS if supported(*cell)])
def test_cell_of_a_limiter_that_can_be_paused(verb: str, algorithm: str, harness: EngineHarness) -> None:
    """While nobody pauses it, it decides the same."""
    if algorithm == "Slots":
        _SLOT_VERBS[verb](harness, harness.limiter(SLOTS, "slots", pausable=True))
    else:
        example = EXAMPLES[algorithm]
        _RATE_VERBS[verb](harness, harness.limiter(example.text, "rate", pausable=True), example)


def test_the_table_is_whole() -> None:
    assert {verb: set(row) for verb, row in TABLE.items()} == {verb: set(ALGORITHMS) for verb in TABLE}
    assert set(_RATE_VERBS) | set(_SLOT_VERBS) == set(TABLE)


def test_the_docs_show_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "reference" / "verbs.md").read_text(encoding="utf-8")


def _take(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    first = limiter.take("key", 10)
    assert (first.allowed, first.delay, first.retry_after) == (True, example.delay, 0)
    before = harness.stored()
    denied = limiter.take("key")
    assert (denied.allowed, denied.remaining, denied.retry_after, denied.delay) == (False, 0, example.retry, 0)
    assert limiter.take("key", example.never).retry_after is None
    harness.advance(example.retry - US)
    assert limiter.take("key").retry_after == pytest.approx(US)
    assert harness.stored() == before
    harness.advance(US)
    assert limiter.take("key")
    assert limiter.take("other", 10)


def _peek(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    stored = harness.stored()
    before = limiter.peek("key")
    assert (before.allowed, before.remaining) == (True, example.fresh)
    assert harness.stored() == stored
    limiter.take("key", 10)
    after = limiter.peek("key")
    assert (after.allowed, after.remaining, after.retry_after) == (False, 0, example.retry)


def _take_all(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    both = [Charge("key", None, 10), Charge("other", "5/minute", 2)]
    taken = limiter.take_all(both)
    assert (taken.allowed, [verdict.key for verdict in taken.verdicts]) == (True, ["key", "other"])
    before = harness.stored()
    denied = limiter.take_all(both)
    assert [verdict.allowed for verdict in denied.verdicts] == [False, True]
    assert [verdict.remaining for verdict in denied.verdicts] == [0, 3]
    assert not denied
    assert harness.stored() == before


def _wait(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    limiter.take("key", 10)
    before = harness.stored()
    too_short = limiter.wait("key", timeout=example.wait - US)
    assert (too_short.allowed, harness.seconds(), harness.stored()) == (False, 0, before)
    assert too_short.retry_after == example.wait
    waited = limiter.wait("key", timeout=example.wait)
    assert (waited.allowed, waited.delay, harness.seconds()) == (True, example.wait, example.wait)
    assert not limiter.wait("key", example.never)


def _reserve(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    limiter.take("key", 10)
    before = harness.stored()
    assert not limiter.reserve("key", timeout=0)
    assert harness.stored() == before
    first = limiter.reserve("key")
    assert (first.granted, first.delay, harness.seconds()) == (True, example.wait, 0)
    places = [limiter.reserve("key", 10).delay for _ in range(3)]
    assert places == sorted({example.wait, *places})[1:]
    assert not limiter.take("key")


def _cancel(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    limiter.take("key", 10)
    before = limiter.peek("key").verdicts[0]._replace(mark=0)
    first = limiter.reserve("key", 10)
    first.cancel()
    assert limiter.peek("key").verdicts[0]._replace(mark=0) == before
    again = limiter.reserve("key", 10)
    assert again.delay == first.delay
    first.cancel()  # once is all
    harness.advance(again.delay + US)
    stored = harness.stored()
    again.cancel()  # it was served
    limiter.reserve("key", example.never).cancel()  # it was never granted
    assert harness.stored() == stored


def _refund(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    before = limiter.peek("key").verdicts[0]._replace(mark=0)
    taken = limiter.take("key", 10)
    stored = harness.stored()
    limiter.refund(limiter.take("key"))  # refused: it holds nothing
    assert harness.stored() == stored
    limiter.refund(taken, 4)
    limiter.refund(taken, 2)
    assert limiter.peek("key").reset_after < taken.reset_after or algorithm_keeps_its_end(example)
    limiter.refund(taken)
    assert limiter.peek("key").verdicts[0]._replace(mark=0) == before
    stored = harness.stored()
    limiter.refund(taken)
    limiter.refund(taken, 10)
    assert harness.stored() == stored


def _settle(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    for key, cost in (("less", 3), ("same", 10), ("more", 10)):
        limiter.take(key, cost)
    less, same = limiter.take("less settled", 10), limiter.take("same settled", 10)
    more, beyond = limiter.take("more settled", 4), limiter.reserve("beyond", 4)
    for decision, cost in ((less, 3), (same, 10), (more, 10), (beyond, 25)):
        limiter.settle(decision, cost)
    for key in ("less", "same", "more"):
        expected, settled = limiter.peek(key), limiter.peek(f"{key} settled")
        assert (settled.remaining, settled.retry_after) == (expected.remaining, expected.retry_after), key
    refused = limiter.take("beyond")
    assert not refused
    assert (refused.retry_after or 0) >= example.retry
    before = harness.stored()
    for decision in (less, same, more, beyond.decision):
        limiter.settle(decision, 7)  # once is all
        limiter.settle(decision, 70)
        limiter.refund(decision)
    limiter.settle(refused, 5)  # it was charged nothing
    beyond.cancel()
    assert harness.stored() == before


def algorithm_keeps_its_end(example: VerbExample) -> bool:
    """In windows and logs all units of one charge end at once, so the last one ends with the first."""
    return "queue" not in example.text and " " in example.text and "smooth" not in example.text


def _reset(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    limiter.take("key", 10)
    limiter.take("other", 10)
    limiter.reset("key")
    limiter.reset("never seen")
    assert limiter.take("key", 10)
    assert not limiter.take("other")


def _pause(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    assert limiter.pause("key", 20) == 20
    before = harness.stored()
    refused = limiter.take("key")
    assert (refused.allowed, refused.retry_after, refused.paused_for) == (False, 20, 20)
    assert harness.stored() == before
    assert limiter.take("other").paused_for == 0
    harness.advance(20 - US)
    assert limiter.take("key").retry_after == pytest.approx(US)
    harness.advance(US)
    assert limiter.take("key", 10)


def _set_limit(harness: EngineHarness, limiter: Limiter, example: VerbExample) -> None:
    limiter.take("key", 10)
    limiter.set_limit(example.changed, "key")
    assert limiter.peek("key").remaining == example.changed_left
    assert str(limiter.peek("key").limit) == example.changed
    limiter.set_limit(example.text)
    assert not limiter.take("key")


_RATE_VERBS: dict[str, Callable[[EngineHarness, Limiter, VerbExample], None]] = {
    "take": _take,
    "peek": _peek,
    "take_all": _take_all,
    "wait": _wait,
    "reserve": _reserve,
    "cancel": _cancel,
    "refund": _refund,
    "settle": _settle,
    "reset": _reset,
    "set_limit": _set_limit,
    "pause": _pause,
}


def _peek_slots(harness: EngineHarness, limiter: Limiter) -> None:
    assert limiter.peek("key").remaining == 10
    leases = [limiter.acquire("key") for _ in range(10)]
    before = harness.stored()
    full = limiter.peek("key")
    assert (full.allowed, full.remaining, full.retry_after) == (False, 0, 30)
    assert harness.stored() == before
    assert all(lease.release() for lease in leases)


def _reset_slots(harness: EngineHarness, limiter: Limiter) -> None:
    lease = limiter.acquire("key")
    limiter.reset("key")
    assert limiter.peek("key").remaining == 10
    assert not lease.renew()
    harness.advance(US)
    assert limiter.acquire("key").fence > lease.fence


def _pause_slots(harness: EngineHarness, limiter: Limiter) -> None:
    lease = limiter.acquire("key")
    assert limiter.pause("key", 20) == 20
    with pytest.raises(RateLimited) as refused:
        limiter.acquire("key")
    assert (refused.value.decision.retry_after, refused.value.decision.paused_for) == (20, 20)
    peeked = limiter.peek("key")
    assert (peeked.allowed, peeked.remaining, peeked.paused_for) == (False, 9, 20)
    assert lease.renew()
    assert lease.release()
    harness.advance(20)
    assert limiter.acquire("key").release()


def _set_slots(harness: EngineHarness, limiter: Limiter) -> None:
    leases = [limiter.acquire("key") for _ in range(3)]
    limiter.set_limit("2 slots", "key")
    with pytest.raises(RateLimited):
        limiter.acquire("key")
    assert [lease.release() for lease in leases] == [True] * 3
    assert limiter.peek("key").remaining == 2


def _acquire(harness: EngineHarness, limiter: Limiter) -> None:
    leases = [limiter.acquire("key") for _ in range(10)]
    assert len({lease.fence for lease in leases}) == 10
    before = harness.stored()
    with pytest.raises(RateLimited, match="refused by 10 slots") as refused:
        limiter.acquire("key")
    assert refused.value.decision.retry_after == 30
    assert harness.stored() == before
    with limiter.acquire("other") as held:
        assert held
        assert limiter.peek("other").remaining == 9
    assert limiter.peek("other").remaining == 10
    harness.advance(30)
    assert limiter.acquire("key")


def _renew(harness: EngineHarness, limiter: Limiter) -> None:
    lease = limiter.acquire("key")
    harness.advance(29)
    assert lease.renew()
    harness.advance(29)
    assert limiter.peek("key").remaining == 9
    assert lease.renew()
    harness.advance(30)
    assert not lease.renew()
    assert not lease


def _release(harness: EngineHarness, limiter: Limiter) -> None:
    lease = limiter.acquire("key")
    assert lease.release()
    assert not lease.release()
    assert limiter.peek("key").remaining == 10


_SLOT_VERBS: dict[str, Callable[[EngineHarness, Limiter], None]] = {
    "peek": _peek_slots,
    "reset": _reset_slots,
    "set_limit": _set_slots,
    "pause": _pause_slots,
    "acquire": _acquire,
    "renew": _renew,
    "release": _release,
}


def _refuses(verb: str, algorithm: str, harness: EngineHarness) -> None:
    if algorithm != "Slots":
        # Whoever has no lease can neither renew nor release one.
        limiter = harness.limiter(EXAMPLES[algorithm].text)
        with pytest.raises(InvalidCharge, match=r'^Only slots are acquired, such as "20 slots"; ".*" is taken\.$'):
            limiter.acquire("key")
        assert harness.stored() == {}
        return
    limiter = harness.limiter(SLOTS)
    held = limiter.acquire("key")
    before = harness.stored()
    calls: dict[str, Callable[[], object]] = {
        "take": lambda: limiter.take("key"),
        "wait": lambda: limiter.wait("key"),
        "take_all": lambda: limiter.take_all([("key", "10/s"), ("key", SLOTS)]),
        "reserve": lambda: limiter.reserve("key"),
        "cancel": lambda: limiter.reserve("key"),  # without a place there is nothing to cancel
        "refund": lambda: limiter.refund(held.decision),
        "settle": lambda: limiter.settle(held.decision, 2),
    }
    with pytest.raises(InvalidCharge, match=r'^"10 slots" is held, not taken: '):
        calls[verb]()
    assert harness.stored() == before
