"""Runs WSGI applications on real servers, in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import waitress  # type: ignore[import-untyped]
from werkzeug.serving import make_server

THREADED = ("werkzeug", "waitress")
STOP_SECONDS = 10


@contextmanager
def serve(kind: str, app: Any) -> Iterator[httpx.Client]:
    """Serves an application on a free port; yields a client of it."""
    if kind == "waitress":
        server = waitress.create_server(app, host="127.0.0.1", port=0, threads=4)
        port, stopping = server.effective_port, threading.Event()

        def run() -> None:
            # It looks 20 times a second whether to stop: to wake it from here could write to files that it closes.
            while not stopping.is_set():
                server.asyncore.loop(timeout=0.05, map=server._map, count=1)
            server.task_dispatcher.shutdown()
            server.asyncore.close_all(server._map)

        stop = stopping.set
    else:
        threaded = make_server("127.0.0.1", 0, app, threaded=True)
        port, stop = threaded.server_port, threaded.shutdown

        def run() -> None:
            threaded.serve_forever()
            threaded.server_close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
            yield client
    finally:
        stop()
        thread.join(STOP_SECONDS)
