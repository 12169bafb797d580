"""Many processes at one key, all let go at once: how many calls pass."""

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier

from headgate.limiter import Limiter

PROCESSES = 8


class HammerProcesses:
    """Processes that wait for the word."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def admitted(self, url: str, text: str, *, calls: int, cost: int = 1) -> int:
        """The calls that passed, of so many by each process."""
        return sum(self._pool.map(_take, [(url, text, calls, cost)] * PROCESSES, chunksize=1))


@contextmanager
def start_hammers() -> Iterator[HammerProcesses]:
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES, initializer=_remember, initargs=(spawn.Barrier(PROCESSES),)) as pool:
        yield HammerProcesses(pool)


_start: list[Barrier] = []


def _remember(start: Barrier) -> None:
    _start.append(start)


def _take(job: tuple[str, str, int, int]) -> int:
    url, text, calls, cost = job
    with Limiter(text, url) as limiter:
        limiter.peek("one key")  # the connection is open before the race begins
        # Everybody has one job each: whoever waits here keeps its process from taking a second one.
        _start[0].wait(60)
        return sum(limiter.take("one key", cost).allowed for _ in range(calls))
