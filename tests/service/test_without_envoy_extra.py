"""The service without the extra `envoy`: it answers HTTP, and says what gRPC needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.service.service_harness import Service
from tests.service.test_settings import serve

BOOK = {"rules": [{"name": "all", "key": "user", "missing": "one", "limit": "2/hour"}]}
INSTALL = "pip install 'headgate[envoy]'"


@pytest.fixture
def without_envoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python that is started from here on lacks the packages of the extra."""
    lacking(tmp_path, monkeypatch, "hpack", "google")


def lacking(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({names!r}))\n")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)


@pytest.fixture
def http_only(without_envoy: None) -> Iterator[Service]:
    service = Service(BOOK)
    del service.settings["grpc"]
    with service:
        yield service


def test_http_is_answered(http_only: Service) -> None:
    assert [http_only.check(user="ann")["allowed"] for _ in range(3)] == [True, True, False]
    assert (
        http_only.send_request("GET", "/auth/envoy/x", headers={"x-forwarded-for": "192.0.2.7"}).status == 200
    )  # ext_authz over HTTP
    assert f"gRPC   off      Envoy's rate limit and quota services need: {INSTALL}" in http_only.output


def test_the_reference_services_json_says_what_it_needs(http_only: Service) -> None:
    reply = http_only.send_request("POST", "/json", b'{"domain": "a", "descriptors": []}')
    assert reply.status == 501
    assert INSTALL in reply.json["detail"]


def test_several_workers_answer(without_envoy: None, redis_server: RedisServer) -> None:
    service = Service(BOOK, workers=2, engine=redis_server.url)
    del service.settings["grpc"]
    with service:
        assert service.check(user="ann")["allowed"]


@pytest.mark.parametrize("variable", [False, True], ids=["flag", "environment"])
def test_grpc_is_refused_with_a_sentence(variable: bool, without_envoy: None) -> None:
    where = "127.0.0.1:8081"
    ran = serve(HEADGATE_GRPC=where) if variable else serve("--grpc", where)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        f"headgate: Answering Envoy over gRPC needs hpack and protobuf: {INSTALL}. "
        f"To answer HTTP only, set grpc to off; it is {where}.\n"
    )


def test_off_may_be_configured(without_envoy: None) -> None:
    with Service(BOOK, grpc="off") as service:
        assert service.check(user="ann")["allowed"]


def test_without_the_extra_service_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(tmp_path, monkeypatch, "granian", "msgspec", "prometheus_client")
    ran = serve()
    assert ran.returncode == 2
    assert (
        "headgate serve needs granian, msgspec and prometheus-client: pip install 'headgate[service]'."
        in ran.stderr
    )


def test_without_uvloop_it_runs_on_the_loop_of_asyncio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(tmp_path, monkeypatch, "uvloop")
    with Service(BOOK) as service:
        assert service.check(user="ann")["allowed"]


def test_with_the_extra_grpc_is_on_by_itself() -> None:
    program = "from headgate.service.settings import read_settings; print(read_settings({}, {}).grpc)"
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ran.stdout == "127.0.0.1:8081\n"
