"""One of several processes that call a partner through one limiter: prints a line of JSON for each call.

    python -m tests.integrations.outbound_worker KIND LIMIT ENGINE URL TASKS SECONDS

A line: when the call asked for its turn, its status, and the number that it was sent under.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.integrations.outbound_clients import OutboundClient


def main(kind: str, limit: str, engine: str, url: str, tasks: int, seconds: float) -> None:
    client, until, calls = OutboundClient(kind, limit, engine, key="partner"), time.time() + seconds, list[str]()

    def note(called_at: float, status: int, number: str) -> None:
        calls.append(json.dumps({"called_at": called_at, "status": status, "number": number}))

    def work(task: int) -> None:
        for turn in range(10_000):
            called_at, number = time.time(), f"{kind}-{task}-{turn}"
            if called_at > until:
                return
            note(called_at, client.fetch(f"{url}/{number}"), number)

    async def work_async(task: int) -> None:
        for turn in range(10_000):
            called_at, number = time.time(), f"{kind}-{task}-{turn}"
            if called_at > until:
                return
            note(called_at, await client.fetch_async(f"{url}/{number}"), number)

    async def work_all() -> None:
        await asyncio.gather(*(work_async(task) for task in range(tasks)))

    if client.awaited:
        client.loop.run_until_complete(work_all())
    else:
        with ThreadPoolExecutor(tasks) as pool:
            list(pool.map(work, range(tasks)))
    client.close()
    sys.stdout.write("\n".join(calls))


if __name__ == "__main__":
    kind, limit, engine, url, tasks, seconds = sys.argv[1:]
    main(kind, limit, engine, url, int(tasks), float(seconds))
