"""What is done when the engine does not answer: the steps, for both spellings. What is answered instead is told in
answers.py.

While it is gone, whoever decides by a share keeps account of it (shares.py). When it answers again, a
second begins in which accounts are settled: what a share admitted is told to the engine before the engine is
asked about that count, and the counts that nobody asks about are told in the background. Meanwhile a call must
pass both, its share and the engine, for other members may not have noticed yet. After that the shares are dropped.
All of this is for charges whose fallback is local; a call none of whose charges has a fallback goes straight to
the engine, whatever the breaker says.

Refunds. The facts of a fallback carry a mark that no engine gives (`OURS` and below), so a receipt tells who made
it. What a share admitted is given back to that share while it is there, and to nobody after: the engine was told
a sum, maybe not all of it. What the engine admitted is given back to the engine, or lost.

Laws (tests/engines/layers/test_fallback.py, test_fallback_laws.py, test_fallback_rules.py,
test_fallback_rules_back.py):
  - no EngineUnavailable reaches a caller, whatever is asked, unless a charge of the call has no fallback. (What an
    operator writes is no call: overrides fail as they fail);
  - with allow nothing is refused; with deny nothing passes while the breaker is open;
  - local: N members together admit at most twice the limit in a window in which an outage begins or is partial,
    and at most the limit and one share in any other. Members that were given their number and know no rank
    admit at most the limit's rate, and N at once where the burst is smaller (test_told_number.py);
  - two seconds after the engine is back it alone decides again;
  - an answer that was lost is not asked for again: it may have been charged;
  - no refund gives back more than was charged where it is given back;
  - a question that commits nothing charges no share either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count as numbers
from typing import Any

from headgate.algorithms.decision import REMAINING, DegradedOutcome, Outcome, Receipt
from headgate.algorithms.limit import SECOND, Limit
from headgate.clock import Clock
from headgate.engines.deadlines import deadline_of, set_deadline
from headgate.engines.layers.fallback.breaker import (
    ASK,
    CLOSED,
    FALL_BACK,
    OPEN,
    PROBE,
    PROBING,
    SETTLING,
    Phase,
    Way,
)
from headgate.engines.layers.fallback.degraded_answers import OURS, Answers, all_pass, ours
from headgate.engines.layers.fallback.membership import Roll
from headgate.engines.layers.fallback.settlement import Asked
from headgate.engines.layers.fallback.shard import Recent, Shard
from headgate.engines.url_options import PROMPT, Instead
from headgate.errors import EngineUnavailable
from headgate.flow import Flow

SETTLE_US = 1_000_000
DEADLINE = PROMPT
REMEMBERED = 10_000


class Fallback(Answers):
    """The flows of both engines."""

    def __init__(
        self,
        inner: Any,
        fallback: Instead | None,
        members: Roll,
        clock: Clock | None,
        settle_us: int,
        deadline: float,
        remembered: int,
    ) -> None:
        # Of each lease: when it was given, when it ends, and its fence in the engine if that gave it.
        self.leases: Recent[tuple[int, int, int | None]] = Recent(remembered)
        self._names: dict[tuple[str, str], int] = {}
        self._numbers = numbers()
        super().__init__(inner, fallback, members, clock, settle_us, deadline, remembered)

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

    def overrides(self, rule: str) -> Any:
        return self.inner.overrides(rule)

    def assignments(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return self.inner.assignments(limit, name, ttl_us, grace_us)

    def set_deadline(self, seconds: float) -> None:
        self.hurry_us: int = round(seconds * SECOND) // 4
        set_deadline(self.inner, seconds)

    def number(self, limit: Limit, name: str) -> int:
        """One number for all meters that share their counts."""
        return self._names.setdefault((limit.algorithm, name), next(self._numbers))

    def failed(self, shard: Shard, way: Way, why: BaseException) -> None:
        shard.failed(way, self.clock.now_us(), why, self.in_words())

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

    def deciding(
        self, asked: Sequence[Asked], patience_us: int | None, commit: bool = True
    ) -> Flow[list[Outcome]]:
        """The long way of a decision: something failed before, or is owed, or there are several charges."""
        if has_no_fallback(asked):
            return (yield from self._asking(asked, patience_us, commit))
        near = self._near(asked)
        if len(near) < len(asked):
            found = iter((yield from self.deciding([asked[place] for place in near], patience_us, commit)))
            passes = ours((True, 0, 0, 0, 0, self.clock.now_us(), 0))
            return [next(found) if place in near else passes for place in range(len(asked))]
        ways = self._ways(asked)
        if ways is None:
            return self.instead(asked, patience_us, commit)
        shared = [each for each in asked if each[0].shares]
        hurry_us = self._hurry_us(asked)
        passed: list[Outcome] = []
        try:
            for meter, key, _ in shared:
                told = yield from self.tell(self.shard_of(key), meter.tag(key), hurry_us=hurry_us)
                if not told:
                    for shard, way in ways.items():
                        self.succeeded(shard, way)
                    return self.instead(asked, patience_us, commit)
            if self._both_must_pass(ways) and any(cost for _, _, cost in shared):
                passed = self.by_share(shared, patience_us, commit)
                if not all_pass(passed):
                    yield from self._probe(asked, ways)
                    return self.degraded_by(asked, self.beside(asked, passed))
            answers = yield from self._asking(asked, patience_us, commit)
        except EngineUnavailable as why:
            for shard, way in ways.items():
                if why.key is None or self.shard_of(why.key) is shard:
                    self.failed(shard, way, why)
                else:
                    shard.withdrawn(way, self.clock.now_us())
            if passed and all_pass(passed) and self.others_pass(asked):
                if commit:
                    self.owe(asked)
                return self.degraded_by(asked, self.beside(asked, passed))
            if commit:
                self.give_back(shared, passed)
            return self.instead(asked, patience_us, commit, why)
        except BaseException as why:
            self._interrupted(ways, why)
            if commit:
                self.give_back(shared, passed)
            raise
        self.answered(asked, answers)
        silent = self._silent(asked, answers)
        for shard, way in ways.items():
            if shard in silent:
                shard.withdrawn(way, self.clock.now_us())
            else:
                self.succeeded(shard, way)
        if commit and not _passes(asked, answers):
            self.give_back(shared, passed)
        return answers

    def unanswered(self, shard: Shard, asked: Asked, patience_us: int | None, why: EngineUnavailable) -> Outcome:
        """The short way ended without an answer."""
        self.failed(shard, ASK, why)
        return self.instead([asked], patience_us, why=why)[0]

    def _asking(self, asked: Sequence[Asked], patience_us: int | None, commit: bool) -> Flow[list[Outcome]]:
        if len(asked) == 1 and commit:
            meter, key, cost = asked[0]
            return [(yield partial(meter.meter.decide, key, cost, patience_us))]
        answers: list[Outcome] = yield partial(self.inner.decide_all, inside(asked), patience_us, commit)
        return answers

    def answered(self, asked: Sequence[Asked], answers: Sequence[Outcome]) -> None:
        if self.shares:
            self.remember(asked, answers)

    def _silent(self, asked: Sequence[Asked], answers: Sequence[Outcome]) -> set[Shard]:
        """The parts that gave no answer, and were asked only for what is aside. Nobody waited long for that, so it
        tells neither that they are there nor that they are gone."""
        if not any(isinstance(facts, DegradedOutcome) for facts in answers):
            return set()
        told: dict[bool, set[Shard]] = {True: set(), False: set()}
        for (_, key, _), facts in zip(asked, answers, strict=True):
            told[isinstance(facts, DegradedOutcome)].add(self.shard_of(key))
        return told[True] - told[False]

    def _hurry_us(self, asked: Sequence[Asked]) -> int | None:
        """How long the engine may take to be told what is owed; None: as long as it takes, for nothing else can
        answer."""
        if any(meter.instead is None for meter, _, _ in asked):
            return None
        deadline = deadline_of(meter for meter, _, _ in asked)
        return self.hurry_us if deadline is None else min(self.hurry_us, round(deadline * SECOND) // 4)

    def _near(self, asked: Sequence[Asked]) -> list[int]:
        """The places of what is to be asked: all but what is aside and lies where nobody answers, for that would
        be in the way of those who are live elsewhere."""
        live = {self.shard_of(key) for meter, key, _ in asked if not _aside(meter)}
        now_us = self.clock.now_us()
        return [
            place
            for place, shard in enumerate(self.shard_of(key) for _, key, _ in asked)
            if not live or shard in live or shard.phase(now_us) not in (OPEN, PROBING)
        ]

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

    def refunding(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Flow[Outcome]:
        if receipt.mark <= OURS:
            return self._refund_here(meter, key, units, receipt._replace(mark=OURS - receipt.mark), cancel)
        step = partial(meter.meter.refund, key, units, receipt, cancel)
        if meter.instead is None:
            told: Outcome = yield step
            return told
        facts: Outcome | None = yield from self.trying(key, step)
        if facts is None:
            self.shard_of(key).tally("lost_refunds")
            return self.as_it_stands(meter, key)
        self.answered([(meter, key, 0)], [facts])
        return facts

    def _refund_here(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Outcome:
        shard = self.shard_of(key)
        count = shard.counts.get(meter.tag(key))
        if count is None or receipt.at_us < count.since_us:
            return self.as_it_stands(meter, key)
        before = count.meter.decide(key, 0)
        facts = count.meter.refund(key, units, receipt, cancel)
        with shard.lock:
            count.owed -= min(count.owed, max(0, facts[REMAINING] - before[REMAINING]))
        return ours(facts)

    def retuning(self, meter: Any, key: str) -> Flow[None]:
        yield from self._changing(meter, key, partial(meter.meter.retune, key))

    def resetting(self, meter: Any, key: str) -> Flow[None]:
        shard, tag = self.shard_of(key), meter.tag(key)
        self.recent.drop(tag)
        with shard.lock:
            shard.owing.pop(tag, None)
            count = shard.counts.get(tag)
            if count is not None:
                count.owed = 0
                count.meter.reset(key)
        yield from self._changing(meter, key, partial(meter.meter.reset, key))

    def _changing(self, meter: Any, key: str, step: Callable[[], Any]) -> Flow[None]:
        if meter.instead is None:
            yield step
            return
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


def has_no_fallback(asked: Sequence[Asked]) -> bool:
    """Whether nobody but the engine can answer: what is decided aside needs no answer."""
    live = [meter.instead for meter, _, _ in asked if not _aside(meter)]
    return bool(live) and live.count(None) == len(live)


def inside(asked: Sequence[Asked]) -> list[tuple[Any, str, int]]:
    """The same charges, by the engine's own hands."""
    return [(meter.meter, key, cost) for meter, key, cost in asked]


def _passes(asked: Sequence[Asked], answers: Sequence[Outcome]) -> bool:
    """Whether the engine charged those that are not aside."""
    return all_pass([facts for (meter, _, _), facts in zip(asked, answers, strict=True) if not _aside(meter)])


def _aside(meter: Any) -> bool:
    return meter.terms is not None and meter.terms.aside
