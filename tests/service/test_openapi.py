"""The OpenAPI description is true: schemathesis sends what it allows and forbids to a running service."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.service.openapi import VERBS, description
from tests.service.service_harness import Service


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    # A large body, because 413 for what is too long is a refusal that schemathesis does not know.
    with Service(body=2**22) as running:
        yield running


def test_the_service_serves_its_openapi_description(service: Service) -> None:
    reply = service.send_request("GET", "/openapi.json")
    assert reply.headers["content-type"] == "application/json"
    assert reply.json == json.loads(json.dumps(description(100)))
    assert set(reply.json["paths"]) == {"/healthz", "/metrics", "/readyz", *(f"/v1/{verb.name}" for verb in VERBS)}
    assert reply.json["components"]["schemas"]["ChecksBody"]["properties"]["checks"]["maxItems"] == 100


def test_everything_that_is_referred_to_is_there() -> None:
    text = json.dumps(description(1))
    schemas = description(1)["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in schemas


def test_schemathesis_finds_nothing(service: Service, tmp_path: Path) -> None:
    # One worker: with several, Hypothesis gets into its own way.
    run = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json"),
            *("--checks", "all", "--mode", "all", "--workers", "1", "--max-examples", "5", "--seed", "6"),
            *("--request-timeout", "10", "--no-color"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    assert f"Tested: {len(VERBS) + 3}" in run.stdout
    assert "could not be answered" not in service.output
