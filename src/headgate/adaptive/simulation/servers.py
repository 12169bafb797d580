"""Simulated servers: how long calls take when several are in flight.

Each server has `next_ns`, when its next call ends (infinity if none), `add` and `pop`. Calls are opaque to it.

    SharedThreads    threads that calls share in slices so thin that they are a continuous quantity
    SlicedThreads    threads that are taken for one slice of a call at a time, first come, first served
    DelayServer      a delay that grows with the calls in flight, and answers "retry later" above a bound
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Final, Protocol

# From so many slices on, a call's work is shared continuously: that differs by less than a slice, and is faster.
CONTINUOUS_SLICES: Final = 20

ANSWERED: Final = "answered"
DEFERRED: Final = "deferred"
_NS_PER_SECOND = 1e9
_NEWTON_STEPS = 50
_LONGEST_NS = 366 * 86_400 * _NS_PER_SECOND  # a delay that is longer has no end


class Server(Protocol):
    """A simulated server."""

    next_ns: float
    in_flight: int

    def add(self, now_ns: float, call: Any, work_ns: float) -> None:
        """Begins a call."""

    def pop(self) -> tuple[Any, str]:
        """Ends the call that is due at `next_ns`, and returns it with its result."""

    def set_threads(self, now_ns: float, threads: int) -> None:
        """Changes the number of threads."""


class _WorkClass:
    """The calls in flight that have the same work. All progress at the same pace, so they end in their order."""

    __slots__ = ("calls", "progress", "rate", "work_ns")

    def __init__(self, work_ns: float) -> None:
        self.work_ns = work_ns
        self.progress = 0.0  # of a call that was there from the beginning, in whole works
        self.rate = 0.0  # works per nanosecond
        self.calls: deque[tuple[float, Any]] = deque()  # with the progress at which each ends


class SharedThreads:
    """Threads that all calls share. A call never uses more than one thread; if there are more calls than threads,
    they get slices in turn, first come, first served."""

    def __init__(self, threads: int) -> None:
        self.threads: int = threads
        self.next_ns: float = inf
        self.in_flight: int = 0
        self._now_ns = 0.0
        self._classes: list[_WorkClass] = []
        self._next: _WorkClass | None = None

    def add(self, now_ns: float, call: Any, work_ns: float) -> None:
        self._advance(now_ns)
        work = next((each for each in self._classes if each.work_ns == work_ns), None)
        if work is None:
            work = _WorkClass(work_ns)
            self._classes.append(work)
        work.calls.append((work.progress + 1.0, call))
        self.in_flight += 1
        self._schedule()

    def pop(self) -> tuple[Any, str]:
        work = self._next
        assert work is not None
        self._advance(self.next_ns)
        _, call = work.calls.popleft()
        if not work.calls:
            self._classes.remove(work)
        self.in_flight -= 1
        self._schedule()
        return call, ANSWERED

    def set_threads(self, now_ns: float, threads: int) -> None:
        self._advance(now_ns)
        self.threads = threads
        self._schedule()

    def _advance(self, now_ns: float) -> None:
        elapsed_ns = now_ns - self._now_ns
        self._now_ns = now_ns
        for work in self._classes:
            work.progress += work.rate * elapsed_ns

    def _schedule(self) -> None:
        self._share()
        self.next_ns, self._next = inf, None
        for work in self._classes if self.threads else ():
            ends_ns = self._now_ns + max(0.0, work.calls[0][0] - work.progress) / work.rate
            if ends_ns < self.next_ns:
                self.next_ns, self._next = ends_ns, work

    def _share(self) -> None:
        """Gives every class its pace. Before each slice a call waits equally long, whatever its work is; w is all
        that waiting of a call. Then a call takes w + work, and the part of it that it runs adds up to the threads:
        the sum of work / (w + work) over all calls is their number."""
        classes = self._classes
        if not self.threads:
            for work in classes:
                work.rate = 0.0
            return
        wait_ns = 0.0
        if self.in_flight > self.threads:
            if len(classes) == 1:
                wait_ns = classes[0].work_ns * (self.in_flight / self.threads - 1.0)
            else:
                wait_ns = self._wait_ns()
        for work in classes:
            work.rate = 1.0 / (wait_ns + work.work_ns)

    def _wait_ns(self) -> float:
        """Solves for the wait by Newton's method, which approaches it from below."""
        wait_ns = 0.0
        for _ in range(_NEWTON_STEPS):
            excess, slope = -float(self.threads), 0.0
            for work in self._classes:
                taken_ns = wait_ns + work.work_ns
                excess += len(work.calls) * work.work_ns / taken_ns
                slope += len(work.calls) * work.work_ns / (taken_ns * taken_ns)
            if excess < 1e-9:
                break
            wait_ns += excess / slope
        return wait_ns


