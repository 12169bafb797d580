"""The fixed windows of the second article (INCRBY and EXPIRE, the client's second in the key)."""

import pytest

from headgate import InvalidRule, Limiter
from headgate.algorithms import fixed_window as story
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.published_scripts.replay_timeline import KEY, defect_answers, key_ttls, replay_answers
from tests.servers import RedisServer


def fw1_boundary_double(entry: RecordedDefect, server: RedisServer) -> None:
    """Any fixed window doubles at its edge, and ours says so; sliding ones do not."""
    assert sum(defect_answers("5/s fixed", entry, server)) == 10
    assert "2 * amount" in str(story.__doc__)
    for limit in ("5/s sliding", "5/s log"):
        assert defect_answers(limit, entry, server) == [1, 1, 1, 1, 1, 0] + [0] * 6, limit


def fw2_boundary_double(entry: RecordedDefect, server: RedisServer) -> None:
    """The same."""
    fw1_boundary_double(entry, server)


def fw1_client_clock_skew(entry: RecordedDefect, server: RedisServer) -> None:
    """The server's clock defines one window for all clients: five of fifteen pass."""
    assert defect_answers("5/s fixed", entry, server) == [1] * 5 + [0] * 10


def fw2_client_clock_skew(entry: RecordedDefect, server: RedisServer) -> None:
    """The same."""
    fw1_client_clock_skew(entry, server)


def fw1_limit0_leaks_key(entry: RecordedDefect, server: RedisServer) -> None:
    """A limit of 0 is refused with a sentence; and what any limit refuses leaves no key."""
    with pytest.raises(InvalidRule, match="at least 1"):
        Limiter("0/s fixed", server.url)
    with Limiter("1/s fixed", server.url) as limiter:
        for step in entry.steps:
            server.clock.set_us(step.at_us)
            assert not limiter.take(KEY, 2)
    assert key_ttls(server) == {}


def fw1_preexisting_counter_never_expires(entry: RecordedDefect, server: RedisServer) -> None:
    """A count without a life (restored from somewhere) ends with its window all the same."""
    first, *steps = entry.steps
    assert replay_answers("5/s fixed", [first._replace(cost=3)], server) == [1]
    (key,) = key_ttls(server)
    server.call("PERSIST", key)
    *same_window, later = steps
    assert replay_answers("5/s fixed", same_window, server) == [1, 1]
    assert key_ttls(server)[key] == 1100, "what passes gives it a life again"
    server.call("PERSIST", key)
    assert replay_answers("5/s fixed", [same_window[-1]], server) == [0]
    assert replay_answers("5/s fixed", [later], server) == [1]


def fw2_ttl_refreshed_on_each_pass(entry: RecordedDefect, server: RedisServer) -> None:
    """A window ends by the clock, whatever flows: one call each 1.9 s always passes at five in two seconds."""
    assert defect_answers("5/2s fixed", entry, server) == [1] * 12


def fw1_counts_rejected(entry: RecordedDefect, server: RedisServer) -> None:
    """A refused call is not counted: its key stays byte for byte what it was."""
    *five, _, _, _ = entry.steps
    assert replay_answers("5/s fixed", five, server) == [1] * 5
    (key,) = key_ttls(server)
    before = server.call("GET", key)
    assert replay_answers("5/s fixed", entry.steps[5:], server) == [0, 0, 0]
    assert server.call("GET", key) == before
