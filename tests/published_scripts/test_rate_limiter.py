"""The published rate limiter as gateways call it: acquire, init, delete, and wrong calls."""

import random

import pytest

from tests.published_scripts.evalsha_client import EvalshaClient
from tests.published_scripts.fraction_token_bucket import ExactBucket
from tests.servers import BASE_US, RedisServer
from tests.servers.raw_redis_client import Reply

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.fixture
def gateway(driven_server: RedisServer) -> EvalshaClient:
    return EvalshaClient(driven_server)


def test_a_full_bucket_then_a_steady_rate(gateway: EvalshaClient) -> None:
    assert gateway.limiter("init", 3, 2) == 1
    assert [gateway.limiter("acquire", 1) for _ in range(4)] == [1, 1, 1, -1]
    assert gateway.at(BASE_US + 499_999).limiter("acquire", 1) == -1
    assert gateway.at(BASE_US + 500_000).limiter("acquire", 1) == 1
    assert gateway.at(BASE_US + 2 * SECOND).limiter("acquire", 3) == 1


@pytest.mark.parametrize("rate", ["1", "7", "0.29", "2.5", "1e3", "333.3", "0.016666666666666666"])
def test_it_is_a_token_bucket_to_the_microsecond(gateway: EvalshaClient, rate: str) -> None:
    steps, now_us = random.Random(rate), BASE_US
    exact = ExactBucket(20, rate if len(rate) < 9 else "1/60")
    gateway.limiter("init", 20, rate)
    for _ in range(150):
        now_us += int(steps.choice([0, 1, 999, 3 / float(exact.rate), 40 / float(exact.rate)]) * steps.random())
        cost = steps.choice([1, 1, 2, 5, 20])
        assert gateway.at(now_us).limiter("acquire", cost) == (1 if exact.take(now_us, cost) else -1)


def test_a_refusal_writes_nothing(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 2, 1)
    gateway.limiter("acquire", 2)
    before, seen = gateway.hash(), gateway.writes()
    assert [gateway.limiter("acquire", cost) for cost in (1, 2, 3, 10**30)] == [-1] * 4
    assert (gateway.hash(), gateway.writes()) == (before, seen)


def test_zero_permits_check_whether_one_could_be_had(gateway: EvalshaClient) -> None:
    assert gateway.limiter("acquire", 0) == -1, "never initialised"
    gateway.limiter("init", 1, 1)
    seen = gateway.writes()
    assert [gateway.limiter("acquire", 0) for _ in range(3)] == [1, 1, 1]
    assert gateway.writes() == seen
    gateway.limiter("acquire", 1)
    assert gateway.limiter("acquire", 0) == -1


@pytest.mark.parametrize(
    "permits", ["-1", "-100", "1.5", "1.0", "abc", "", " 1", "1e1", "0x1", "nan", "inf", "+1"]
)
def test_a_fractional_number_of_permits_is_refused(gateway: EvalshaClient, permits: str) -> None:
    gateway.limiter("init", 5, 1)
    before = gateway.hash()
    sentence = f"ERR headgate: acquire takes a whole number of permits, such as 1, not '{permits}'. It took none."
    assert gateway.limiter("acquire", permits) == sentence
    assert gateway.hash() == before


def test_a_missing_number_of_permits_is_refused(gateway: EvalshaClient) -> None:
    assert str(gateway.limiter("acquire")).startswith("ERR headgate: acquire takes")


def test_further_words_after_the_permits_are_ignored(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1)
    assert gateway.limiter("acquire", 5, 1) == 1, "the articles' own example passes one"


@pytest.mark.parametrize("method", ["", "acqire", "ACQUIRE", "get", "1"])
def test_an_unknown_method_is_refused(gateway: EvalshaClient, method: str) -> None:
    sentence = f"ERR headgate: unknown method '{method}': write acquire N, init max_permits rate [ttl], or delete."
    assert gateway.limiter(method, 1) == sentence
    assert gateway.hash() == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "max_permits must be a whole number of at least 1, not ''"),
        ((0, 1), "max_permits must be"),
        ((-5, 1), "max_permits must be"),
        (("1.5", 1), "max_permits must be"),
        (("many", 1), "max_permits must be"),
        ((5,), "rate must be a number of permits per second above 0, such as 10 or 0.5, not ''"),
        ((5, 0), "rate must be"),
        ((5, "0.0"), "rate must be"),
        ((5, -1), "rate must be"),
        ((5, "fast"), "rate must be"),
        ((5, "1/60"), "rate must be"),
        ((5, "nan"), "rate must be"),
        ((5, 1, 0), "ttl must be a whole number of seconds"),
        ((5, 1, "1.5"), "ttl must be"),
        ((5, 1, 10**12), "ttl must be"),
        ((10**17, 1), "100000000000000000 permits at 1 per second cannot be exact"),
        ((1000, "0.0000001"), "cannot be exact: a bucket must fill within 100 years"),
        ((1, "1e400"), "cannot be exact"),
    ],
)
def test_invalid_init_arguments_are_refused_and_nothing_is_written(
    gateway: EvalshaClient, words: tuple[str | int, ...], message: str
) -> None:
    reply = str(gateway.limiter("init", *words))
    assert reply.startswith("ERR headgate: ")
    assert message in reply
    assert gateway.hash() == {}
    gateway.limiter("init", 3, 1)
    before = gateway.hash()
    assert str(gateway.limiter("init", *words)).startswith("ERR headgate: ")
    assert gateway.hash() == before


