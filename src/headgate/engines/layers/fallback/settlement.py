"""The shares of one process: where they start, what is unsettled, and how that is settled.

A share starts from what is known. For each count the last outcome is remembered; while it is valid, the share
starts with so many units used that it has left at most its part of what was remaining then. Conservative: what has
come free since is not counted. (The debt of reservations is not carried over.) A count that was never used, or was
evicted, because the memory is bounded, starts as a new one. If the engine decided by an override, the share is one
of that limit.

Before the engine decides about a count again, the count is settled: the engine is charged with what the share
still holds of the units that it admitted alone, in one charge, or with as much of it as fits. Where a refusal
would be counted towards a lockout, a peek first finds how much fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from headgate.algorithms.decision import (
    ALLOWED,
    REMAINING,
    RESET_AFTER_US,
    RETRY_AFTER_US,
    Outcome,
    OverriddenOutcome,
    Receipt,
)
from headgate.algorithms.limit import Limit
from headgate.clock import Clock
from headgate.engines.layers.fallback.limit_share import share, units_for_rank
from headgate.engines.layers.fallback.membership import MembershipState
from headgate.engines.layers.fallback.shard import LocalCount, RecentEntries, Shard, Tag
from headgate.engines.memory.engine import MemoryEngine

MeterCharge = tuple[Any, str, int]  # a meter of the fallback engine, a key, a cost


class Settlement:
    """Stores what this process knows about the engine's shards and counts."""

    def __init__(
        self, inner: Any, members: MembershipState, clock: Clock, deadline_us: int, max_recent: int
    ) -> None:
        self.inner = inner
        self.members = members
        self.clock = clock
        self.settle_us = 0  # until a charge uses a share
        self.settle_wait_us: int = deadline_us // 4
        self.recent: RecentEntries[tuple[Outcome, int]] = RecentEntries(max_recent)
        self.shards: dict[Hashable, Shard] = {}
        self.drop_state()

    def drop_state(self) -> None:
        """Drops all parts, counts and remembered outcomes."""
        self.recent.clear()
        self.shards.clear()
        self.local_engine: MemoryEngine = MemoryEngine(self.clock)

    def shard_of(self, key: str) -> Shard:
        """Returns the part of the engine that decides for the key."""
        name = self.inner.shard(key)
        return self.shards.get(name) or self.shards.setdefault(name, self._new_shard(name))

    def _new_shard(self, name: Hashable) -> Shard:
        return Shard(name, self.settle_us, self.inner.describe_shard(name))

    def describe_shard(self, shard: Hashable) -> str:
        """Returns a part of the engine as messages name it."""
        text: str = self.inner.describe_shard(shard)
        return text

    def mark_prefetched(self) -> None:
        """Marks outcomes of prefetched units from now on."""
        self.inner.mark_prefetched()

    def remember(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> None:
        """Remembers the engine's last outcomes of counts that may be shared."""
        now_us = self.clock.now_us()
        for (meter, key, _), outcome in zip(charges, answers, strict=True):
            if meter.uses_share:
                self.recent.put(meter.tag(key), (outcome, now_us))

    def degraded_refusal(self, shard: Shard, now_us: int) -> Outcome:
        """Returns a refusal that lasts until the next probe."""
        return False, 0, shard.breaker.next_probe_us(now_us), 0, 0, now_us, 0

    def decide_by_share(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool = True
    ) -> list[Outcome]:
        """Decides by the shares alone; nothing is unsettled yet. A cost that a share can never hold may fit the
        whole limit: then the wait ends at the next probe of the engine."""
        answers = self._decide_by_share(charges, patience_us, commit)
        for index, ((meter, key, cost), outcome) in enumerate(zip(charges, answers, strict=True)):
            if outcome[RETRY_AFTER_US] is None and cost <= self._limit(meter, meter.tag(key)).max_cost:
                allowed, remaining, _, reset_us, delay_us, at_us, mark = outcome
                wait_us = self.shard_of(key).breaker.next_probe_us(at_us)
                answers[index] = allowed, remaining, wait_us, reset_us, delay_us, at_us, mark
        return answers

    def _decide_by_share(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool
    ) -> list[Outcome]:
        if not charges:
            return []
        counts = [self.local_count(meter, key) for meter, key, _ in charges]
        if any(count is None for count in counts):
            now_us = self.clock.now_us()
            return [
                count.meter.decide(key, 0) if count else self.degraded_refusal(self.shard_of(key), now_us)
                for count, (_, key, _) in zip(counts, charges, strict=True)
            ]
        local_charges = [
            (count.meter, key, cost) for count, (_, key, cost) in zip(counts, charges, strict=True) if count
        ]
        if not commit:
            return self.local_engine.decide_all(local_charges, patience_us, commit)
        if len(local_charges) == 1:
            meter, key, cost = local_charges[0]
            answers = [meter.decide(key, cost, patience_us)]
        else:
            answers = self.local_engine.decide_all(local_charges, patience_us)
        for count, outcome in zip(counts, answers, strict=True):
            if count is not None:
                count.extend_life(outcome)
        return answers

    def local_count(self, meter: Any, key: str) -> LocalCount | None:
        """Returns the local count of the key, a new one if needed; None if this member has no share."""
        shard, tag = self.shard_of(key), meter.tag(key)
        existing = shard.count(tag) or self._moved_count(shard, tag)
        if existing is not None:
            return existing
        member_count, rank = self.members.position
        limit = self._limit(meter, tag)
        part = share(limit, member_count, rank)
        if part is None:
            return None
        now_us = self.clock.now_us()
        count = LocalCount(meter, key, self.local_engine.meter(part, meter.name), now_us)
        added = shard.add(tag, count, now_us)
        if added is count:
            remaining = self._remaining(limit, tag, now_us)
            # An equal share may hold more than its part.
            unused = rank is None and remaining >= limit.units_at_once
            count.meter.reset(key)
            used = 0 if unused else max(0, part.units_at_once - units_for_rank(remaining, member_count, rank))
            if used:
                count.extend_life(count.meter.decide(key, used))
        return added

    def _moved_count(self, shard: Shard, tag: Tag) -> LocalCount | None:
        """Returns the count, if it was kept for a part that no longer answers for its key: no key gets two
        shares."""
        for other in tuple(self.shards.values()):
            if other is not shard and tag in other.counts:
                other.move_count(tag, shard)
        return shard.count(tag)

    def move_counts(self, shard: Shard) -> None:
        """Moves counts, with their unsettled units, to the parts that answer for their keys by now."""
        for tag, count in tuple(shard.counts.items()):
            target = self.shard_of(count.key)
            if target is not shard:
                shard.move_count(tag, target)

    def _limit(self, meter: Any, tag: Tag) -> Limit:
        """Returns the limit that the engine last decided by."""
        recent = self.recent.get(tag)
        if recent is not None and isinstance(recent[0], OverriddenOutcome):
            return recent[0].limit
        limit: Limit = meter.limit
        return limit

    def _remaining(self, limit: Limit, tag: Tag, now_us: int) -> int:
        """Returns what was left of the count when the engine last decided about it."""
        recent = self.recent.get(tag)
        if recent is not None and now_us < recent[1] + recent[0][RESET_AFTER_US]:
            return min(recent[0][REMAINING], limit.units_at_once)
        return limit.units_at_once

    def note_unsettled(self, charges: Sequence[MeterCharge]) -> None:
        """Records the charges as admitted by the shares alone."""
        for meter, key, cost in charges:
            if not meter.uses_share:
                continue
            shard, tag = self.shard_of(key), meter.tag(key)
            count = shard.counts.get(tag)
            if count is not None and cost:
                shard.add_unsettled(tag, count, cost)

    def give_back(self, charges: Sequence[MeterCharge], outcomes: Sequence[Outcome]) -> None:
        """Gives back what the shares admitted and the engine did not."""
        for (meter, key, cost), outcome in zip(charges, outcomes, strict=False):
            count = self.shard_of(key).counts.get(meter.tag(key))
            if count is not None and cost and outcome[ALLOWED]:
                count.meter.refund(key, cost, Receipt.from_outcome(outcome, cost))
