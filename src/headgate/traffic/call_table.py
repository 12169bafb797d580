"""CallTable: the calls of a log by key, in a few bytes each.

A call takes 22 bytes: its time, its key's number, status, and hashes of its path and user agent. Beyond MAX_CALLS,
light keys are sampled: half of them are dropped by a hash, then half of the rest, and so on. Keys with at least
HEAVY_CALLS calls are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from zlib import crc32

from headgate.rules.condition import Predicate
from headgate.rules.keys import KeyBuilder
from headgate.traffic.recorded_call import RecordedCall

MAX_CALLS = 10_000_000
HEAVY_CALLS = 1_000
UNKNOWN = 0  # a status, path or user agent that the log does not have

_USER_AGENT = "header.user-agent"


class CallTable:
    """The calls of a log, in columns: times, numbers of their keys, statuses, paths, user agents and costs."""

    def __init__(self, key_of: KeyBuilder, where: Predicate | None = None, max_calls: int = MAX_CALLS) -> None:
        self._key_of, self._where, self._max_calls = key_of, where, max_calls
        self.keys: dict[str, int] = {}  # the number of each key
        self.times_us: array[int] = array("q")
        self.numbers: array[int] = array("i")  # of keys
        self.statuses: array[int] = array("h")
        self.paths: array[int] = array("I")  # hashes
        self.agents: array[int] = array("I")  # hashes
        self.costs: array[int] | None = None  # None: all are 1
        self.without_key: int = 0
        self.filtered: int = 0
        self.sampled: int = 1  # of so many light keys one is kept
        self.dropped: int = 0  # calls of light keys
        self._dropped_counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.times_us)

    def add(self, batch: Iterable[RecordedCall]) -> None:
        """Adds calls, in the order of time."""
        keys, key_of, where = self.keys, self._key_of, self._where
        add_time, add_number, add_status = self.times_us.append, self.numbers.append, self.statuses.append
        add_path, add_agent = self.paths.append, self.agents.append
        for call in batch:
            time_us, attributes, status, _, cost, _, _ = call
            if where is not None and not where(attributes):
                self.filtered += 1
                continue
            key = key_of(attributes)
            if key is None:
                self.without_key += 1
                continue
            if self.sampled > 1 and key not in keys and not self._admit(key):
                continue
            number = keys.get(key)
            if number is None:
                number = keys[key] = len(keys)
            add_time(time_us)
            add_number(number)
            add_status(UNKNOWN if status is None or not 0 < status < 1000 else status)
            path, agent = attributes.get("path"), attributes.get(_USER_AGENT)
            add_path(hash(path) & 0xFFFFFFFF if path else UNKNOWN)
            add_agent(hash(agent) & 0xFFFFFFFF if agent else UNKNOWN)
            if cost is not None or self.costs is not None:
                self._add_cost(cost)
        if len(self.times_us) > self._max_calls:
            self._sample()

    def _add_cost(self, cost: int | None) -> None:
        if self.costs is None:
            self.costs = array("q", [1]) * (len(self.times_us) - 1)
        self.costs.append(1 if cost is None else max(0, cost))

    def _admit(self, key: str) -> bool:
        """Returns whether a key that is not in the table comes in: by its hash, or because it has become heavy."""
        if crc32(key.encode("utf-8", "surrogateescape")) % self.sampled == 0:
            return True
        self.dropped += 1
        count = self._dropped_counts[key] = self._dropped_counts.get(key, 0) + 1
        return count >= HEAVY_CALLS

    def _sample(self) -> None:
        """Drops half of the light keys."""
        self.sampled *= 2
        counts = self.counts()
        kept: dict[int, int] = {}
        keys: dict[str, int] = {}
        for key, number in self.keys.items():
            if counts[number] >= HEAVY_CALLS or crc32(key.encode("utf-8", "surrogateescape")) % self.sampled == 0:
                kept[number] = keys[key] = len(keys)
            else:
                self.dropped += counts[number]
                self._dropped_counts[key] = counts[number]
        chosen = [index for index, number in enumerate(self.numbers) if number in kept]
        self.numbers = array("i", (kept[self.numbers[index]] for index in chosen))
        for name in ("times_us", "statuses", "paths", "agents", "costs"):
            column = getattr(self, name)
            if column is not None:
                setattr(self, name, array(column.typecode, (column[index] for index in chosen)))
        self.keys = keys

    def counts(self) -> list[int]:
        """Returns the number of calls of each key, by the key's number."""
        counts = [0] * len(self.keys)
        for number in self.numbers:
            counts[number] += 1
        return counts

    def by_key(self) -> KeyedTimes:
        """Returns all calls, grouped by key."""
        offsets = [0, *accumulate(self.counts())]
        free = offsets[:-1]
        times_us, source = array("q", bytes(8 * len(self))), self.times_us
        costs = None if self.costs is None else array("q", bytes(8 * len(self)))
        for index, number in enumerate(self.numbers):
            place = free[number]
            free[number] = place + 1
            times_us[place] = source[index]
            if costs is not None and self.costs is not None:
                costs[place] = self.costs[index]
        return KeyedTimes(offsets, times_us, costs)


class KeyedTimes:
    """The times and costs of calls, grouped by key; or those of a part of the time, which shares the memory."""

    def __init__(
        self,
        offsets: Sequence[int],
        times_us: array[int],
        costs: array[int] | None,
        begin_us: int | None = None,
        end_us: int | None = None,
    ) -> None:
        self._offsets, self._times_us, self._costs = offsets, times_us, costs
        self._begin_us, self._end_us = begin_us, end_us

    def before(self, time_us: int) -> KeyedTimes:
        """Returns the calls before an instant."""
        return KeyedTimes(self._offsets, self._times_us, self._costs, None, time_us)

    def since(self, time_us: int) -> KeyedTimes:
        """Returns the calls from an instant on."""
        return KeyedTimes(self._offsets, self._times_us, self._costs, time_us, None)

    @property
    def key_count(self) -> int:
        return len(self._offsets) - 1

    @property
    def call_count(self) -> int:
        """The number of calls of the whole time."""
        return len(self._times_us)

    def of_key(self, number: int) -> tuple[Sequence[int], Sequence[int] | None]:
        """Returns the times and costs (None: all 1) of a key, of the whole time."""
        begin, end = self._offsets[number], self._offsets[number + 1]
        return self._times_us[begin:end], None if self._costs is None else self._costs[begin:end]

    def __iter__(self) -> Iterator[tuple[int, Sequence[int], Sequence[int] | None]]:
        """Yields number, times and costs (None: all 1) of each key that has calls."""
        times_us, costs = self._times_us, self._costs
        for number, (begin, end) in enumerate(pairwise(self._offsets)):
            if self._begin_us is not None:
                begin = bisect_left(times_us, self._begin_us, begin, end)
            if self._end_us is not None:
                end = bisect_left(times_us, self._end_us, begin, end)
            if begin < end:
                yield number, times_us[begin:end], None if costs is None else costs[begin:end]