def test_an_error_reply_is_one_line(gateway: EvalshaClient) -> None:
    reply = str(gateway.limiter("acquire", "1\r\n+OK\r\n:1"))
    assert reply.startswith("ERR headgate: acquire takes a whole number")
    assert gateway.limiter("init", 1, 1) == 1


@pytest.mark.parametrize("method", ["acquire", "init", "delete"])
def test_a_key_that_is_no_hash_is_left_alone(gateway: EvalshaClient, method: str) -> None:
    gateway.server.call("SET", gateway.key, "somebody's")
    message = str(gateway.limiter(method, 1, 1))
    assert message.startswith(
        f"WRONGTYPE headgate: the key {gateway.key} holds a value that headgate did not write."
    )
    assert gateway.server.call("GET", gateway.key) == b"somebody's"


@pytest.mark.parametrize("count", ["", "hello", "12", "1700000000000000 x 1 1 1", "x 1700000000000000 1 1 1"])
@pytest.mark.parametrize("words", [("acquire", 1), ("acquire", 0), ("init", 5, 2)])
def test_an_unreadable_count_is_reported(gateway: EvalshaClient, words: tuple[str | int, ...], count: str) -> None:
    gateway.limiter("init", 5, 1, 60)
    gateway.configure(hg2=count)
    before = gateway.hash()
    message = str(gateway.limiter(*map(str, words)))
    assert message.startswith(
        f"WRONGTYPE headgate: the key {gateway.key} holds a value that headgate did not write."
    )
    assert gateway.hash() == before
    assert gateway.limiter("delete") == 1
    assert gateway.limiter("init", 5, 1) == 1


def test_an_unreadable_ttl_is_reported(gateway: EvalshaClient) -> None:
    gateway.configure(max_permits=5, rate=1, ttl="a while")
    assert "ttl must be a whole number of seconds" in str(gateway.limiter("acquire", 1))


@pytest.mark.parametrize("words", [("acquire", 1), ("init", 5, 2), ("delete",)])
def test_a_call_without_a_key_is_refused(gateway: EvalshaClient, words: tuple[str | int, ...]) -> None:
    assert gateway.without_key("rate_limiter", *words).startswith("ERR headgate: the script needs one key. ")


def test_a_hash_that_init_did_not_write_is_reported(gateway: EvalshaClient) -> None:
    gateway.configure(max_permits="lots", rate=1)
    assert "max_permits must be a whole number of at least 1, not 'lots'" in str(gateway.limiter("acquire", 1))
    gateway.configure(max_permits=5, rate="quick")
    assert "not 'quick'" in str(gateway.limiter("acquire", 1))
    gateway.server.call("HDEL", gateway.key, "rate")
    assert "rate must be" in str(gateway.limiter("acquire", 1))


def test_the_same_numbers_again_change_nothing(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 2, "0.5")
    gateway.limiter("acquire", 2)
    for again in ("0.5", "0.50", "5e-1"):
        assert gateway.limiter("init", 2, again) == 1
        assert gateway.limiter("acquire", 1) == -1
    assert gateway.at(BASE_US + 2 * SECOND).limiter("acquire", 1) == 1


@pytest.mark.parametrize(
    ("before", "taken", "after", "left"),
    [
        ((10, 1), 10, (20, 1), 0),
        ((10, 1), 4, (20, 1), 6),
        ((10, 1), 4, (5, 1), 5),
        ((10, 1), 10, (10, 100), 0),
        ((10, 7), 10, (10, 3), 0),
        ((100, 100), 100, (100, 1), 0),
        ((100, 100), 1, (200, "0.1"), 99),
    ],
)
def test_other_numbers_hand_out_nothing(
    gateway: EvalshaClient, before: tuple[int | str, ...], taken: int, after: tuple[int | str, ...], left: int
) -> None:
    gateway.limiter("init", *before)
    gateway.limiter("acquire", taken)
    gateway.limiter("init", *after)
    assert _drain(gateway) == left


