"""Hot keys: the busiest keys are found in bounded memory, in the last minute only, and over several processes."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from itertools import accumulate

import pytest

from headgate import Counts, InvalidRule, Limiter, ManualClock
from headgate.telemetry.hot_keys import HotKey, HotKeySummary, masked_key, merged, short_key
from headgate.telemetry.key_estimates import HOT_KINDS, KeyEstimates

SEED = 20261118
CALLS, KEYS, EXPONENT, TOP = 1_000_000, 100_000, 1.2, 100
MEGABYTE = 1_000_000


def zipf_stream() -> list[str]:
    weights = [*accumulate(rank**-EXPONENT for rank in range(1, KEYS + 1))]
    names = [f"user={rank}" for rank in range(1, KEYS + 1)]
    return random.Random(SEED).choices(names, cum_weights=weights, k=CALLS)


@pytest.fixture(scope="module")
def stream() -> list[str]:
    return zipf_stream()


def found(top: list[HotKey], stream: list[str]) -> float:
    """Returns the share of the true top keys that are among the found ones."""
    true = {key for key, _ in Counter(stream).most_common(TOP)}
    return len(true & {each.key for each in top}) / TOP


def fill(hot: HotKeySummary, calls: list[str]) -> None:
    """Spreads the calls over six slices."""
    for start in range(0, len(calls), 1024):
        hot.add(start * 6 // len(calls), calls[start : start + 1024])


def test_the_top_100_of_a_zipf_stream_over_a_minute(stream: list[str]) -> None:
    hot = HotKeySummary()
    fill(hot, stream)
    assert found(hot.top(5, TOP), stream) >= 0.98
    assert hot.top(5, 1)[0].calls == Counter(stream)["user=1"]


def test_the_top_100_of_a_zipf_stream_in_one_slice(stream: list[str]) -> None:
    hot = HotKeySummary()
    for start in range(0, len(stream), 1024):
        hot.add(7, stream[start : start + 1024])
    assert found(hot.top(7, TOP), stream) >= 0.98


def test_the_top_100_of_a_zipf_stream_over_four_processes(stream: list[str]) -> None:
    tops = []
    for process in range(4):
        hot = HotKeySummary()
        fill(hot, stream[process::4])
        tops.append(hot.top(5, 200))
    assert found(merged(tops, TOP), stream) >= 0.98


def test_the_top_100_through_counts(stream: list[str]) -> None:
    clock = ManualClock(1_700_000_000_000_000)
    counts = Counts(clock=clock)
    limiter = Limiter("100000000/s", name="api", clock=clock, observers=[counts])
    for number, key in enumerate(stream[:200_000]):
        limiter.take(key)
        if number % 4000 == 0:
            clock.advance(1)
    assert found(counts.hot_keys("api", number=TOP), stream[:200_000]) >= 0.98


def test_a_key_above_the_floor_is_found_in_a_flood_of_others() -> None:
    hot = HotKeySummary(max_open=50, max_closed=20)
    for number in range(200):
        hot.add(1, ["heavy"] * 5 + [f"key {number} {each}" for each in range(100)])
    assert "heavy" in [each.key for each in hot.top(1, 20)]
    assert hot.top(1, 1)[0] == ("heavy", 1000)


def test_a_key_that_comes_late_is_found() -> None:
    hot = HotKeySummary(max_open=50, max_closed=20)
    hot.add(1, [f"early {each}" for each in range(50) for _ in range(20)])
    for number in range(100):
        hot.add(1, ["late"] * 10 + [f"key {number} {each}" for each in range(60)])
    assert hot.top(1, 1)[0].key == "late"


def test_a_minute_passes() -> None:
    hot = HotKeySummary()
    hot.add(100, ["ann"] * 3)
    hot.add(103, ["bob"])
    assert hot.top(103, 9) == [("ann", 3), ("bob", 1)]
    assert hot.top(106, 9) == [("bob", 1)]
    assert hot.top(109, 9) == []
    hot.add(109, ["kim"])
    assert hot.top(109, 9) == [("kim", 1)]


@pytest.mark.parametrize("key", ["user={}|address=2001:db8::/64", "x" * 300 + "{}", "ü" * 50 + "{}"])
def test_all_keys_of_a_rule_take_at_most_a_megabyte(key: str) -> None:
    verdicts = "allowed", "refused", "candidate_refused"  # a shadow refuses in place of the live rule
    tracemalloc.start()
    estimates = KeyEstimates()
    before, most = tracemalloc.get_traced_memory()[0], 0
    for second in range(0, 90, 2):
        for verdict in verdicts:
            batch = [key.format(f"{verdict}{second}-{each % 1500}") for each in range(1024)]
            estimates.add(second, verdict, batch)
            del batch
        estimates.end_second(second)
        most = max(most, _hot_bytes(estimates))
    assert tracemalloc.get_traced_memory()[0] - before > 0
    tracemalloc.stop()
    assert most <= MEGABYTE


def _hot_bytes(estimates: KeyEstimates) -> int:
    """Measures the hot keys alone: a copy of them with all their keys."""
    before = tracemalloc.get_traced_memory()[0]
    copies = []
    for kind in HOT_KINDS:
        hot = estimates._hot.get(kind)
        if hot is not None:
            names: dict[str, str] = {}
            copied = {names.setdefault(key, "".join(list(key))): calls for key, calls in hot._counts.items()}
            closed = [
                (number, [HotKey(names.setdefault(key, "".join(list(key))), calls + 0) for key, calls in keys])
                for number, keys in hot._closed
            ]
            copies.append((copied, closed, names))
            names = {}
    size = tracemalloc.get_traced_memory()[0] - before
    del copies
    return size


def test_a_long_key_is_shortened_and_stays_apart_from_others() -> None:
    one, other = "x" * 300 + "1", "x" * 300 + "2"
    estimates = KeyEstimates()
    estimates.add(1, "refused", [one, other, one])
    estimates.add(1, "refused", [*["ann"] * 1000, one])  # one long key among many short ones
    assert estimates.hot(1, "calls", 9) == [("ann", 1000), (short_key(one), 3), (short_key(other), 1)]
    assert estimates.distinct(0, 0, "refused") == 3
    assert len(short_key("ü" * 300).encode()) <= 64


def test_calls_refusals_and_verdicts_that_are_not_enforced_have_their_hot_keys() -> None:
    clock = ManualClock()
    counts = Counts(clock=clock)
    rules = [
        {"name": "login", "key": "user", "missing": "deny", "limit": "3/minute", "candidate": "1/minute"},
        {"name": "trial", "key": "user", "missing": "deny", "limit": "2/minute", "mode": "shadow"},
    ]
    limiter = Limiter.from_rules({"rules": rules}, clock=clock, observers=[counts])
    for user in ("annabel", "annabel", "bob", "annabel", "annabel"):
        limiter.check({"user": user})
    assert counts.hot_keys("login") == [("user=annabel", 4), ("user=bob", 1)]
    assert counts.hot_keys("login", number=1, mask=True) == [("user=an***", 4)]
    assert counts.hot_keys("login", "refused") == [("user=annabel", 1)]
    assert counts.hot_keys("login", "candidate_refused") == [("user=annabel", 3)]
    assert counts.hot_keys("trial", "shadow_refused") == [("user=annabel", 2)]
    assert counts.hot_keys("trial") == [("user=annabel", 4), ("user=bob", 1)]
    assert counts.most_refused("login", "candidate_refused", hours=24) == [("user=annabel", 3)]
    clock.advance(70)
    assert counts.hot_keys("login") == []
    assert counts.most_refused("login", "candidate_refused", hours=24) == [("user=annabel", 3)]
    clock.advance(26 * 3600)
    assert counts.most_refused("login", "candidate_refused", hours=24) == []
    assert counts.hot_keys("nobody") == []


def test_a_busy_second_is_sampled_and_counts_stay_near_the_truth() -> None:
    estimates = KeyEstimates()
    for second in range(1000, 1004):
        for _ in range(320):
            estimates.add(second, "allowed", ["ann"] * 100)
        estimates.end_second(second + 1)
    [ann] = estimates.hot(1003, "calls", 1)
    assert 0.9 < ann.calls / (4 * 320 * 100) < 1.1


def test_masking_hides_values_and_keeps_dimensions() -> None:
    assert masked_key("user=annabel|address=203.0.113.7") == "user=an***|address=20***"
    assert masked_key("abc") == "a***"
    assert masked_key("k=x") == "k=***"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidRule, match="candidate_refused"):
        Counts().hot_keys("login", "allowed")
