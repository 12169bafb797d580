"""Hot keys: which keys called most, or were refused most, in the last minute, without storing every key.

The minute is cut into slices of ten seconds. Within a slice the keys are counted by Space-Saving (Metwally and
others, 2005), in batches: a dictionary counts all keys until it has twice as many as it may keep, and then the
lesser half is dropped. The largest count that was dropped is added to the floor: a key that returns, or comes
later, starts from there, because it may have had so many. So no key's count is too low, and each is too high by
the floor at most. (What is stored is the count above the floor, so that a whole batch is counted by one call of C;
Agarwal and others, 2012, show that such summaries can be merged.) When a slice ends, its keys with the largest
counts stay for a minute.

Laws (tests/telemetry/test_hot_keys.py):
  - of the 100 busiest of 100,000 keys, in a million calls by Zipf(1.2), at least 98 are found;
  - a key with more calls than the floor is always found;
  - all kinds of one rule together take at most 1 MB, whatever keys come;
  - merging the top keys of several processes gives the sum of their counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from heapq import nlargest
from operator import itemgetter
from typing import Final, NamedTuple

SLICE_S: Final = 10
SLICES: Final = 6  # the last minute
BATCH_SIZE: Final = 512  # keys that are added before the lesser half may be dropped
MAX_KEY_BYTES: Final = 64  # a longer key is shown by its beginning and a digest
_DIGEST_DIGITS: Final = 16


class HotKey(NamedTuple):
    """A key, and how many calls it made, or how many of them were refused, in the last minute."""

    key: str
    calls: int


class HotKeySummary:
    """The keys with the largest counts in the last minute.

    max_open, max_closed   keys that are kept in the current slice, and in each slice that has ended

    >>> hot = HotKeySummary()
    >>> hot.add(170_000_000, ["ann", "bob", "ann"])
    >>> hot.top(170_000_000, 1)
    [HotKey(key='ann', calls=2)]
    """

    __slots__ = ("_closed", "_counts", "_floor", "_max_closed", "_max_open", "_slice")

    def __init__(self, max_open: int = 400, max_closed: int = 200) -> None:
        self._max_open, self._max_closed = max_open, max_closed
        self._slice = 0
        self._counts: Counter[str] = Counter()  # above the floor
        self._floor = 0
        self._closed: list[tuple[int, list[HotKey]]] = []  # slices that have ended: number and top keys

    def add(self, slice_number: int, keys: Sequence[str], weight: int = 1) -> None:
        """Counts keys in a slice: the number of its ten seconds since 1970. A later slice closes this one. Memory
        is bounded if they are short_keys."""
        if slice_number != self._slice:
            self.close_slice(slice_number)
        for start in range(0, len(keys), BATCH_SIZE):
            batch = keys[start : start + BATCH_SIZE]
            if weight == 1:
                self._counts.update(batch)
            else:
                self._counts.update({key: number * weight for key, number in Counter(batch).items()})
            if len(self._counts) > 2 * self._max_open:
                self._drop_lesser_half()

    def _drop_lesser_half(self) -> None:
        dropped = sorted(self._counts.values(), reverse=True)[self._max_open]
        self._floor += dropped
        self._counts = Counter({key: count - dropped for key, count in self._counts.items() if count > dropped})

    def close_slice(self, slice_number: int) -> list[HotKey]:
        """Ends the current slice, and returns its top keys."""
        top = self.open_top(self._max_closed)
        if top:
            self._closed.append((self._slice, top))
        self._closed = [each for each in self._closed if slice_number - SLICES < each[0] <= slice_number]
        self._slice, self._counts, self._floor = slice_number, Counter(), 0
        return top

    @property
    def slice_number(self) -> int:
        """The number of the current slice."""
        return self._slice

    def open_top(self, number: int) -> list[HotKey]:
        """Returns the keys with the largest counts in the current slice."""
        return [HotKey(key, count + self._floor) for key, count in _top(self._counts.items(), number)]

    def top(self, slice_number: int, number: int) -> list[HotKey]:
        """Returns the keys with the largest counts in the minute that ends with this slice."""
        slices = [*self._closed, (self._slice, self.open_top(self._max_open))]
        return merged([keys for each, keys in slices if slice_number - SLICES < each <= slice_number], number)


def merged(top_keys: Iterable[Sequence[HotKey]], number: int) -> list[HotKey]:
    """Returns the keys with the largest sums over several slices or processes.

    >>> merged([[HotKey("ann", 2), HotKey("bob", 1)], [HotKey("bob", 3)]], 1)
    [HotKey(key='bob', calls=4)]
    """
    sums: dict[str, int] = {}
    for keys in top_keys:
        for key, count in keys:
            sums[key] = sums.get(key, 0) + count
    return _top(sums.items(), number)


def _top(counts: Iterable[tuple[str, int]], number: int) -> list[HotKey]:
    return [HotKey(*each) for each in nlargest(number, counts, key=itemgetter(1))]


def short_keys(keys: Sequence[str]) -> Sequence[str]:
    """Returns the keys, each as short_key.

    >>> short_keys(["ann", "bob"])
    ['ann', 'bob']
    """
    longest = max(map(len, keys), default=0)
    if longest <= MAX_KEY_BYTES // 4 or (longest <= MAX_KEY_BYTES and "".join(keys).isascii()):
        return keys
    return [short_key(key) for key in keys]


def short_key(key: str) -> str:
    """Returns the key; of a long one its beginning and a digest, so that memory is bounded and keys differ.

    >>> short_key("x" * 1000)
    'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx~44f8354494a5ba03'
    """
    raw = key.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_KEY_BYTES:
        return key
    digest = sha256(raw).hexdigest()[:_DIGEST_DIGITS]
    return f"{raw[: MAX_KEY_BYTES - len(digest) - 1].decode(errors='ignore')}~{digest}"


def masked_key(key: str) -> str:
    """Returns the key with most of each value hidden, for screens that others see.

    >>> masked_key("user=annabel|plan=free")
    'user=an***|plan=fr***'
    """
    return "|".join(_masked_parts(key))


def masked(keys: Iterable[HotKey]) -> list[HotKey]:
    """Returns the same counts with masked keys."""
    return [HotKey(masked_key(key), count) for key, count in keys]


def _masked_parts(key: str) -> Iterator[str]:
    for part in key.split("|"):
        name, equals, value = part.rpartition("=")
        yield f"{name}{equals}{value[: min(2, len(value) // 2)]}***"
