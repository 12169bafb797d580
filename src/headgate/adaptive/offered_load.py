"""Measures the load of a service: the calls that come, in those that it can work on.

Calls come at random. A service with a load of 0.8 works on less than it could, and still has more calls than
threads every few seconds: they pass by themselves, and to refuse some of them would help nobody. With a load of
1.2 the same number of calls in flight is an overload. Response times look alike in both, so the load is measured.

The capacity is what was answered per second while there was a queue (calls in flight / response time, by Little's
law), so it does not depend on how long a call should take. The load is what comes per second, refused or not,
divided by that. It is averaged over about a thousand calls, because a random stream of calls varies by 3 % over
so many, and over at most ten seconds, so that an idle night is soon over.
"""

from __future__ import annotations

from math import exp, expm1, inf, log
from typing import NamedTuple

from headgate.adaptive.window import Window

_CALLS, _LAST_CALLS = 800, 100  # over which what comes is averaged; the last ones show a sudden spike
_SECONDS = 30.0  # after which an average is forgotten also if fewer calls came
_SPIKE = 0.8  # of the average of the last calls, which varies by 7 %
_CAPACITY_WEIGHT = 0.3  # of a window
_QUEUE, _LONG_QUEUE = 1.15, 1.6  # times the base: a window that tells the capacity, and one that tells it well
_FEW = 0.55  # of the calls in flight at which the capacity was seen
_FORGET = 0.99  # of that level, with every window that does not tell the capacity
_LOST = 0.7  # of the capacity: less than that is no noise
_SURE, _DOUBTFUL = 0.80, 0.94  # a load is surely healthy up to the first, and no longer from the second on
_RARE = 7.0  # logarithm of 1 / the part of calls that may meet a longer queue


class OfferedLoad(NamedTuple):
    """The offered load, now and of late, and the capacity, in calls per nanosecond; 0 if not known yet."""

    rate: float = 0.0
    last_rate: float = 0.0
    capacity: float = 0.0
    calls: float = 0.0  # that came, as far as the average needs to know
    level: float = 0.0  # the calls in flight at which the capacity was seen

    def with_window(self, window: Window, in_flight: float, base_ns: float) -> OfferedLoad:
        """Returns the load with one more window; `base_ns` is how long calls take without a queue."""
        rate, last_rate, capacity, calls, level = self
        if window.length_ns > 0 and window.arrived:
            came, seconds = window.arrived, window.length_ns / 1e9
            calls = min(_CALLS, calls + came)
            rate += max(came / calls, -expm1(-seconds / _SECONDS)) * (came / window.length_ns - rate)
            last_rate += min(1.0, max(came / calls, came / _LAST_CALLS)) * (came / window.length_ns - last_rate)
        answered = in_flight / window.response_ns
        ratio = window.typical_ns / base_ns * exp(-2.0 * window.spread)  # at the least
        queueing = ratio > _QUEUE and in_flight >= _FEW * level  # fewer are slow for another reason than a queue
        if not capacity or (queueing and answered < _LOST * capacity):
            capacity, level = (answered, in_flight) if queueing else (capacity, level)
        elif queueing or answered > 1.1 * capacity:
            sure = min(1.0, (ratio - 1.0) / (_LONG_QUEUE - 1.0)) if queueing else 0.5
            capacity += _CAPACITY_WEIGHT * sure**2 * (answered - capacity)
            level += _CAPACITY_WEIGHT * sure**2 * (in_flight - level)
        else:
            level *= _FORGET
        return OfferedLoad(rate, last_rate, capacity, calls, level)

    @property
    def ratio(self) -> float:
        """The load; infinite as long as it is not known."""
        return max(self.rate, _SPIKE * self.last_rate) / self.capacity if self.rate and self.capacity else inf

    @property
    def burst_queue(self) -> float:
        """The calls that may queue in a random burst of a healthy load; 0 if the load is not healthy."""
        load = self.ratio
        if load >= _DOUBTFUL:
            return 0.0
        share = min(1.0, (_DOUBTFUL - load) / (_DOUBTFUL - _SURE))
        return share * _RARE / -log(load)
