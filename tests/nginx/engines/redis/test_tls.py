"""TLS: nginx verifies the server, sends its own certificate where one is required, and reuses connections."""

from collections.abc import Iterator

import pytest

from tests.nginx.engines.redis.redis_harness import NginxRedisError, RedisDriverNginx
from tests.servers import TlsServer
from tests.servers.tls import certificates

LIMITS = {"login": "100/day"}


@pytest.fixture(scope="module")
def tls_server() -> Iterator[TlsServer]:
    with TlsServer(password="open-sesame", client_certificates=False) as server:
        yield server


@pytest.fixture(scope="module")
def trusting() -> Iterator[RedisDriverNginx]:
    with RedisDriverNginx(
        f"lua_ssl_trusted_certificate {certificates().authority}; lua_ssl_verify_depth 2;"
    ) as running:
        yield running


def test_a_server_with_a_trusted_certificate(trusting: RedisDriverNginx, tls_server: TlsServer) -> None:
    tls_server.call("CONFIG", "RESETSTAT")
    engine = trusting.engine(f"rediss://:open-sesame@localhost:{tls_server.port}/1", LIMITS)
    for left in range(99, 79, -1):
        assert engine.take("login", "ada")[1] == left
    assert tls_server.call("EXISTS", "hg2:tb:login:{ada}") == 0, "it is in database 1"
    assert int(tls_server.info("stats")["total_connections_received"]) < 10


def test_a_server_with_an_untrusted_certificate(gate: RedisDriverNginx, tls_server: TlsServer) -> None:
    url = f"rediss://:open-sesame@localhost:{tls_server.port}"
    for _ in range(3):
        with pytest.raises(NginxRedisError, match="Name its authority by lua_ssl_trusted_certificate") as refused:
            gate.engine(url, LIMITS).take("login", "eve")
        assert refused.value.retry == "connect_failed"
    assert gate.engine(f"{url}?ssl_cert_reqs=none", LIMITS).take("login", "eve")[1] == 99


def test_a_server_by_its_address(trusting: RedisDriverNginx, tls_server: TlsServer) -> None:
    url = f"rediss://:open-sesame@127.0.0.1:{tls_server.port}"
    with pytest.raises(NginxRedisError, match="ssl_check_hostname=false"):
        trusting.engine(url, LIMITS).take("login", "bob")
    assert trusting.engine(f"{url}?ssl_check_hostname=false", LIMITS).take("login", "bob")[1] == 99


def test_a_server_without_tls_fails_the_connection(trusting: RedisDriverNginx, tls_server: TlsServer) -> None:
    with pytest.raises(NginxRedisError) as lost:
        trusting.engine(f"redis://:open-sesame@127.0.0.1:{tls_server.port}", LIMITS).take("login", "ada")
    assert lost.value.kind in {"unreachable", "wrong"}


def test_both_have_certificates(trusting: RedisDriverNginx) -> None:
    with TlsServer() as server:
        given = certificates()
        url = f"rediss://localhost:{server.port}"
        with pytest.raises(NginxRedisError):
            trusting.engine(url, LIMITS).take("login", "ada")
        shown = f"{url}?ssl_certfile={given.client}&ssl_keyfile={given.client_key}"
        assert trusting.engine(shown, LIMITS).take("login", "ada")[1] == 99
        missing = f"{url}?ssl_certfile=/no/such&ssl_keyfile={given.client_key}"
        with pytest.raises(NginxRedisError, match="ssl_certfile: /no/such"):
            trusting.engine(missing, LIMITS).take("login", "ada")


def test_a_deadline_holds(trusting: RedisDriverNginx, tls_server: TlsServer) -> None:
    engine = trusting.engine(f"rediss://:open-sesame@localhost:{tls_server.port}", LIMITS)
    engine.take("login", "zoe")
    tls_server.pause()
    try:
        for _ in range(2):  # a connection that was used, and a new one, whose handshake hangs
            with pytest.raises(NginxRedisError) as late:
                engine.take("login", "zoe", deadline=0.2)
            assert late.value.kind == "timeout"
    finally:
        tls_server.resume()
