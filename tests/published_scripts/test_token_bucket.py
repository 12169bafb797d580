"""The published token bucket as gateways call it: a hash that the operator writes, and a number."""

import random

import pytest

from tests.published_scripts.evalsha_client import EvalshaClient
from tests.published_scripts.fraction_token_bucket import ExactBucket
from tests.servers import BASE_US, RedisServer

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def gateway(driven_server: RedisServer) -> EvalshaClient:
    return EvalshaClient(driven_server, "uri:/buy")


def test_one_is_allowed_zero_is_refused_minus_one_is_not_configured(gateway: EvalshaClient) -> None:
    assert gateway.bucket(1) == -1
    assert gateway.hash() == {}
    gateway.configure(bucket_cap=2, rate=1, period=2)
    assert [gateway.bucket(1) for _ in range(3)] == [1, 1, 0]
    assert gateway.at(BASE_US + SECOND).bucket(1) == 1


def test_the_callers_time_is_ignored(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=1, rate=1)
    assert [gateway.bucket(1, time) for time in (0, 10**15, "soon", -1)] == [1, 0, 0, 0]


@pytest.mark.parametrize("rate", ["10", "0.29", "33.3", "1e-2"])
def test_it_is_a_token_bucket_to_the_microsecond(gateway: EvalshaClient, rate: str) -> None:
    steps, now_us, exact = random.Random(rate), BASE_US, ExactBucket(20, rate)
    gateway.configure(bucket_cap=20, rate=rate)
    for _ in range(150):
        now_us += int(steps.choice([0, 1, 999, 3 / float(exact.rate), 40 / float(exact.rate)]) * steps.random())
        cost = steps.choice([1, 1, 2, 5, 20])
        assert gateway.at(now_us).bucket(cost) == int(exact.take(now_us, cost))


def test_without_a_rate_the_bucket_fills_in_its_period(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=7, period=60)
    assert gateway.bucket(7) == 1
    assert gateway.at(BASE_US + 60 * SECOND - 1).bucket(7) == 0
    assert gateway.at(BASE_US + 60 * SECOND).bucket(7) == 1


def test_a_rate_counts_before_a_period(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=7, period=60, rate=7)
    assert gateway.bucket(7) == 1
    assert gateway.at(BASE_US + SECOND).bucket(7) == 1


def test_a_refusal_writes_nothing(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=2, rate=1)
    gateway.bucket(2)
    before, seen = gateway.hash(), gateway.writes()
    assert [gateway.bucket(cost) for cost in (1, 2, 3, 10**30)] == [0] * 4
    assert (gateway.hash(), gateway.writes()) == (before, seen)


def test_zero_permits_check_whether_one_could_be_had(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=1, rate=1)
    before = gateway.hash()
    assert [gateway.bucket(0), gateway.bucket(0), gateway.hash() == before] == [1, 1, True]
    gateway.bucket(1)
    assert gateway.bucket(0) == 0


@pytest.mark.parametrize("permits", ["-1", "1.5", "abc", "", "nan"])
def test_a_fractional_number_of_permits_is_refused(gateway: EvalshaClient, permits: str) -> None:
    gateway.configure(bucket_cap=5, rate=1)
    before = gateway.hash()
    sentence = f"ERR headgate: a call takes a whole number of permits, such as 1, not '{permits}'. It took none."
    assert gateway.bucket(permits) == sentence
    assert gateway.hash() == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bucket_cap": "0", "rate": "1"}, "bucket_cap must be a whole number of at least 1, not '0'."),
        ({"bucket_cap": "x", "rate": "1"}, "bucket_cap must be a whole number of at least 1, not 'x'."),
        ({"bucket_cap": "5", "rate": "-1"}, "rate must be a number of permits per second above 0"),
        ({"bucket_cap": "5", "rate": ""}, "rate must be a number of permits per second above 0"),
        ({"bucket_cap": "5"}, "without a rate, period must be a whole number of seconds, not ''."),
        ({"bucket_cap": "5", "period": "0"}, "without a rate, period must be a whole number of seconds, not '0'."),
        ({"bucket_cap": "5000", "rate": "1e-9"}, "a bucket of 5000 at this rate cannot be exact"),
    ],
)
def test_an_invalid_hash_is_reported_and_kept(
    gateway: EvalshaClient, fields: dict[str, str], message: str
) -> None:
    gateway.configure(**fields)
    assert str(gateway.bucket(1)).startswith(f"ERR headgate: {message}")
    assert gateway.hash() == fields


