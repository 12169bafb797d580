"""Counts by key stay within their bound, and keep all keys that were refused."""

from __future__ import annotations

import pytest

from headgate.traffic.key_counts import KeyCounts


def test_beyond_the_bound_light_keys_are_sampled() -> None:
    counts = KeyCounts(max_keys=1000)
    for number in range(20_000):
        counts.add(f"user={number}")
        if number % 100 == 0:
            counts.refuse(f"user={number}", number)
    assert counts.sampled > 1
    assert len(counts.offered) <= 1001
    assert counts.refused_keys == 200
    assert counts.keys == pytest.approx(20_000, rel=0.15)


def test_within_the_bound_all_are_counted() -> None:
    counts = KeyCounts()
    for number in range(50):
        counts.add(f"user={number}")
    assert (counts.keys, counts.sampled, counts.refused_keys) == (50, 1, 0)
