"""Predicts what an adaptive limit would do if response times stayed as given: in words, before it is tried.

The algorithm itself is asked, window by window, with the limit used up in each. So the prediction is what happens
as long as the given percentile does not change; in a service, it changes as soon as the limit moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headgate.adaptive.adaptive_limit import AdaptiveLimit, ResponseTarget
from headgate.adaptive.target_concurrency import TargetConcurrency
from headgate.adaptive.target_rate import RateWindow, TargetRate
from headgate.adaptive.window import Window
from headgate.algorithms.durations import in_words
from headgate.algorithms.limit import SECOND

_MAX_WINDOWS = 10_000
_SHOWN = 4  # limits, before the last one
_NS_PER_SECOND = 1e9
_TOLERANCE = "1.55"


class Prediction(NamedTuple):
    """The limits of one window after the other, the reason, and the least time until the last of them."""

    limits: tuple[int, ...]
    reason: str
    seconds: float


def predict(limit: AdaptiveLimit, measured: float) -> Prediction | None:
    """Returns how the limit would move at so many seconds; None if it has no target, and no percentile decides."""
    algorithm: Any = limit.algorithm_settings()
    if isinstance(algorithm, TargetRate):
        return _predict(algorithm, measured, _rate_window)
    return _predict(algorithm, measured, _window) if isinstance(algorithm, TargetConcurrency) else None


def describe(limit: AdaptiveLimit, measured: float) -> str:
    """Returns the prediction as a sentence."""
    prediction = predict(limit, measured)
    if prediction is None or limit.target is None:
        return (
            "no percentile decides: the limit falls while calls take more than about "
            f"{_TOLERANCE} times as long as without a queue, which it finds out by itself"
        )
    limits, reason, seconds = prediction
    at = f"at a {ResponseTarget(limit.target.percentile, round(measured * SECOND)).in_words}, {reason},"
    if len(limits) == 1:
        return f"{at} the limit stays: at the start {limits[0]} {limit.unit}"
    path = ", ".join(map(str, limits[:_SHOWN])) + (", ..." if len(limits) > _SHOWN + 1 else "")
    verb, used = ("falls", "") if limits[-1] < limits[0] else ("rises", " while it is used up")
    return (
        f"{at} the limit {verb}{used}: from the start {path}, and {limits[-1]} {limit.unit} after "
        f"{len(limits) - 1} windows, in {in_words(round(seconds * SECOND))} at the earliest"
    )


def _predict(algorithm: Any, measured: float, window: Any) -> Prediction:
    state, seconds, first_reason = algorithm.start(), 0.0, ""
    limits = [int(getattr(state, "limit", 0) or getattr(state, "rate", 0))]
    for _ in range(_MAX_WINDOWS):
        now, length = window(algorithm, state, measured)
        limit, state, reason = algorithm.update(state, now)
        first_reason = first_reason or reason
        if int(limit) == limits[-1]:
            break
        limits.append(int(limit))
        seconds += length
    return Prediction(tuple(limits), first_reason, seconds)


def _window(algorithm: TargetConcurrency, state: Any, measured: float) -> tuple[Window, float]:
    """Returns a window in which the limit was reached, and the least time that it takes."""
    size = algorithm.window_of(state)
    response_ns = measured * _NS_PER_SECOND
    window = Window(0.0, response_ns, int(state.limit), samples=size.samples, refused=1, quantile_ns=response_ns)
    return window, size.length_ns / _NS_PER_SECOND


def _rate_window(algorithm: TargetRate, state: Any, measured: float) -> tuple[RateWindow, float]:
    """Does the same for a rate."""
    seconds = max(algorithm.min_window, algorithm.samples / state.rate)
    return RateWindow([measured] * max(algorithm.samples, round(state.rate * seconds)), 0, seconds), seconds
