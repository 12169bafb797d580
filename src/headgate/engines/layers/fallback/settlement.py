"""The shares of one process: where they start, what they owe, and how that is settled.

A share starts from what was known. For each count the last facts are remembered; while they are alive, the share
starts with so many units used that it has left at most its part of what was remaining then. Conservative: what has
come free since is not counted. (The debt of reservations is not carried over.) A count that was never asked, or is
forgotten, because the memory is bounded, starts as a new one. If the engine decided by an override, the share is
one of that limit.

Settling is telling the engine, before it is asked about a count, what the share still holds of the units that it
admitted alone: one charge, or as much of it as fits. Where a refusal would be counted towards a lockout, the
engine is asked first how much fits.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from headgate.algorithms.decision import ALLOWED, REMAINING, RESET_AFTER_US, RETRY_AFTER_US, Outcome, Receipt
from headgate.algorithms.limit import Limit
from headgate.clock import Clock
from headgate.engines.layers.fallback.breaker import ASK, Way
from headgate.engines.layers.fallback.limit_share import fresh, share, units
from headgate.engines.layers.fallback.membership import Roll
from headgate.engines.layers.fallback.shard import Count, Recent, Shard, Tag
from headgate.engines.memory.engine import MemoryEngine
from headgate.errors import EngineUnavailable
from headgate.flow import Flow

Asked = tuple[Any, str, int]  # a meter of ours, a key, a cost


class Settlement:
    """What this process keeps of the engine's parts and counts."""

    def __init__(self, inner: Any, members: Roll, clock: Clock, deadline_us: int, remembered: int) -> None:
        self.inner = inner
        self.members = members
        self.clock = clock
        self.settle_us = 0  # until anybody shares
        self.hurry_us: int = deadline_us // 4
        self.recent: Recent[tuple[Outcome, int]] = Recent(remembered)
        self.shards: dict[Hashable, Shard] = {}
        self.drop_all()

    def drop_all(self) -> None:
        self.recent.clear()
        self.shards.clear()
        self.local: MemoryEngine = MemoryEngine(self.clock)

    def shard_of(self, key: str) -> Shard:
        name = self.inner.shard(key)
        return self.shards.get(name) or self.shards.setdefault(name, Shard(name, self.settle_us))

    def failed(self, shard: Shard, way: Way, why: BaseException) -> None:
        raise NotImplementedError

    def remember(self, asked: Sequence[Asked], answers: Sequence[Outcome]) -> None:
        """What the engine said last, of counts that may be shared."""
        now_us = self.clock.now_us()
        for (meter, key, _), facts in zip(asked, answers, strict=True):
            if meter.shares:
                self.recent.keep(meter.tag(key), (facts, now_us))

    def refusal(self, shard: Shard, now_us: int) -> Outcome:
        return False, 0, shard.breaker.next_probe_us(now_us), 0, 0, now_us, 0

    def by_share(self, asked: Sequence[Asked], patience_us: int | None, commit: bool = True) -> list[Outcome]:
        """Judge by the shares alone; nothing is owed yet. What a share can never hold, the whole limit may: then
        the wait ends when the engine is probed next."""
        answers = self._judged(asked, patience_us, commit)
        for place, ((meter, key, cost), facts) in enumerate(zip(asked, answers, strict=True)):
            if facts[RETRY_AFTER_US] is None and cost <= self._limit(meter, meter.tag(key)).max_cost:
                allowed, remaining, _, reset_us, delay_us, at_us, mark = facts
                wait_us = self.shard_of(key).breaker.next_probe_us(at_us)
                answers[place] = allowed, remaining, wait_us, reset_us, delay_us, at_us, mark
        return answers

    def _judged(self, asked: Sequence[Asked], patience_us: int | None, commit: bool) -> list[Outcome]:
        if not asked:
            return []
        counts = [self._count(meter, key) for meter, key, _ in asked]
        if any(count is None for count in counts):
            now_us = self.clock.now_us()
            return [
                count.meter.decide(key, 0) if count else self.refusal(self.shard_of(key), now_us)
                for count, (_, key, _) in zip(counts, asked, strict=True)
            ]
        charges = [(count.meter, key, cost) for count, (_, key, cost) in zip(counts, asked, strict=True) if count]
        if not commit:
            return self.local.decide_all(charges, patience_us, commit)
        if len(charges) == 1:
            meter, key, cost = charges[0]
            answers = [meter.decide(key, cost, patience_us)]
        else:
            answers = self.local.decide_all(charges, patience_us)
        for count, facts in zip(counts, answers, strict=True):
            if count is not None:
                count.judged(facts)
        return answers

    def _count(self, meter: Any, key: str) -> Count | None:
        """The share of this count; None if this member has none."""
        shard, tag = self.shard_of(key), meter.tag(key)
        known = shard.count(tag) or self._moved(shard, tag)
        if known is not None:
            return known
        count, rank = self.members.place
        limit = self._limit(meter, tag)
        part = share(limit, count, rank)
        if part is None:
            return None
        now_us = self.clock.now_us()
        new = Count(meter, key, self.local.meter(part, meter.name), now_us)
        added = shard.add(tag, new, now_us)
        if added is new:
            remaining = self._remaining(limit, tag, now_us)
            unused = rank is None and remaining >= fresh(limit)  # an equal share may hold more than its part
            new.meter.reset(key)
            used = 0 if unused else max(0, fresh(part) - units(remaining, count, rank))
            if used:
                new.judged(new.meter.decide(key, used))
        return added

    def _moved(self, shard: Shard, tag: Tag) -> Count | None:
        """The count, if it was kept for a part that no longer answers for its key: nobody gets two shares."""
        for other in tuple(self.shards.values()):
            if other is not shard and tag in other.counts:
                other.hand_over(tag, shard)
        return shard.count(tag)

    def send_home(self, shard: Shard) -> None:
        """Counts go to the part that answers for their keys by now, with what they owe."""
        for tag, count in tuple(shard.counts.items()):
            home = self.shard_of(count.key)
            if home is not shard:
                shard.hand_over(tag, home)

    def _limit(self, meter: Any, tag: Tag) -> Limit:
        """The limit that the engine last decided by."""
        known = self.recent.find(tag)
        limit: Limit = meter.limit if known is None else getattr(known[0], "limit", meter.limit)
        return limit

    def _remaining(self, limit: Limit, tag: Tag, now_us: int) -> int:
        """What was left of the count when the engine last spoke of it."""
        known = self.recent.find(tag)
        if known is not None and now_us < known[1] + known[0][RESET_AFTER_US]:
            return min(known[0][REMAINING], fresh(limit))
        return fresh(limit)

    def owe(self, asked: Sequence[Asked]) -> None:
        for meter, key, cost in asked:
            if not meter.shares:
                continue
            shard, tag = self.shard_of(key), meter.tag(key)
            count = shard.counts.get(tag)
            if count is not None and cost:
                shard.owe(tag, count, cost)

    def give_back(self, asked: Sequence[Asked], passed: Sequence[Outcome]) -> None:
        """What the shares admitted, and the engine did not."""
        for (meter, key, cost), facts in zip(asked, passed, strict=False):
            count = self.shard_of(key).counts.get(meter.tag(key))
            if count is not None and cost and facts[ALLOWED]:
                count.meter.refund(key, cost, Receipt.of(facts, cost))

    def tell(self, shard: Shard, tag: Tag, *, hurry_us: int | None = None, there: bool = False) -> Flow[bool]:
        """Charge the engine with what a share still holds, before it is asked about that count.

        Unless it has just answered, it is asked first whether it is there, for telling is done once: if no answer
        comes, it may have been heard. A caller is in a hurry: with its own there are up to four questions to ask,
        and if the first one takes more than a quarter of the deadline, it leaves the telling to the background.
        Then this is False.
        """
        count = shard.owing.get(tag)
        if count is None:
            return True
        ask, key, asked_us = count.asked.meter.decide, count.key, self.clock.now_us()
        counted = count.asked.terms is not None and count.asked.terms.lockout is not None
        facts: Outcome | None = None if there and not counted else (yield partial(ask, key, 0))
        if hurry_us is not None and self.clock.now_us() - asked_us > hurry_us:
            return tag not in shard.owing  # or somebody else has told it meanwhile
        owed = shard.take_owed(tag)
        if counted and facts is not None:
            owed = min(owed, facts[REMAINING])
        if owed:
            facts = yield partial(ask, key, owed)
            if not facts[ALLOWED] and facts[REMAINING]:
                facts = yield partial(ask, key, facts[REMAINING])
        if facts is not None:
            self.remember([(count.asked, key, owed)], [facts])
        shard.told(tag, count)
        return True

    def settling(self, shard: Shard) -> Flow[None]:
        """Tell the engine of every count that owes, one after the other; for as long as settling lasts."""
        until_us, there = self.clock.now_us() + self.settle_us, False
        try:
            while shard.owing and self.clock.now_us() < until_us:
                there = yield from self.tell(shard, next(iter(shard.owing), ()), there=there)
        except EngineUnavailable as why:
            self.failed(shard, ASK, why)
