"""adaptive."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

from headgate.adaptive.window import Update, Window, check_limits, check_number

_MS = 1_000_000.0
_SECOND = 1_000_000_000.0


class ConcurrencyState(NamedTuple):
    limit: float
    base_ns: float = 0.0
    response_ns: float = 0.0
    trial_in_flight: float = 0.0
    trial_response_ns: float = 0.0
    trial_limit: float = 0.0
    unverified: int = 0
    updated_ns: float = 0.0


@dataclass(frozen=True)
class AdaptiveConcurrency:
    initial: int = 20
    floor: int = 1
    ceiling: int = 1000
    tolerance: float = 1.6
    min_window: float = 0.05
    samples: int = 20
    verify_every: int = 40

    def __post_init__(self) -> None:
        check_limits(self.initial, self.floor, self.ceiling)
        check_number("tolerance", self.tolerance, 1, above=True)

    def start(self) -> ConcurrencyState:
        return ConcurrencyState(float(self.initial))

    def limit_of(self, state: ConcurrencyState) -> int:
        return int(state.limit)

    def window_of(self, state: ConcurrencyState) -> tuple[float, int]:
        samples = max(3, min(self.samples, int(2 * state.limit)))
        return max(self.min_window * _SECOND, 2.0 * state.response_ns), samples

    def update(self, state: ConcurrencyState, window: Window) -> Update[ConcurrencyState]:
        limit, base, _, trial_n, trial_r, trial_limit, unverified, updated_ns = state
        response = window.typical_ns
        n = max(1.0, window.mean_in_flight)
        full = window.refused > 0 or window.in_flight >= int(limit)
        calls = window.samples + window.dropped
        dt = window.now_ns - updated_ns if updated_ns else 0.0
        share = window.dropped / calls if calls else 0.0
        if share >= 0.1:
            limit = max(1.0, min(limit, window.in_flight * 1.0)) * max(0.5, 1.0 - share)
            return self._result(
                limit, base, response or state.response_ns, 0.0, 0.0, 0.0, unverified, window, "dropped"
            )
        if not window.samples:
            return self._result(*state[:7], window, "no answer")
        if base == 0.0:
            base = response
        reason = "steady"
        # what a trial shows
        if trial_n and (n <= 0.75 * trial_n or n >= 1.33 * trial_n):
            elasticity = log(trial_r / response) / log(trial_n / n)
            low_r = min(response, trial_r) if elasticity > 0 else response
            if elasticity < 0.5:
                if n < trial_n:
                    base = max(base, response)
                    limit = max(limit, trial_limit)
                    reason = "slower service"
                unverified = 0
                trial_n = 0.0
            else:
                if elasticity > 0.8:
                    base = min(base, 0.9 * low_r)
                trial_n = 0.0
                unverified = 0
        # the base follows
        if response < base:
            base += 0.3 * (response - base)
        elif not full:
            base += min(0.05, dt / (30 * _SECOND)) * (response - base)
        ratio = response / base
        if reason == "slower service":
            pass
        elif not full:
            if ratio > self.tolerance:
                limit = max(min(limit, 1.5 * window.in_flight), limit * 0.7)
            elif window.in_flight > 0.8 * limit and ratio < 1.2:
                limit *= 1.1
        elif ratio > self.tolerance:
            if not trial_n:
                trial_n, trial_r, trial_limit = n, response, limit
            limit *= max(0.6, self.tolerance / ratio)
            reason = "queueing"
        elif window.strained:
            reason = "strained"
        else:
            unverified += 1
            if window.refused and unverified >= self.verify_every and ratio > 1.2:
                trial_n, trial_r, trial_limit = n, response, limit
                limit *= 0.6
                reason = "verify"
                unverified = 0
            else:
                if trial_limit and limit < trial_limit and ratio < 1.2:
                    pass
                if not trial_n:
                    trial_n, trial_r, trial_limit = n, response, limit
                limit *= 1.0 + 0.5 * (min(1.5, self.tolerance / ratio) - 1.0)
                if ratio < 1.1:
                    limit = max(limit, min(limit * 1.2, limit + 1))
                reason = "used"
        return self._result(limit, base, response, trial_n, trial_r, trial_limit, unverified, window, reason)

    def _result(
        self,
        limit: float,
        base: float,
        response: float,
        trial_n: float,
        trial_r: float,
        trial_limit: float,
        unverified: int,
        window: Window,
        reason: str,
    ) -> Update[ConcurrencyState]:
        limit = max(float(self.floor), min(float(self.ceiling), limit))
        state = ConcurrencyState(limit, base, response, trial_n, trial_r, trial_limit, unverified, window.now_ns)
        return int(limit), state, reason
