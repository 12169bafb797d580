"""The adaptive limit of a rule: what moves, by which response time, and between which bounds.

    {adaptive: concurrency}                                            calls in flight; finds the number by itself
    {adaptive: concurrency, target: p99 200ms, between: [5, 500]}      calls in flight that hold the P99
    {adaptive: rate, target: p90 250ms, between: [10, 500]}            calls per second that hold the P90

It is a value like every limit, and knows no state: enforcement/adaptive_rules.py learns and enforces. With
priorities, a rule has one of these for each class of calls; they differ in `priority` alone and share what is
learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, get_args

from headgate.adaptive.adaptive_concurrency import AdaptiveConcurrency
from headgate.adaptive.target_concurrency import TargetConcurrency
from headgate.adaptive.target_rate import BURST_SECONDS, TargetRate
from headgate.adaptive.window import DEFAULT_START, LimitAlgorithm
from headgate.algorithms.durations import format_duration, in_words
from headgate.algorithms.limit import EXACT, SECOND, Description, Limit
from headgate.errors import InvalidRule

AdaptiveKind = Literal["concurrency", "rate"]

ADAPTIVE_KINDS: tuple[AdaptiveKind, ...] = get_args(AdaptiveKind)
DEFAULT_BOUNDS: Final = (1, 1000)
MAX_BOUND: Final = 1_000_000
MIN_PERCENTILE, MAX_PERCENTILE = 50, 99.9


class ResponseTarget(NamedTuple):
    """A percentile of response times, and what it should be at most."""

    percentile: float
    us: int

    def __str__(self) -> str:
        return f"p{self.percentile:g} {format_duration(self.us)}"

    @property
    def in_words(self) -> str:
        return f"P{self.percentile:g} of {in_words(self.us)}"

    @property
    def quantile(self) -> float:
        return round(self.percentile / 100, 6)

    @property
    def seconds(self) -> float:
        return self.us / SECOND


class AdaptiveLimit(Limit):
    """A limit that follows the service: on calls in flight, or on calls per second.

    >>> AdaptiveLimit("concurrency", ResponseTarget(99, 200_000), (5, 500))
    <AdaptiveLimit adaptive concurrency p99 200ms between 5 and 500>
    """

    __slots__ = ("bounds", "classes", "kind", "priority", "target")
    algorithm = "adaptive"
    is_held = True
    is_advertised = False
    no_bucket = "it moves with the service"

    def __init__(
        self,
        kind: AdaptiveKind,
        target: ResponseTarget | None = None,
        bounds: tuple[int, int] = DEFAULT_BOUNDS,
        priority: int = 0,
        classes: int = 1,
    ) -> None:
        self.kind: AdaptiveKind = kind
        self.target: ResponseTarget | None = target
        self.bounds: tuple[int, int] = bounds
        self.priority: int = priority  # of the call; 0 is the most important
        self.classes: int = classes
        low, high = bounds
        if low > high:
            raise InvalidRule(f"between has its bounds in the wrong order: write between: [{high}, {low}].")
        if kind == "rate" and target is None:
            raise InvalidRule("A rate needs a target to follow: add target: p99 200ms.")
        numbers = (0.0, 0) if target is None else target
        self.args: tuple[int | float, ...] = (ADAPTIVE_KINDS.index(kind), *numbers, *bounds, priority, classes)
        words = [f"adaptive {kind}", *([] if target is None else [str(target)]), f"between {low} and {high}"]
        self.text: str = " ".join(words) + (f", priority {priority + 1} of {classes}" if classes > 1 else "")

    @property
    def max_cost(self) -> int:
        return EXACT  # a call is a call, whatever it costs elsewhere

    @property
    def units_at_once(self) -> int:
        return self.bounds[1]

    def units_at(self, current: int) -> int:
        """Returns how many calls can begin at once while this is the limit, if none are in flight."""
        return current if self.kind == "concurrency" else max(1, int(current * BURST_SECONDS))

    @property
    def unit(self) -> str:
        """The unit that it counts, in words."""
        return "calls in flight" if self.kind == "concurrency" else "calls per second"

    def _share(self, units: int, sharers: int) -> Limit:
        raise InvalidRule("An adaptive limit has no shares.")

    def algorithm_settings(self) -> LimitAlgorithm[Any] | TargetRate:
        """Returns the algorithm that moves it."""
        low, high = self.bounds
        if self.target is None:
            return AdaptiveConcurrency(floor=low, ceiling=high)
        target = self.target
        if self.kind == "rate":
            return TargetRate(target.seconds, target.quantile, floor=float(low), ceiling=float(high))
        return TargetConcurrency(target.seconds, target.quantile, floor=low, ceiling=high)

    def explain(self) -> Description:
        low, high = self.bounds
        start = high if self.kind == "rate" else max(low, min(high, DEFAULT_START))
        yield (
            "algorithm",
            f"adaptive: a limit on {self.unit} that follows the response times of the calls that pass",
        )
        yield "starts", f"at {start}, and stays from {low} to {high}"
        if self.target is None:
            yield "falls", "while more calls in flight only make them slower, and when calls are dropped"
            yield "rises", "while it is used up and calls take no longer than without a queue"
        else:
            part, step = ("15 %", f"{0.02 * high:g}") if self.kind == "rate" else ("10 %", "5 %, at least by 1,")
            name = f"P{self.target.percentile:g}"
            span = in_words(self.target.us)
            yield (
                "falls",
                f"by {part} where the {name} of a window is above {span}; twice that above twice the target",
            )
            yield (
                "rises",
                (f"by {step} where it is more than 15 % below, if it was used up; twice that below half of it"),
            )
            yield "stays", "in between, and where it was not used up"
            yield "window", self._window()
        yield "dropped", "calls that time out, or are answered with 503 or 504, count as slower than any other"
        yield (
            "refused",
            "the calls above the limit, at once, with status 503"
            + (f"; of {self.classes} classes the least important first" if self.classes > 1 else ""),
        )
        yield "process", "each learns by itself, from the calls that it serves; with where: cluster they agree"

    def gateway_fields(self) -> Iterator[tuple[str, object]]:
        if self.target is not None:
            yield "quantile", f"{self.target.quantile!r}"

    def _window(self) -> str:
        algorithm = self.algorithm_settings()
        if isinstance(algorithm, TargetRate):
            return f"at least {algorithm.min_window:g} s and {algorithm.samples} calls"
        size = algorithm.window_of(algorithm.start())
        return f"at least {in_words(size.length_ns / 1000)} and {size.samples} calls; fewer tell no percentile"
