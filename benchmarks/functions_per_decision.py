"""Counts headgate's own functions that one decision enters: how far must a reader follow it?

    python -m benchmarks.functions_per_decision           take and check in memory and on Redis, a request at nginx
    python -m benchmarks.functions_per_decision --calls    lists each call, too

In Python a generator counts each time it starts or resumes. In nginx the compiler of LuaJIT is off, because
compiled code calls no hook. Each way is gone twice before, so that caches are filled and connections open.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import headgate
from headgate import Limiter
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer

SOURCES = f"{Path(headgate.__file__).parent}/"
RULES = {"rules": [{"name": "login", "key": "address", "missing": "deny", "limit": "1000000/minute"}]}
COUNTED_LOCATION = """
location = /counted {
  access_by_lua_block {
    local gate, calls = require "resty.headgate", {}
    jit.off()
    jit.flush()
    debug.sethook(function()
      local info = debug.getinfo(2, "Sn")
      local file = string.match(info.source, "resty/(headgate.*)%.lua$")
      if file then calls[#calls + 1] = file .. ".lua:" .. (info.name or info.linedefined) end
    end, "c")
    gate.access()
    debug.sethook()
    ngx.ctx.calls = table.concat(calls, "\\n")
  }
  content_by_lua_block { ngx.print(ngx.ctx.calls) }
}
"""


def calls_of(decide: Callable[[], Any]) -> list[str]:
    """Returns the functions that one call enters, as file:function, in their order."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCES):
            entered.append(f"{path.removeprefix(SOURCES)}:{frame.f_code.co_name}")

    for _ in range(2):
        decide()
    sys.setprofile(note)
    try:
        decide()
    finally:
        sys.setprofile(None)
    return entered


def ways(redis: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each way with its calls."""
    for url in ("memory://", redis):
        with Limiter("1000000/minute", url) as limiter:
            yield f"take, {url.partition(':')[0]}", calls_of(lambda limiter=limiter: limiter.take("ann"))
        with Limiter.from_rules(RULES, url) as rules:
            call = {"address": "192.0.2.7"}
            yield f"check, {url.partition(':')[0]}", calls_of(lambda rules=rules, call=call: rules.check(call))
    for place, engine in (("shared dict", None), ("redis", redis)):
        with NginxGateway(RULES, engine, server=COUNTED_LOCATION) as gate:
            answers = [gate.get("/counted") for _ in range(3)]
            yield f"nginx, {place}", answers[-1].body.decode().splitlines()


def main(arguments: list[str]) -> None:
    with RedisServer() as server:
        for way, calls in ways(server.url):
            files = {call.partition(":")[0] for call in calls}
            print(f"{way:20} {len(calls):3} calls in {len(files):2} files")
            if "--calls" in arguments:
                print(*(f"    {call}" for call in calls), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
