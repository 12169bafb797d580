"""The sliding window in a sorted set, against our sliding log."""

import pytest

from headgate import CorruptState, Limiter
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.published_scripts.replay_timeline import KEY, defect_answers, key_ttls, replay_answers
from tests.servers import RedisServer

SECOND = 1_000_000


def zs_as_printed_fails(entry: RecordedDefect, server: RedisServer) -> None:
    """Ours runs as it is shipped."""
    (step,) = entry.steps
    assert replay_answers("5/s log", [step._replace(cost=1)], server) == [1]


def zs_same_timestamp_overwrite(entry: RecordedDefect, server: RedisServer) -> None:
    """Units of one instant are all counted: five of a hundred pass."""
    assert sum(replay_answers("5/s log", entry.steps * 25, server)) == 5


def zs_fast_clock_wipes_window(entry: RecordedDefect, server: RedisServer) -> None:
    """A client whose clock is ahead wipes nothing: the server's clock decides. Five pass within the second."""
    honest = [step._replace(at_us=step.at_us - 2 * SECOND) if step.op else step for step in entry.steps]
    assert replay_answers("5/s log", honest, server) == [1] * 5 + [0] * 9


def zs_score_precision(entry: RecordedDefect, server: RedisServer) -> None:
    """Instants are whole microseconds, kept exactly: a unit leaves one period later and not a tick earlier."""
    start = entry.steps[0].at_us
    one = entry.steps[0]._replace(cost=1)
    times = [start + offset for offset in (1, 127, 128, 255)]
    assert replay_answers("4/s log", [one._replace(at_us=at_us) for at_us in times], server) == [1] * 4
    for at_us in times:
        early, due = one._replace(at_us=at_us + SECOND - 1), one._replace(at_us=at_us + SECOND)
        assert replay_answers("4/s log", [early, due], server) == [0, 1]


def zs_boundary_note(entry: RecordedDefect, server: RedisServer) -> None:
    """Semantics, and ours too: a unit that is exactly one period old has left."""
    assert defect_answers("1/s log", entry, server) == [1, 0, 1]


def zs_single_request_never_expires(entry: RecordedDefect, server: RedisServer) -> None:
    """A caller that was seen once leaves a key that dies with its window."""
    call, year = entry.steps
    assert replay_answers("5/s log", [call], server) == [1]
    assert list(key_ttls(server).values()) == [1100]
    server.clock.set_us(year.at_us)
    assert key_ttls(server) == {}


def zs_pcall_hides_wrongtype(entry: RecordedDefect, server: RedisServer) -> None:
    """A key that holds something else is told as just that, and is left as it is."""
    with Limiter("5/s log", server.url) as limiter:
        assert limiter.take(KEY)
        (key,) = key_ttls(server)
        server.call("DEL", key)
        server.call("RPUSH", key, "not ours")
        with pytest.raises(CorruptState, match="holds a value that headgate did not write"):
            limiter.take(KEY)
    assert server.call("LRANGE", key, 0, -1) == [b"not ours"]