class SlicedThreads:
    """Threads that are taken for a slice at a time; a call waits for its next slice at the end of the queue."""

    def __init__(self, threads: int, slices: int) -> None:
        self.threads: int = threads
        self.next_ns: float = inf
        self.in_flight: int = 0
        self._slices = slices
        self._number = 0
        self._waiting: deque[tuple[Any, float, int]] = deque()  # call, nanoseconds of a slice, slices left
        self._running: list[tuple[float, int, Any, float, int]] = []

    def add(self, now_ns: float, call: Any, work_ns: float) -> None:
        self.in_flight += 1
        self._waiting.append((call, work_ns / self._slices, self._slices))
        self._fill(now_ns)

    def pop(self) -> tuple[Any, str]:
        """Ends a slice; the call is None if it has more of them."""
        now_ns, _, call, slice_ns, left = heappop(self._running)
        if left > 1:
            self._waiting.append((call, slice_ns, left - 1))
            call = None
        else:
            self.in_flight -= 1
        self._fill(now_ns)
        return call, ANSWERED

    def set_threads(self, now_ns: float, threads: int) -> None:
        self.threads = threads
        self._fill(now_ns)

    def _fill(self, now_ns: float) -> None:
        running, waiting = self._running, self._waiting
        while waiting and len(running) < self.threads:
            call, slice_ns, left = waiting.popleft()
            self._number += 1
            heappush(running, (now_ns + slice_ns, self._number, call, slice_ns, left))
        self.next_ns = running[0][0] if running else inf


class DelayServer:
    """A delay that grows with the calls in flight, after the server of Vector's tests of adaptive concurrency."""

    def __init__(self, settings: dict[str, float], random: Random) -> None:
        self.next_ns: float = inf
        self.in_flight: int = 0
        self._delay_ns = settings["delay"] * _NS_PER_SECOND
        self._scale = settings.get("scale", 0.0)
        self._jitter = settings.get("jitter", 0.0)
        self._knee_start = settings.get("knee_start", inf)
        self._knee_exp = settings.get("knee_exp", self._scale + 1.0)
        self._defer_above = settings.get("defer_above", inf)
        self._drop_above = settings.get("drop_above", inf)
        self._defer_rate = settings.get("defer_rate", inf)
        self._random = random
        self._number = 0
        self._recent: deque[float] = deque()  # the calls of the last second
        self._running: list[tuple[float, int, Any, str]] = []

    def add(self, now_ns: float, call: Any, work_ns: float) -> None:
        recent = self._recent
        recent.append(now_ns)
        while recent[0] <= now_ns - _NS_PER_SECOND:
            recent.popleft()
        level = self.in_flight + 1
        if level > self._drop_above:
            return  # never answered: the client gives up
        result: str = ANSWERED
        if level > self._defer_above or len(recent) > self._defer_rate:
            result, level = DEFERRED, 1
        self.in_flight += 1
        jitter = self._jitter * self._random.expovariate(1.0) if self._jitter else 0.0
        delay_ns = self._delay_ns * (self._growth(level) + jitter)
        ends_ns = now_ns + delay_ns if delay_ns < _LONGEST_NS else inf
        self._number += 1
        heappush(self._running, (ends_ns, self._number, call, result))
        self.next_ns = self._running[0][0]

    def _growth(self, level: int) -> float:
        """Returns how many times its delay a call takes that is one of so many."""
        try:
            knee: float = self._knee_exp ** max(0.0, level - self._knee_start)
        except OverflowError:
            knee = inf
        return self._scale * (level - 1) + knee

    def pop(self) -> tuple[Any, str]:
        _, _, call, result = heappop(self._running)
        self.in_flight -= 1
        self.next_ns = self._running[0][0] if self._running else inf
        return call, result

    def set_threads(self, now_ns: float, threads: int) -> None:
        raise NotImplementedError("A server with a delay has no threads.")
