"""The service writes a decision log: of every way to call it, from several workers, and it can be replayed."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc  # type: ignore[import-untyped]

from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.envoy.envoy_harness import descriptor
from tests.service.service_harness import Service
from tests.telemetry.log_lines import read_lines, replay

RULES = {
    "rules": [
        {"name": "api", "key": "user", "missing": "skip", "limit": "5/minute"},
        {"name": "path", "when": {"path": "/x/**"}, "key": "address", "missing": "deny", "limit": "4/minute"},
    ]
}


def test_every_kind_of_request_is_logged_and_replayed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Service(RULES, decision_log=path, trusted="127.0.0.0/8") as service:
        for _ in range(8):
            service.check(user="ann")  # the same bytes each time: from the third on they are not parsed
        service.post("checks", {"checks": [{"attributes": {"user": "bob"}}] * 3, "together": True})
        service.post("checks", {"checks": [{"attributes": {"user": "bob"}}] * 2})
        for _ in range(6):
            fields = {"Uri": "/x/y", "For": "192.0.2.7", "Method": "GET", "Host": "shop"}
            service.send_request(
                "GET", "/auth/forward", headers={f"X-Forwarded-{name}": fields[name] for name in fields}
            )
        service.post("reserve", {"attributes": {"user": "kim"}, "timeout": 1})
        service.post("peek", {"attributes": {"user": "kim"}})
        with grpc.insecure_channel(service.grpc) as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            request = rls_pb2.RateLimitRequest(
                domain="shop",
                descriptors=[descriptor(("user", "eve")), descriptor(("user", "ann"))],
                hits_addend=1,
            )
            for _ in range(7):
                stub.ShouldRateLimit(request, timeout=20)
    lines = read_lines(path)
    by_user = [each["attributes"].get("user") for each in lines]
    assert [by_user.count(user) for user in ("ann", "bob", "kim", "eve")] == [15, 5, 1, 7]
    assert sum(each["rule"] == "path" for each in lines) == 6
    assert any(not each["allowed"] for each in lines)
    recorded = replay([path], RULES, tmp_path)["recorded"]
    assert recorded["same"] == recorded["calls"] == len(lines)


def test_several_workers_write_one_log(tmp_path: Path, redis_server: RedisServer) -> None:
    path = tmp_path / "log"
    url = f"{redis_server.url}?deadline=10s"
    with Service(RULES, engine=url, workers=2, decision_log=path) as service, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: service.check(user=f"user-{number % 3}"), range(200)))
    lines = read_lines(path)
    assert len(lines) == 200
    assert len({each["process"] for each in lines}) == 2
    recorded = replay([path], RULES, tmp_path)["recorded"]
    assert recorded["same_groups"] == recorded["groups"]


def test_a_log_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    words = ("serve", "--http", "127.0.0.1:1", "--grpc", "off", "--admin", "off")
    for more, sentence in (
        (("--decision-log", f"{tmp_path}/no/log"), "cannot be written: No such file or directory."),
        (("--decision-log", f"{tmp_path}/log", "--decision-log-sample", "2"), "a number from 0 to 1, such as 0.1"),
        (("--decision-log", f"{tmp_path}/log", "--decision-log-salt", "x"), "has at least 8 characters."),
    ):
        result = subprocess.run([sys.executable, "-m", "headgate", *words, *more], capture_output=True, text=True)
        assert result.returncode == 2
        assert sentence in result.stderr


def test_a_disk_that_is_full_refuses_nothing() -> None:
    rules = {"rules": [{"name": "api", "key": "user", "missing": "skip", "limit": "5/hour"}]}
    with Service(rules, decision_log="/dev/full") as service:
        assert [service.check(user="ann")["allowed"] for _ in range(8)] == [True] * 5 + [False] * 3
        sentence = "the decision log /dev/full cannot be written: No space left on device."
        until(lambda: None if sentence in service.output else service.output, 10)
        for _ in range(3):
            service.check(user="ann")
        service.send_signal(signal.SIGTERM)
        service.wait()
        assert service.output.count(sentence) == 1