def test_a_key_that_is_no_hash_is_left_alone(gateway: EvalshaClient) -> None:
    gateway.server.call("SET", gateway.key, "somebody's")
    message = str(gateway.bucket(1))
    assert message.startswith(
        f"WRONGTYPE headgate: the key {gateway.key} holds a value that headgate did not write."
    )
    assert gateway.server.call("GET", gateway.key) == b"somebody's"


@pytest.mark.parametrize("count", ["", "hello", "12", "1700000000000000 x 1 1 1", "x 1700000000000000 1 1 1"])
def test_an_unreadable_count_is_reported(gateway: EvalshaClient, count: str) -> None:
    gateway.configure(bucket_cap=5, rate=1, hg2=count)
    before = gateway.hash()
    assert str(gateway.bucket(1)).startswith(f"WRONGTYPE headgate: the key {gateway.key} holds a value ")
    assert gateway.hash() == before


def test_a_call_without_a_key_is_refused(gateway: EvalshaClient) -> None:
    assert gateway.without_key("token_bucket", 1).startswith("ERR headgate: the script needs one key. ")


def test_written_again_the_same_changes_nothing(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=5, rate=1)
    gateway.bucket(5)
    gateway.configure(bucket_cap=5, rate="1.0")
    assert gateway.bucket(1) == 0


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"bucket_cap": 300}, 60),
        ({"bucket_cap": 50}, 50),
        ({"rate": 1}, 60),
        ({"rate": 1000}, 60),
        ({"rate": 7}, 60),
    ],
)
def test_other_numbers_hand_out_nothing(gateway: EvalshaClient, fields: dict[str, int], held: int) -> None:
    gateway.configure(bucket_cap=100, rate=100)
    gateway.bucket(40)
    gateway.configure(**fields)
    assert [gateway.bucket(held + 1), gateway.bucket(held), gateway.bucket(1)] == [0, 1, 0]


def test_a_lowered_rate_applies_since_the_last_call(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=100, rate=100)
    gateway.bucket(100)
    gateway.configure(rate=1)
    gateway.at(BASE_US + 10 * SECOND)
    assert [gateway.bucket(11), gateway.bucket(10), gateway.bucket(1)] == [0, 1, 0]


def test_a_raised_rate_does_not_apply_since_the_last_call(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=100, rate=1)
    gateway.bucket(100)
    gateway.at(BASE_US + 10 * SECOND).configure(rate=100)
    assert [gateway.bucket(11), gateway.bucket(10), gateway.bucket(1)] == [0, 1, 0]
    assert gateway.at(BASE_US + 11 * SECOND).bucket(100) == 1, "from then on at the new one"


def test_other_numbers_and_a_clock_that_steps_back_at_once(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=100, rate=100)
    gateway.bucket(40)
    gateway.at(BASE_US - HOUR).configure(rate=1)
    assert [gateway.bucket(61), gateway.bucket(60), gateway.bucket(1)] == [0, 1, 0]


def test_the_operators_expiry_is_kept(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=5, rate=1)
    gateway.server.call("EXPIRE", gateway.key, 60)
    gateway.bucket(1)
    assert gateway.pttl() == 60_000


def test_a_clock_that_steps_back_takes_nothing_away_and_locks_nobody_out(gateway: EvalshaClient) -> None:
    gateway.configure(bucket_cap=10, rate=1)
    gateway.bucket(6)
    back_us = BASE_US - HOUR
    assert [gateway.at(back_us).bucket(5), gateway.bucket(4), gateway.bucket(1)] == [0, 1, 0]
    assert gateway.at(back_us + SECOND).bucket(1) == 1
    assert gateway.at(back_us - HOUR).bucket(1) == 0
    assert gateway.at(back_us - HOUR + SECOND).bucket(1) == 1