def test_other_numbers_count_from_the_instant_they_are_given(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 100, 100)
    gateway.limiter("acquire", 100)
    gateway.at(BASE_US + SECOND // 2).limiter("init", 100, 1)
    assert gateway.at(BASE_US + 10 * SECOND + SECOND // 2).limiter("acquire", 61) == -1
    assert gateway.limiter("acquire", 60) == 1, "50 came back at 100/s, and then 10 at 1/s"


def test_a_bucket_that_was_never_used_is_full_under_other_numbers(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1)
    gateway.limiter("init", 7, 1)
    assert _drain(gateway) == 7
    gateway.at(BASE_US + HOUR).limiter("init", 9, 1)
    assert _drain(gateway) == 7, "and one that was used holds what it held"


def test_a_bucket_that_is_made_small_and_large_again_holds_what_the_small_one_held(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1)
    gateway.limiter("acquire", 5)
    gateway.at(BASE_US + HOUR)
    for max_permits in (3, 9):
        gateway.limiter("init", max_permits, 1)
    assert _drain(gateway) == 3


def test_no_sequence_of_inits_mints_a_fresh_bucket(gateway: EvalshaClient) -> None:
    numbers, passed = random.Random(5), 0
    for _ in range(60):
        gateway.limiter("init", numbers.randint(1, 30), numbers.choice(["1", "0.1", "500", "7.7"]))
        passed += [gateway.limiter("acquire", 1) for _ in range(3)].count(1)
    assert passed <= 30


def test_delete_forgets_and_is_content_with_nothing(gateway: EvalshaClient) -> None:
    assert gateway.limiter("delete") == 1
    gateway.limiter("init", 1, 1)
    gateway.limiter("acquire", 1)
    assert gateway.limiter("delete") == 1
    assert gateway.hash() == {}
    assert gateway.limiter("acquire", 1) == -1
    gateway.limiter("init", 1, 1)
    assert gateway.limiter("acquire", 1) == 1


def test_a_configured_key_lives_until_deleted_in_one_key(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1)
    gateway.limiter("acquire", 5)
    assert gateway.pttl() == -1
    assert gateway.server.call("DBSIZE") == 4, "the hash, the two published names, and the texts"


def test_with_a_ttl_an_idle_key_dies_and_a_used_one_does_not(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1, 60)
    assert gateway.pttl() == 60_000
    for minutes in range(1, 5):
        assert gateway.at(BASE_US + minutes * 59 * SECOND).limiter("acquire", 1) == 1
        assert gateway.pttl() == 60_000
    assert gateway.at(BASE_US + HOUR).limiter("acquire", 1) == -1
    assert gateway.hash() == {}


def test_a_ttl_never_ends_before_the_bucket_is_full(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 100, 1, 5)
    gateway.limiter("acquire", 100)
    assert gateway.pttl() == 100_100, "or dying would hand out a fresh one"
    gateway.at(BASE_US + 50 * SECOND).limiter("init", 100, 1, 5)
    assert gateway.pttl() == 50_100


def test_init_without_a_ttl_takes_it_back(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 5, 1, 60)
    gateway.limiter("init", 5, 1)
    gateway.limiter("acquire", 1)
    assert gateway.pttl() == -1
    assert "ttl" not in gateway.hash()


def test_a_clock_that_steps_back_takes_nothing_away_and_mints_nothing(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 10, 1)
    gateway.limiter("acquire", 6)
    gateway.at(BASE_US - HOUR)
    assert _drain(gateway) == 4


def test_a_clock_that_steps_back_locks_nobody_out(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 10, 1)
    gateway.limiter("acquire", 10)
    back_us = BASE_US - HOUR
    assert gateway.at(back_us).limiter("acquire", 1) == -1
    before = gateway.hash()
    assert gateway.at(back_us + SECOND - 1).limiter("acquire", 1) == -1
    assert gateway.hash() == before, "only the first question after the step writes that down"
    assert gateway.at(back_us + SECOND).limiter("acquire", 1) == 1


def test_a_clock_that_trembles_changes_nothing(gateway: EvalshaClient) -> None:
    exact, jitter, now_us = ExactBucket(10, 7), random.Random(9), BASE_US
    gateway.limiter("init", 10, 7)
    for _ in range(200):
        now_us += 50_000
        cost = jitter.choice([1, 1, 3])
        late = gateway.at(now_us).limiter("acquire", cost)
        assert late == (1 if exact.take(now_us, cost) else -1)
        # Somebody asks for too much while the clock is a little behind.
        assert gateway.at(now_us - jitter.choice([0, 1, 2])).limiter("acquire", 11) == -1


def test_a_clock_that_steps_ahead_is_time_gone_by(gateway: EvalshaClient) -> None:
    gateway.limiter("init", 10, 1)
    gateway.limiter("acquire", 10)
    gateway.at(BASE_US + 100 * HOUR)
    assert _drain(gateway) == 10


def _drain(gateway: EvalshaClient) -> int:
    """Returns how many permits can be had right now."""
    replies: list[Reply | str] = []
    while not replies or replies[-1] == 1:
        replies.append(gateway.limiter("acquire", 1))
    return replies.count(1)
