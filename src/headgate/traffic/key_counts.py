"""KeyCounts: how often each key called and was refused, in bounded memory.

Beyond MAX_KEYS, keys that were never refused are sampled by a hash: half of them, then a quarter, and so on. Keys
that were refused are all kept.
"""

from __future__ import annotations

from heapq import nlargest
from typing import NamedTuple
from zlib import crc32

MAX_KEYS = 200_000


class RefusedKey(NamedTuple):
    """A key that was refused: how often, and when first and last."""

    key: str
    refused: int
    offered: int  # calls that were counted since the key is kept
    first_us: int
    last_us: int


class KeyCounts:
    """Counts of one rule by key."""

    def __init__(self, max_keys: int | None = None) -> None:
        self.offered: dict[str, int] = {}
        self._refused: dict[str, list[int]] = {}  # count, first_us, last_us
        self.sampled: int = 1
        self.max_keys: int = MAX_KEYS if max_keys is None else max_keys

    def add(self, key: str) -> None:
        """Counts a call of a key that is not counted yet."""
        if self.sampled > 1 and not self._is_sampled(key):
            return
        self.offered[key] = 1
        if len(self.offered) > self.max_keys:
            self.sampled *= 2
            self.offered = {
                each: count
                for each, count in self.offered.items()
                if each in self._refused or self._is_sampled(each)
            }

    def refuse(self, key: str, time_us: int) -> None:
        """Counts a refusal."""
        refused = self._refused.get(key)
        if refused is None:
            self._refused[key] = [1, time_us, time_us]
        else:
            refused[0] += 1
            refused[2] = time_us

    def _is_sampled(self, key: str) -> bool:
        return crc32(key.encode("utf-8", "surrogateescape")) % self.sampled == 0

    @property
    def keys(self) -> int:
        """The number of distinct keys; estimated if they are sampled."""
        if self.sampled == 1:
            return len(self.offered)
        light = sum(self._is_sampled(key) for key in self.offered if key not in self._refused)
        return light * self.sampled + len(self._refused)

    @property
    def keys_text(self) -> str:
        """The number of distinct keys for people: ~ before an estimate."""
        return f"{self.keys:,}" if self.sampled == 1 else f"~{self.keys:,}"

    @property
    def refused_keys(self) -> int:
        return len(self._refused)

    def most_refused(self, count: int) -> list[RefusedKey]:
        """Returns the keys that were refused most, the worst first."""
        worst = nlargest(count, self._refused.items(), key=lambda item: item[1][0])
        return [
            RefusedKey(key, refused, max(refused, self.offered.get(key, 0)), first_us, last_us)
            for key, (refused, first_us, last_us) in worst
        ]
