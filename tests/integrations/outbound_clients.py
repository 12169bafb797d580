"""The four clients of outbound calls, spoken to alike: each GETs or POSTs, and returns the status. With rules in
place of a limit, the limiter is that of a rulebook."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import requests

from headgate.clock import Clock
from headgate.integrations.aiohttp_client import LimitedCalls
from headgate.integrations.httpx import AsyncLimitedTransport, LimitedTransport
from headgate.integrations.requests import LimitedAdapter
from headgate.limiter import AsyncLimiter, Limiter

CLIENTS = ("httpx", "httpx async", "requests", "aiohttp")


class OutboundClient:
    """One client with its own limiter on the engine at `engine`."""

    def __init__(
        self,
        kind: str,
        limit: str | dict[str, Any] | None,
        engine: str = "memory://",
        clock: Clock | None = None,
        max_wait: float | None = None,
        **settings: Any,
    ) -> None:
        self.kind = kind
        self.awaited = kind in ("httpx async", "aiohttp")
        self.loop = asyncio.new_event_loop()
        options: dict[str, Any] = {"name": "partner", "pausable": True}
        if engine == "memory://":
            options["clock"] = clock
        self.limiter: Any = None
        if isinstance(limit, dict):
            made_by = AsyncLimiter if self.awaited else Limiter
            self.limiter = made_by.from_rules(limit, engine, clock=clock)
        elif limit is not None:
            self.limiter = (AsyncLimiter if self.awaited else Limiter)(limit, engine, **options)
            self.limiter.clock = clock or self.limiter.clock  # a server counts by its own: this one sleeps
        self._fetch, self._close = getattr(self, f"_{kind.replace(' ', '_')}")(max_wait, settings)

    def fetch(self, url: str, method: str = "GET", body: Any = None) -> int:
        answer = self._fetch(url, method, body)
        return int(self.loop.run_until_complete(answer) if self.awaited else answer)

    async def fetch_async(self, url: str) -> int:
        return int(await self._fetch(url, "GET", None))

    def call_limiter(self, verb: str, *args: object) -> Any:
        answer = getattr(self.limiter, verb)(*args)
        return self.loop.run_until_complete(answer) if self.awaited else answer

    def close(self) -> None:
        answer = self._close()
        if self.awaited:
            self.loop.run_until_complete(answer)
        if self.limiter is not None:
            self.call_limiter("close")
        self.loop.close()

    async def close_async(self) -> None:
        await self._close()
        await self.limiter.close()

    def _httpx(self, max_wait: float | None, settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        transport = LimitedTransport(self.limiter, timeout=max_wait, **settings)
        client = httpx.Client(transport=transport, trust_env=False, timeout=30)
        return lambda url, method, body: client.request(method, url, content=body).status_code, client.close

    def _httpx_async(self, max_wait: float | None, settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        transport = AsyncLimitedTransport(self.limiter, timeout=max_wait, **settings)
        client = httpx.AsyncClient(transport=transport, trust_env=False, timeout=30)

        async def fetch(url: str, method: str, body: Any) -> int:
            return (await client.request(method, url, content=body)).status_code

        return fetch, client.aclose

    def _requests(self, max_wait: float | None, settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        session = requests.Session()
        session.trust_env = False
        session.mount("http://", LimitedAdapter(self.limiter, max_wait=max_wait, pool_maxsize=20, **settings))
        return (
            lambda url, method, body: session.request(method, url, data=body, timeout=30).status_code,
            session.close,
        )

    def _aiohttp(self, max_wait: float | None, settings: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        calls, sessions = LimitedCalls(self.limiter, timeout=max_wait, **settings), list[aiohttp.ClientSession]()

        async def fetch(url: str, method: str, body: Any) -> int:
            if not sessions:
                sessions.append(aiohttp.ClientSession(middlewares=[calls]))
            async with sessions[0].request(method, url, data=body) as response:
                await response.read()
                return response.status

        async def close() -> None:
            for session in sessions:
                await session.close()

        return fetch, close
