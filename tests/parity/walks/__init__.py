"""Random walks over any algorithm: the steps, and the answers of the Python model.

An algorithm's own file beside this one says which limits, gaps and costs are worth a visit; everything else is
the same for all: takes and reservations, refunds, cancellations and surcharges of earlier charges, clocks that
step back, changed limits.

A server forgets a state when it is dead, and a dead state says no more than none; so here a dead state is at
times forgotten, at times kept, and the answers must not differ. Only where they may is it always forgotten, by
everybody at once: before the clock steps back behind its death, when it was kept under another limit, and for a
smooth burst, which is kept for a while and then starts anew.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from headgate.algorithms import algorithm
from headgate.algorithms.decision import ALLOWED, Outcome, Receipt
from headgate.algorithms.limit import DAY, EXACT, HORIZON_US, HOUR, Limit
from headgate.calendar import resolve

START_US = 1_700_000_000_000_000
FIRST_US = 1_000_000_000_000_000  # 2001
LAST_US = 7_000_000_000_000_000  # 2191: doubles hold whole microseconds until 2255


class WalkStep(NamedTuple):
    """One question under one limit, and its answer."""

    verb: str  # decide, refund, surcharge, retune, or forget
    limit: Limit
    now_us: int
    cost: int  # of a refund or surcharge, the units
    patience_us: int | None
    receipt: Receipt | None
    cancel: bool
    outcome: Outcome  # of a refund or surcharge, as things stand after it
    given: bool  # whether a refund or surcharge changed anything
    state: str  # packed; "-" for none
    alive: bool  # whether whoever forgets the dead still has the state


class Walker:
    """Walks; the state it keeps is the one that an engine would have kept."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = import_module(f"tests.parity.walks.{name}")
        self.pack = import_module(f"headgate.algorithms.{name}").pack
        self.limits: list[Limit] = [self.kinds.limits(rng) for _ in range(3)]
        self.limit = self.limits[0]
        self.model = algorithm(self.limit)
        self.now_us = START_US + rng.randrange(10**9)
        self.state: Any = None
        self.kept_under = self.limit
        self.dead_at_us = 0  # under that limit: a server cannot know of a later one
        self.receipts: list[Receipt] = []
        self.forgets_at_once = name == "smooth"

    def steps(self, count: int, *, retunes: bool = False, changes: float = 0.04) -> Iterator[WalkStep]:
        """So many steps; before each of them the limit is changed with this chance."""
        for _ in range(count):
            yield from self._change(retunes) if self.rng.random() < changes else ()
            yield from self._move()
            chance = self.rng.random() if self.receipts else 1.0
            yield self._refund() if chance < 0.2 else self._surcharge() if chance < 0.27 else self._decide()

    def _change(self, retunes: bool) -> Iterator[WalkStep]:
        self.limit = self.rng.choice(self.limits)
        if retunes and self.model.retune is not None and self.rng.random() < 0.5:
            yield from self._forget()
            self._keep(self.model.retune(self._at_now(), self._seen(), self.now_us))
            yield self._step("retune")

    def _move(self) -> Iterator[WalkStep]:
        chance = self.rng.random()
        if chance < 0.1:
            gap_us = self.kinds.gaps(self.rng, self.limit)
            swing_us = self.rng.choice((1, 1000, 99_999, 100_000, 100_001, self.rng.randrange(250_000)))
            back_us = self.rng.choice((swing_us, swing_us, HOUR, DAY, gap_us, gap_us, gap_us))
            yield from self._forget()
            self.now_us = max(FIRST_US, self.now_us - back_us)
        elif chance < 0.6:
            gap_us = self.kinds.gaps(self.rng, self.limit)
            self.now_us += gap_us if self.now_us + gap_us < LAST_US else 0
        if self.forgets_at_once or self.kept_under != self.limit or self.rng.random() < 0.2:
            yield from self._forget()

    def _forget(self) -> Iterator[WalkStep]:
        if self.state is not None and self.dead_at_us <= self.now_us:
            self.state = None
            yield self._step("forget")

    def _decide(self) -> WalkStep:
        cost = self.kinds.costs(self.rng, self.limit)
        patience_us = self.rng.choice((None, None, None, 0, self.rng.randrange(10**7), HORIZON_US, 10**14))
        before = self._seen()
        outcome, after = self.model.decide(self._at_now(), before, self.now_us, cost, patience_us)
        if after is not before:
            self._keep(after)
        if outcome[ALLOWED] and cost:
            # A receipt may be of a charge that was given back in part before.
            returned = self.rng.choice((0, 0, self.rng.randrange(cost + 1)))
            self.receipts.append(Receipt.from_outcome(outcome, cost, returned))
        return self._step("decide", cost, patience_us, outcome=outcome)

    def _refund(self) -> WalkStep:
        receipt = self.rng.choice((self.receipts[-1], self.rng.choice(self.receipts)))
        units = self.rng.choice((receipt.cost, self.rng.randrange(1, receipt.cost + 2)))
        cancel = self.rng.random() < 0.5
        after = self.model.refund(self._at_now(), self._seen(), self.now_us, units, receipt, cancel)
        if after is not None:
            self._keep(after)
        outcome, _ = self.model.decide(self._at_now(), self._seen(), self.now_us, 0, None)
        return self._step("refund", units, None, receipt, cancel, outcome, after is not None)

    def _surcharge(self) -> WalkStep:
        receipt = self.rng.choice((self.receipts[-1], self.rng.choice(self.receipts)))
        costs = self.kinds.costs(self.rng, self.limit), self.rng.randrange(3 * receipt.cost), 20_000, 10**12, EXACT
        units = max(1, self.rng.choice((*costs[:1] * 4, *costs[1:2] * 4, *costs[2:])))
        after = self.model.surcharge(self._at_now(), self._seen(), self.now_us, units, receipt)
        if after is not None:
            self._keep(after)
        outcome, _ = self.model.decide(self._at_now(), self._seen(), self.now_us, 0, None)
        return self._step("surcharge", units, None, receipt, False, outcome, after is not None)

    def _seen(self) -> Any:
        """The state, as one of the limit that asks."""
        written, current = self.kept_under.pace, self.limit.pace
        if self.state is None or self.model.convert_pace is None or written == current:
            return self.state
        return self.model.convert_pace(self.limit, self.state, written)

    def _keep(self, state: Any) -> None:
        limit = self._at_now()
        self.state = state if self.model.write_pending is None else self.model.write_pending(limit, state)
        self.kept_under = self.limit
        self.dead_at_us = self.model.dead_at_us(limit, self.state)

    def _pace(self) -> tuple[str, ...]:
        """The pace that the state was written at, where one is kept with it."""
        return () if self.model.convert_pace is None else (str(self.kept_under.pace),)

    def _at_now(self) -> Limit:
        return resolve(self.limit, self.now_us)

    def _step(
        self,
        verb: str,
        cost: int = 0,
        patience_us: int | None = None,
        receipt: Receipt | None = None,
        cancel: bool = False,
        outcome: Outcome = (False, 0, 0, 0, 0, 0, 0),
        given: bool = False,
    ) -> WalkStep:
        limit, now_us = self._at_now(), self.now_us
        state = "-" if self.state is None else self.pack(self.state, *self._pace())
        alive = self.state is not None and self.dead_at_us > now_us
        return WalkStep(verb, limit, now_us, cost, patience_us, receipt, cancel, outcome, given, state, alive)
