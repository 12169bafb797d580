"""The token bucket of the second article (lastTimestamp, tokensRemaining, milliseconds per token)."""

from headgate import TokenBucket
from tests.published_scripts.fraction_token_bucket import ExactBucket
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.published_scripts.replay_timeline import defect_answers, key_ttls, replay_answers
from tests.servers import RedisServer


def tb_field_mismatch_bricks_key(entry: RecordedDefect, server: RedisServer) -> None:
    """A refill is just another call: nothing is ever bricked."""
    assert defect_answers("10/s", entry, server) == [1] * 8


def tb_fixedname_ttl_refill_burst(entry: RecordedDefect, server: RedisServer) -> None:
    """A key lives until its bucket is full, so its death hands out nothing: ten pass around 1000 ms."""
    answers = defect_answers("10/s", entry, server)
    bucket = ExactBucket(10, 10)
    assert answers == [int(bucket.take(step.at_us, step.cost)) for step in entry.steps]
    assert sum(answers[1:]) == 10
    assert list(key_ttls(server).values()) == [1099], "full again 1 s after 1000 ms; clocks may swing by 100"


def tb_interval_per_token_floor(entry: RecordedDefect, server: RedisServer) -> None:
    """300/s is one in 3333.3 us: not after 3 ms, nor after 3333 us, but at 3334 us."""
    drained, early = entry.steps
    steps = [drained._replace(cost=300), early, early._replace(at_us=drained.at_us + 3333)]
    assert replay_answers("300/s", steps, server) == [1, 0, 0]
    assert replay_answers("300/s", [early._replace(at_us=drained.at_us + 3334)], server) == [1]


def tb_limit_over_interval_div0(entry: RecordedDefect, server: RedisServer) -> None:
    """2000/s is an ordinary limit: two come back each millisecond."""
    first, second, third = entry.steps
    steps = [first._replace(cost=2000), first, second._replace(cost=2), second, third._replace(cost=2), third]
    assert replay_answers("2000/s", steps, server) == [1, 0, 1, 0, 1, 0]


def tb_lenient_overgrant(entry: RecordedDefect, server: RedisServer) -> None:
    """Time is granted once: 10 + 9 in the first second."""
    limit = TokenBucket(entry.config["limit"], entry.config["interval_ms"] / 1000)
    answers = defect_answers(limit, entry, server)
    bucket = ExactBucket(10, 10)
    assert answers == [int(bucket.take(step.at_us, step.cost)) for step in entry.steps]
    assert sum(answers) == 19
