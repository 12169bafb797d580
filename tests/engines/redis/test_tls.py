"""TLS with certificates on both sides, and unix sockets: who is accepted, and the error that others get."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headgate.errors import EngineUnavailable, InvalidRule
from headgate.limiter import AsyncLimiter, Limiter
from tests.servers import RedisServer, TlsServer


@pytest.fixture(scope="module")
def tls_server() -> Iterator[TlsServer]:
    with TlsServer(password="open-sesame") as server:
        yield server


@pytest.fixture(autouse=True)
def empty(tls_server: TlsServer) -> None:
    tls_server.flush()


async def refusals(url: str) -> list[str]:
    """Returns the errors that a sync and an async caller get."""
    url += f"{'&' if '?' in url else '?'}deadline=500ms"
    with Limiter("5/day", url) as limiter, pytest.raises(EngineUnavailable) as refused:
        limiter.take("key")
    async with AsyncLimiter("5/day", url) as awaited:
        with pytest.raises(EngineUnavailable) as refused_too:
            await awaited.take("key")
    return [str(refused.value), str(refused_too.value)]


async def test_both_have_certificates(tls_server: TlsServer) -> None:
    with Limiter("5000/day", tls_server.url) as limiter:
        assert limiter.take("key").remaining == 4999
        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(lambda _: limiter.take("key"), range(200)))
        assert limiter.take("key", 0).remaining == 4799
    async with AsyncLimiter("5000/day", tls_server.url) as awaited:
        assert all(await asyncio.gather(*(awaited.take("key") for _ in range(300))))
        assert (await awaited.peek("key")).remaining == 4499


async def test_an_idle_connection_that_ended_is_replaced(tls_server: TlsServer) -> None:
    with Limiter("50/day", tls_server.url) as limiter:
        async with AsyncLimiter("50/day", tls_server.url) as awaited:
            for left in range(49, 43, -2):
                assert limiter.take("key").remaining == left
                assert (await awaited.take("key")).remaining == left - 1
                tls_server.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await asyncio.sleep(0.05)


def test_a_deadline_holds(tls_server: TlsServer) -> None:
    with Limiter("50/day", f"{tls_server.url}&deadline=2s") as limiter:
        limiter.take("key")
        tls_server.pause()
        try:
            began = time.monotonic()
            with ThreadPoolExecutor(8) as pool:
                futures = [pool.submit(limiter.take, "key") for _ in range(8)]
                assert all(isinstance(each.exception(), EngineUnavailable) for each in futures)
            assert time.monotonic() - began < 60
        finally:
            tls_server.resume()
    with Limiter("50/day", tls_server.url) as patient:
        assert patient.peek("other").remaining == 50


async def test_an_authority_that_did_not_sign_it(tls_server: TlsServer) -> None:
    """The client's is none; and where none is named, the machine's own do not know this server."""
    certificates = tls_server.certificates
    wrong = tls_server.url.replace("authority.crt", "client.crt")
    for url in (wrong, f"rediss://127.0.0.1:{tls_server.port}"):
        for sentence in await refusals(url):
            assert "the connection failed" in sentence
            assert "certificate verify failed" in sentence
    assert certificates.authority.exists()


async def test_a_client_without_a_certificate(tls_server: TlsServer) -> None:
    certificates = tls_server.certificates
    url = f"rediss://:open-sesame@127.0.0.1:{tls_server.port}?ssl_ca_certs={certificates.authority}"
    for sentence in await refusals(url):
        assert "the connection failed" in sentence
        assert "open-sesame" not in sentence


async def test_one_side_speaks_tls(tls_server: TlsServer, redis_server: RedisServer) -> None:
    for sentence in await refusals(f"redis://127.0.0.1:{tls_server.port}"):
        assert "gave no decision: the connection failed" in sentence
    for sentence in await refusals(f"rediss://127.0.0.1:{redis_server.port}"):
        assert "gave no decision: " in sentence


def test_a_file_that_is_not_there(tls_server: TlsServer) -> None:
    for name in ("authority.crt", "client.crt", "client.key"):
        with pytest.raises(InvalidRule, match=r"cannot be read \(.*No such file"):
            Limiter("1/s", tls_server.url.replace(name, "nothing"))


def test_a_server_that_needs_no_certificate_of_the_client() -> None:
    with TlsServer(client_certificates=False) as server, Limiter("5/day", server.url) as limiter:
        before = int(server.info("stats")["total_connections_received"])
        assert [limiter.take("key").remaining for _ in range(5)] == [4, 3, 2, 1, 0]
        # One for all takes, one for `info`, and perhaps one that a busy machine opened again.
        assert int(server.info("stats")["total_connections_received"]) - before in (2, 3)


async def test_a_unix_socket(server: RedisServer) -> None:
    for number, url in enumerate(
        (server.unix_url, f"redis+unix://{server.unix_path}", f"unix://{server.unix_path}")
    ):
        with Limiter("50/day", url) as limiter:
            assert limiter.take("key").remaining == 49 - 2 * number
        async with AsyncLimiter("50/day", url) as awaited:
            assert (await awaited.take("key")).remaining == 48 - 2 * number
    apart = f"unix://{server.unix_path}?db=3"
    with Limiter("50/day", apart) as limiter:
        assert limiter.take("key").remaining == 49
    async with AsyncLimiter("50/day", apart) as awaited:
        assert (await awaited.take("key")).remaining == 48
    assert threading.active_count() < 50


@pytest.mark.parametrize("options", ["", "?deadline=200ms"])
async def test_a_server_that_does_not_speak_tls(redis_server: RedisServer, options: str) -> None:
    """It takes a handshake for the beginning of a command, and waits for the rest, or answers with an error."""
    url = f"rediss://127.0.0.1:{redis_server.port}{options}"
    sentence = r"TLS.* Write redis://127\.0\.0\.1:[0-9]+ if .* without TLS\.$"
    for _ in range(2):
        with Limiter("5/day", url) as limiter, pytest.raises(EngineUnavailable, match=sentence):
            limiter.take("key")
        async with AsyncLimiter("5/day", url) as awaited:
            with pytest.raises(EngineUnavailable, match=sentence):
                await awaited.take("key")
