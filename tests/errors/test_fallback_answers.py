"""Answers of a fallback while a real server is gone, and the log line when it is back."""

import time
from collections.abc import Iterator

import pytest

from headgate import Decision, Limiter
from tests.servers import RedisServer

BACK_S = 30


@pytest.fixture
def restartable_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def test_deny_tells_when_the_server_is_probed_next(restartable_server: RedisServer) -> None:
    """Not a millisecond: who comes back then finds nothing new."""
    with Limiter("1000/s", f"{restartable_server.url}?fallback=deny&deadline=2s") as limiter:
        assert limiter.take("key")
        restartable_server.kill()
        first, second, *pausing = [limiter.take("key") for _ in range(5)]
        assert [first.retry_after, second.retry_after] == [0.1, 0.1]  # the next call still asks the server
        assert all(0 < (decision.retry_after or 0) <= 0.5 for decision in pausing)
        time.sleep(pausing[-1].retry_after or 0)
        assert 0 < (limiter.take("key").retry_after or 0) <= 0.5  # that was the probe
        restartable_server.start()
        deadline = time.monotonic() + BACK_S
        while not (decision := limiter.take("key")):
            assert time.monotonic() < deadline
            time.sleep(decision.retry_after or 0)


def test_the_line_when_it_is_back_counts_every_decision(
    restartable_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Limiter("1000/s", f"{restartable_server.url}?fallback=allow&deadline=2s") as limiter:
        decisions: list[Decision] = [limiter.take("key")]
        restartable_server.kill()
        decisions += [limiter.take("key") for _ in range(3)]
        restartable_server.start()
        deadline = time.monotonic() + BACK_S
        while decisions[-1].degraded:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            decisions.append(limiter.take("key"))
    degraded = sum(decision.degraded for decision in decisions)
    assert degraded >= 3
    assert caplog.messages[-1].startswith(
        f"headgate: Redis at 127.0.0.1:{restartable_server.port} answers again after "
    )
    assert caplog.messages[-1].endswith(f" s; {degraded} calls were allowed without being counted.")
