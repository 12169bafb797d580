"""A real Redis or Valkey server that a test starts, calls, stops, kills and restarts."""

import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from tests.servers.driven_clock import DrivenClock
from tests.servers.raw_redis_client import ErrorReply, Reply, send_commands
from tests.servers.server_programs import Kind, command, server_binary

START_SECONDS = 20
PORT_ATTEMPTS = 5
# Below the range from which the kernel serves outgoing connections. In that range a client that keeps calling a
# dead server's port ends, now and then, connected to itself; and any connection may sit on the port of a server
# that is about to come back. Of several runs of tests at once, each has ports of its own.
_RUN = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_RUNS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
PORTS = range(20_000 + _RUN, 32_000, _RUNS)


class RedisServer:
    """One server process on 127.0.0.1 and on a unix socket, keeping nothing on disk.

    `config` are lines of a redis.conf (ACL users, for instance), `args` are appended to the command line, and
    `driven` puts the server on a clock that the test turns. Start it with `start()` or as a context manager.
    The port and the socket stay the same over `restart()`, so clients may reconnect.
    """

    def __init__(
        self,
        kind: Kind = "redis",
        *,
        driven: DrivenClock | None = None,
        password: str | None = None,
        config: Sequence[str] = (),
        args: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.driven = driven
        self.password = password
        self._config = list(config)
        self._args = list(args)
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-server-"))
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the server has no port before start()")
        return self._port

    @property
    def unix_path(self) -> str:
        return str(self._folder / "socket")

    @property
    def url(self) -> str:
        return f"redis://{login_of(self.password)}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{login_of(self.password)}{self.unix_path}?db=0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def awake(self) -> bool:
        """Alive, and not paused: it will answer."""
        return self.alive and not self._paused

    @property
    def clock(self) -> DrivenClock:
        """The clock this server lives by."""
        if self.driven is None:
            raise RuntimeError("this server is on the real clock; start one with driven=DrivenClock(...)")
        return self.driven

    def start(self) -> Self:
        """Start, and return once the server answers PING."""
        if self.alive:
            raise RuntimeError("the server is already running")
        if self._port is not None:
            self._launch(self._port)
            return self
        # A free port can be taken by somebody else before the server binds it: then try another.
        for attempt in range(PORT_ATTEMPTS):
            try:
                port = free_port()
                self._launch(port)
            except _PortTaken:
                if attempt == PORT_ATTEMPTS - 1:
                    raise
            else:
                self._port = port
                break
        return self

    def call(self, *words: str | bytes | int) -> Reply:
        """Ask one command as the default user, over the unix socket."""
        login = [("AUTH", self.password)] if self.password is not None else []
        return send_commands(self.unix_path, *login, words)[-1]

    def time_us(self) -> int:
        """Returns the time that a script on this server reads."""
        match self.call("EVAL", "return redis.call('TIME')", 0):
            case [bytes() as seconds, bytes() as micros]:
                return int(seconds) * 1_000_000 + int(micros)
            case reply:
                raise RuntimeError(f"TIME answered {reply!r}")

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO, by name."""
        reply = self.call("INFO", section)
        if not isinstance(reply, bytes):
            raise RuntimeError(f"INFO {section} answered {reply!r}")
        pairs = (line.partition(":") for line in reply.decode().splitlines())
        return {name: value for name, colon, value in pairs if colon}

    def flush(self) -> None:
        """Forget every key. Cached scripts stay, as they do in production."""
        self.call("FLUSHALL", "SYNC")

    def stop(self) -> None:
        """End the server in the orderly way (SIGTERM), by force if it will not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it hang (SIGSTOP): the kernel still takes connections for it, and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)
        self._paused = False

    def restart(self) -> None:
        """A new, empty process on the same port and socket."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove its folder."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self if self.alive else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _launch(self, port: int) -> None:
        Path(self.unix_path).unlink(missing_ok=True)
        environment = os.environ | (self.driven.environment() if self.driven else {})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command_line(port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        self._paused = False
        try:
            self._await_ping()
        except BaseException:
            self.kill()
            raise

    def _command_line(self, port: int) -> list[str]:
        self._write_settings(self._config)
        return [
            *self._program(),
            *("--bind", "127.0.0.1", "--port", str(port)),
            *("--unixsocket", self.unix_path, "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(self._folder)),
            *self._args,
        ]

    def _write_settings(self, lines: Sequence[str]) -> None:
        secret = [] if self.password is None else [f"requirepass {self.password}"]
        self._settings.write_text("".join(f"{line}\n" for line in [*secret, *lines]))

    def _program(self) -> list[str]:
        # setpriv asks the kernel to kill the server when the thread that started it ends, so that an aborted
        # test run leaves nothing behind; it then becomes the server, under the same pid. (Popen's preexec_fn
        # could ask too, but warns, and may deadlock, where the test process has threads.)
        setpriv = str(command("setpriv", "util-linux"))
        return [setpriv, "--pdeathsig", "KILL", "--", str(server_binary(self.kind)), str(self._settings)]

    def _await_ping(self) -> None:
        # The real monotonic clock: the driven one is the server's, not ours.
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not self.alive:
                raise self._failure("ended before it answered")
            try:
                self.call("PING")
                return
            except (OSError, ErrorReply) as error:
                if time.monotonic() > deadline:
                    raise self._failure(f"did not answer PING within {START_SECONDS} s ({error})") from error
            time.sleep(0.005)

    def _failure(self, what: str) -> RuntimeError:
        log = self._log.read_text(errors="replace")
        kind = _PortTaken if "Address already in use" in log else RuntimeError
        return kind(f"the {self.kind} server {what}. Its last words:\n{log[-2000:]}")

    @property
    def _settings(self) -> Path:
        return self._folder / "server.conf"

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("the server is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        if self.alive and self._paused:
            self.resume()
        self._process.send_signal(how)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class _PortTaken(RuntimeError):
    """Somebody bound the port first."""


def login_of(password: str | None, user: str | None = None) -> str:
    """The part of a URL that says who comes; nothing where nobody asks."""
    return "" if password is None else f"{quote(user or '', safe='')}:{quote(password, safe='')}@"


_given: deque[int] = deque(maxlen=100)  # whoever asked for them may not listen yet


def free_port() -> int:
    """A port of 127.0.0.1 that nobody has, and that was not given lately; another process may still take it."""
    while True:
        # Not `random`: under @given that is seeded, and every run would try the same ports.
        port = secrets.choice(PORTS)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                _given.append(port)
                return port
