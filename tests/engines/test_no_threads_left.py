"""A process that cannot start another thread: no caller gets an exception for that, and nothing is lost."""

import logging
import time
from pathlib import Path

import pytest

from headgate import slot_renewal
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.engines.url import open_engine
from headgate.limiter import Limiter
from tests.servers import RedisServer
from tests.servers.exhausted_threads import no_thread_can_start
from tests.servers.wait_until import until

SURE_S = 20.0


def warnings(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


def test_nothing_is_fetched_ahead_without_a_thread_that_gives_it_back(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    direct = Limiter("10000/hour fixed", redis_server.url, name="hot")
    direct.peek("key")
    engine = open_engine(f"{redis_server.url}?prefetch=10s&fallback=deny&deadline=5s")
    limiter = Limiter("10000/hour fixed", engine, name="hot")
    limiter.take("key")
    with no_thread_can_start():
        for taken in range(2, 102):
            decision = limiter.take("key")
            assert decision
            assert not decision.degraded
            assert direct.peek("key").remaining == 10_000 - taken
    assert warnings(caplog, "ahead") == 1
    for _ in range(100):
        assert limiter.take("key")
    assert direct.peek("key").remaining < 10_000 - 201  # some are here
    limiter.close()
    assert direct.peek("key").remaining == 10_000 - 201


def test_closing_a_lease_engine_that_could_start_no_thread(redis_server: RedisServer) -> None:
    limiter = Limiter("10000/hour fixed", f"{redis_server.url}?prefetch=10s", name="closed")
    limiter.take("key")
    with no_thread_can_start():
        for _ in range(20):
            limiter.take("key")
        limiter.close()
    assert Limiter("10000/hour fixed", redis_server.url, name="closed").peek("key").remaining == 10_000 - 21


def test_slots_are_renewed_once_a_thread_can_be_started(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter("1 slot ttl 3s", redis_server.url)
    limiter.peek("key")
    idle_renewal_threads_end()
    with no_thread_can_start():
        lease = limiter.acquire("key").__enter__()
        for _ in range(3):
            assert not lease.lost
    assert warnings(caplog, "renew") == 1
    began = time.monotonic()
    while time.monotonic() < began + 7:
        assert not lease.lost
        time.sleep(0.1)
    lease.__exit__(None, None, None)


def idle_renewal_threads_end() -> None:
    until(lambda: "a thread of an earlier test renews" if slot_renewal._threads._threads else None, SURE_S)


def test_accounts_are_settled_once_a_thread_can_be_started(redis_server: RedisServer) -> None:
    """Units that passed during the outage are settled afterwards. Errors of settling cost no connection."""
    with (
        Limiter("1000/day", f"{redis_server.url}?fallback=local&deadline=5s", name="owed") as limiter,
        Limiter("1000/day", redis_server.url, name="owed") as direct,
    ):
        charged = [limiter.take("key")]
        redis_server.call("CONFIG", "SET", "min-replicas-to-write", "1")

        def deciding() -> str | None:
            decision = limiter.take("key")
            if decision.degraded:
                return None
            charged.append(decision)
            return "it decides"

        until(deciding, SURE_S)
        with no_thread_can_start():
            redis_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
            until(lambda: "still degraded" if limiter.take("other").degraded else None, SURE_S)
        assert direct.peek("key").remaining == 1000 - len(charged)

        def missing() -> str | None:
            limiter.take("other")
            left = direct.peek("key").remaining
            return None if left == 999 - len(charged) else f"{left} are left"

        until(missing, SURE_S)


def test_a_member_is_counted_once_a_thread_can_be_started(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{redis_server.url}?fallback=local&deadline=5s"
    with no_thread_can_start():
        limiter = Limiter("1000/s; 100000/day", url)
    assert warnings(caplog, "do not count this process") == 1

    def counted() -> str | None:
        assert limiter.take("key")
        return None if redis_server.call("EXISTS", "hg2:members") else "it does not beat"

    until(counted, SURE_S)
    limiter.close()


def test_a_rulebook_is_followed_once_a_thread_can_be_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"name": "all", "limit": "1/day"}]}')
    with no_thread_can_start():
        limiter = RuleLimiter(path)
        for _ in range(3):
            limiter.check({})
    assert warnings(caplog, "thread") == 1
    path.write_text('{"rules": [{"name": "all", "limit": "1000/day"}]}')
    until(lambda: None if limiter.check({}) else "the old rulebook is in force", SURE_S)
    limiter.close()
