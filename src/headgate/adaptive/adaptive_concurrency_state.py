"""The state of the default algorithm, and estimates of the base from single windows: the response time without a
queue.

Trials, which tell more, are judged in adaptive_concurrency.py.
"""

from __future__ import annotations

from math import exp, log, sqrt
from typing import Final, NamedTuple

from headgate.adaptive.offered_load import OfferedLoad
from headgate.adaptive.window import Window

RECENT: Final = 0.15  # weight of a window in moving averages
_MORE_ROOM, _LESS_ROOM = 0.2, 0.5  # weights of a window
_SURE, _VERY_SURE = 2.0, 3.0  # standard errors
_IMPRECISE = 0.05**2  # variance of a logarithm
_NO_QUEUE = 1.08  # times the base: a window this fast confirms the base
_SAME = 0.06  # of the base: windows that differ by less took equally long
_FLAT_RANGE = 1.4  # the most calls in flight of such windows, in the least: there is no queue


class Trial(NamedTuple):
    """The point that the limit was moved away from, to see whether the response time follows."""

    limit: float
    in_flight: float
    response_ns: float
    windows: int = 0
    slower_ns: float = 0.0  # the response time that a first window showed for a slower service


class Relation(NamedTuple):
    """Variation of calls in flight and response times over recent windows: moving averages of logarithms."""

    in_flight: float
    response: float
    in_flight_variance: float = 0.0
    response_variance: float = 0.0
    covariance: float = 0.0

    def with_window(self, in_flight: float, response: float) -> Relation:
        """Returns the averages with one more window."""
        x, y, keep = in_flight - self.in_flight, response - self.response, 1.0 - RECENT
        return Relation(
            self.in_flight + RECENT * x,
            self.response + RECENT * y,
            keep * (self.in_flight_variance + RECENT * x * x),
            keep * (self.response_variance + RECENT * y * y),
            keep * (self.covariance + RECENT * x * y),
        )

    @property
    def flat(self) -> bool:
        """Returns whether calls in flight varied and response times did not: there is no queue."""
        varied = self.in_flight_variance
        return varied > 0.005 and self.response_variance < 0.06 * varied and self.covariance < 0.1 * varied


class ConcurrencyState(NamedTuple):
    """The state of the algorithm between two windows.

    limit            with its fraction
    base_ns          the response time without a queue, as far as known; 0 before the first window
    response_ns      of the last window
    proven           whether a trial has shown the base
    trial            that is under way
    unverified       windows since the base was last confirmed
    verified_limit   the limit at that time, or higher since
    relation         of calls in flight and response times
    drop_level       the calls in flight at which drops began; 0 for none
    drop_windows     windows for which that is remembered
    drop_share       of the calls of the last windows, since the limit was last cut for drops
    dropping         whether calls were dropped in the last window
    refusing         windows in a row in which calls were refused
    slow             whether the last full window was surely slower than tolerable
    flat_low, flat_high    least and most calls in flight of windows that took as long as the base
    load             what comes, in what the service can do
    base_variance    of the logarithm of the base, as long as it was learned from too few calls
    deviation        standard deviation of the logarithm of the calls' response times
    room             calls by which the full limit was above the mean in flight, over the last windows
    """

    limit: float
    base_ns: float = 0.0
    response_ns: float = 0.0
    proven: bool = False
    trial: Trial | None = None
    unverified: int = 0
    verified_limit: float = 0.0
    relation: Relation | None = None
    drop_level: float = 0.0
    drop_windows: int = 0
    drop_share: float = 0.0
    dropping: bool = False
    refusing: int = 0
    slow: bool = False
    flat_low: float = 0.0
    flat_high: float = 0.0
    load: OfferedLoad = OfferedLoad()
    room: float = 0.1
    deviation: float = 0.0
    base_variance: float = 0.0


def met_in_flight(window: Window) -> float:
    """Returns how many calls were in flight, as the window's calls met it; at least 1."""
    return max(1.0, window.mean_in_flight)


def surely_slower(state: ConcurrencyState, window: Window) -> float:
    """Returns a lower bound on how many times slower than the base the window's calls were."""
    return window.typical_ns / state.base_ns * exp(-_SURE * window.spread)


def with_trial(state: ConcurrencyState, limit: float, window: Window) -> ConcurrencyState:
    """Returns the state with a trial from this window on, unless one is under way."""
    if state.trial:
        return state
    return state._replace(trial=Trial(limit, met_in_flight(window), window.typical_ns))


def with_base(state: ConcurrencyState, window: Window) -> ConcurrencyState:
    """Returns the state with what a window tells of the base, without a trial."""
    base_ns, proven, response_ns = state.base_ns, state.proven, window.typical_ns
    in_flight = met_in_flight(window)
    point = log(in_flight), log(response_ns)
    relation = state.relation.with_window(*point) if state.relation else Relation(*point)
    noise = exp(_SURE * window.spread)
    full = window.refused or window.in_flight >= int(state.limit)
    roomy = window.in_flight < 0.5 * state.limit
    variance = state.base_variance
    if base_ns == 0.0:
        base_ns, variance = response_ns, window.spread**2
    elif variance > _IMPRECISE and not full:
        gain = variance / (variance + window.spread**2)
        base_ns *= (response_ns / base_ns) ** gain
        variance *= 1.0 - gain
    elif window.mean_in_flight <= 1.0 and window.in_flight <= 2:  # alone: there is no queue
        base_ns, proven = base_ns + 0.5 * (response_ns - base_ns), True
    elif response_ns * exp(_VERY_SURE * window.spread) < base_ns:
        proven = proven and response_ns > 0.8 * base_ns
        base_ns += 0.6 * (response_ns - base_ns)  # pauses make calls slower, and nothing makes them faster
    elif response_ns < base_ns or (not full and response_ns < base_ns * noise):
        base_ns += 0.1 / (1.0 + window.spread**2 / _IMPRECISE) * (response_ns - base_ns)
    elif relation.flat:
        base_ns += 0.2 * max(0.0, min(response_ns, exp(relation.response)) - base_ns)
    elif roomy:
        base_ns += 0.02 * (response_ns - base_ns)
    low, high = state.flat_low, state.flat_high
    if abs(base_ns - state.base_ns) > _SAME * base_ns:
        low = high = 0.0
    if abs(response_ns - base_ns) < _SAME * base_ns:
        low, high = min(low or in_flight, in_flight), max(high, in_flight)
        proven = proven or high > _FLAT_RANGE * low  # calls in flight differed, and response times did not
    room = state.room
    if window.refused and response_ns > _NO_QUEUE * base_ns:
        more = max(0.0, int(state.limit) - in_flight) - room
        room += (_MORE_ROOM if more > 0 else _LESS_ROOM) * more
    state = state._replace(
        load=state.load.with_window(window, in_flight, base_ns),
        room=room,
        base_variance=variance,
        deviation=state.deviation + RECENT * (window.spread * sqrt(window.samples) - state.deviation),
        base_ns=base_ns,
        proven=proven,
        response_ns=response_ns,
        relation=relation,
        flat_low=low,
        flat_high=high,
    )
    if response_ns < _NO_QUEUE * base_ns:
        # In an overload that may also be a queue in front of a service that has become faster.
        unverified = state.unverified if window.refused else 0
        state = state._replace(unverified=unverified, verified_limit=state.limit)
    return state
