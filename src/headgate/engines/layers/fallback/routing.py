"""Chooses the route of a call: to the engine, or past it. Pure: the verbs make the requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import count as numbers
from typing import Any

from headgate.algorithms.decision import REMAINING, DegradedOutcome, Outcome, Receipt
from headgate.algorithms.limit import SECOND, Limit
from headgate.clock import Clock
from headgate.engines.deadlines import shortest_deadline
from headgate.engines.layers.fallback.breaker import (
    CALL,
    CLOSED,
    FALL_BACK,
    OPEN,
    PROBE,
    PROBING,
    SETTLING,
    BreakerRoute,
    BreakerState,
)
from headgate.engines.layers.fallback.degraded_answers import DegradedAnswers, all_allowed, as_degraded
from headgate.engines.layers.fallback.membership import MembershipState
from headgate.engines.layers.fallback.settlement import MeterCharge
from headgate.engines.layers.fallback.shard import RecentEntries, Shard
from headgate.engines.url_options import FallbackMode
from headgate.errors import EngineUnavailable


class FallbackRouting(DegradedAnswers):
    """Chooses the route of each call, and reports to the breakers what came of it."""

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
        # Of each lease: when it was given, when it ends, and its fence in the engine if the engine gave it.
        self.leases: RecentEntries[tuple[int, int, int | None]] = RecentEntries(max_recent)
        self._count_numbers: dict[tuple[str, str], int] = {}
        self._next_numbers = numbers()
        super().__init__(inner, fallback, members, clock, settle_us, deadline, max_recent)

    def drop_state(self) -> None:
        """Drops everything remembered, without a request: a forked child must not share it."""
        super().drop_state()
        self.leases.clear()
        self.last_fence = 0

    @property
    def degraded_count(self) -> int:
        """Returns how many decisions the fallback made."""
        return self._total("degraded")

    @property
    def opened_count(self) -> int:
        """Returns how often a breaker opened."""
        return self._total("opened")

    @property
    def lost_refunds(self) -> int:
        """Returns how many refunds never reached the engine."""
        return self._total("lost_refunds")

    @property
    def lost_surcharges(self) -> int:
        """Returns how many surcharges never reached the engine, nor a share."""
        return self._total("lost_surcharges")

    @property
    def lost_resets(self) -> int:
        """Returns how many keys were reset, or given another limit, here but not in the engine."""
        return self._total("lost_resets")

    def measurements(self) -> Iterator[tuple[str, float | list[float]]]:
        """Yields the state of the breakers, and what an outage cost."""
        yield from self.inner.measurements()
        yield "breakers_open", len(self.degraded_shards())
        yield "breaker_opened_total", self.opened_count
        yield "lost_refunds_total", self.lost_refunds
        yield "lost_surcharges_total", self.lost_surcharges

    def _total(self, name: str) -> int:
        return sum(shard.tallies[name] for shard in tuple(self.shards.values()))

    def state(self, shard: Hashable = 0) -> BreakerState:
        """Returns the phase of a part of the engine."""
        part = self.shards.get(shard)
        return CLOSED if part is None else part.phase(self.clock.now_us())

    def set_deadline(self, seconds: float) -> None:
        self.settle_wait_us: int = round(seconds * SECOND) // 4
        self.inner.set_deadline(seconds)

    def number(self, limit: Limit, name: str) -> int:
        """Returns one number for all meters that share their counts."""
        return self._count_numbers.setdefault((limit.algorithm, name), next(self._next_numbers))

    def note_failure(self, shard: Shard, route: BreakerRoute, error: BaseException) -> None:
        """Reports a failed request to the breaker of a part."""
        shard.on_failure(route, self.clock.now_us(), error, self.describe_mode(), self.describe_past_mode())

    def stop_settling(self) -> None:
        """Drops what is unsettled: a closing engine does not settle the rest."""
        for shard in tuple(self.shards.values()):
            shard.unsettled.clear()

    def answer_after_failure(
        self, shard: Shard, charge: MeterCharge, patience_us: int | None, error: EngineUnavailable
    ) -> Outcome:
        self.note_failure(shard, CALL, error)
        return self.answer_without_engine([charge], patience_us, error=error)[0]

    def note_answers(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> None:
        if self.uses_shares:
            self.remember(charges, answers)

    def shadow_only_failures(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> set[Shard]:
        """Returns the parts that gave no answer and only had shadows to decide. A shadow is not waited for long,
        so that does not show whether they are up."""
        if not any(isinstance(outcome, DegradedOutcome) for outcome in answers):
            return set()
        shards: dict[bool, set[Shard]] = {True: set(), False: set()}
        for (_, key, _), outcome in zip(charges, answers, strict=True):
            shards[isinstance(outcome, DegradedOutcome)].add(self.shard_of(key))
        return shards[True] - shards[False]

    def max_settle_wait_us(self, charges: Sequence[MeterCharge]) -> int | None:
        """Returns how long settling may delay a call; None: no bound, because nothing else can answer."""
        if any(meter.fallback is None for meter, _, _ in charges):
            return None
        deadline = shortest_deadline(meter for meter, _, _ in charges)
        return self.settle_wait_us if deadline is None else min(self.settle_wait_us, round(deadline * SECOND) // 4)

    def reachable_charges(self, charges: Sequence[MeterCharge]) -> list[int]:
        """Returns the indexes of the charges to request: all but shadows that would delay live charges elsewhere,
        because their part does not answer."""
        live = {self.shard_of(key) for meter, key, _ in charges if not _is_shadow(meter)}
        now_us = self.clock.now_us()
        return [
            index
            for index, shard in enumerate(self.shard_of(key) for _, key, _ in charges)
            if not live or shard in live or shard.phase(now_us) not in (OPEN, PROBING)
        ]

    def choose_routes(self, charges: Sequence[MeterCharge]) -> dict[Shard, BreakerRoute] | None:
        """Returns the route of each part; None if one of them falls back."""
        now_us = self.clock.now_us()
        routes: dict[Shard, BreakerRoute] = {}
        for shard in dict.fromkeys(self.shard_of(key) for _, key, _ in charges):
            routes[shard] = shard.choose_route(now_us)
            if routes[shard] is FALL_BACK:
                for claimed, route in routes.items():
                    claimed.on_withdrawal(route, now_us)
                return None
        return routes

    def note_interruption(self, routes: dict[Shard, BreakerRoute], error: BaseException) -> None:
        """Reports that there was neither an answer nor a failure of the engine. A cancelled probe counts as
        failed: a caller with less patience than the engine needs would otherwise hold up all others by probing
        again and again."""
        for shard, route in routes.items():
            if isinstance(error, Exception):
                shard.on_withdrawal(route, self.clock.now_us())
            elif route is PROBE:
                self.note_failure(shard, route, error)

    def must_pass_both(self, routes: dict[Shard, BreakerRoute]) -> bool:
        return any(route is PROBE or shard.breaker.phase is SETTLING for shard, route in routes.items())

    def refund_locally(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Outcome:
        shard = self.shard_of(key)
        count = shard.counts.get(meter.tag(key))
        if count is None or receipt.at_us < count.since_us:
            return self.peek_without_engine(meter, key)
        before = count.meter.decide(key, 0)
        outcome = count.meter.refund(key, units, receipt, cancel)
        with shard.lock:
            count.unsettled_units -= min(count.unsettled_units, max(0, outcome[REMAINING] - before[REMAINING]))
        return as_degraded(outcome)

    def surcharge_locally(self, meter: Any, key: str, units: int, receipt: Receipt) -> Outcome:
        """Charges the share, which is settled later; without a share the units are lost."""
        shard, count = self.shard_of(key), self.local_count(meter, key) if meter.uses_share else None
        if count is None:
            shard.tally("lost_surcharges")
            return self.peek_without_engine(meter, key)
        outcome = count.meter.surcharge(key, units, receipt)
        count.extend_life(outcome)
        shard.add_unsettled(meter.tag(key), count, units)
        return as_degraded(outcome)


def has_no_fallback(charges: Sequence[MeterCharge]) -> bool:
    """Returns whether only the engine can answer; shadows need no answer."""
    live = [meter.fallback for meter, _, _ in charges if not _is_shadow(meter)]
    return bool(live) and live.count(None) == len(live)


def inner_charges(charges: Sequence[MeterCharge]) -> list[tuple[Any, str, int]]:
    """Returns the same charges with the inner meters."""
    return [(meter.meter, key, cost) for meter, key, cost in charges]


def live_allowed(charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> bool:
    """Returns whether the engine admitted the charges that are not shadows."""
    return all_allowed(
        [outcome for (meter, _, _), outcome in zip(charges, answers, strict=True) if not _is_shadow(meter)]
    )


def _is_shadow(meter: Any) -> bool:
    return meter.options is not None and meter.options.is_shadow
