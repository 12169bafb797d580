"""What is done when the engine does not answer: the steps, for both spellings.

    allow   every call passes, with nothing remaining
    deny    every call is refused, until the breaker's pause is over
    local   every call is judged by this process's share of the limit (share.py)

While it is gone, whoever decides by a share keeps account of it (shares.py). When it answers again, a
second begins in which accounts are settled: what a share admitted is told to the engine before the engine is
asked about that count, and the counts that nobody asks about are told in the background. Meanwhile a call must
pass both, its share and the engine, for other members may not have noticed yet. After that the shares are dropped.

Refunds. The facts of a fallback carry a mark that no engine gives (`_OURS` and below), so a receipt tells who made
it. What a share admitted is given back to that share while it is there, and to nobody after: the engine was told
a sum, maybe not all of it. What the engine admitted is given back to the engine, or lost.

Laws (tests/engine/test_fallback.py, test_fallback_laws.py):
  - no EngineUnavailable reaches a caller, whatever is asked;
  - with allow nothing is refused; with deny nothing passes while the breaker is open;
  - local: N members together admit at most twice the limit in a window in which an outage begins or is partial,
    and at most the limit and one share in any other;
  - two seconds after the engine is back it alone decides again;
  - an answer that was lost is not asked for again: it may have been charged;
  - no refund gives back more than was charged where it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import count as numbers
from typing import Any

from headgate.clock import Clock, SystemClock
from headgate.engine.fallback.breaker import ASK, CLOSED, FALL_BACK, PROBE, SETTLING, Phase, Way
from headgate.engine.fallback.members import Roll
from headgate.engine.fallback.shard import Recent, Shard
from headgate.engine.fallback.share import share
from headgate.engine.fallback.shares import Asked, Shares
from headgate.engine.options import FALLBACKS, Instead
from headgate.errors import EngineUnavailable, InvalidRule
from headgate.flow import Flow
from headgate.model.decision import ALLOWED, MARK, REMAINING, DegradedFacts, Facts, Receipt
from headgate.model.limit import SECOND, Limit

SETTLE_US = 1_000_000
DEADLINE = 0.05
REMEMBERED = 10_000

_OURS = -(2**60)


class Fallback(Shares):
    """The flows of both engines."""

    def __init__(
        self,
        inner: Any,
        fallback: Instead,
        members: Roll,
        clock: Clock | None,
        settle_us: int,
        deadline: float,
        remembered: int,
    ) -> None:
        if fallback not in FALLBACKS:
            raise InvalidRule(f'A fallback is "allow", "deny" or "local", not {fallback!r}.')
        self.fallback = fallback
        self.shares = fallback == "local"
        # Of each lease: when it was given, when it ends, and its fence in the engine if that gave it.
        self.leases: Recent[tuple[int, int, int | None]] = Recent(remembered)
        self._names: dict[tuple[str, str], int] = {}
        self._numbers = numbers()
        deadline_us = round(deadline * SECOND)
        settle_us = settle_us if self.shares else 0
        super().__init__(inner, members, clock or SystemClock(), settle_us, deadline_us, remembered)

    def drop_all(self) -> None:
        """Drop all that was remembered and kept, without asking anybody: a fork's child must not share it."""
        super().drop_all()
        self.leases.clear()
        self.last_fence = 0

    @property
    def degraded(self) -> int:
        """Decisions by the fallback."""
        return self._sum("degraded")

    @property
    def opened(self) -> int:
        """How often a breaker opened."""
        return self._sum("opened")

    @property
    def lost_refunds(self) -> int:
        """Refunds that the engine was never told."""
        return self._sum("lost_refunds")

    @property
    def lost_resets(self) -> int:
        """Keys that were reset, or given another limit, here but not in the engine."""
        return self._sum("lost_resets")

    def _sum(self, what: str) -> int:
        return sum(shard.tallies[what] for shard in tuple(self.shards.values()))

    def state(self, shard: Hashable = 0) -> Phase:
        """How things stand with a part of the engine."""
        known = self.shards.get(shard)
        return CLOSED if known is None else known.phase(self.clock.now_us())

    def laws(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        part = share(limit, nodes, 0)
        own = "nothing" if part is None else part.text
        yield (
            "fallback",
            {
                "allow": "every call passes while the engine gives no answer",
                "deny": "every call is refused while the engine gives no answer",
                "local": f"while the engine gives no answer, each of {nodes} processes goes on with {own}: "
                "at most twice the limit in the window in which an outage begins or is partial, at most the limit "
                "and one share in any later one, and no second burst when the engine is back",
            }[self.fallback],
        )

    def number(self, limit: Limit, name: str) -> int:
        """One number for all meters that share their counts."""
        return self._names.setdefault((limit.algorithm, name), next(self._numbers))

    def failed(self, shard: Shard, way: Way, why: BaseException) -> None:
        shard.failed(way, self.clock.now_us(), why, self._in_words())

    def succeeded(self, shard: Shard, way: Way) -> None:
        shard.succeeded(way, self.clock.now_us())
        if shard.owing:
            self.in_background(shard)

    def stop_settling(self) -> None:
        """Whoever closes leaves the rest untold."""
        for shard in tuple(self.shards.values()):
            shard.owing.clear()

    def in_background(self, shard: Shard) -> None:
        """Drive `settling(shard)` beside all else."""
        raise NotImplementedError

    # Deciding.

    def deciding(self, asked: Sequence[Asked], patience_us: int | None) -> Flow[list[Facts]]:
        """The long way of a decision: something failed before, or is owed."""
        ways = self._ways(asked)
        if ways is None:
            return self.instead(asked, patience_us)
        passed: list[Facts] = []
        try:
            if self.shares:
                for meter, key, _ in asked:
                    told = yield from self.tell(self.shard_of(key), meter.tag(key), hurried=True)
                    if not told:
                        for shard, way in ways.items():
                            self.succeeded(shard, way)
                        return self.instead(asked, patience_us)
                if self._both_must_pass(ways) and any(cost for _, _, cost in asked):
                    passed = self.by_share(asked, patience_us)
                    if not _all(passed):
                        yield from self._probe(asked, ways)
                        return self._degraded(asked, passed)
            answers = yield from self._asking(asked, patience_us)
        except EngineUnavailable as why:
            for shard, way in ways.items():
                if why.key is None or self.shard_of(why.key) is shard:
                    self.failed(shard, way, why)
                else:
                    shard.withdrawn(way, self.clock.now_us())
            if _all(passed):
                self.owe(asked)
                return self._degraded(asked, passed)
            return self.instead(asked, patience_us)
        except BaseException as why:
            self._interrupted(ways, why)
            self.give_back(asked, passed)
            raise
        self.answered(asked, answers)
        for shard, way in ways.items():
            self.succeeded(shard, way)
        if not _all(answers):
            self.give_back(asked, passed)
        return answers

    def unanswered(self, shard: Shard, asked: Asked, patience_us: int | None, why: EngineUnavailable) -> Facts:
        """The short way ended without an answer."""
        self.failed(shard, ASK, why)
        return self.instead([asked], patience_us)[0]

    def _asking(self, asked: Sequence[Asked], patience_us: int | None) -> Flow[list[Facts]]:
        if len(asked) == 1:
            meter, key, cost = asked[0]
            return [(yield partial(meter.meter.decide, key, cost, patience_us))]
        charges = [(meter.meter, key, cost) for meter, key, cost in asked]
        answers: list[Facts] = yield partial(self.inner.decide_all, charges, patience_us)
        return answers

    def answered(self, asked: Sequence[Asked], answers: Sequence[Facts]) -> None:
        if self.shares:
            self.remember(asked, answers)

    def instead(self, asked: Sequence[Asked], patience_us: int | None) -> list[Facts]:
        """The fallback's own answer."""
        answers = self._undegraded(asked, patience_us)
        if self.shares and _all(answers):
            self.owe(asked)
        return self._degraded(asked, answers)

    def as_it_stands(self, meter: Any, key: str) -> Facts:
        """A peek without the engine."""
        return _ours(self._undegraded([(meter, key, 0)], None)[0])

    def _undegraded(self, asked: Sequence[Asked], patience_us: int | None) -> list[Facts]:
        if self.fallback == "local":
            return self.by_share(asked, patience_us)
        now_us = self.clock.now_us()
        if self.fallback == "allow":
            return [(True, 0, 0, 0, 0, now_us, 0)] * len(asked)
        return [self.refusal(self.shard_of(key), now_us) for _, key, _ in asked]

    def _degraded(self, asked: Sequence[Asked], answers: Sequence[Facts]) -> list[Facts]:
        self.shard_of(asked[0][1]).tally("degraded")
        return [_ours(facts) for facts in answers]

    def _ways(self, asked: Sequence[Asked]) -> dict[Shard, Way] | None:
        """How each part is to be asked; None if one of them is not to be."""
        now_us = self.clock.now_us()
        ways: dict[Shard, Way] = {}
        for shard in dict.fromkeys(self.shard_of(key) for _, key, _ in asked):
            ways[shard] = shard.asked(now_us)
            if ways[shard] is FALL_BACK:
                for claimed, way in ways.items():
                    claimed.withdrawn(way, now_us)
                return None
        return ways

    def _interrupted(self, ways: dict[Shard, Way], why: BaseException) -> None:
        """Neither an answer nor a failure of the engine. A cancelled probe counts as one that failed: whoever has
        less patience than the engine takes would else hold everybody up by probing again and again."""
        for shard, way in ways.items():
            if isinstance(why, Exception):
                shard.withdrawn(way, self.clock.now_us())
            elif way is PROBE:
                self.failed(shard, way, why)

    def _both_must_pass(self, ways: dict[Shard, Way]) -> bool:
        return any(way is PROBE or shard.breaker.phase is SETTLING for shard, way in ways.items())

    def _probe(self, asked: Sequence[Asked], ways: dict[Shard, Way]) -> Flow[None]:
        """The share refused what was to be the probe: look whether the engine is there without charging it."""
        for shard, way in ways.items():
            if way is PROBE:
                own = [(meter, key) for meter, key, _ in asked if self.shard_of(key) is shard]
                if not own:  # another part answers for the key by now
                    shard.withdrawn(way, self.clock.now_us())
                    continue
                meter, key = own[0]
                facts = yield partial(meter.meter.decide, key, 0)
                self.answered([(meter, key, 0)], [facts])
                self.succeeded(shard, way)

    def waking(self) -> Flow[None]:
        """The members' beat was heard, so the engine is there: who has nothing to ask still has accounts."""
        for shard in tuple(self.shards.values()):
            self.send_home(shard)
            for count in tuple(shard.owing.values())[:1]:
                shard.heard(self.clock.now_us())
                yield from self.trying(count.key, partial(count.asked.meter.decide, count.key, 0))

    # The other verbs.

    def refunding(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Flow[Facts]:
        if receipt.mark <= _OURS:
            return self._refund_here(meter, key, units, receipt._replace(mark=_OURS - receipt.mark), cancel)
        facts: Facts | None = yield from self.trying(key, partial(meter.meter.refund, key, units, receipt, cancel))
        if facts is None:
            self.shard_of(key).tally("lost_refunds")
            return self.as_it_stands(meter, key)
        self.answered([(meter, key, 0)], [facts])
        return facts

    def _refund_here(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Facts:
        shard = self.shard_of(key)
        count = shard.counts.get(meter.tag(key))
        if count is None or receipt.at_us < count.since_us:
            return self.as_it_stands(meter, key)
        before = count.meter.decide(key, 0)
        facts = count.meter.refund(key, units, receipt, cancel)
        with shard.lock:
            count.owed -= min(count.owed, max(0, facts[REMAINING] - before[REMAINING]))
        return _ours(facts)

    def retuning(self, meter: Any, key: str) -> Flow[None]:
        yield from self._changing(key, partial(meter.meter.retune, key))

    def resetting(self, meter: Any, key: str) -> Flow[None]:
        shard, tag = self.shard_of(key), meter.tag(key)
        self.recent.drop(tag)
        with shard.lock:
            shard.owing.pop(tag, None)
            count = shard.counts.get(tag)
            if count is not None:
                count.owed = 0
                count.meter.reset(key)
        yield from self._changing(key, partial(meter.meter.reset, key))

    def _changing(self, key: str, step: Callable[[], Any]) -> Flow[None]:
        done = yield from self.trying(key, step, boxed=True)
        if done is None:
            self.shard_of(key).tally("lost_resets")

    def trying(self, key: str, step: Callable[[], Any], boxed: bool = False) -> Flow[Any]:
        """Ask, if anybody is to be asked; None, and no exception, if the engine could not be. An answer that may
        itself be None is boxed."""
        shard = self.shard_of(key)
        way = shard.asked(self.clock.now_us())
        if way is FALL_BACK:
            return None
        try:
            said = yield step
        except EngineUnavailable as why:
            self.failed(shard, way, why)
            return None
        except BaseException as why:
            self._interrupted({shard: way}, why)
            raise
        self.succeeded(shard, way)
        return (said,) if boxed else said

    def _in_words(self) -> str:
        count, rank = self.members.place
        return {
            "allow": "Allowing every call",
            "deny": "Refusing every call",
            "local": f"Deciding locally by a share of 1/{count} (rank {rank})",
        }[self.fallback]


def _all(answers: Sequence[Facts]) -> bool:
    return bool(answers) and all(facts[ALLOWED] for facts in answers)


def _ours(facts: Facts) -> Facts:
    return DegradedFacts((*facts[:MARK], _OURS - facts[MARK]))
