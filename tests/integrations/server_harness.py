"""Runs an application in a real server of its own thread, and calls it as clients do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from tests.servers.wait_until import until


@contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serves an ASGI application on a free port of 127.0.0.1; yields its URL."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="critical",
        proxy_headers=False,
        ws="websockets-sansio",
        lifespan="on",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        until(lambda: None if server.started or not thread.is_alive() else "the server is starting", 30)
        assert server.started, "the application did not start"
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serve_to_client(app: Any, **headers: str) -> Iterator[httpx.Client]:
    """Serves an application, and yields a client of it."""
    headers["Connection"] = "close"  # a server closes it anyway after an exception that nobody handles
    with serve(app) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        yield client


def limit_fields(response: httpx.Response) -> dict[str, str]:
    """Returns the fields of a response that describe its limits."""
    return {
        name: value for name, value in response.headers.items() if "ratelimit" in name or name == "retry-after"
    }
