"""The default algorithm: finds how many calls a service can work on, and lets a short queue form there.

Picture a counter with T clerks. Up to T customers are served at once and each takes the time w. With n > T
customers in the room each takes w x n/T: the room holds a queue, and more customers only wait longer. So two
things are to be learned, and neither can be read anywhere: w, here called the base, and T. Once the base is
known, a single window shows the rest: if n calls in flight took R each, then n x base/R is T wherever there is
a queue. The limit is set to `tolerance` times that: enough of a queue that no clerk waits for work, short
enough that R stays near tolerance x base.

The base is the hard part. The least response time ever seen is no base: after a deploy that made the service
slower it would never be reached again, and the limit would fall to nothing (a death spiral). An average of the
last response times is none either: in a long overload it learns the queue, and the limit creeps up. So the base
is what is measured where there is no queue, and a change of the limit is a trial that tells:

    the limit fell, and R fell with it         there was a queue: the base is at most the new R
    the limit fell, and R stayed               there was none: the service has become slower, the base is R
    the limit rose, and R stayed               there is none: the base is R
    calls in flight varied, R did not          there is none: the base moves to R

As long as nothing has proved the base, and calls are being refused, the limit falls until R no longer follows:
that is a cold start in an overload, and takes a second or two. In an overload that goes on for
`verify_windows`, the limit falls for one window to where the queue should just end. Nothing is shed that would
have been served: the service has calls to work on all the time. While nobody is refused the limit never falls
below what is in flight, so a healthy service is never probed at its callers' expense.

How long a queue is worth having depends on what comes. Calls that wait bridge the gaps between random arrivals,
so in an overload R may be `tolerance` x base; where the limit is full all the time, as for a client that sends as
fast as it may, there are no gaps, and a call or two are enough. A load that is below what the service can do is
no overload at all: its random bursts pass by themselves, and may queue (offered_load.py).

Dropped calls (timed out, or turned away by the service) shrink the limit by their share, whatever R is. The
level at which that began is remembered: growth stops just below it for a few seconds, and goes on in small steps,
because drops are reported late.

Response times are noisy. A single slow window, and a single window that shows a slower service, may be a pause
of the machine: the limit moves at the second. A window's R is a geometric mean, which one slow call hardly
moves; it counts as higher or lower than the base only by more than two standard errors, and where calls differ
much, a window has more of them.

12 clerks, 150 ms, 100 calls a second (80 are possible): the base is 150 ms and the limit about 18. A deploy
makes it 300 ms: R is 450 ms, the limit falls to 11 (R = 300 ms) and 7 (still 300 ms): the base is 300 ms, and
the limit is 18 again, within two or three seconds.

Laws (tests/adaptive/test_adaptive_concurrency_laws.py): whatever the windows are, the limit stays within floor and
ceiling; dropped calls never raise it; if nobody was refused and nothing dropped, it is not below what was in
flight (or not lower than before); the same state and window give the same limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from headgate.adaptive.adaptive_concurrency_state import (
    RECENT,
    ConcurrencyState,
    Trial,
    met_in_flight,
    surely_slower,
    with_base,
    with_trial,
)
from headgate.adaptive.window import DEFAULT_START, Update, Window, WindowSize, check_limits, check_number

_NS_PER_SECOND = 1_000_000_000.0

_SHORT = 1.05  # times the base: hardly a queue
_QUEUE = 1.15  # times the base: a queue that a trial can show
_SURE_QUEUE = 1.25  # times the base: a queue that tells how many calls the service works on
_SHORT_QUEUE = 2.2  # calls, where a service works on so few that its tolerance is less
_LEAST_QUEUE = 1.5  # calls
_BRIDGED = 4.0  # logarithm of 1 / the part of the time that may be idle

_MOVED_UP, _MOVED_DOWN = log(1.33), -log(1.38)  # a trial moved the calls in flight by enough to conclude
_PROPORTIONAL = 0.5  # R followed by at least half: there was a queue
_CHANGED = -0.3  # R rose while calls in flight fell: something else happened
_TRIAL_WINDOWS = 3  # until a trial that did not move anything is forgotten

_CAREFUL = 0.08  # of the limit, by which it grows where there is a queue already
_CUT = 0.6  # the least that is left of a limit after one window
_VERIFY_CUT = 0.68  # to the end of the queue: about 1 / tolerance
_FALLEN = 0.7  # of the limit when the base was last confirmed: time to confirm it again
_PANIC = 3.0  # times the tolerance: too slow to wait for a second such window
_DROP_SHARE = 0.1  # of the calls of a window
_LASTING_DROP_SHARE = 0.04  # of the calls of the last windows: fewer drops are everyday failures
_BEYOND = 1.5  # times that level: it is true no longer
_SMALL_STEP, _LEAST_STEP = 0.02, 0.25  # of the limit, and in calls: growth where calls were dropped before
_DROP_WINDOWS = 30  # for which growth stops below the level at which calls were dropped
_PRECISION = 0.1  # of a window's response time, for which more calls are counted if they differ
_MAX_SAMPLES = 200
_MIN_SAMPLES = 4  # of a window, where the limit is low
_HEAVY, _HEAVY_LOAD = 0.3, 1.3  # calls refused, and the load: the base has to be found soon
_REFUSING_WINDOWS = 3  # in a row: an overload, and no burst


@dataclass(frozen=True)
class AdaptiveConcurrency:
    """The settings of the default algorithm.

    `tolerance` is how much longer calls may take in an overload than without a queue. A window lasts at least
    `min_window` seconds and about as long as a call, and ends after about `samples` calls; more if they differ.

    >>> AdaptiveLimiter(AdaptiveConcurrency(floor=4, ceiling=200)).limit
    20
    """

    initial: int | None = None  # 20, or the bound that is nearer, unless given
    floor: int = 1
    ceiling: int = 1000
    tolerance: float = 1.55
    min_window: float = 0.05
    samples: int = 20
    verify_windows: int = 20

    def __post_init__(self) -> None:
        check_limits(self.floor if self.initial is None else self.initial, self.floor, self.ceiling)
        check_number("tolerance", self.tolerance, 1.1, 10)
        check_number("min_window", self.min_window, 0, 60, above=True)
        check_number("samples", self.samples, _MIN_SAMPLES, 10_000)
        check_number("verify_windows", self.verify_windows, 10)

    def start(self) -> ConcurrencyState:
        """Returns the state before the first window.

        >>> AdaptiveConcurrency(initial=8).start().limit
        8.0
        """
        initial = max(self.floor, min(self.ceiling, DEFAULT_START)) if self.initial is None else self.initial
        return ConcurrencyState(float(initial))

    def limit_of(self, state: ConcurrencyState) -> int:
        """Returns the limit that is enforced in this state.

        >>> algorithm = AdaptiveConcurrency()
        >>> algorithm.limit_of(algorithm.start())
        20
        """
        return int(state.limit)

    def window_of(self, state: ConcurrencyState) -> WindowSize:
        """Returns when the next window is complete.

        >>> algorithm = AdaptiveConcurrency()
        >>> algorithm.window_of(algorithm.start())
        WindowSize(length_ns=50000000.0, samples=20, settle_ns=0.0)
        """
        down = state.trial is not None and state.trial.limit > state.limit
        settle_ns = 0.9 * (min(state.base_ns, state.response_ns) if down else state.response_ns)
        calls_each = 1 if state.trial else 2  # of so many as the limit: growth should not wait
        least = _MIN_SAMPLES if state.limit >= 2.0 else 2
        samples = max(least, min(self.samples // 2 if down else self.samples, int(calls_each * state.limit)))
        if state.limit > 0.6 * state.load.capacity * state.base_ns:  # where a mistake would cost something
            samples = max(samples, min(_MAX_SAMPLES, int((state.deviation / _PRECISION) ** 2)))
        return WindowSize(max(self.min_window * _NS_PER_SECOND, settle_ns), samples, settle_ns)

    def update(self, state: ConcurrencyState, window: Window) -> Update[ConcurrencyState]:
        """Returns the new limit, the new state, and the reason.

        >>> from headgate.adaptive.window import Window
        >>> algorithm = AdaptiveConcurrency()
        >>> limit, state, reason = algorithm.update(algorithm.start(), Window(0, 0.0, 20, dropped=10, samples=10))
        >>> limit, reason
        (10, 'dropped')
        """
        calls = window.samples + window.dropped
        share = window.dropped / calls if calls else 0.0
        lasting_share = state.drop_share + RECENT * (share - state.drop_share)
        if share >= _DROP_SHARE or (window.dropped and lasting_share > _LASTING_DROP_SHARE):
            return self._after_drops(state, window, max(share, _DROP_SHARE))
        left = max(0, state.drop_windows - 1)
        state = state._replace(
            drop_level=state.drop_level if state.limit < _BEYOND * state.drop_level else 0.0,
            drop_windows=left,
            drop_share=lasting_share,
            dropping=False,
            refusing=state.refusing + 1 if window.refused else 0,
        )
        if not window.samples:
            return self._set(state, state.limit, "no answer")
        state = with_base(state, window)
        if surely_slower(state, window) <= self._tolerated(state, window):
            state = state._replace(slow=False)
        if state.trial:
            state, limit, reason = self._judge(state, state.trial, window)
            if reason:
                return self._set(state, limit, reason)
        if window.refused or window.in_flight >= int(state.limit):
            return self._when_full(state, window)
        return self._when_not_full(state, window)

    def _after_drops(self, state: ConcurrencyState, window: Window, share: float) -> Update[ConcurrencyState]:
        state = state._replace(
            response_ns=window.typical_ns or state.response_ns,
            trial=None,
            drop_level=state.drop_level if state.dropping else float(window.in_flight),
            drop_windows=_DROP_WINDOWS,
            drop_share=0.0,
            dropping=True,
        )
        used = max(1.0, min(state.limit, float(window.in_flight)))
        return self._set(state, used * max(0.5, 1.0 - share), "dropped")

    def _when_not_full(self, state: ConcurrencyState, window: Window) -> Update[ConcurrencyState]:
        limit, slower = state.limit, surely_slower(state, window)
        tolerated = self._tolerated(state, window)
        fast = window.typical_ns < 1.06 * state.base_ns
        if slower > tolerated:
            # Queueing below the limit: the limit follows down, but refuses nobody who is there now.
            wanted = max(self._target(state, window), 1.2 * window.in_flight, 0.7 * limit)
            return self._set(state, min(limit, wanted), "slow, not full")
        if window.in_flight > 0.8 * limit and fast and not window.strained and not window.dropped:
            return self._grow(state, 1.05 * limit, "nearly full")
        return self._set(state, limit, "not full")

    def _when_full(self, state: ConcurrencyState, window: Window) -> Update[ConcurrencyState]:
        limit, response_ns = state.limit, window.typical_ns
        ratio, slower = response_ns / state.base_ns, surely_slower(state, window)
        target, tolerated = self._target(state, window), self._tolerated(state, window)
        if slower > tolerated:
            if not state.slow and ratio < _PANIC * tolerated:  # a pause of the machine passes by itself
                state = state._replace(slow=True)
                if window.strained:
                    return self._set(state, 0.9 * limit, "strained")
                return self._set(state, limit, "slow once")
            limit = min(limit, float(window.in_flight))
            state = with_trial(state, limit, window)
            part = 1.0 if ratio > 1.3 * tolerated else 0.5
            return self._set(state, max(_CUT * limit, limit + part * min(0.0, target - limit)), "queueing")
        if window.strained:
            return self._set(state, 0.9 * limit if slower > _SHORT else limit, "strained")
        if window.dropped:
            return self._set(state, limit, "few drops")
        state = state._replace(unverified=state.unverified + 1, verified_limit=max(state.verified_limit, limit))
        demand = window.refused / (window.refused + window.samples)
        overloaded = state.refusing >= _REFUSING_WINDOWS and demand > 0.05
        heavy = demand > _HEAVY and state.load.ratio > _HEAVY_LOAD
        unknown = heavy and not state.proven  # R may be as long as the base because both have a queue
        if overloaded and (slower > _SHORT or unknown) and not state.trial:
            if not state.proven:
                cut = _CUT if heavy else _VERIFY_CUT
                return self._set(with_trial(state, limit, window), cut * limit, "explore")
            if state.unverified >= self.verify_windows or limit < _FALLEN * state.verified_limit:
                state = state._replace(unverified=0, verified_limit=_VERIFY_CUT * limit)
                return self._set(with_trial(state, limit, window), _VERIFY_CUT * limit, "verify")
        if slower > _SHORT:
            if target < limit and ratio < _SURE_QUEUE:  # too little to tell a queue from a slower moment
                return self._set(state, limit, "short queue")
            if state.load.burst_queue:
                return self._grow(state, target, "random burst")
            return self._grow(state, limit + min(0.5 * (target - limit), _CAREFUL * limit), "short queue")
        state = with_trial(state, limit, window)
        if ratio > _SHORT:  # not surely
            return self._grow(state, 1.05 * limit, "no queue")
        if limit > 0.85 * state.load.capacity * state.base_ns > 0.0:  # about where there was a queue before
            return self._grow(state, max(limit + 1.0, (1.0 + _CAREFUL) * limit), "no queue")
        wanted = min(1.0, max(0.0, 4.0 * demand - 1.0))  # none up to a quarter refused, all from a half on
        grown = min((1.1 + 0.4 * wanted) * limit, 2.7 * met_in_flight(window))
        return self._grow(state, max(limit + 1.0, 1.1 * limit, grown), "no queue")

    def _target(self, state: ConcurrencyState, window: Window) -> float:
        """Returns the number of calls in flight at which each would take `tolerance` times the base."""
        workers = met_in_flight(window) * state.base_ns / window.typical_ns
        return workers + self._queue(state, workers)

    def _tolerated(self, state: ConcurrencyState, window: Window) -> float:
        workers = met_in_flight(window) * state.base_ns / window.typical_ns
        return 1.0 + self._queue(state, workers) / workers

    def _queue(self, state: ConcurrencyState, workers: float) -> float:
        """Returns how many calls may wait inside a service that works on so many at a time."""
        queue = max((self.tolerance - 1.0) * workers, min(workers, _SHORT_QUEUE))
        # Calls that wait bridge the gaps between arrivals. Where the limit is full all the time there are none.
        gaps = _BRIDGED / log(1.0 + 1.0 / state.room) if state.room > 0.01 else 0.0
        queue = min(queue, max(_LEAST_QUEUE, 0.12 * workers, gaps))
        return max(queue, state.load.burst_queue)

    def _judge(self, state: ConcurrencyState, trial: Trial, window: Window) -> tuple[ConcurrencyState, float, str]:
        """Concludes from a trial, if it moved the calls in flight. The reason is empty if the limit stays open."""
        limit, response_ns, in_flight = state.limit, window.typical_ns, met_in_flight(window)
        moved = log(in_flight / trial.in_flight)
        if _MOVED_DOWN < moved < _MOVED_UP:
            falling = limit < trial.limit and response_ns > self._tolerated(state, window) * state.base_ns
            kept = falling or trial.windows + 1 < _TRIAL_WINDOWS
            return state._replace(trial=trial._replace(windows=trial.windows + 1) if kept else None), limit, ""
        followed = log(response_ns / trial.response_ns) / moved
        done, again = state._replace(trial=None), state._replace(trial=Trial(limit, in_flight, response_ns))
        if moved > 0:
            if followed < _PROPORTIONAL:
                base_ns = min(state.base_ns, trial.response_ns)
                return done._replace(proven=True, base_ns=base_ns), limit, ""
            if not state.proven and window.refused > window.samples:
                return again, _CUT * limit, "explore"
            return done, limit, ""
        if followed < _CHANGED:
            return again, limit, "changed"
        if followed + window.spread / abs(moved) < _PROPORTIONAL:
            reason = "slower service" if response_ns > 1.1 * state.base_ns else "verified"
            if reason == "slower service" and not trial.slower_ns:  # or a pause of the machine: look twice
                return state._replace(trial=trial._replace(slower_ns=response_ns)), limit, "slower once"
            response_ns = min(response_ns, trial.slower_ns) if trial.slower_ns else response_ns
            done = done._replace(proven=True, base_ns=response_ns, unverified=0)
            return done, max(limit, self._before(done, trial)), reason
        base_ns = min(state.base_ns, response_ns * exp(window.spread))
        demand = window.refused / (window.refused + window.samples)
        heavy = demand > _HEAVY and state.load.ratio > _HEAVY_LOAD
        as_believed = 0.93 * state.base_ns < response_ns < _SHORT * state.base_ns
        if not state.proven and window.refused and (heavy or not as_believed):
            return again._replace(base_ns=base_ns), _CUT * limit, "explore"
        if response_ns < _QUEUE * base_ns:
            done = done._replace(base_ns=base_ns)
            return done, max(limit, self._before(done, trial)), "verified"
        return done, limit, ""

    def _before(self, state: ConcurrencyState, trial: Trial) -> float:
        """Returns the limit as of the window before a trial, by the base as it is known now."""
        workers = trial.in_flight * state.base_ns / trial.response_ns
        return workers + self._queue(state, workers)

    def _grow(self, state: ConcurrencyState, limit: float, reason: str) -> Update[ConcurrencyState]:
        """Sets a limit that may be higher, but not as high as where calls were dropped."""
        level = state.drop_level
        if state.drop_windows and level and limit >= level:
            return self._set(state, max(min(state.limit, limit), level - 0.01), "below drops")
        if level and limit > 0.8 * level:  # drops are reported late: more of them would come before the first
            careful = max(state.limit, 0.8 * level) + max(_LEAST_STEP, _SMALL_STEP * state.limit)
            return self._set(state, max(min(state.limit, limit), min(limit, careful)), reason)
        return self._set(state, limit, reason)

    def _set(self, state: ConcurrencyState, limit: float, reason: str) -> Update[ConcurrencyState]:
        limit = max(float(self.floor), min(float(self.ceiling), limit))
        return int(limit), state._replace(limit=limit), reason
