"""Does an adaptive rule in nginx keep the slow server behind it useful?

The staged case of adaptive_server.py, with the same arrivals: nginx passes each call on to one uvicorn with a pool
of 12 threads, which limits nothing. The fixed limits are slots of the same gate. With two workers both share one
limit. The limit over time is read from nginx's metrics, four times a second.
"""

import asyncio
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.adaptive_server import (
    Run,
    ServedLimit,
    compare_with_fixed,
    draw,
    measure,
    send_load,
    serving,
    wait_for,
)
from benchmarks.report import BenchmarkReport
from tests.nginx.gateway_harness import NginxGateway

RULE: dict[str, Any] = {"adaptive": "concurrency"}
ONE = (
    *(ServedLimit(f"nginx, fixed {limit}", limit) for limit in (14, 18, 22)),
    ServedLimit("nginx, rule", RULE),
    ServedLimit("nginx, rule, p90 300ms", RULE | {"target": "p90 300ms", "between": [5, 500]}),
)
TWO = (
    ServedLimit("nginx with two workers, fixed 18", 18, 2),
    ServedLimit("nginx with two workers, rule", RULE, 2),
)
QUICK = ("nginx, fixed 18", "nginx, rule", "nginx with two workers, fixed 18", "nginx with two workers, rule")
LOOK = 0.25  # seconds between two looks at the limit
HTTP = "proxy_http_version 1.1;"
SERVER = """
location ~ ^/[0-9]+$ { proxy_pass http://127.0.0.1:%d; }
location = /metrics { access_by_lua_block { } content_by_lua_block { require("resty.headgate").metrics() } }
"""


def answer(report: BenchmarkReport) -> None:
    report.say("**The staged case at nginx**, before a server with a pool of 12 threads; the median of rounds")
    subjects = [each for each in (*ONE, *TWO) if not report.quick or each.name in QUICK]
    runs = measure(report, "nginx", subjects, run)
    chart = Path(".cache/bench/adaptive_nginx.svg")
    draw(chart, "The limit of a rule in nginx", ("nginx, rule", "nginx with two workers, rule"), runs)
    report.say(f"The limit over time: {chart}")
    for workers in (1, 2):
        compare_with_fixed(report, [each for each in subjects if each.processes == workers], runs)


def run(subject: ServedLimit) -> Run:
    """Starts the slow server and nginx before it, and sends them the load."""
    limit = f"{subject.limit} slots" if isinstance(subject.limit, int) else subject.limit
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(10_000, None, "memory://", None) as slow,
        NginxGateway(
            {"rules": [{"name": "app", "limit": limit}]},
            server=SERVER % slow,
            http=HTTP,
            workers=subject.processes,
            log=False,
        ) as gate,
    ):
        asyncio.run(wait_for(slow))
        return asyncio.run(_load(gate, Path(folder) / "changes"))


async def _load(gate: NginxGateway, changes: Path) -> Run:
    noting = asyncio.create_task(_note_changes(gate, changes))
    try:
        return await send_load([gate.port], [str(changes)])
    finally:
        noting.cancel()


async def _note_changes(gate: NginxGateway, changes: Path) -> None:
    """Writes each change of the limit to a file, with its time."""
    before: float | None = None
    while True:
        limit = await asyncio.to_thread(_limit, gate)
        if limit is not None and limit != before:
            with changes.open("a") as file:
                file.write(json.dumps([time.monotonic(), before or limit, limit]) + "\n")
            before = limit
        await asyncio.sleep(LOOK)


def _limit(gate: NginxGateway) -> float | None:
    found = re.search(r"^headgate_adaptive_limit\{.*\} (\S+)$", gate.get("/metrics").body.decode(), re.MULTILINE)
    return float(found[1]) if found else None
