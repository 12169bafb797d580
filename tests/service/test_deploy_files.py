"""The files for systemd, Docker and Kubernetes: what they set is what the service knows."""

import configparser
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from envoy.service.ratelimit.v3 import rls_pb2  # type: ignore[import-untyped]

from headgate.cli import tree
from headgate.rules import load
from headgate.service import settings
from headgate.service.settings import Settings
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.service.service_harness import Service
from tests.service.test_faults_under_load import over_grpc
from tests.service.test_supervisor import BOOK

DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "headgate.service"


def flags(words: list[str]) -> Settings:
    """Returns the settings of one of our command lines."""
    args = tree().parse_args(["serve", *words])
    return settings.read_settings(
        {each.name: getattr(args, f"set_{each.name}") for each in settings.settings_table()}, {}
    )


def test_systemd(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    program, verb, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, verb, words[0]) == ("headgate", "serve", "--config")
    assert tree().parse_args([verb, *words]).config.endswith(".toml")
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().drain + 2


def test_the_systemd_unit_is_hardened() -> None:
    """By systemd's own measure, from 0 to 10. Most of what is left is that it has a network."""
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=15", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_the_service_needs_no_system_call_that_the_unit_forbids() -> None:
    """Runs under a filter that kills the service where the unit answers EPERM."""
    with RedisServer() as server:
        service = Service(BOOK, admin=f"127.0.0.1:{free_port()}", engine=server.url, workers=2)
        service.before = (sys.executable, "-m", "tests.service.systemd_confinement", str(UNIT))
        with service:
            assert service.check()["allowed"]
            assert over_grpc(service) == rls_pb2.RateLimitResponse.OK
            assert "Seccomp:\t2" in Path(f"/proc/{service.pid}/status").read_text()
            assert {os.sched_getscheduler(pid) for pid in service.worker_pids} == {os.SCHED_BATCH}
            service.send_signal(signal.SIGTERM)
            assert service.wait() == 0
            assert "died" not in service.output


def test_docker() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    environment = dict(re.findall(r"(HEADGATE_\w+)=(\S+)", text))
    found = settings.read_settings({}, environment)
    assert {str(found.http), str(found.grpc)} == {"0.0.0.0:8080", "0.0.0.0:8081"}
    assert found.admin is not None
    assert found.admin.loopback
    assert re.search(r'ENTRYPOINT \["headgate", "serve"\]', text)
    assert "[envoy]" in text


def test_kubernetes() -> None:
    documents: list[dict[str, Any]] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    kinds = {document["kind"]: document for document in documents}
    load.parse(kinds["ConfigMap"]["data"]["rules.yaml"], format="yaml")
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    secrets = kinds["Secret"]["stringData"]
    for each in container["env"]:
        if "valueFrom" in each:
            given[each["name"]] = secrets[each["valueFrom"]["secretKeyRef"]["key"]]
    found = settings.read_settings({}, given)
    assert flags(container["args"]).engine.startswith("redis://")
    assert found.secret
    assert {port["containerPort"] for port in container["ports"]} == {found.http.port, found.grpc.port}  # type: ignore[union-attr]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert pod["terminationGracePeriodSeconds"] > found.drain + 2
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(container["args"][1]).parent) in mounted
