"""The thread that writes counts: started by the first call, also in a forked child, and ended by close."""

from __future__ import annotations

import os

import pytest

from headgate import Counts, Limiter
from headgate.telemetry.shared_counts import SharedCounts
from tests.servers import RedisServer
from tests.servers.wait_until import until


def test_a_thread_writes_within_seconds(redis_server: RedisServer) -> None:
    counts = Counts(shared_at=redis_server.url)
    limiter = Limiter("100/s", name="api", observers=[counts])
    limiter.take("ann")
    with SharedCounts(redis_server.url) as reader:
        until(lambda: None if "api" in reader.last(minutes=2) else "nothing was written", 20)
    limiter.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_separate_thread(redis_server: RedisServer) -> None:
    counts = Counts(shared_at=redis_server.url)
    limiter = Limiter("100/s", name="api", observers=[counts])
    limiter.take("ann")
    child = os.fork()
    if child == 0:
        limiter.take("ann")
        with SharedCounts(redis_server.url) as reader:
            name = f":{os.getpid()}"
            until(lambda: None if any(name in each.name for each in reader.writers()) else "no write of mine", 20)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    limiter.close()
    with SharedCounts(redis_server.url) as reader:
        assert reader.last(minutes=2)["api"].allowed == 2
