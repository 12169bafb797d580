"""Opens the engines on which cases are replayed, each on a clock that the test sets."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from headgate import Limit, Limiter, ManualClock, open_engine
from tests.servers import BASE_US, KINDS, DrivenClock, RedisServer

# Generous: the machine may be busy, and a timeout is not what is examined here.
_PATIENT = "?deadline=30s"


class ReplayEngine:
    """An engine, its clock, and a fresh limiter for each case."""

    _numbers = count()

    def __init__(self, name: str, url: str, driven: DrivenClock | None = None) -> None:
        self.name = name
        self.clock = ManualClock(BASE_US)
        # A server counts by its own clock, so its URL takes none; ours moves along, for those who sleep on it.
        self._engine = url if driven is None else open_engine(url)
        self._driven = driven

    def at(self, now_us: int) -> None:
        """Make it this instant, forwards or backwards."""
        self.clock.set_us(now_us)
        if self._driven is not None:
            self._driven.set_us(now_us)

    def limiter(self, limit: Limit) -> Limiter:
        """A limiter that nobody has used yet; the caller closes it."""
        return Limiter(limit, self._engine, clock=self.clock, name=self.fresh_name())

    def fresh_name(self) -> str:
        """A name that no count is filed under yet."""
        return f"case {next(self._numbers)}"


def memory_engine() -> ReplayEngine:
    return ReplayEngine("memory", "memory://")


def server_engine(server: RedisServer) -> ReplayEngine:
    """A driven server."""
    return ReplayEngine(server.kind, server.url + _PATIENT, server.clock)


@contextmanager
def all_engines() -> Iterator[list[ReplayEngine]]:
    """In memory, on a Redis and on a Valkey of our own."""
    with ExitStack() as stack:
        places = [memory_engine()]
        for kind in KINDS:
            clock = stack.enter_context(DrivenClock(BASE_US))
            places.append(server_engine(stack.enter_context(RedisServer(kind, driven=clock))))
        yield places
