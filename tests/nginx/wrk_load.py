"""Loads a gateway with wrk while a test disturbs it, and reads its access log afterwards."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.nginx.gateway_harness import NginxGateway
from tests.servers.server_programs import command

OTHERS = """
local turn, pause = %d, %d
function request()
  turn = turn + 1
  return wrk.format("GET", "/x" .. turn .. "?q=" .. turn, { ["X-User"] = turn, ["Cookie"] = "sid=" .. turn })
end
function delay() return math.random(0, pause) end
"""
SAME = "function delay() return math.random(0, 4) end"


@contextmanager
def run_wrk(gate: NginxGateway, seconds: int, script: str = SAME, connections: int = 16) -> Iterator[None]:
    """For so long, whatever is done meanwhile. Afterwards all have been answered."""
    path = gate.folder / "load.lua"
    path.write_text(script)
    words = [str(command("wrk", "wrk")), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(path), gate.url]
    running = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    try:
        yield
    finally:
        running.wait()
        time.sleep(0.2)


def distinct_key_requests(begun: int = 0, pause_ms: int = 4) -> str:
    """Each request has a key of its own."""
    return OTHERS % (begun, pause_ms)


def requests_by_status(gate: NginxGateway, begun: int = 0) -> Counter[str]:
    """The requests by their status and what was decided of them."""
    return Counter(" ".join(line.split()[:2]) for line in gate.lines(begun)[begun:])


def remaining_units(gate: NginxGateway) -> int:
    return int(gate.get("/").headers["ratelimit"].partition(";r=")[2].partition(";")[0])
