"""The place of an engine in a stack: the innermost one decides, a layer passes on what it does not do itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from headgate.algorithms.limit import Limit
from headgate.algorithms.slots import Slots
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.port import MemberPosition


class InnermostEngine:
    """An engine with nothing inside it, and no breaker: it answers or raises."""

    inner: None = None
    degraded_count: int = 0

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        """Yields nothing, unless the engine has something to say."""
        yield from ()

    def set_deadline(self, seconds: float) -> None:
        """Does nothing, unless the engine waits for a server."""

    def count_members(self) -> None:
        """Does nothing: only a fallback shares limits among processes."""

    def member_position(self) -> MemberPosition:
        """Returns the position of a process that shares its limits with no other."""
        return 1, 0

    def describe_shard(self, shard: Hashable) -> str:
        """Returns the name of the only part."""
        return "The engine"

    def mark_prefetched(self) -> None:
        """Does nothing: no engine prefetches by itself."""

    def degraded_shards(self) -> Sequence[tuple[Hashable, str]]:
        """Returns none: only a fallback has breakers."""
        return ()

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields nothing, unless the engine measures something."""
        yield from ()


class EngineLayer:
    """A layer that leaves everything but decisions to the engine inside it."""

    inner: Any

    @property
    def degraded_count(self) -> int:
        """Returns how many decisions were made without the engine."""
        count: int = self.inner.degraded_count
        return count

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields what the engine inside measures."""
        yield from self.inner.measurements()

    def slots(self, limit: Slots, name: str, options: ChargeOptions | None = None) -> Any:
        """Binds slots to the engine inside."""
        return self.inner.slots(limit, name, options)

    def overrides(self, rule: str) -> Any:
        """Returns the overrides of a rule in the engine inside."""
        return self.inner.overrides(rule)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        """Returns the quota ledger of a limit in the engine inside."""
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)

    def shard(self, key: str) -> Hashable:
        """Returns which part of the engine decides for the key."""
        shard: Hashable = self.inner.shard(key)
        return shard

    def describe_shard(self, shard: Hashable) -> str:
        """Returns a part of the engine as messages name it."""
        text: str = self.inner.describe_shard(shard)
        return text

    def mark_prefetched(self) -> None:
        """Marks outcomes of prefetched units from now on."""
        self.inner.mark_prefetched()

    def set_deadline(self, seconds: float) -> None:
        """Changes how long a decision may take."""
        self.inner.set_deadline(seconds)

    def count_members(self) -> None:
        """Counts the processes that share the limits, from now on."""
        self.inner.count_members()

    def member_position(self) -> MemberPosition:
        """Returns how many processes share the limits, and the rank of this one."""
        position: MemberPosition = self.inner.member_position()
        return position

    def degraded_shards(self) -> Sequence[tuple[Hashable, str]]:
        """Returns the parts of the engine that give no answer."""
        shards: Sequence[tuple[Hashable, str]] = self.inner.degraded_shards()
        return shards
