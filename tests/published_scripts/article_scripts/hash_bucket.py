"""The hash bucket (bucket_cap, rate, period), against the one we publish in its place."""

from headgate import Limiter
from tests.published_scripts.evalsha_client import EvalshaClient
from tests.published_scripts.fraction_token_bucket import ExactBucket
from tests.published_scripts.recorded_defects import RecordedDefect
from tests.servers import BASE_US, RedisServer
from tests.servers.raw_redis_client import Reply


def hb_precharge_is_dead_code(entry: RecordedDefect, server: RedisServer) -> None:
    """A bucket promises cap + rate * t and keeps it to the permit; who wants 600 in any minute takes a log."""
    assert _replayed(entry, server) == [1, 0, 1, 0, 1, 0], "600 + 10 * 59.9 = 1199 in 59.9 s, and not one more"
    limiter = Limiter("600/minute log", server.url)
    passed = 0
    for step in entry.steps:
        server.clock.set_us(step.at_us)
        passed += step.cost if limiter.take("any minute", step.cost) else 0
    limiter.close()
    assert passed == 600


def hb_fraction_lost_even_on_denial(entry: RecordedDefect, server: RedisServer) -> None:
    """No fraction is lost, and a denial changes nothing: two permits each 199 ms are 10/s but for a hair."""
    answers = _replayed(entry, server)
    bucket = ExactBucket(10, 10)
    assert answers == [int(bucket.take(step.at_us, step.cost)) for step in entry.steps]
    assert 2 * answers[1:].count(1) == 78, "7.96 s at 10/s, the last permit of an odd number aside"


def hb_time_zero_is_uninitialised(entry: RecordedDefect, server: RedisServer) -> None:
    """No time means anything special: a bucket that is known is known, be it 1970."""
    gateway = _configured(entry, server)
    server.clock.set_us(1)  # 0 would let the real clock through
    assert [gateway.bucket(step.cost, 0) for step in entry.steps] == [1, 0, 0, 0, 0]
    server.clock.set_us(BASE_US)


def hb_negative_cost_mints(entry: RecordedDefect, server: RedisServer) -> None:
    """A negative number is answered with an error and mints nothing."""
    ten, minus, *after = _replayed(entry, server)
    assert (ten, after) == (1, [0, 0])
    assert str(minus).startswith("ERR headgate: a call takes a whole number of permits")


def hb_no_ttl(entry: RecordedDefect, server: RedisServer) -> None:
    """The count lives in the operator's key: it goes when that goes, and nothing of ours is left anywhere."""
    gateway = _configured(entry, server)
    call, year = entry.steps
    gateway.at(call.at_us).bucket(call.cost)
    assert gateway.pttl() == -1, "configured by name: it lives until the operator says otherwise"
    server.call("PEXPIRE", gateway.key, 60_000)
    assert gateway.bucket(call.cost) == 1
    assert gateway.pttl() == 60_000, "and we do not object"
    gateway.at(year.at_us)
    assert server.call("EXISTS", gateway.key) == 0
    keys = server.call("KEYS", "*")
    assert isinstance(keys, list)
    assert {key for key in keys if isinstance(key, bytes) and not key.startswith(b"lua:sha1:")} == {b"hg2:scripts"}


def hb_unconfigured_minus1(entry: RecordedDefect, server: RedisServer) -> None:
    """Semantics: -1 where nothing is configured, and nothing is written there."""
    gateway = EvalshaClient(server)
    assert [gateway.bucket(step.cost) for step in entry.steps] == [-1]
    assert server.call("EXISTS", gateway.key) == 0


def hb_float_floor_one_short(entry: RecordedDefect, server: RedisServer) -> None:
    """0.29 per second are 29 in 100 s, exactly; the next 29 are there 100 s later."""
    assert _replayed(entry, server) == [1, 1, 0]


def hb_one_per_minute_note(entry: RecordedDefect, server: RedisServer) -> None:
    """Semantics: 0.016666666666666666 is one a minute, to the microsecond."""
    assert _replayed(entry, server) == [1, 0, 1, 0, 1]
    gateway = _configured(entry, server, key="to the microsecond")
    times = (0, 59_999_999, 60_000_000, 119_999_999, 120_000_000)
    assert [gateway.at(BASE_US + at_us).bucket(1) for at_us in times] == [1, 0, 1, 0, 1]


def _configured(entry: RecordedDefect, server: RedisServer, key: str = "uri:/buy") -> EvalshaClient:
    gateway = EvalshaClient(server, key)
    config = {"cap": 10, "rate": 10, **entry.config}
    gateway.configure(bucket_cap=config["cap"], rate=config["rate"], period=config.get("period_s", 1))
    return gateway


def _replayed(entry: RecordedDefect, server: RedisServer) -> list[Reply | str]:
    """Every call says that it is 1970: the caller's time is not asked for."""
    gateway = _configured(entry, server)
    return [gateway.at(step.at_us).bucket(step.cost, 0) for step in entry.steps]
