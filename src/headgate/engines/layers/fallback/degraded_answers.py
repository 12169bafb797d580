"""Answers charges when the engine does not: by the fallback of their rule, or by that of the whole engine.

    allow   it passes, with nothing remaining
    deny    it is refused, until the breaker's pause is over
    local   it is decided by this process's share of the limit (limit_share.py)
    None    it has no fallback: the call fails, as if this layer were not there

Charges of one decision have each its own fallback. Those with local are decided together by their shares, and one
refusal, by a share or by deny, refuses all: no share is charged then, and a share that would have passed reports
so. If one of them has no fallback there is no answer: EngineUnavailable is raised. A shadow never affects the
others: it passes here, and is not counted.

Some things only the engine can do, and they stop meanwhile: no refusal is counted towards a lockout, and no key is
locked out. For a key with an override the share is one of the limit that the engine last decided by; for a key
that it has not decided about lately, one of the rule's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from headgate.algorithms.decision import ALLOWED, MARK, DegradedOutcome, Outcome
from headgate.algorithms.limit import SECOND, Limit
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.layers.fallback.breaker import CLOSED
from headgate.engines.layers.fallback.explain_fallback import describe_share
from headgate.engines.layers.fallback.membership import MembershipState
from headgate.engines.layers.fallback.settlement import MeterCharge, Settlement
from headgate.engines.port import MemberPosition
from headgate.engines.url_options import FALLBACKS, FallbackMode
from headgate.errors import EngineUnavailable, InvalidRule

FALLBACK_MARK = -(2**60)  # marks of a fallback's outcomes are this and below


class DegradedAnswers(Settlement):
    """The answers without an engine."""

    members: Any  # Membership or AsyncMembership

    def __init__(
        self,
        inner: Any,
        fallback: FallbackMode | None,
        members: MembershipState,
        clock: Clock | None,
        settle_us: int,
        deadline: float,
        max_recent: int,
    ) -> None:
        if fallback is not None and fallback not in FALLBACKS:
            raise InvalidRule(f'A fallback is "allow", "deny" or "local", not {fallback!r}.')
        self.fallback = fallback
        self.uses_shares: bool = False  # whether any charge is decided by a share
        self.is_member: bool = False  # whether it has joined the membership
        self._modes: set[FallbackMode | None] = {fallback} - {None}
        self._settle_us = settle_us
        super().__init__(inner, members, clock or SystemClock(), round(deadline * SECOND), max_recent)

    def fallback_for(self, options: ChargeOptions | None) -> FallbackMode | None:
        """Returns the fallback of charges with these options. The first local one joins the membership."""
        if options is not None and options.is_shadow:
            return "allow"
        mode = self.fallback if options is None or options.fallback is None else options.fallback
        self._modes.add(mode)
        if mode == "local":
            self.start_sharing()
        return mode

    def start_sharing(self) -> None:
        """Decides by shares from now on."""
        if not self.uses_shares:
            self.uses_shares = True
            self.settle_us: int = self._settle_us
            for shard in tuple(self.shards.values()):
                shard.settle_us = self._settle_us
            self.count_members()

    def count_members(self) -> None:
        """Joins the processes that share the limits, and counts them from now on."""
        if not self.is_member:
            self.is_member = True
            self.members.join(self)

    def on_use(self) -> None:
        """Starts what runs only while the engine is used, such as heartbeats."""

    def member_position(self) -> MemberPosition:
        """Returns how many processes share the limits, as far as it is known, and the rank among them."""
        self.on_use()
        place: MemberPosition = self.members.position
        return place

    def degraded_shards(self) -> list[tuple[Hashable, str]]:
        """Returns the parts of the engine whose breaker is not closed, each with its state."""
        now_us = self.clock.now_us()
        states = [(name, shard.phase(now_us)) for name, shard in tuple(self.shards.items())]
        return [(name, state.value) for name, state in states if state is not CLOSED]

    def guarantees(
        self, limit: Limit, nodes: int, options: ChargeOptions | None = None
    ) -> Iterator[tuple[str, str]]:
        mode = self.fallback if options is None or options.fallback is None else options.fallback
        if mode is None or (options is not None and options.is_shadow):
            return
        text = {
            "allow": "every call passes while the engine gives no answer",
            "deny": "every call is refused while the engine gives no answer",
            "local": describe_share(limit, nodes, None if self.members.is_counted else self.members.count),
        }[mode]
        lockout_note = "; meanwhile no key is locked out" if options is not None and options.lockout else ""
        yield "fallback", text + lockout_note

    def answer_without_engine(
        self,
        charges: Sequence[MeterCharge],
        patience_us: int | None,
        commit: bool = True,
        error: EngineUnavailable | None = None,
    ) -> list[Outcome]:
        """Returns the fallback's own answers; raises the failure if a charge has no fallback."""
        for meter, _, _ in charges:
            if meter.fallback is None:
                raise error or EngineUnavailable(
                    "The engine did not answer lately and is tried again only after a short pause, and "
                    f'"{meter.name}" has no fallback.'
                )
        answers = self._answers(charges, patience_us, commit)
        if commit and all_allowed(answers):
            self.note_unsettled(charges)
        return self.tally_degraded(charges, answers)

    def peek_without_engine(self, meter: Any, key: str) -> Outcome:
        """Peeks at a count without the engine."""
        return as_degraded(self._answers([(meter, key, 0)], None)[0])

    def _answers(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool = True
    ) -> list[Outcome]:
        shared = [charge for charge in charges if charge[0].uses_share]
        charges_shares = commit and self.others_allow(charges)
        return self.merge_answers(charges, self.decide_by_share(shared, patience_us, charges_shares))

    def others_allow(self, charges: Sequence[MeterCharge]) -> bool:
        """Returns whether the charges that use no share all pass."""
        return all(meter.uses_share or meter.fallback == "allow" for meter, _, _ in charges)

    def merge_answers(self, charges: Sequence[MeterCharge], shared: Sequence[Outcome]) -> list[Outcome]:
        """Returns the answers to all charges, given those of the shares: for the local charges, in their order."""
        now_us, by_share = self.clock.now_us(), iter(shared)
        allowed: Outcome = (True, 0, 0, 0, 0, now_us, 0)
        return [
            next(by_share, allowed)
            if meter.uses_share
            else self.degraded_refusal(self.shard_of(key), now_us)
            if meter.fallback == "deny"
            else allowed
            for meter, key, _ in charges
        ]

    def tally_degraded(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> list[Outcome]:
        """Counts a degraded decision, and returns its outcomes marked as degraded."""
        self.shard_of(charges[0][1]).tally("degraded")
        return [as_degraded(outcome) for outcome in answers]

    def describe_mode(self) -> str:
        """Returns what happens while the engine is gone, for the log."""
        count, rank = self.members.position
        texts: dict[FallbackMode | None, str] = {
            "allow": "Allowing every call",
            "deny": "Refusing every call",
            "local": f"Deciding locally by a share of 1/{count}" + ("" if rank is None else f" (rank {rank})"),
        }
        return texts.get(self._only_mode, "Doing what each rule says")

    def describe_past_mode(self) -> str:
        """Returns what happened to calls while the engine was gone, for the log."""
        texts: dict[FallbackMode | None, str] = {
            "allow": "allowed without being counted",
            "deny": "refused",
            "local": "decided locally",
        }
        return texts.get(self._only_mode, "decided as their rules say")

    @property
    def _only_mode(self) -> FallbackMode | None:
        return next(iter(self._modes)) if len(self._modes) == 1 else None


def all_allowed(answers: Sequence[Outcome]) -> bool:
    """Returns whether all outcomes are allowed."""
    return all(outcome[ALLOWED] for outcome in answers)


def as_degraded(outcome: Outcome) -> Outcome:
    """Returns the outcome marked as the fallback's."""
    return DegradedOutcome((*outcome[:MARK], FALLBACK_MARK - outcome[MARK]))
