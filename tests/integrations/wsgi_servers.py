"""Runs WSGI applications on real servers, in a thread of the test or as a process of gunicorn."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import waitress  # type: ignore[import-untyped]
from werkzeug.serving import make_server

from tests.servers.redis_server import free_port
from tests.servers.waiting import until

ROOT = Path(__file__).parents[2]
THREADED = ("werkzeug", "waitress")
START_SECONDS, STOP_SECONDS = 30, 10


@contextmanager
def serve(kind: str, app: Any) -> Iterator[httpx.Client]:
    """Serves an application on a free port; yields a client of it."""
    if kind == "waitress":
        server = waitress.create_server(app, host="127.0.0.1", port=0, threads=4)
        port, stopping = server.effective_port, threading.Event()

        def run() -> None:
            while not stopping.is_set():
                server.asyncore.loop(timeout=1, map=server._map, count=1)
            server.task_dispatcher.shutdown()
            server.asyncore.close_all(server._map)

        def stop() -> None:
            stopping.set()
            server.pull_trigger()
    else:
        threaded = make_server("127.0.0.1", 0, app, threaded=True)
        port, stop = threaded.server_port, threaded.shutdown

        def run() -> None:
            threaded.serve_forever()
            threaded.server_close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        stop()
        thread.join(STOP_SECONDS)


@contextmanager
def serve_gunicorn(app: str, folder: Path, **environment: str) -> Iterator[httpx.Client]:
    """Serves an application, named like module:app in this folder, with gunicorn."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gunicorn", "--bind", url.removeprefix("http://"), "--threads", "2", app]
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    with (
        subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stderr=subprocess.DEVNULL,
        ) as process,
        httpx.Client(base_url=url, timeout=30) as client,
    ):

        def missing() -> str | None:
            if process.poll() is not None:
                raise RuntimeError(f"gunicorn ended with {process.returncode}: {' '.join(command)}")
            try:
                client.request("TRACE", "/")
            except httpx.TransportError as error:
                return f"gunicorn does not answer: {error}"
            return None

        try:
            until(missing, START_SECONDS)
            yield client
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)
