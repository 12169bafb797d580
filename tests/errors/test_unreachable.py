"""A server that is gone, silent or refuses the login: EngineUnavailable in time, with its cause."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate.algorithms.decision import Charge
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.errors import EngineUnavailable, HeadgateError, InvalidRule
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import KINDS, Kind, RedisServer

PATIENCE = 0.3
GENEROUS = 3.0  # a busy machine may take its time, but not the default timeout of the kernel


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Somebody who takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused_within(limiter: Limiter, seconds: float) -> EngineUnavailable:
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as raised:
        limiter.take("key")
    assert time.monotonic() - began < seconds
    assert raised.value.__cause__ is not None
    assert isinstance(raised.value, HeadgateError)
    return raised.value


async def refused_within_awaited(url: str, seconds: float) -> EngineUnavailable:
    limiter = AsyncLimiter("1/s", url)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as raised:
        await limiter.take("key")
    assert time.monotonic() - began < seconds
    assert raised.value.__cause__ is not None
    await limiter.close()
    return raised.value


async def test_a_closed_port_raises_engine_unavailable(closed_port: int) -> None:
    url = f"redis://127.0.0.1:{closed_port}/0"
    sentence = f"Redis at 127.0.0.1:{closed_port} gave no decision: the connection failed"
    assert str(refused_within(Limiter("1/s", url), GENEROUS)).startswith(sentence)
    assert str(await refused_within_awaited(url, GENEROUS)).startswith(sentence)


async def test_a_silent_server_raises_engine_unavailable(silent_port: int) -> None:
    url = f"redis://127.0.0.1:{silent_port}/0?deadline={PATIENCE}s"
    sentence = f"Redis at 127.0.0.1:{silent_port} gave no decision: no answer within the timeout"
    assert str(refused_within(Limiter("1/s", url), GENEROUS)).startswith(sentence)
    assert str(await refused_within_awaited(url, GENEROUS)).startswith(sentence)


async def test_the_default_deadline_is_short(silent_port: int) -> None:
    url = f"redis://127.0.0.1:{silent_port}/0"
    refused_within(Limiter("1/s", url), GENEROUS)
    await refused_within_awaited(url, GENEROUS)


def test_no_such_host() -> None:
    error = refused_within(Limiter("1/s", "redis://no-such-host.invalid:6379/0"), 30)
    assert "Redis at no-such-host.invalid:6379 gave no decision: the connection failed" in str(error)


def test_no_such_socket() -> None:
    assert "/no/such/socket" in str(refused_within(Limiter("1/s", "unix:///no/such/socket"), GENEROUS))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_wrong_password(kind: Kind) -> None:
    with RedisServer(kind, password="open-sesame") as server:
        with Limiter("1/s", server.url) as welcome:
            assert welcome.take("key")
        for login in ("", ":wrong@", "nobody:wrong@"):
            url = f"redis://{login}127.0.0.1:{server.port}/0"
            for error in (
                refused_within(Limiter("1/s", url), GENEROUS),
                await refused_within_awaited(url, GENEROUS),
            ):
                assert "it refused the user or the password" in str(error)
                assert "Correct them in the engine's URL." in str(error)
                assert "wrong" not in str(error).replace("wrong number", "")


def test_no_password_is_ever_shown(closed_port: int) -> None:
    limiter = Limiter("1/s", f"redis://me:hunter2@127.0.0.1:{closed_port}/0")
    error: BaseException | None = refused_within(limiter, GENEROUS)
    while error is not None:
        assert "hunter2" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    with pytest.raises(InvalidRule) as refused:
        Limiter("1/s", "redis://me:hunter2@127.0.0.1:not-a-port/0")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["redis", "http://x", "", "rediss", "memory", "redus://h"])
def test_an_engine_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidRule, match=r"not an engine URL\. Write redis://host:6379/0, or memory://"):
        Limiter("1/s", url)


def test_a_server_killed_between_calls_and_started_again() -> None:
    with RedisServer() as server, Limiter("5/hour", server.url) as limiter:
        assert limiter.take("key", 3)
        server.kill()
        assert "the connection failed" in str(refused_within(limiter, GENEROUS))
        assert "the connection failed" in str(refused_within(limiter, GENEROUS))
        server.start()
        assert limiter.take("key", 5)


async def test_a_server_killed_between_awaited_calls() -> None:
    with RedisServer() as server:
        limiter = AsyncLimiter("5/hour", server.url)
        assert await limiter.take("key", 3)
        server.kill()
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="the connection failed"):
                await limiter.take("key")
        server.start()
        assert await limiter.take("key", 5)
        await limiter.close()


def test_every_verb_says_so(closed_port: int) -> None:
    url = f"redis://127.0.0.1:{closed_port}/0"
    rate, held = Limiter("1/s; 5/hour", url), Limiter("1 slot", url)
    for call in (
        lambda: rate.take("key"),
        lambda: rate.peek("key"),
        lambda: rate.wait("key"),
        lambda: rate.reserve("key"),
        lambda: rate.reset("key"),
        lambda: rate.take_all([Charge("a"), Charge("b", "2/s")]),
        lambda: held.acquire("key", timeout=1),
        lambda: held.peek("key"),
    ):
        with pytest.raises(EngineUnavailable, match="gave no decision"):
            call()


@contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """The server takes what is sent, and answers only afterwards."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_a_late_answer_is_not_taken_for_the_next_one(redis_server: RedisServer) -> None:
    with Limiter("100/hour", f"{redis_server.url}?deadline={PATIENCE}s") as limiter:
        assert limiter.take("key", 30).remaining == 70
        with frozen(redis_server):
            assert "no answer within the timeout" in str(refused_within(limiter, GENEROUS))
        # The late question may have been charged; whatever comes now is the answer to what is asked now.
        assert limiter.peek("other").remaining == 100
        assert limiter.take("key", 20).remaining in (50, 49)
        assert limiter.peek("other").remaining == 100


async def test_a_late_answer_awaited(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter("100/hour", f"{redis_server.url}?deadline={PATIENCE}s")
    assert (await limiter.take("key", 30)).remaining == 70
    with frozen(redis_server), pytest.raises(EngineUnavailable, match="no answer within the timeout"):
        await limiter.take("key")
    assert (await limiter.peek("other")).remaining == 100
    assert (await limiter.take("key", 20)).remaining in (50, 49)
    await limiter.close()


async def test_a_cancelled_question_leaves_no_answer_behind(redis_server: RedisServer) -> None:
    limiter = AsyncLimiter("100/hour", redis_server.url)
    assert await limiter.take("key", 30)
    with frozen(redis_server):
        question = asyncio.create_task(limiter.take("key"))
        await asyncio.sleep(0.05)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
    assert (await limiter.peek("other")).remaining == 100
    assert (await limiter.peek("key")).remaining in (70, 69)
    await limiter.close()


def test_an_interrupted_question_leaves_no_answer_behind(redis_server: RedisServer) -> None:
    engine = RedisEngine(redis_server.url)
    with Limiter("100/hour", engine) as limiter:
        assert limiter.take("key", 30)
        (pool,) = engine._pools.values()
        pool._state.entries[0].connection._recv = _interrupt
        with pytest.raises(KeyboardInterrupt):
            limiter.take("key")
        assert limiter.peek("other").remaining == 100
        assert limiter.peek("key").remaining in (70, 69)  # charged perhaps, but nobody heard


def _interrupt(size: int) -> bytes:
    raise KeyboardInterrupt
