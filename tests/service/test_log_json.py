"""With --log json every line of a run is JSON, on stdout and on stderr, whatever happens."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers import RedisServer
from tests.servers.redis_server import free_port
from tests.servers.wait_until import until
from tests.service.service_harness import Service

BOOK = {"rules": [{"name": "few", "key": "user", "missing": "one", "limit": "5/minute"}]}
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"GET / HTTP/9.9\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 99,
)


def lines_of(text: str) -> list[dict[str, Any]]:
    """Every line as JSON; an error names the first that is none."""
    records = []
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            raise AssertionError(f"this line is not JSON: {line}") from None
        assert isinstance(document, dict), line
        records.append(document)
    return records


def send(address: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        while line.recv(4096):
            pass


@pytest.mark.parametrize("workers", [1, 2])
def test_a_whole_run(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    with RedisServer() as redis:
        service = Service(BOOK, engine=redis.url, workers=workers, log="json", log_level="debug", drain="1s")
        with service:
            assert service.check(user="ann")["allowed"]
            assert service.send_request("POST", "/v1/check", b"\xff{").status == 400
            assert service.send_request("GET", "/nowhere").status == 404
            for data in GARBAGE:
                for address in (service.http, service.grpc):
                    send(address, data)
            service.write("rules: [{name: x, limit: lots}]")
            until(lambda: None if "is refused" in service.output else "the broken book is not seen", 20)
            service.write({"rules": [{"name": "few", "key": "ip", "missing": "skip", "limit": "5/minute"}]})
            until(lambda: None if "no gateway sets" in service.output else "the book is not followed", 20)
            redis.stop()
            assert service.post("check", attributes={"user": "ann"}).status in (200, 503)
            if workers > 1:
                time.sleep(max(0.0, 5.2 - (time.monotonic() - service.started_at)))  # old enough to be replaced
                os.kill(service.worker_pids[0], signal.SIGSEGV)
                until(lambda: None if "is replaced" in service.output else "nobody noticed", 20)
            service.send_signal(signal.SIGTERM)
            service.wait(60)
            records = lines_of(service.output)
    assert records[0]["http"] == service.url
    assert all("message" in line and "level" in line for line in records[1:])
    assert any("stopping" in line["message"] for line in records[1:])


def failing(tmp_path: Path, *flags: str, code: int = 2, **environment: str) -> list[dict[str, Any]]:
    """Returns the output of a service that cannot start."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    http = f"127.0.0.1:{free_port()}"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headgate.cli",
            "serve",
            "--http",
            http,
            "--grpc",
            "off",
            *flags,
        ],
        env=env | {"PYTHONWARNINGS": "always"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (code, "")
    return lines_of(done.stderr)


def errors(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["level"] == "error"]


def test_an_invalid_rulebook_is_logged_as_json(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "bad.yaml").write_text("rules:\n  - {name: a, limit: 10/minit}\n  - {name: b, limits: 1/s}\n")
    (line,) = errors(failing(tmp_path, "--log", "json", "--rules", "bad.yaml"))
    assert (line["level"], line["message"].partition(": ")[0]) == ("error", "bad.yaml:2")
    assert [problem["line"] for problem in line["problems"]] == [2, 3, 3]
    lines = failing(
        tmp_path, "--log=json", "--rules", "bad.yaml", "--engine", redis_server.url, "--workers", "2", code=2
    )
    assert "bad.yaml:2: " in errors(lines)[0]["message"]


@pytest.mark.parametrize(
    ("flags", "environment", "word"),
    [
        (("--log", "json", "--workers", "many"), {}, "--workers"),
        (("--log", "json", "--wrkers", "2"), {}, "--wrkers"),
        (("--workers", "many"), {"HEADGATE_LOG": "json"}, "--workers"),
        (("--config", "serve.toml"), {}, "colour"),
        ((), {"HEADGATE_CONFIG": "serve.toml"}, "colour"),
        (("--log", "json", "--engine", "redis://127.0.0.1:1/0", "--rules", "pushed"), {}, "127.0.0.1:1"),
    ],
)
def test_so_are_mistakes_in_settings(
    tmp_path: Path, flags: tuple[str, ...], environment: dict[str, str], word: str
) -> None:
    (tmp_path / "serve.toml").write_text('log = "json"\ncolour = "red"\n')
    code = 1 if "pushed" in flags else 2
    (line,) = errors(failing(tmp_path, *flags, code=code, **environment))
    assert word in line["message"]


def test_a_worker_crash_is_logged_with_its_traceback(tmp_path: Path, redis_server: RedisServer) -> None:
    """Something in the way of its imports makes it fail as no setting can."""
    (tmp_path / "granian.py").write_text("raise RuntimeError('made to fail')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    many = ("--engine", redis_server.url, "--workers", "2")
    for flags in ((), many):
        lines = failing(tmp_path, "--log", "json", *flags, code=1, PYTHONPATH=path)
        assert any("made to fail" in line.get("trace", "") for line in lines)


LIBRARY = """
import os, threading, time

def write():
    while not any(thread.name == "headgate-stderr" for thread in threading.enumerate()):
        time.sleep(0.05)
    os.write(2, b"as a library in C or Rust does\\n")

threading.Thread(target=write, daemon=True).start()
"""


def test_stderr_output_of_libraries_is_logged_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(LIBRARY)  # which every Python imports when it starts
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Service(BOOK, log="json") as service:
        until(lambda: None if "as a library" in service.output else "the library wrote nothing", 60)
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0
        lines = [line for line in lines_of(service.output) if "as a library" in str(line)]
    assert [line["message"] for line in lines] == ["a library wrote to stderr: as a library in C or Rust does"]
