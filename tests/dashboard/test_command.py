"""`headgate dashboard` without a service: prints its address and token, shows a rule, and cannot run stages."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from headgate.cli import main
from tests.servers import RedisServer
from tests.servers.redis_server import free_port

TEXT = """\
rules:
  - name: api
    key: user
    missing: skip
    limit: 5/minute
    mode: shadow
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    book = tmp_path_factory.mktemp("command") / "rules.yaml"
    book.write_text(TEXT)
    with RedisServer() as redis:
        assert main(["rules", "push", str(book), "--engine", redis.url, "--author", "test"]) == 0
        yield redis


@contextmanager
def running(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs the command until the end of the block; yields the process and the line that it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "dashboard", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=clean | variables,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


class Reader:
    """Reads pages over a real connection, with the cookie of a login."""

    def __init__(self, address: str) -> None:
        self._address, self._cookie = address, ""

    def send(
        self, method: str, path: str, fields: dict[str, str] | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection(self._address, timeout=20)
        try:
            headers = {"content-type": "application/x-www-form-urlencoded", "cookie": self._cookie}
            connection.request(method, path, urlencode(fields or {}), headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def log_in(self, token: str) -> int:
        status, fields, _ = self.send("POST", "/dashboard/login", {"user": "ann", "token": token})
        self._cookie = (fields["set-cookie"] or "").partition(";")[0]
        return status

    def page(self, path: str) -> str:
        status, fields, text = self.send("GET", path)
        assert status == 200, text
        assert "default-src 'none'" in fields["content-security-policy"]
        return text

    def words(self, path: str) -> str:
        return re.sub(
            r"\s+", " ", unescape(re.sub(r"<script.*?</script>|<[^>]*>", " ", self.page(path), flags=re.S))
        )


def test_it_prints_its_address_and_token_and_shows_a_rule(redis: RedisServer) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running("--engine", redis.url, "--address", address) as (process, line):
        match = re.fullmatch(r"The dashboard of redis://\S+: http://(\S+)/dashboard/ with the token (\S+)\n", line)
        assert match is not None, line
        assert match[1] == address
        reader = Reader(address)
        assert reader.send("GET", "/dashboard/rules")[0] == 303  # not without the token
        assert reader.log_in("a wrong token 0123456789") == 401
        assert reader.log_in(match[2]) == 303
        assert 'data-rule="api"' in reader.page("/dashboard/")
        assert "5/minute" in reader.words("/dashboard/rule?name=api")
        assert "limit: 5/minute" in reader.page("/dashboard/rules")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_it_says_that_stages_cannot_run_here(redis: RedisServer) -> None:
    address = f"127.0.0.1:{free_port()}"
    with running("--engine", redis.url, "--address", address, "--json") as (_, line):
        printed = json.loads(line)
        assert printed["dashboard"] == f"http://{address}/dashboard/"
        reader = Reader(address)
        assert reader.log_in(printed["admin_token"]) == 303
        page = reader.page("/dashboard/rule?name=api")
        sentence = "No service runs that could watch over the stages: start headgate serve."
        assert sentence in page
        token = re.search(r'name="form" value="([^"]+)"', page)
        assert token is not None
        fields = {"form": token[1], "name": "api", "reason": "r", "hold": "10m", "bound": "1 %"}
        status, _, text = reader.send("POST", "/dashboard/rule/stages/start", fields)
        assert (status, sentence in text) == (400, True)
        assert "mode: shadow" in reader.page("/dashboard/rules")


def test_a_token_that_was_set_is_not_printed(redis: RedisServer, tmp_path: Path) -> None:
    address, token = f"127.0.0.1:{free_port()}", "the operators' token 0123456789"
    words = ("--engine", redis.url, "--address", address)
    with running(*words, HEADGATE_ADMIN_TOKEN=token) as (_, line):
        assert "the token that was set" in line
        assert token not in line
        assert Reader(address).log_in(token) == 303


def test_counts_of_one_process_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--engine", "memory://"]) == 2
    assert "memory:// is one process alone" in capsys.readouterr().err
