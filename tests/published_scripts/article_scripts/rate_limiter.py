"""The rate limiter of the first article (acquire, init, delete), against the one we publish in its place."""

from fractions import Fraction

from tests.published_scripts.evalsha_client import EvalshaClient
from tests.published_scripts.fraction_token_bucket import ExactBucket
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.servers import BASE_US, RedisServer
from tests.servers.raw_redis_client import Reply


def rl_init_refills_every_time(entry: RecordedDefect, server: RedisServer) -> None:
    """An identical init changes nothing: two permits at that instant, however often a process starts."""
    assert _replayed(entry, server) == [1, 1, 1, -1, 1, -1, -1, -1]


def rl_fraction_lost_on_success(entry: RecordedDefect, server: RedisServer) -> None:
    """No fraction is lost.

    On the recorded timeline itself there is nothing to be kept: a bucket of one that is asked every 99 ms is full
    at 100 and overflows until 198. With room for two the rate comes out.
    """
    assert _replayed(entry, server) == _exactly(entry)
    gateway = EvalshaClient(server, "room for two")
    gateway.at(BASE_US).limiter("init", 2, 10)
    gateway.limiter("acquire", 2)
    passed = [gateway.at(step.at_us).limiter("acquire", 1) for step in entry.steps[2:]]
    assert passed.count(1) == 39, "3.96 s at 10/s"


def rl_fraction_lost_bucket_never_fills(entry: RecordedDefect, server: RedisServer) -> None:
    """At half the rate the bucket fills up, so the last call gets its two permits, and seven more are there."""
    answers = _replayed(entry, server)
    assert answers == _exactly(entry)
    assert answers[-1] == 1
    gateway = EvalshaClient(server)
    assert [gateway.limiter("acquire", 7), gateway.limiter("acquire", 1)] == [1, -1]


def rl_acquire_before_init_errors_and_pollutes(entry: RecordedDefect, server: RedisServer) -> None:
    """A key that was never initialised is refused, and stays as unknown as it was."""
    assert _replayed(entry, server) == [-1, -1]
    assert server.call("EXISTS", EvalshaClient(server).key) == 0


def rl_negative_apply_mints(entry: RecordedDefect, server: RedisServer) -> None:
    """A negative number is answered with an error and mints nothing: the next five are refused."""
    inits, five, minus, *after = _replayed(entry, server)
    assert (inits, five, after) == (1, 1, [-1, -1])
    assert str(minus).startswith("ERR headgate: acquire takes a whole number of permits")


def rl_no_ttl(entry: RecordedDefect, server: RedisServer) -> None:
    """A configured key lives until it is deleted, or, if told so, until it was idle for long enough."""
    gateway = EvalshaClient(server)
    *steps, year = entry.steps
    for step in steps:
        gateway.limiter(str(step.op), *step.args)
    assert gateway.at(year.at_us).pttl() == -1
    assert gateway.limiter("delete") == 1
    assert server.call("EXISTS", gateway.key) == 0

    gateway.at(BASE_US).limiter("init", 5, 1, 3600)
    gateway.limiter("acquire", 1)
    assert gateway.pttl() == 3_600_000
    gateway.at(year.at_us)
    assert server.call("EXISTS", gateway.key) == 0


def rl_clock_back_goes_negative(entry: RecordedDefect, server: RedisServer) -> None:
    """The nine permits that are held are still held when the clock has stepped back by 20 s."""
    assert _replayed(entry, server) == [1, 1, 1, 1, 1]


def rl_unknown_method_nil(entry: RecordedDefect, server: RedisServer) -> None:
    """A typing error is told; too many permits are refused; words are no number. And nothing was taken."""
    init, typo, six, word = _replayed(entry, server)
    assert (init, six) == (1, -1)
    assert str(typo).startswith("ERR headgate: unknown method 'acqire'")
    assert str(word).startswith("ERR headgate: acquire takes a whole number of permits, such as 1, not 'abc'")
    assert EvalshaClient(server).limiter("acquire", 5) == 1


def _replayed(entry: RecordedDefect, server: RedisServer) -> list[Reply | str]:
    gateway = EvalshaClient(server)
    return [gateway.at(step.at_us).limiter(str(step.op), *step.args) for step in entry.steps]


def _exactly(entry: RecordedDefect) -> list[int]:
    bucket = ExactBucket(entry.config["max"], Fraction(entry.config["rate"]))
    return [1 if step.op == "init" or bucket.take(step.at_us, step.args[0]) else -1 for step in entry.steps]
