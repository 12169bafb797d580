"""A faulty proxy before a server: delays, swallows, cuts, refuses or trickles what is sent.

    with RedisServer() as server, Proxy(server) as link:
        client = connect(link.url)
        link.delay(20)                  20 ms more each way
        link.swallow("replies")         the server decides, and nobody hears of it
        link.cut()                      every connection is reset, now
        link.heal()                     all is well again

The faults of the two directions are apart: `link.delay(5, "requests")` and `link.trickle(way="replies")` hold
together. A fault concerns the bytes that set out after it; connections stay open through it, but for `cut`.
Starting takes 0.03 s. The bytes pass through a process of their own (faulty_link) and not through the test's: each
way a delay is about half a millisecond too long, however busy the test is. To pass at once costs 0.05 ms.
"""

import json
import subprocess
import sys
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, Self

from tests.servers.redis_server import RedisServer, free_port
from tests.servers.server_programs import command
from tests.servers.wait_until import until

Direction = Literal["requests", "replies", "both"]
PROGRAM = Path(__file__).with_name("faulty_proxy_process.py")
ATTEMPTS = 5


class Proxy:
    """Stands in front of a server that has been started. The port stays the same until `close()`."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self._port: int | None = None
        self._process: subprocess.Popen[str] | None = None
        self._one_order = Lock()

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError("the proxy has no port before start()")
        return self._port

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def url(self) -> str:
        """The server's URL, by way of the proxy."""
        return self.server.url.replace(f"127.0.0.1:{self.server.port}", f"127.0.0.1:{self.port}")

    @property
    def open(self) -> int:
        """Returns how many callers are connected now."""
        return self._order(do="count")["open"]

    @property
    def opened(self) -> int:
        """Returns how many connections were ever accepted."""
        return self._order(do="count")["opened"]

    def start(self) -> Self:
        """Start, and return once it listens."""
        for attempt in range(ATTEMPTS):
            self._port = free_port()
            # As for a server: it ends with the thread that started it, so that nothing is left behind.
            setpriv = (str(command("setpriv", "util-linux")), "--pdeathsig", "KILL", "--")
            self._process = subprocess.Popen(
                [*setpriv, sys.executable, "-I", str(PROGRAM), str(self._port), str(self.server.port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                self._order(do="count")
                break
            except ConnectionError:
                self.close()
                if attempt == ATTEMPTS - 1:
                    raise
        return self

    def heal(self) -> None:
        """Pass everything, at once, and listen."""
        self._weather("both")
        self._order(do="listen")

    def delay(self, ms: float, way: Direction = "both") -> None:
        """Let every byte arrive `ms` later; with "both", a round trip takes twice that."""
        self._weather(way, delay_s=ms / 1000)

    def swallow(self, way: Direction = "both") -> None:
        """Take connections and bytes, and forward nothing. Swallowed bytes are lost, also after `heal()`."""
        self._weather(way, swallows=True)

    def trickle(self, every_ms: float = 1, way: Direction = "both") -> None:
        """Forward one byte at a time, one every so often."""
        self._weather(way, pause_s=every_ms / 1000)

    def refuse(self) -> None:
        """Take no more connections; those that are open stay. `refuse()` and `cut()` are a server gone away."""
        self._order(do="refuse")

    def cut(self) -> None:
        """Reset all connections that are open now (RST, on both sides). New ones are taken."""
        self._order(do="cut")

    def await_open(self, count: int, seconds: float = 5) -> None:
        """Return when exactly so many callers are connected."""
        until(lambda: None if (now := self.open) == count else f"{now} connections are open", seconds)

    def close(self) -> None:
        """End it, and with it every connection."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _weather(self, way: Direction, *, delay_s: float = 0, pause_s: float = 0, swallows: bool = False) -> None:
        for one in ("requests", "replies") if way == "both" else (way,):
            self._order(do="weather", way=one, delay_s=delay_s, pause_s=pause_s, swallows=swallows)

    def _order(self, **order: object) -> dict[str, int]:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with self._one_order:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            raise ConnectionError(f"the proxy on port {self._port} has ended: see what it wrote to stderr")
        counts: dict[str, int] = json.loads(answer)
        return counts

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the proxy is not running")
        return self._process
