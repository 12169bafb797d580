"""A real nginx with its Lua module that a test configures, calls, reloads, kills and stops."""

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.repo_rules.repository import ROOT
from tests.servers.driven_clock import DrivenClock
from tests.servers.redis_server import free_port
from tests.servers.server_programs import MissingComponent, command
from tests.servers.wait_until import until

LIB = ROOT / "nginx" / "lib"
START_SECONDS = 20

# Debian keeps modules here; OpenResty has the Lua module built in.
_MODULES = Path("/usr/share/nginx/modules")
_CONF = """\
{modules}
{user}
worker_processes {workers};
daemon off;
pid nginx.pid;
error_log error.log {level};
{main}
events {{ worker_connections {connections}; }}
http {{
  {silence}
  client_body_temp_path tmp/body; proxy_temp_path tmp/proxy; fastcgi_temp_path tmp/fastcgi;
  uwsgi_temp_path tmp/uwsgi; scgi_temp_path tmp/scgi;
  keepalive_requests 100000000;
  lua_package_path "{lib}/?.lua;;";
  {http}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    {server}
  }}
}}
"""


class NginxReply(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in small letters; of several fields of one name, joined by ", "
    body: bytes


class Nginx:
    """One nginx on 127.0.0.1, in a folder of its own that is gone after `stop()`.

    `http` and `server` are lines for those blocks, `main` for the top. Our Lua modules are on the package path.
    The port stays the same over `restart()` and `reload()`. The error log is at the level `notice` unless said.
    """

    lib: Path = LIB  # where our Lua modules are

    def __init__(
        self,
        server: str,
        http: str = "",
        *,
        main: str = "",
        workers: int = 1,
        connections: int = 4096,
        level: str = "notice",
        driven: DrivenClock | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-nginx-"))
        self.port = free_port()
        self.driven = driven
        self._blocks = {"server": server, "http": http, "main": main, "level": level}
        self._workers, self._connections = workers, connections
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    @property
    def log(self) -> str:
        """All that the error log says so far."""
        path = self.folder / "error.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def configure(self, **settings: str) -> None:
        """Other lines for `server`, `http` or `main`; they count from the next start or reload."""
        self._blocks |= settings

    def block(self, name: str) -> str:
        """The lines of that block."""
        return self._blocks[name]

    def start(self) -> Self:
        (self.folder / "tmp").mkdir(exist_ok=True)
        self._write()
        environment = {**os.environ, **({} if self.driven is None else self.driven.environment())}
        program = command("nginx", "nginx libnginx-mod-http-lua")
        line = [str(program), "-p", f"{self.folder}/", "-c", "nginx.conf"]
        with (self.folder / "stderr").open("ab") as stderr:
            self._process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
        until(self._not_ready, START_SECONDS)
        return self

    def reload(self) -> None:
        """As `nginx -s reload` does: new workers take over, old ones end what they have begun."""
        self._write()
        before = set(self.worker_pids)
        os.kill(self.pid, signal.SIGHUP)
        until(lambda: None if set(self.worker_pids) - before else "no new worker", START_SECONDS)

    def restart(self) -> None:
        self.halt()
        self.start()

    def halt(self) -> None:
        """End it; the folder and the port stay."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.halt()
        shutil.rmtree(self.folder, ignore_errors=True)

    def get(
        self,
        target: str = "/",
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        source: str | None = None,
    ) -> NginxReply:
        """One request on a connection of its own; from the address `source` (any of 127.0.0.0/8) if given."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=20, source_address=None if source is None else (source, 0)
        )
        try:
            connection.request(method, target, headers=dict(headers or {}))
            answer = connection.getresponse()
            fields: dict[str, str] = {}
            for name, value in answer.getheaders():
                folded = name.lower()
                fields[folded] = f"{fields[folded]}, {value}" if folded in fields else value
            return NginxReply(answer.status, fields, answer.read())
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write(self) -> None:
        modules = "\n".join(f"load_module {path};" for path in _modules())
        text = _CONF.format(
            modules=modules,
            user="user root;" if os.geteuid() == 0 else "",
            workers=self._workers,
            connections=self._connections,
            lib=self.lib,
            port=self.port,
            silence="" if "access_log" in self._blocks["http"] else "access_log off;",
            **self._blocks,
        )
        (self.folder / "nginx.conf").write_text(text)

    def _not_ready(self) -> str | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"nginx did not start: {(self.folder / 'stderr').read_text()}{self.log}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.connect()
        except OSError as error:
            return f"nginx does not answer: {error}"
        finally:
            connection.close()
        return None


def _modules() -> list[Path]:
    """The Lua module and what it stands on, if they are not built in."""
    built_in = subprocess.run([command("nginx", "nginx"), "-V"], capture_output=True, text=True, check=True).stderr
    if "openresty" in built_in:
        return []
    modules = [_MODULES / "ndk_http_module.so", _MODULES / "ngx_http_lua_module.so"]
    if not all(path.exists() for path in modules):
        raise MissingComponent("ngx_http_lua_module", f"it is not in {_MODULES}", "nginx libnginx-mod-http-lua")
    return modules
