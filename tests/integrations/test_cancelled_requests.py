"""Requests that are cancelled are refunded, settled and released all the same.

A cancel scope of anyio, such as that of Starlette's BaseHTTPMiddleware, cancels every await inside of it, also
those that clean up.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from headgate.integrations.asgi import RateLimitMiddleware, limit
from headgate.integrations.request_record import RequestRecord
from tests.servers import RedisServer

SCOPE = {"type": "http", "path": "/", "headers": [], "method": "GET"}
TIMEOUT_S = 20


@pytest.mark.parametrize("cancelled_by", ["scope", "task"])
def test_a_cancelled_stream_is_settled_and_its_slot_is_free(redis_server: RedisServer, cancelled_by: str) -> None:
    records: list[RequestRecord] = []
    started = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        record = scope["state"]["headgate"]
        records.append(record)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        record.settle(40, rule="tokens")
        started.set()
        await asyncio.Event().wait()

    limits = [limit("100/day fixed", key=None, cost=10, name="tokens"), limit("1 slots", key=None, name="one")]
    app = RateLimitMiddleware(endless, engine=redis_server.url, limits=limits, prefix=f"by-{cancelled_by}")

    async def send(message: Any) -> None:
        return None

    async def call_and_cancel() -> None:
        started.clear()
        if cancelled_by == "task":
            task = asyncio.ensure_future(app(dict(SCOPE), _never, send))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app, dict(SCOPE), _never, send)
            await started.wait()
            tasks.cancel_scope.cancel()

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await call_and_cancel()
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # what goes on after the request
                await asyncio.wait(others)
            await call_and_cancel()  # it would be refused if the slot were held
        await app.limits.close()

    asyncio.run(main())
    verdicts = {verdict.rule: verdict.remaining for verdict in records[1].decision.verdicts}  # type: ignore[union-attr]
    assert verdicts["tokens"] == 100 - 40 - 10


async def _never() -> Any:
    await asyncio.Event().wait()
