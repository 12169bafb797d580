"""nginx's hot keys are those of a Python process: the same batches give the same keys and counts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.telemetry.hot_keys import HotKeySummary, short_key
from headgate.telemetry.key_estimates import MAX_SHARED, KeyEstimates
from headgate.telemetry.shared_layout import KIND_LETTERS
from tests.nginx.pure_modules_process import start_twins
from tests.nginx.rules.luajit_process import LuajitProcess

SEED = 20261118
CALLS, KEYS, EXPONENT, TOP, BATCH_SIZE = 1_000_000, 100_000, 1.2, 100, 256
VERDICTS = {  # the numbers of verdicts in nginx
    "allowed": 1,
    "refused": 2,
    "shed": 3,
    "shadow_allowed": 6,
    "shadow_refused": 7,
    "candidate_allowed": 8,
    "candidate_refused": 9,
}


@pytest.fixture(scope="module")
def twins() -> Iterator[LuajitProcess]:
    running = start_twins()
    yield running
    running.close()


def pairs(flat: list[Any]) -> list[tuple[str, int]]:
    return [(key.encode("latin-1").decode(), int(count)) for key, count in zip(flat[::2], flat[1::2], strict=True)]


def stream(calls: int, keys: int, seed: int) -> list[str]:
    weights = [*accumulate(rank**-EXPONENT for rank in range(1, keys + 1))]
    return random.Random(seed).choices(
        [f"user={rank}" for rank in range(1, keys + 1)], cum_weights=weights, k=calls
    )


@pytest.mark.parametrize("seed", range(SEED, SEED + 5))
def test_the_same_batches_give_the_same_keys_and_counts(twins: LuajitProcess, seed: int) -> None:
    calls = stream(20_000, 3_000, seed)
    batches = [calls[start : start + BATCH_SIZE] for start in range(0, len(calls), BATCH_SIZE)]
    hot = HotKeySummary(max_open=50)
    for batch in batches:
        hot.add(1, batch)
    expected = sorted(hot.open_top(1000), key=lambda each: (-each.calls, each.key))
    found = pairs(twins.call_driver("hot_keys", batches=batches, max_keys=50, number=1000))
    assert found == expected
    assert 20 <= len(found) <= 100 + BATCH_SIZE  # many were dropped


def test_the_top_100_of_a_zipf_stream(twins: LuajitProcess) -> None:
    calls = stream(CALLS, KEYS, SEED)
    batches = [calls[start : start + BATCH_SIZE] for start in range(0, CALLS, BATCH_SIZE)]
    found = pairs(twins.call_driver("hot_keys", batches=batches, max_keys=400, number=TOP))
    true = {key for key, _ in Counter(calls).most_common(TOP)}
    assert len(true & {key for key, _ in found}) / TOP >= 0.98


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=120))
def test_a_long_key_has_the_same_short_form(twins: LuajitProcess, key: str) -> None:
    assert twins.call_driver("short_key", key=key).encode("latin-1").decode() == short_key(key)


def test_verdicts_become_the_same_hot_and_distinct_keys(twins: LuajitProcess) -> None:
    """Ten seconds of every verdict, over the end of an hour, with long keys among them."""
    chosen = random.Random(SEED)
    names = [*(f"user={number}" for number in range(40)), "ü" * 50, "x" * 300]
    calls = [
        (verdict, 3590 + second, chosen.choices(names, k=chosen.randrange(1, 200)))
        for second in range(0, 20, 2)
        for verdict in VERDICTS
    ]
    estimates = KeyEstimates(shared=True)
    for verdict, second, keys in calls:
        estimates.end_second(second)
        estimates.add(second, verdict, keys)
    shared = estimates.take_unshared(at_once=True)
    hot: dict[tuple[str, int], Counter[str]] = {}
    distinct: dict[tuple[str, int], set[str]] = {}
    for kind, shape, number, keys in twins.call_driver(
        "collected", calls=[[VERDICTS[verdict], second, keys] for verdict, second, keys in calls]
    ):
        if shape == "hot":
            hot.setdefault((kind, number), Counter()).update(dict(pairs(keys)))
        else:
            found = {key.encode("latin-1").decode() for key in keys}
            distinct.setdefault((kind, number), set()).update(found)
    expected_hot: dict[tuple[str, int], Counter[str]] = {}
    for kind, number, hot_keys in shared.hot:
        assert len(hot_keys) < MAX_SHARED
        expected_hot.setdefault((KIND_LETTERS[kind], number), Counter()).update(dict(hot_keys))
    expected_distinct: dict[tuple[str, int], set[str]] = {}
    for kind, number, keys in shared.distinct:
        expected_distinct.setdefault((KIND_LETTERS[kind], number), set()).update(keys)
    assert hot == expected_hot
    assert distinct == expected_distinct


def test_the_keys_of_a_rule_take_at_most_a_megabyte(twins: LuajitProcess) -> None:
    assert twins.call_driver("collected_bytes", rounds=30) <= 1_000_000
