"""Serves the project over WSGI and ASGI, and changes its settings meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import httpx
import uvicorn
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.test import override_settings

from tests.integrations.django_project import project  # noqa: F401  (configures Django)
from tests.servers.wait_until import until

Interface = Literal["wsgi", "asgi"]


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002


class _QuietServer(ThreadedWSGIServer):
    daemon_threads = True


@contextmanager
def serve_project(interface: Interface, headgate: dict[str, Any], **more: Any) -> Iterator[httpx.Client]:
    """Serves the project with this HEADGATE; yields a client."""
    serve = _serve_wsgi if interface == "wsgi" else _serve_asgi
    with (
        override_settings(HEADGATE=headgate, **more),
        serve() as url,
        httpx.Client(base_url=url, headers={"Connection": "close"}, trust_env=False) as client,
    ):
        yield client


@contextmanager
def _serve_wsgi() -> Iterator[str]:
    server = _QuietServer(("127.0.0.1", 0), _QuietHandler)
    server.set_app(WSGIHandler())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _serve_asgi() -> Iterator[str]:
    config = uvicorn.Config(ASGIHandler(), host="127.0.0.1", port=0, log_level="critical", proxy_headers=False)
    config.lifespan = "off"
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        until(lambda: None if server.started or not thread.is_alive() else "the server is starting", 30)
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
