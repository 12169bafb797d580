"""python -m tests.engines.redis.signal_soak [BURSTS]: calls in short bursts, each under a signal handler that
raises.

The main thread asks; a timer's signal comes at a random moment, and sometimes a second one while the first
exception is on its way. Other threads ask all the while, so the main thread sends for them and they for it. After
each burst nothing is interrupted, and a call must succeed; in the end every connection must be free.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable
from headgate.limiter import Limiter
from tests.servers import RedisServer

DEADLINE = "20s"
LONGEST_S = 0.0004  # before a signal comes: about as long as a few calls
OTHERS = 2  # threads beside the main one
UNTIMELY = "the thread that asked was interrupted"  # what another caller may be told, and nothing else


class SignalInterrupt(BaseException):
    """Raised by the signal handler, as Celery raises at its soft time limit."""


@dataclass
class SoakReport:
    """Counts of what happened during the soak."""

    bursts: int = 0
    interrupted: int = 0
    calls: int = 0  # that came to an end, of all threads
    slowest: float = 0.0  # seconds that a call after a burst took
    errors: Counter[str] = field(default_factory=Counter)  # of calls that were not interrupted themselves
    wrong_replies: Counter[str] = field(default_factory=Counter)


class SignalBursts:
    """The main thread's part."""

    def __init__(self, limiter: Limiter, seed: int) -> None:
        self._limiter, self._random = limiter, random.Random(seed)
        self._raises = 0  # how many more times the handler may raise
        self.report = SoakReport()

    def run(self, bursts: int) -> SoakReport:
        done = threading.Event()
        others = [threading.Thread(target=self._take_until, args=[n, done]) for n in range(1, OTHERS + 1)]
        was = signal.signal(signal.SIGALRM, self._handle)
        for thread in others:
            thread.start()
        try:
            for _ in range(bursts):
                self._burst()
                began = time.monotonic()
                self._take(0)
                self.report.slowest = max(self.report.slowest, time.monotonic() - began)
                self.report.bursts += 1
        finally:
            done.set()
            for thread in others:
                thread.join()
            signal.signal(signal.SIGALRM, was)
        return self.report

    def _burst(self) -> None:
        calls = self._random.randint(1, 4)
        try:
            try:
                self._raises = self._random.choice((1, 1, 1, 2))
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, self._random.uniform(0, LONGEST_S)))
                for _ in range(calls):
                    self._take(0)
            finally:
                self._raises = 0
        except SignalInterrupt:
            self.report.interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, *_: object) -> None:
        if self._raises:
            self._raises -= 1
            if self._raises:
                signal.setitimer(signal.ITIMER_REAL, max(1e-6, self._random.uniform(0, LONGEST_S / 10)))
            raise SignalInterrupt

    def _take_until(self, n: int, done: threading.Event) -> None:
        while not done.is_set():
            self._take(n)

    def _take(self, n: int) -> None:
        """Key n was charged with n units, so whoever gets another's reply can tell."""
        try:
            charged = 10_000 - self._limiter.peek(f"key {n}").remaining
        except EngineUnavailable as error:
            self.report.errors[str(error)] += 1
        else:
            self.report.calls += 1  # two threads may count one at the same time: about so many
            if charged != n:
                self.report.wrong_replies[f"{n} got the reply of {charged}"] += 1


def run(url: str, bursts: int, seed: int) -> list[str]:
    """So many bursts; what was wrong, in words."""
    with Limiter("10000/30d", f"{url}?deadline={DEADLINE}") as limiter:
        for n in range(OTHERS + 1):
            limiter.reset(f"key {n}")
            limiter.take(f"key {n}", n)
        report = SignalBursts(limiter, seed).run(bursts)
        failed, misled = sum(report.errors.values()), sum(report.wrong_replies.values())
        print(  # noqa: T201
            f"{report.bursts:,} bursts, {report.interrupted:,} interrupted. Of about {report.calls:,} calls that "
            f"were not, {failed} failed, {misled} got a wrong reply, the slowest took {report.slowest:.2f} s.",
            flush=True,
        )
        wrong = [f"a call was told: {error}" for error in report.errors if UNTIMELY not in error]
        wrong += [f"key {reply}" for reply in report.wrong_replies]
        if report.slowest > 10:
            wrong.append(f"a call took {report.slowest:.1f} s")
        if report.interrupted < bursts / 20:
            wrong.append(f"only {report.interrupted} of {bursts} bursts were interrupted")
        assert isinstance(limiter.engine, RedisEngine)
        (pool,) = limiter.engine._pools.values()
        wrong += [f"a connection is still in use by {entry.user}" for entry in pool._state.entries if entry.user]
    return wrong


def _print_unless_interrupted(what: sys.UnraisableHookArgs) -> None:
    """Keep quiet of signals that came within the callback of a weak reference, where nothing can be raised."""
    if what.exc_type is not SignalInterrupt:
        sys.__unraisablehook__(what)


def main(bursts: int) -> int:
    sys.unraisablehook = _print_unless_interrupted
    with RedisServer() as server:
        for done in range(0, bursts, 50_000):
            wrong = run(server.url, min(50_000, bursts - done), seed=done)
            if wrong:
                print("soak: this must not be:", *wrong, sep="\n  ", file=sys.stderr)  # noqa: T201
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
