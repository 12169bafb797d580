"""Runs one limiter through one case, in virtual time: events are arrivals, answers and timeouts.

Everything random comes from the seed: arrivals and priorities from one generator, the server's jitter from
another, the limiter's choices from a third, the calls' work from a fourth. So all limiters meet the same calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf, log, sqrt
from random import Random
from typing import NamedTuple

from headgate.adaptive.gate import DROPPED, SUCCESS
from headgate.adaptive.simulation.case import ClosedLoad, LimiterSettings, SimulationCase, Stage, ThreadsSettings
from headgate.adaptive.simulation.limiters import ADMITTED, REFUSED, SimulatedLimiter, open_limiter
from headgate.adaptive.simulation.measures import StageMeasures
from headgate.adaptive.simulation.servers import (
    CONTINUOUS_SLICES,
    DEFERRED,
    DelayServer,
    Server,
    SharedThreads,
    SlicedThreads,
)

_NS = 1e9
# A client gives up when it has sent each of its requests so often since the last answer, and so many in all.
_ATTEMPTS, _LEAST_ATTEMPTS = 20, 1000


class SimulatedCall:
    """One call, from its arrival to its end."""

    __slots__ = ("arrived_ns", "ended", "entered", "measures", "priority", "started_ns", "work_ns")

    def __init__(self, arrived_ns: float, work_ns: float, priority: int, measures: StageMeasures | None) -> None:
        self.arrived_ns: float = arrived_ns
        self.started_ns: float = arrived_ns
        self.work_ns: float = work_ns
        self.priority: int = priority
        self.measures: StageMeasures | None = measures  # None while the stage settles
        self.ended: bool = False
        self.entered: int = 0


class Sample(NamedTuple):
    """The limit and the calls at one instant, for charts."""

    at: float
    limit: float | None
    in_flight: int


def open_server(case: SimulationCase, seed: int) -> Server:
    """Returns the case's server, idle."""
    if not isinstance(case.server, ThreadsSettings):
        return DelayServer(dict(case.server), Random(seed * 7919 + 1))
    if case.server.slices >= CONTINUOUS_SLICES:
        return SharedThreads(case.server.threads)
    return SlicedThreads(case.server.threads, case.server.slices)


def arrivals(stages: tuple[Stage, ...], seed: int) -> Iterator[tuple[float, int, int]]:
    """Yields when each call comes in nanoseconds, its stage, and its priority: 0 is the most important."""
    random = Random(seed)
    began_ns = 0.0
    for index, stage in enumerate(stages):
        ends_ns = began_ns + stage.duration * _NS
        shares = list(stage.priorities.values())
        mean_ns = _NS / stage.rate if stage.rate else inf
        now_ns = began_ns
        while True:
            now_ns += mean_ns if stage.even else mean_ns * random.expovariate(1.0)
            if now_ns >= ends_ns:
                break
            priority = 0
            if len(shares) > 1:
                point = random.random() * sum(shares)
                while priority < len(shares) - 1 and point >= shares[priority]:
                    point -= shares[priority]
                    priority += 1
            yield now_ns, index, priority
        began_ns = ends_ns


def _work_ns(stage: Stage, random: Random) -> float:
    """Returns the work of one call: log-normal if the calls of its stage differ."""
    if not stage.variation:
        return stage.work * _NS
    variance = log(1.0 + stage.variation**2)
    return stage.work * _NS * random.lognormvariate(-variance / 2, sqrt(variance))


