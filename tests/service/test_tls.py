"""TLS: HTTP and gRPC by a certificate, clients by theirs if that is wanted, and plain bytes where TLS is meant."""

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from envoy.service.ratelimit.v3 import rls_pb2  # type: ignore[import-untyped]

from headgate.service.envoy import rls
from tests.servers.tls import certificates
from tests.service.service_harness import Service

CHECK_BODY = {"attributes": {"user": "ann"}}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    ours = certificates()
    with Service(tls_cert=ours.server, tls_key=ours.server_key) as running:
        yield running
        assert "Traceback" not in running.output


@pytest.fixture(scope="module")
def strict() -> Iterator[Service]:
    """One that wants to know its clients."""
    ours = certificates()
    with Service(tls_cert=ours.server, tls_key=ours.server_key, tls_client_ca=ours.authority) as running:
        yield running
        assert "Traceback" not in running.output


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate and a key of nobody whom the service knows."""
    folder = tmp_path_factory.mktemp("stranger")
    made = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=client",
    )
    subprocess.run(
        ["openssl", *made, "-keyout", "key", "-out", "cert", "-days", "30"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder / "cert", folder / "key"


def context(pair: tuple[Path, Path] | None = None, *, http_2: bool = False) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=certificates().authority)
    if http_2:
        made.set_alpn_protocols(["h2"])
    if pair is not None:
        made.load_cert_chain(*pair)
    return made


def checked(service: Service, pair: tuple[Path, Path] | None = None) -> Any:
    with httpx.Client(verify=context(pair), trust_env=False) as client:
        return client.post(f"https://{service.http}/v1/check", json=CHECK_BODY).json()


def rate_limit_code(service: Service, pair: tuple[Path, Path] | None = None) -> Any:
    key, cert = (pair[1].read_bytes(), pair[0].read_bytes()) if pair is not None else (None, None)
    credentials = grpc.ssl_channel_credentials(certificates().authority.read_bytes(), key, cert)
    with grpc.secure_channel(service.grpc, credentials) as channel:
        call: Any = channel.unary_unary(rls.PATH)
        question = rls_pb2.RateLimitRequest(
            domain="d", descriptors=[{"entries": [{"key": "user", "value": "bob"}]}]
        )
        return rls_pb2.RateLimitResponse.FromString(call(question.SerializeToString(), timeout=10)).overall_code


def ours() -> tuple[Path, Path]:
    made = certificates()
    return made.client, made.client_key


def test_http_and_grpc_over_tls(service: Service) -> None:
    assert checked(service)["allowed"] is True
    assert rate_limit_code(service) == rls_pb2.RateLimitResponse.OK
    host, _, port = service.http.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as line,
        context(http_2=True).wrap_socket(line, server_hostname=host) as secure,
    ):
        assert secure.selected_alpn_protocol() == "h2"
        assert secure.version() in ("TLSv1.2", "TLSv1.3")


def test_a_client_that_does_not_trust_the_certificate_fails(service: Service) -> None:
    with (
        pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        httpx.Client(trust_env=False) as client,
    ):
        client.post(f"https://{service.http}/v1/check", json=CHECK_BODY)


@pytest.mark.parametrize(
    "data", [b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"\0" * 300]
)
def test_bytes_that_are_no_tls_are_closed(service: Service, data: bytes) -> None:
    for address in (service.http, service.grpc):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            try:
                back = line.recv(4096)
                while part := line.recv(4096):
                    back += part
            except ConnectionResetError:
                back = b""
            assert not back.startswith(b"HTTP/1.1 200")
    assert checked(service)["allowed"] is True
    assert rate_limit_code(service) == rls_pb2.RateLimitResponse.OK


def test_a_client_with_a_trusted_certificate_is_answered(strict: Service) -> None:
    assert checked(strict, ours())["allowed"] is True
    assert rate_limit_code(strict, ours()) == rls_pb2.RateLimitResponse.OK


@pytest.mark.parametrize("whose", ["nobody's", "a stranger's"])
def test_others_are_not(strict: Service, whose: str, stranger: tuple[Path, Path]) -> None:
    pair = stranger if whose == "a stranger's" else None
    with pytest.raises(httpx.TransportError):
        checked(strict, pair)
    with pytest.raises(grpc.RpcError) as refused:
        rate_limit_code(strict, pair)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert checked(strict, ours())["allowed"] is True


@pytest.mark.parametrize("which", ["tls_cert", "tls_key", "tls_client_ca"])
def test_an_invalid_certificate_stops_the_start_with_a_message(tmp_path: Path, which: str) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    made = certificates()
    fine: dict[str, Any] = {"tls_cert": made.server, "tls_key": made.server_key, "tls_client_ca": made.authority}
    with pytest.raises(RuntimeError, match=rf"it ended with 2: .*{which} {bad}") as refused:
        Service(**fine | {which: bad}).__enter__()
    assert "Traceback" not in str(refused.value)


def test_a_key_of_another_certificate_ends_it_too() -> None:
    made = certificates()
    with pytest.raises(RuntimeError, match=r"it ended with 2: .*KEY_VALUES_MISMATCH"):
        Service(tls_cert=made.server, tls_key=made.client_key).__enter__()
