"""A bucket that another script wrote goes on where it was: the published scripts take its permits over, once."""

import pytest

from tests.published_scripts.evalsha_client import EvalshaClient
from tests.servers import BASE_US, RedisServer

NOW_MS = BASE_US // 1000
SECOND = 1_000_000


def limiter(server: RedisServer, **fields: str | int | float) -> EvalshaClient:
    gateway = EvalshaClient(server).at(BASE_US)
    gateway.limiter("delete")
    gateway.configure(max_permits=10, rate=2, **fields)
    return gateway


def held(gateway: EvalshaClient) -> int:
    """Returns how many permits there are: as many as can be had one by one."""
    count = 0
    while gateway.limiter("acquire", 1) == 1:
        count += 1
    return count


def test_permits_are_taken_over(driven_server: RedisServer) -> None:
    assert held(limiter(driven_server, curr_permits=3, last_mill_second=NOW_MS)) == 3


def test_units_refilled_since_the_last_call_are_counted(driven_server: RedisServer) -> None:
    gateway = limiter(driven_server, curr_permits=3, last_mill_second=NOW_MS - 1750)
    assert held(gateway) == 6  # 3.5 came back
    assert held(gateway.at(BASE_US + SECOND // 4)) == 1  # and no fraction is lost
    assert held(gateway.at(BASE_US + 3600 * SECOND)) == 10


def test_they_are_taken_over_once(driven_server: RedisServer) -> None:
    gateway = limiter(driven_server, curr_permits=3, last_mill_second=NOW_MS)
    assert held(gateway) == 3
    gateway.configure(curr_permits=10, last_mill_second=NOW_MS)  # by a gateway that was left behind
    assert held(gateway) == 0


@pytest.mark.parametrize("words", [(10, 2), (20, 2)], ids=["the same", "others"])
def test_init_mints_no_permits(words: tuple[int, int], driven_server: RedisServer) -> None:
    gateway = limiter(driven_server, curr_permits=3, last_mill_second=NOW_MS)
    assert gateway.limiter("init", *words) == 1
    assert held(gateway) == 3


@pytest.mark.parametrize(
    ("permits", "last", "there"),
    [
        (3, NOW_MS + 60_000, 3),  # their clock was ahead
        (99, NOW_MS, 10),
        (-4, NOW_MS, 0),
        ("many", NOW_MS, 0),
        ("nan", NOW_MS, 0),
        (3, "never", 3),
        (3, "nan", 3),
        (3, 0, 10),
        (3, "1e999", 3),
    ],
)
def test_odd_values_hand_out_nothing(
    permits: str | int, last: str | int, there: int, driven_server: RedisServer
) -> None:
    assert held(limiter(driven_server, curr_permits=permits, last_mill_second=last)) == there


def test_a_bucket_that_was_never_used_is_full(driven_server: RedisServer) -> None:
    assert held(limiter(driven_server, curr_permits=10)) == 10


@pytest.mark.parametrize(("last", "passed"), [(NOW_MS, 3), (NOW_MS - 1000, 5), (NOW_MS + 60_000, 3)])
def test_the_hash_bucket_is_taken_over_too(last: int, passed: int, driven_server: RedisServer) -> None:
    gateway = EvalshaClient(driven_server, "hash").at(BASE_US)
    driven_server.call("DEL", "hash")
    gateway.configure(bucket_cap=10, rate=2, period=60, curr_permits=3, last_time=last)
    assert [gateway.bucket(1) for _ in range(6)] == [1] * passed + [0] * (6 - passed)