class Simulation:
    """One limiter, one seed. `run` measures every stage; a closed load is one stage."""

    def __init__(
        self, case: SimulationCase, settings: LimiterSettings, seed: int, sample_every: float | None = None
    ) -> None:
        self._case, self._seed = case, seed
        self._limiter: SimulatedLimiter = open_limiter(settings, case, seed)
        self._server = open_server(case, seed)
        self._timeout_ns = inf if case.timeout is None else case.timeout * _NS
        self._timeouts: deque[SimulatedCall] = deque()
        self._sample_every_ns = self._sample_ns = inf if sample_every is None else sample_every * _NS
        self.samples: list[Sample] = []
        self.now_ns: float = 0.0

    def run(self) -> list[StageMeasures]:
        if isinstance(self._case.load, ClosedLoad):
            return [self._run_closed(self._case.load)]
        return self._run_open(self._case.load)

    def _run_open(self, stages: tuple[Stage, ...]) -> list[StageMeasures]:
        settle_ns = self._case.settle * _NS
        measures = []
        began_ns = 0.0
        for stage in stages:
            ends_ns = began_ns + stage.duration * _NS
            measures.append(StageMeasures(min(began_ns + settle_ns, ends_ns), ends_ns, 2 * stage.work * _NS))
            began_ns = ends_ns
        self._measures = measures[0]
        current_stage = -1
        works = Random(self._seed * 15_485_863 + 3)
        for now_ns, index, priority in arrivals(stages, self._seed):
            while index != current_stage:
                current_stage += 1
                self._begin_stage(stages[current_stage], measures[current_stage])
            self._advance(now_ns)
            stage_measures = measures[index]
            measured = stage_measures if now_ns >= stage_measures.from_ns else None
            self._arrive(SimulatedCall(now_ns, _work_ns(stages[index], works), priority, measured))
        for index in range(current_stage + 1, len(stages)):
            self._begin_stage(stages[index], measures[index])
        self._advance(measures[-1].until_ns)
        self._measures = StageMeasures(inf, inf, 0.0)
        self._drain()
        return measures

    def _begin_stage(self, stage: Stage, measures: StageMeasures) -> None:
        began_ns = measures.until_ns - stage.duration * _NS
        self._advance(began_ns)
        self._measures = measures
        if stage.threads is not None:
            self._server.set_threads(self.now_ns, stage.threads)

    def _run_closed(self, load: ClosedLoad) -> StageMeasures:
        server = self._case.server
        work = server["delay"] if load.work is None and not isinstance(server, ThreadsSettings) else load.work
        if work is None:
            raise ValueError("A closed load in front of a server with threads needs the work of a call.")
        self._measures = measures = StageMeasures(0.0, inf, 2 * work * _NS)
        interval_ns = load.interval * _NS
        unsent = load.requests
        answered = failed = 0
        patience = max(_LEAST_ATTEMPTS, _ATTEMPTS * load.requests)
        next_ns = 0.0
        ready = 0
        while answered < load.requests and failed < patience:
            while unsent and next_ns <= self.now_ns:
                ready, unsent, next_ns = ready + 1, unsent - 1, next_ns + interval_ns
            while ready and self._limiter.has_room():
                ready -= 1
                self._arrive(SimulatedCall(self.now_ns, work * _NS, 0, measures))
            before = measures.succeeded, measures.deferred + measures.timed_out
            step_ns = min(self._next_event_ns(), next_ns if unsent else inf)
            if step_ns == inf:
                break
            self._advance(step_ns)
            answered_now = measures.succeeded - before[0]
            failed_now = measures.deferred + measures.timed_out - before[1]
            answered, ready = answered + answered_now, ready + failed_now  # which are sent again
            failed = 0 if answered_now else failed + failed_now
        measures.until_ns = self.now_ns
        return measures

    def _arrive(self, call: SimulatedCall) -> None:
        if call.measures:
            call.measures.offered += 1
            call.measures.offered_by_priority[call.priority] += 1
        answer = self._limiter.enter(self.now_ns, call)
        if answer is ADMITTED:
            self._start(call)
        elif answer is REFUSED:
            self._refuse(call)

    def _start(self, call: SimulatedCall) -> None:
        call.started_ns = self.now_ns
        if call.measures:
            call.measures.accepted += 1
        if self._timeout_ns != inf:
            self._timeouts.append(call)
        self._server.add(self.now_ns, call, call.work_ns)

    def _refuse(self, call: SimulatedCall) -> None:
        call.ended = True
        if call.measures:
            call.measures.refused += 1
            call.measures.refused_by_priority[call.priority] += 1

    def _next_event_ns(self) -> float:
        timeouts = self._timeouts
        while timeouts and timeouts[0].ended:
            timeouts.popleft()
        timeout_ns = timeouts[0].started_ns + self._timeout_ns if timeouts else inf
        return min(timeout_ns, self._server.next_ns, self._limiter.expires_ns)

    def _advance(self, until_ns: float) -> None:
        """Handles all events up to this instant, in their order."""
        server, limiter = self._server, self._limiter
        while True:
            event_ns = self._next_event_ns()
            if event_ns > until_ns:
                break
            self._pass_time(event_ns)
            if server.next_ns <= event_ns:
                call, result = server.pop()
                if call is not None and not call.ended:
                    self._end(call, DROPPED if result == DEFERRED else SUCCESS)
            elif limiter.expires_ns <= event_ns:
                for call in limiter.expire(event_ns):
                    self._refuse(call)
            else:
                self._give_up(self._timeouts.popleft())
        self._pass_time(until_ns)

    def _give_up(self, call: SimulatedCall) -> None:
        call.ended = True
        if call.measures:
            call.measures.timed_out += 1
            call.measures.responses_ns.append(self.now_ns - call.arrived_ns)
        self._leave(call, DROPPED)

    def _end(self, call: SimulatedCall, outcome: int) -> None:
        call.ended = True
        if call.measures:
            call.measures.end(self.now_ns - call.arrived_ns, outcome == SUCCESS, call.priority)
        self._leave(call, outcome)

    def _leave(self, call: SimulatedCall, outcome: int) -> None:
        for admitted in self._limiter.leave(self.now_ns, call, outcome):
            self._start(admitted)

    def _pass_time(self, now_ns: float) -> None:
        limit = self._limiter.limit
        self._measures.pass_time(self.now_ns, now_ns, self._server.in_flight, limit)
        while self._sample_ns <= now_ns:
            self.samples.append(Sample(self._sample_ns / _NS, limit, self._server.in_flight))
            self._sample_ns += self._sample_every_ns
        self.now_ns = now_ns

    def _drain(self) -> None:
        """Lets all calls end that came before the load did."""
        while (event_ns := self._next_event_ns()) != inf:
            self._advance(event_ns)
