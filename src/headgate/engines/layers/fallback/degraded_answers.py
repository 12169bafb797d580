"""What a charge is answered when the engine does not: by its rule's own fallback, or by that of the whole engine.

    allow   it passes, with nothing remaining
    deny    it is refused, until the breaker's pause is over
    local   it is judged by this process's share of the limit (share.py)
    None    it has no fallback: the call fails, as if nothing stood around the engine

Charges that are decided together have each its own. Those with local are judged together by their shares, and one
that refuses, by its share or because it is to be denied, refuses for all: no share is charged then, and a share
that would have passed says so. If one of them has no fallback there is no answer: EngineUnavailable is raised.
What is decided aside stands in nobody's way: it passes here, and is not counted.

What only the engine can do is left undone meanwhile: no refusal is counted towards a lockout, and nobody is locked
out. Of a key with an override the share is one of the limit that the engine last decided it by; of a key that it
has not been asked about lately, of the rule's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.algorithms.decision import ALLOWED, MARK, DegradedOutcome, Outcome
from headgate.algorithms.limit import SECOND, Limit
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback.description import local_law
from headgate.engines.layers.fallback.limit_share import Place
from headgate.engines.layers.fallback.membership import Roll
from headgate.engines.layers.fallback.settlement import Asked, Settlement
from headgate.engines.url_options import FALLBACKS, Instead
from headgate.errors import EngineUnavailable, InvalidRule

OURS = -(2**60)  # marks of a fallback's facts are this and below


class Answers(Settlement):
    """The answers without an engine."""

    members: Any  # of one spelling or the other

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
        if fallback is not None and fallback not in FALLBACKS:
            raise InvalidRule(f'A fallback is "allow", "deny" or "local", not {fallback!r}.')
        self.fallback = fallback
        self.shares: bool = False  # whether anybody decides by a share
        self.counts: bool = False  # whether it must know how many share
        self._chosen: set[Instead | None] = {fallback} - {None}
        self._settle_us = settle_us
        super().__init__(inner, members, clock or SystemClock(), round(deadline * SECOND), remembered)

    def instead_of(self, terms: ChargeOptions | None) -> Instead | None:
        """What is done for charges on these terms. Members are joined when the first of them is local."""
        if terms is not None and terms.aside:
            return "allow"
        chosen = self.fallback if terms is None or terms.fallback is None else terms.fallback
        self._chosen.add(chosen)
        if chosen == "local":
            self.share_from_now_on()
        return chosen

    def share_from_now_on(self) -> None:
        if not self.shares:
            self.shares = True
            self.settle_us: int = self._settle_us
            for shard in tuple(self.shards.values()):
                shard.settle_us = self._settle_us
            self.count_members()

    def count_members(self) -> None:
        """Be one of those who share the limits, and hear of the others, from now on."""
        if not self.counts:
            self.counts = True
            self.members.join(self)

    def used(self) -> None:
        """Somebody asks: whoever beats only where it is used begins now."""

    def place(self) -> Place:
        """How many share the limits, as far as it is known, and the rank among them."""
        self.used()
        place: Place = self.members.place
        return place

    def laws(self, limit: Limit, nodes: int, terms: ChargeOptions | None = None) -> Iterator[tuple[str, str]]:
        chosen = self.fallback if terms is None or terms.fallback is None else terms.fallback
        if chosen is None or (terms is not None and terms.aside):
            return
        words = {
            "allow": "every call passes while the engine gives no answer",
            "deny": "every call is refused while the engine gives no answer",
            "local": local_law(limit, nodes, None if self.members.counted else self.members.count),
        }[chosen]
        uncounted = "; meanwhile nobody is locked out" if terms is not None and terms.lockout else ""
        yield "fallback", words + uncounted

    def instead(
        self,
        asked: Sequence[Asked],
        patience_us: int | None,
        commit: bool = True,
        why: EngineUnavailable | None = None,
    ) -> list[Outcome]:
        """The fallback's own answer; the failure itself, if a charge has no fallback."""
        for meter, _, _ in asked:
            if meter.instead is None:
                raise why or EngineUnavailable(
                    "The engine gave no answer lately and is not asked again before a short pause is over, and "
                    f'"{meter.name}" has no fallback for that.'
                )
        answers = self._undegraded(asked, patience_us, commit)
        if commit and all_pass(answers):
            self.owe(asked)
        return self.degraded_by(asked, answers)

    def as_it_stands(self, meter: Any, key: str) -> Outcome:
        """A peek without the engine."""
        return ours(self._undegraded([(meter, key, 0)], None)[0])

    def _undegraded(self, asked: Sequence[Asked], patience_us: int | None, commit: bool = True) -> list[Outcome]:
        shared = [each for each in asked if each[0].shares]
        charged = commit and self.others_pass(asked)
        return self.beside(asked, self.by_share(shared, patience_us, charged))

    def others_pass(self, asked: Sequence[Asked]) -> bool:
        """Whether a call that its shares let pass does pass."""
        return all(meter.shares or meter.instead == "allow" for meter, _, _ in asked)

    def beside(self, asked: Sequence[Asked], shared: Sequence[Outcome]) -> list[Outcome]:
        """The answers to all charges, given those of the shares: for charges that are local, in their order."""
        now_us, judged = self.clock.now_us(), iter(shared)
        passes: Outcome = (True, 0, 0, 0, 0, now_us, 0)
        return [
            next(judged, passes)
            if meter.shares
            else self.refusal(self.shard_of(key), now_us)
            if meter.instead == "deny"
            else passes
            for meter, key, _ in asked
        ]

    def degraded_by(self, asked: Sequence[Asked], answers: Sequence[Outcome]) -> list[Outcome]:
        self.shard_of(asked[0][1]).tally("degraded")
        return [ours(facts) for facts in answers]

    def in_words(self) -> str:
        """What is done while the engine is gone."""
        count, rank = self.members.place
        words: dict[Instead | None, str] = {
            "allow": "Allowing every call",
            "deny": "Refusing every call",
            "local": f"Deciding locally by a share of 1/{count}" + ("" if rank is None else f" (rank {rank})"),
        }
        only = next(iter(self._chosen)) if len(self._chosen) == 1 else None
        return words.get(only, "Doing what each rule says")


def all_pass(answers: Sequence[Outcome]) -> bool:
    return all(facts[ALLOWED] for facts in answers)


def ours(facts: Outcome) -> Outcome:
    return DegradedOutcome((*facts[:MARK], OURS - facts[MARK]))
