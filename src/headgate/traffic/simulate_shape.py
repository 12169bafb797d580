"""Simulates a shape of traffic at one limit: real decisions, on a virtual clock, with clients that may try again.

A client that honours Retry-After waits that many whole seconds, as HTTP sends it, and up to a second longer, so
that not all return at once. One that does not tries again after 0.1 to 0.3 s. Both give up after MAX_TRIES,
and neither waits longer than MAX_WAIT_S for a try. Slots are held for the duration of a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import Any, NamedTuple

from headgate.clock import ManualClock
from headgate.enforcement.rule_decision import RuleDecision
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.limit_syntax import parse
from headgate.rules import load
from headgate.rules.rule import Rulebook
from headgate.traffic.rate_burst_frontier import quantile
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED
from headgate.traffic.shapes import HONOUR, NO_RETRIES, SECOND_US, TrafficShape

MAX_TRIES = 10
MAX_WAIT_S = 3600  # nobody waits longer, and so the simulation ends
CALL_ATTRIBUTES = ("client", "user")  # of a simulated call
BEGIN_US = 1_800_000_000_000_000  # a whole minute, so that windows begin with the simulation


class Attempt(NamedTuple):
    """A try of a client, or the end of a call that holds slots."""

    time_us: int
    number: int
    client: int
    first_us: int  # of the client's tries
    tries: int
    ends: RuleDecision | None = None


@dataclass
class SimulatedLimit:
    """The result of one limit under a shape of traffic.

    >>> result = simulate(TrafficShape("thundering-herd", rate=10, seconds=10), "20/s", limit_rulebook("20/s"))
    >>> result.calls, result.passed, result.peak_passed, result.peak_offered
    (100, 20, 20, 100)
    """

    name: str
    calls: int = 0  # without repeated tries
    offered: int = 0
    passed: int = 0
    delayed: int = 0
    refused: int = 0
    given_up: int = 0
    seconds: list[list[int]] = field(default_factory=list)  # [passed, delayed, refused] of each second
    decided_rules: set[str] = field(default_factory=set)  # that applied to some call
    waits_us: list[int] = field(default_factory=list)  # from the first try until a call passes

    @property
    def peak_passed(self) -> int:
        """The most calls that passed in a second."""
        return max((second[PASSED] + second[DELAYED] for second in self.seconds), default=0)

    @property
    def peak_offered(self) -> int:
        """The most calls that were offered in a second."""
        return max(map(sum, self.seconds), default=0)

    def wait_s(self, share: float) -> float:
        """Returns how long this share of the calls that passed waited at most, in seconds.

        >>> SimulatedLimit("20/s", waits_us=[0, 0, 500_000]).wait_s(0.99)
        0.5
        """
        return quantile(sorted(self.waits_us), share) / SECOND_US if self.waits_us else 0.0


def limit_rulebook(limit: str, per_client: bool = False) -> Rulebook:
    """Returns a rulebook of one limit, for all calls together or for each client.

    >>> limit_rulebook("10/s", per_client=True).rules[0].key[0].name
    'client'
    """
    limits = [parse(text) for text in limit.split("; ")]  # its errors name no field of a rulebook
    rule: Mapping[str, Any] = {"name": "limit", "limit": limits}
    key = {"key": "client", "missing": "deny"} if per_client else {}
    return load.from_mapping({"attributes": ["client"], "rules": [{**rule, **key}]})


def simulate(
    shape: TrafficShape,
    name: str,
    book: Rulebook,
    duration: float = 0.1,
    on_progress: Callable[[float | None], None] | None = None,
) -> SimulatedLimit:
    """Plays a shape of traffic through a rulebook; `duration` is how long a call holds its slots.

    >>> result = simulate(TrafficShape("steady", rate=10, seconds=10), "5/s", limit_rulebook("5/s"))
    >>> result.offered, result.passed, result.refused
    (100, 54, 46)
    """
    return _Simulation(shape, name, book, duration).run(on_progress)


class _Simulation:
    def __init__(self, shape: TrafficShape, name: str, book: Rulebook, duration: float) -> None:
        self._shape, self._duration_us = shape, round(duration * SECOND_US)
        self._clock = ManualClock(BEGIN_US)
        self._limiter = RuleLimiter(book, clock=self._clock)
        self._holds_slots = any(limit.is_held for rule in book.rules for limit in rule.limit.otherwise)
        self._chance = random.Random(shape.seed)
        self._pending: list[Attempt] = []
        self._numbers = 0
        self.result = SimulatedLimit(name)

    def run(self, on_progress: Callable[[float | None], None] | None) -> SimulatedLimit:
        for time_us, client in self._shape.arrivals():
            if on_progress is not None and not self.result.calls % 1000:
                on_progress(time_us / SECOND_US / self._shape.seconds)
            self._play_until(time_us)
            self.result.calls += 1
            self._attempt(Attempt(time_us, 0, client, time_us, 1))
        self._play_until(None)
        return self.result

    def _play_until(self, time_us: int | None) -> None:
        while self._pending and (time_us is None or self._pending[0].time_us <= time_us):
            attempt = heappop(self._pending)
            if attempt.ends is not None:
                self._clock.set_us(BEGIN_US + attempt.time_us)
                self._limiter.finish(attempt.ends)
            else:
                self._attempt(attempt)

    def _later(self, attempt: Attempt) -> None:
        self._numbers += 1
        heappush(self._pending, attempt._replace(number=self._numbers))

    def _attempt(self, attempt: Attempt) -> None:
        self._clock.set_us(BEGIN_US + attempt.time_us)
        decision = self._limiter.check(dict.fromkeys(CALL_ATTRIBUTES, f"client-{attempt.client}"))
        result = self.result
        result.decided_rules.update(rule for rule, _ in decision.labels)
        result.decided_rules.update(match.rule.name for _, match in decision.denied_matches)
        result.offered += 1
        answer = REFUSED if not decision.allowed else DELAYED if decision.delay else PASSED
        second = attempt.time_us // SECOND_US
        while len(result.seconds) <= second:
            result.seconds.append([0, 0, 0])
        result.seconds[second][answer] += 1
        if not decision.allowed:
            result.refused += 1
            self._retry(attempt, decision)
            return
        result.passed += 1
        result.delayed += answer == DELAYED
        delay_us = round(decision.delay * SECOND_US)
        result.waits_us.append(attempt.time_us + delay_us - attempt.first_us)
        if self._holds_slots:
            self._later(attempt._replace(time_us=attempt.time_us + self._duration_us, ends=decision))

    def _retry(self, attempt: Attempt, decision: RuleDecision) -> None:
        policy = self._shape.policy
        if policy == NO_RETRIES or attempt.tries >= MAX_TRIES or decision.retry_after is None:
            self.result.given_up += 1
            return
        if policy == HONOUR:
            wait_s = ceil(decision.retry_after) + self._chance.random()
            if wait_s > MAX_WAIT_S:
                self.result.given_up += 1
                return
        else:
            wait_s = self._chance.uniform(0.1, 0.3)
        time_us = attempt.time_us + max(1, round(wait_s * SECOND_US))
        self._later(attempt._replace(time_us=time_us, tries=attempt.tries + 1))
