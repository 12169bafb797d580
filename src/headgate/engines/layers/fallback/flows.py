"""The flows of the fallback layer: the steps of every verb when the engine does not answer.

While the engine is gone, a process that decides by a share keeps account of it (settlement.py). When the engine
answers again, a second begins in which accounts are settled: the engine is charged with what a share admitted
before it decides about that count, and counts that are not used are settled in the background. Meanwhile a call
must pass both, its share and the engine, because other members may not have noticed yet. After that the shares are
dropped. All of this is for charges whose fallback is local; a call none of whose charges has a fallback goes
straight to the engine, whatever the breaker says.

Refunds. The outcomes of a fallback carry a mark that no engine gives (`FALLBACK_MARK` and below), so a receipt
shows who made it. What a share admitted is given back to that share while it exists, and to nothing after: the
engine was charged with a sum, maybe not all of it. What the engine admitted is given back to the engine, or lost.

Laws (tests/engines/layers: test_fallback.py and _laws.py, test_fallback_by_rule.py, test_settlement_by_rule.py):
  - no EngineUnavailable reaches a caller, unless a charge has no fallback (an operator's overrides may fail);
  - with allow nothing is refused; with deny nothing passes while the breaker is open;
  - local: the law of docs/explanation/outages.md, which nginx keeps too (test_stated_node_count.py);
  - a request whose reply was lost is not repeated: it may have been charged;
  - no refund gives back more than was charged where it is given back;
  - a preview that commits nothing charges no share either.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import count as numbers
from typing import Any

from headgate.algorithms.decision import REMAINING, DegradedOutcome, Outcome, Receipt
from headgate.algorithms.limit import SECOND, Limit
from headgate.clock import Clock
from headgate.engines.deadlines import shortest_deadline
from headgate.engines.layers.fallback.breaker import (
    ASK,
    CLOSED,
    FALL_BACK,
    OPEN,
    PROBE,
    PROBING,
    SETTLING,
    BreakerRoute,
    BreakerState,
)
from headgate.engines.layers.fallback.degraded_answers import (
    FALLBACK_MARK,
    DegradedAnswers,
    all_allowed,
    as_degraded,
)
from headgate.engines.layers.fallback.membership import MembershipState
from headgate.engines.layers.fallback.settlement import MeterCharge
from headgate.engines.layers.fallback.shard import RecentEntries, Shard
from headgate.engines.url_options import FALLBACK_DEADLINE_S, FallbackMode
from headgate.errors import EngineUnavailable
from headgate.flow import Flow

SETTLE_US = 1_000_000
DEADLINE_S = FALLBACK_DEADLINE_S
MAX_RECENT = 10_000


class Fallback(DegradedAnswers):
    """The flows of the sync and the async engine."""

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
        """How many decisions the fallback made."""
        return self._total("degraded")

    @property
    def opened_count(self) -> int:
        """How often a breaker opened."""
        return self._total("opened")

    @property
    def lost_refunds(self) -> int:
        """How many refunds never reached the engine."""
        return self._total("lost_refunds")

    @property
    def lost_resets(self) -> int:
        """How many keys were reset, or given another limit, here but not in the engine."""
        return self._total("lost_resets")

    def _total(self, name: str) -> int:
        return sum(shard.tallies[name] for shard in tuple(self.shards.values()))

    def state(self, shard: Hashable = 0) -> BreakerState:
        """Returns the phase of a part of the engine."""
        part = self.shards.get(shard)
        return CLOSED if part is None else part.phase(self.clock.now_us())

    def overrides(self, rule: str) -> Any:
        return self.inner.overrides(rule)

    def quota_ledger(self, limit: Limit, name: str, ttl_us: int, grace_us: int) -> Any:
        return self.inner.quota_ledger(limit, name, ttl_us, grace_us)

    def set_deadline(self, seconds: float) -> None:
        self.settle_wait_us: int = round(seconds * SECOND) // 4
        self.inner.set_deadline(seconds)

    def number(self, limit: Limit, name: str) -> int:
        """Returns one number for all meters that share their counts."""
        return self._count_numbers.setdefault((limit.algorithm, name), next(self._next_numbers))

    def note_failure(self, shard: Shard, route: BreakerRoute, error: BaseException) -> None:
        """Reports a failed request to the breaker of a part."""
        shard.on_failure(route, self.clock.now_us(), error, self.describe_mode())

    def note_success(self, shard: Shard, route: BreakerRoute) -> None:
        """Reports an answered request to the breaker of a part, and settles in the background."""
        shard.on_success(route, self.clock.now_us())
        if shard.unsettled:
            self.settle_in_background(shard)

    def stop_settling(self) -> None:
        """Drops what is unsettled: a closing engine does not settle the rest."""
        for shard in tuple(self.shards.values()):
            shard.unsettled.clear()

    def settle_in_background(self, shard: Shard) -> None:
        """Drives `settle_shard(shard)` in the background."""
        raise NotImplementedError

    # Deciding.

    def decide_flow(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool = True
    ) -> Flow[list[Outcome]]:
        """Decides off the fast path: after a failure, with unsettled units, or several charges together."""
        if has_no_fallback(charges):
            return (yield from self._ask_engine(charges, patience_us, commit))
        reachable = self._reachable(charges)
        if len(reachable) < len(charges):
            reached = iter(
                (yield from self.decide_flow([charges[index] for index in reachable], patience_us, commit))
            )
            allowed = as_degraded((True, 0, 0, 0, 0, self.clock.now_us(), 0))
            return [next(reached) if index in reachable else allowed for index in range(len(charges))]
        routes = self._routes(charges)
        if routes is None:
            return self.answer_without_engine(charges, patience_us, commit)
        shared = [charge for charge in charges if charge[0].uses_share]
        max_wait_us = self._settle_wait_us(charges)
        by_share: list[Outcome] = []
        try:
            for meter, key, _ in shared:
                is_settled = yield from self.settle_count(
                    self.shard_of(key), meter.tag(key), max_wait_us=max_wait_us
                )
                if not is_settled:
                    for shard, route in routes.items():
                        self.note_success(shard, route)
                    return self.answer_without_engine(charges, patience_us, commit)
            if self._must_pass_both(routes) and any(cost for _, _, cost in shared):
                by_share = self.decide_by_share(shared, patience_us, commit)
                if not all_allowed(by_share):
                    yield from self._probe(charges, routes)
                    return self.tally_degraded(charges, self.merge_answers(charges, by_share))
            answers = yield from self._ask_engine(charges, patience_us, commit)
        except EngineUnavailable as error:
            for shard, route in routes.items():
                if error.key is None or self.shard_of(error.key) is shard:
                    self.note_failure(shard, route, error)
                else:
                    shard.on_withdrawal(route, self.clock.now_us())
            if by_share and all_allowed(by_share) and self.others_allow(charges):
                if commit:
                    self.note_unsettled(charges)
                return self.tally_degraded(charges, self.merge_answers(charges, by_share))
            if commit:
                self.give_back(shared, by_share)
            return self.answer_without_engine(charges, patience_us, commit, error)
        except BaseException as error:
            self._on_interruption(routes, error)
            if commit:
                self.give_back(shared, by_share)
            raise
        self.note_answers(charges, answers)
        shadow_failures = self._shadow_only_failures(charges, answers)
        for shard, route in routes.items():
            if shard in shadow_failures:
                shard.on_withdrawal(route, self.clock.now_us())
            else:
                self.note_success(shard, route)
        if commit and not _live_allowed(charges, answers):
            self.give_back(shared, by_share)
        return answers

    def answer_after_failure(
        self, shard: Shard, charge: MeterCharge, patience_us: int | None, error: EngineUnavailable
    ) -> Outcome:
        self.note_failure(shard, ASK, error)
        return self.answer_without_engine([charge], patience_us, error=error)[0]

    def _ask_engine(
        self, charges: Sequence[MeterCharge], patience_us: int | None, commit: bool
    ) -> Flow[list[Outcome]]:
        if len(charges) == 1 and commit:
            meter, key, cost = charges[0]
            return [(yield partial(meter.meter.decide, key, cost, patience_us))]
        answers: list[Outcome] = yield partial(self.inner.decide_all, inner_charges(charges), patience_us, commit)
        return answers

    def note_answers(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> None:
        if self.uses_shares:
            self.remember(charges, answers)

    def _shadow_only_failures(self, charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> set[Shard]:
        """Returns the parts that gave no answer and only had shadows to decide. A shadow is not waited for long,
        so that does not show whether they are up."""
        if not any(isinstance(outcome, DegradedOutcome) for outcome in answers):
            return set()
        shards: dict[bool, set[Shard]] = {True: set(), False: set()}
        for (_, key, _), outcome in zip(charges, answers, strict=True):
            shards[isinstance(outcome, DegradedOutcome)].add(self.shard_of(key))
        return shards[True] - shards[False]

    def _settle_wait_us(self, charges: Sequence[MeterCharge]) -> int | None:
        """Returns how long settling may delay a call; None: no bound, because nothing else can answer."""
        if any(meter.fallback is None for meter, _, _ in charges):
            return None
        deadline = shortest_deadline(meter for meter, _, _ in charges)
        return self.settle_wait_us if deadline is None else min(self.settle_wait_us, round(deadline * SECOND) // 4)

    def _reachable(self, charges: Sequence[MeterCharge]) -> list[int]:
        """Returns the indexes of the charges to request: all but shadows that would delay live charges elsewhere,
        because their part does not answer."""
        live = {self.shard_of(key) for meter, key, _ in charges if not _is_shadow(meter)}
        now_us = self.clock.now_us()
        return [
            index
            for index, shard in enumerate(self.shard_of(key) for _, key, _ in charges)
            if not live or shard in live or shard.phase(now_us) not in (OPEN, PROBING)
        ]

    def _routes(self, charges: Sequence[MeterCharge]) -> dict[Shard, BreakerRoute] | None:
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

    def _on_interruption(self, routes: dict[Shard, BreakerRoute], error: BaseException) -> None:
        """Reports that there was neither an answer nor a failure of the engine. A cancelled probe counts as
        failed: a caller with less patience than the engine needs would otherwise hold up all others by probing
        again and again."""
        for shard, route in routes.items():
            if isinstance(error, Exception):
                shard.on_withdrawal(route, self.clock.now_us())
            elif route is PROBE:
                self.note_failure(shard, route, error)

    def _must_pass_both(self, routes: dict[Shard, BreakerRoute]) -> bool:
        return any(route is PROBE or shard.breaker.phase is SETTLING for shard, route in routes.items())

    def _probe(self, charges: Sequence[MeterCharge], routes: dict[Shard, BreakerRoute]) -> Flow[None]:
        """Probes the engine with a peek, because the share refused the charge that was to be the probe."""
        for shard, route in routes.items():
            if route is PROBE:
                candidates = [(meter, key) for meter, key, _ in charges if self.shard_of(key) is shard]
                if not candidates:  # another part answers for the key by now
                    shard.on_withdrawal(route, self.clock.now_us())
                    continue
                meter, key = candidates[0]
                outcome = yield partial(meter.meter.decide, key, 0)
                self.note_answers([(meter, key, 0)], [outcome])
                self.note_success(shard, route)

    def heartbeat_flow(self) -> Flow[None]:
        """Settles after a successful heartbeat: the engine is there, and a process without calls may have
        accounts."""
        for shard in tuple(self.shards.values()):
            self.move_counts(shard)
            for count in tuple(shard.unsettled.values())[:1]:
                shard.on_contact(self.clock.now_us())
                yield from self.try_engine(count.key, partial(count.engine_meter.meter.decide, count.key, 0))

    # The other verbs.

    def refund_flow(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Flow[Outcome]:
        if receipt.mark <= FALLBACK_MARK:
            return self._refund_locally(
                meter, key, units, receipt._replace(mark=FALLBACK_MARK - receipt.mark), cancel
            )
        request = partial(meter.meter.refund, key, units, receipt, cancel)
        if meter.fallback is None:
            refunded: Outcome = yield request
            return refunded
        outcome: Outcome | None = yield from self.try_engine(key, request)
        if outcome is None:
            self.shard_of(key).tally("lost_refunds")
            return self.peek_without_engine(meter, key)
        self.note_answers([(meter, key, 0)], [outcome])
        return outcome

    def _refund_locally(self, meter: Any, key: str, units: int, receipt: Receipt, cancel: bool) -> Outcome:
        shard = self.shard_of(key)
        count = shard.counts.get(meter.tag(key))
        if count is None or receipt.at_us < count.since_us:
            return self.peek_without_engine(meter, key)
        before = count.meter.decide(key, 0)
        outcome = count.meter.refund(key, units, receipt, cancel)
        with shard.lock:
            count.unsettled_units -= min(count.unsettled_units, max(0, outcome[REMAINING] - before[REMAINING]))
        return as_degraded(outcome)

    def retune_flow(self, meter: Any, key: str) -> Flow[None]:
        yield from self._change(meter, key, partial(meter.meter.retune, key))

    def reset_flow(self, meter: Any, key: str) -> Flow[None]:
        shard, tag = self.shard_of(key), meter.tag(key)
        self.recent.drop(tag)
        with shard.lock:
            shard.unsettled.pop(tag, None)
            count = shard.counts.get(tag)
            if count is not None:
                count.unsettled_units = 0
                count.meter.reset(key)
        yield from self._change(meter, key, partial(meter.meter.reset, key))

    def _change(self, meter: Any, key: str, request: Callable[[], Any]) -> Flow[None]:
        if meter.fallback is None:
            yield request
            return
        done = yield from self.try_engine(key, request, boxed=True)
        if done is None:
            self.shard_of(key).tally("lost_resets")

    def try_engine(self, key: str, request: Callable[[], Any], boxed: bool = False) -> Flow[Any]:
        """Sends a request unless the breaker is open; returns None, and raises nothing, if the engine did not
        answer. A reply that may itself be None is boxed in a 1-tuple."""
        shard = self.shard_of(key)
        route = shard.choose_route(self.clock.now_us())
        if route is FALL_BACK:
            return None
        try:
            reply = yield request
        except EngineUnavailable as error:
            self.note_failure(shard, route, error)
            return None
        except BaseException as error:
            self._on_interruption({shard: route}, error)
            raise
        self.note_success(shard, route)
        return (reply,) if boxed else reply


def has_no_fallback(charges: Sequence[MeterCharge]) -> bool:
    """Returns whether only the engine can answer; shadows need no answer."""
    live = [meter.fallback for meter, _, _ in charges if not _is_shadow(meter)]
    return bool(live) and live.count(None) == len(live)


def inner_charges(charges: Sequence[MeterCharge]) -> list[tuple[Any, str, int]]:
    """Returns the same charges with the inner meters."""
    return [(meter.meter, key, cost) for meter, key, cost in charges]


def _live_allowed(charges: Sequence[MeterCharge], answers: Sequence[Outcome]) -> bool:
    """Returns whether the engine admitted the charges that are not shadows."""
    return all_allowed(
        [outcome for (meter, _, _), outcome in zip(charges, answers, strict=True) if not _is_shadow(meter)]
    )


def _is_shadow(meter: Any) -> bool:
    return meter.options is not None and meter.options.is_shadow
