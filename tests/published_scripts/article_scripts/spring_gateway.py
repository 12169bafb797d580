"""Spring Cloud Gateway's script, of 2019 and of today, against our token bucket."""

from headgate import TokenBucket
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.published_scripts.replay_timeline import defect_answers, key_ttls, replay_answers
from tests.servers import RedisServer


def gw2019_ttl0_error(entry: RecordedDefect, server: RedisServer) -> None:
    """A bucket that fills in a tenth of a second is an ordinary one: it answers, and it limits."""
    assert defect_answers(_limit(entry), entry, server) == [1, 1, 1]
    assert list(key_ttls(server).values()) == [130], (
        "three permits come back in 30 ms, and clocks may swing by 100"
    )


def scg_ttl0_unlimited(entry: RecordedDefect, server: RedisServer) -> None:
    """It limits: ten of two hundred pass at one instant."""
    (step, *_) = entry.steps
    assert sum(replay_answers(_limit(entry), [step] * 200, server)) == 10


def gw2019_second_granularity(entry: RecordedDefect, server: RedisServer) -> None:
    """Time is microseconds: the millisecond around a full second brings a hundredth of a permit, not ten."""
    assert defect_answers(_limit(entry), entry, server) == [1, 0, 0]


def gw2019_clock_back_mints(entry: RecordedDefect, server: RedisServer) -> None:
    """No caller passes a time, so none can wind the clock back: it is the same instant for all of them."""
    at_us = entry.steps[0].at_us
    assert replay_answers(_limit(entry), [step._replace(at_us=at_us) for step in entry.steps], server) == [
        1,
        0,
        0,
        0,
    ]


def _limit(entry: RecordedDefect) -> TokenBucket:
    return TokenBucket(entry.config["rate"], 1, entry.config["cap"])
