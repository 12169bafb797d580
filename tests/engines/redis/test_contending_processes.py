"""Eight processes hammer one key of a real server, and exactly what the limit allows is admitted."""

from collections.abc import Iterator

import pytest

from tests.engines.redis.contending_processes import PROCESSES, HammerProcesses, start_hammers
from tests.servers import RedisServer

# Amounts that no refill touches while the test runs: how many units, and how many a call costs.
LIMITS = [
    ("1000/365d burst 1000", 1000, 1),
    ("1000/365d log", 1000, 1),
    ("1000/365d fixed", 1000, 1),
    ("1000/year fixed in Asia/Shanghai", 999, 3),
    ("1000/365d sliding", 1000, 1),
    ("1/1000s queue 999 nodelay", 1000, 1),
    ("1000/365d; 900/365d log", 900, 1),
]


@pytest.fixture(scope="module")
def processes() -> Iterator[HammerProcesses]:
    with start_hammers() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(("text", "units", "cost"), LIMITS)
def test_exactly_what_the_limit_allows(
    text: str, units: int, cost: int, processes: HammerProcesses, server: RedisServer
) -> None:
    passed = processes.admitted(server.unix_url, text, calls=2 * units // cost // PROCESSES, cost=cost)
    assert passed * cost == units
