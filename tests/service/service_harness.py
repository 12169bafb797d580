"""Runs `headgate serve` in a process of its own, and calls it over real sockets."""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.servers.redis_server import free_port
from tests.servers.wait_until import until

START_SECONDS = 120  # on a machine that does much else; usually two
READY = ("headgate serves ", '"http":')  # what it prints then, in words or as JSON


class ServiceReply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in small letters
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Service:
    """One `headgate serve` on free ports of 127.0.0.1. `settings` are flags: engine="redis://...", workers=2.

    `before` stands before the command, as prlimit and its words would.
    """

    before: Sequence[str] = ()

    def __init__(self, rules: Mapping[str, Any] | str | None = None, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-service-"))
        self.http, self.grpc, self.admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", "off"
        self.settings = {"http": self.http, "grpc": self.grpc, "admin": self.admin, **settings}
        if rules is not None:
            self.write(rules)
            self.settings["rules"] = str(self.book)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def book(self) -> Path:
        return self.folder / "rules.yaml"  # JSON is YAML

    def write(self, rules: Mapping[str, Any] | str) -> None:
        self.book.write_text(rules if isinstance(rules, str) else json.dumps(rules))

    @property
    def port(self) -> int:
        """Of HTTP."""
        return int(self.http.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://{self.http}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def code(self) -> int | None:
        """With what it ended, if it did."""
        assert self._process is not None
        return self._process.poll()

    @property
    def worker_pids(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    @property
    def output(self) -> str:
        """Returns everything that the service has printed and logged so far."""
        return "".join((self.folder / name).read_text() for name in ("stdout", "stderr"))

    def start(self) -> Self:
        flags = [
            word for name, value in self.settings.items() for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self._process = subprocess.Popen(
                [*self.before, sys.executable, "-m", "headgate.cli", "serve", *flags],
                stdout=out,
                stderr=err,
                env={name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")},
            )
        until(self._not_ready, START_SECONDS)
        self.started_at = time.monotonic()
        return self

    def _not_ready(self) -> str | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended with {self._process.returncode}: {self.output}")
        return None if any(sign in self.output for sign in READY) else f"not ready: {self.output}"

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, seconds: float = 20) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def restart(self) -> None:
        """Stops it as an operator would, and starts it again at the same addresses."""
        self.send_signal(signal.SIGTERM)
        self.wait()
        self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def send_request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> ServiceReply:
        with self.connection() as line:
            line.request(method, path, body, dict(headers or {}))
            return reply_of(line)

    def post(self, verb: str, request: Any = None, **fields: Any) -> ServiceReply:
        body = json.dumps(fields if request is None else request).encode()
        return self.send_request("POST", f"/v1/{verb}", body)

    def check(self, cost: int | None = None, **attributes: Any) -> Any:
        """The answer to one check."""
        request = {"attributes": attributes} | ({} if cost is None else {"cost": cost})
        reply = self.post("check", request)
        assert reply.status == 200, reply
        return reply.json

    @contextmanager
    def connection(self) -> Iterator[http.client.HTTPConnection]:
        line = http.client.HTTPConnection(self.http, timeout=10)
        try:
            yield line
        finally:
            line.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def reply_of(line: http.client.HTTPConnection) -> ServiceReply:
    answer = line.getresponse()
    return ServiceReply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
