"""The files for systemd, Docker and Kubernetes: what they set is what the service knows."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from headgate.cli import tree
from headgate.rules import load
from headgate.service import settings
from headgate.service.settings import Settings
from tests.house.tree import ROOT

DEPLOY = ROOT / "deploy"


def flags(words: list[str]) -> Settings:
    """What a command line of ours sets."""
    args = tree().parse_args(["serve", *words])
    return settings.read({each.name: getattr(args, f"set_{each.name}") for each in settings.table()}, {})


def test_systemd(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "headgate.service")
    program, verb, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, verb, words[0]) == ("headgate", "serve", "--config")
    assert tree().parse_args([verb, *words]).config.endswith(".toml")
    assert int(unit["Service"]["TimeoutStopSec"]) > Settings().drain + 2


def test_docker() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    environment = dict(re.findall(r"(HEADGATE_\w+)=(\S+)", text))
    found = settings.read({}, environment)
    assert {str(found.http), str(found.grpc)} == {"0.0.0.0:8080", "0.0.0.0:8081"}
    assert found.admin is not None
    assert found.admin.loopback
    assert re.search(r'ENTRYPOINT \["headgate", "serve"\]', text)
    assert "[service]" in text


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
    found = settings.read({}, given)
    assert flags(container["args"]).engine.startswith("redis://")
    assert found.secret
    assert {port["containerPort"] for port in container["ports"]} == {found.http.port, found.grpc.port}  # type: ignore[union-attr]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert pod["terminationGracePeriodSeconds"] > found.drain + 2
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert str(Path(container["args"][1]).parent) in mounted
