"""Uploads a file to the dashboard in this process, chunk by chunk, and reads the lines of the response."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tests.dashboard.dashboard_harness import Visitor

UPLOADS = "headgate-upload-"


class UploadReply(NamedTuple):
    """The response to an upload: its status, and its lines or its error. Status 0: there was none."""

    status: int
    events: list[dict[str, Any]]

    @property
    def error(self) -> str:
        return str(self.events[-1].get("error", ""))


async def chunks_of(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


class Uploader:
    """An operator's browser that sends a file. `left` is set when it has gone away."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self.left = asyncio.Event()
        self.received_lines = asyncio.Event()
        self.bytes_sent = 0

    async def form_token(self) -> str:
        return (await self._visitor.get("/dashboard/rules")).form_token

    async def upload(
        self,
        chunks: AsyncIterator[bytes],
        headers: Mapping[str, str] = MappingProxyType({}),
        token: str | None = None,
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> UploadReply:
        """Sends the chunks; a chunk that raises ConnectionResetError is a client that hangs up."""
        token = await self.form_token() if token is None else token
        fields = {"host": "headgate.test", "x-requested-with": "page", "x-headgate-form": token, **headers}
        fields["cookie"] = "; ".join(f"{name}={value}" for name, value in self._visitor.cookies.items())
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/dashboard/number/upload",
            "query_string": urlencode({"name": "access.log", **query}).encode(),
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
            "client": (self._visitor._address, 4000),
        }
        ended = False

        async def receive() -> dict[str, Any]:
            nonlocal ended
            if ended:
                await self.left.wait()
                return {"type": "http.disconnect"}
            try:
                chunk = await anext(chunks, None)
            except ConnectionResetError:
                return {"type": "http.disconnect"}
            ended = chunk is None
            self.bytes_sent += len(chunk or b"")
            return {"type": "http.request", "body": chunk or b"", "more_body": not ended}

        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body"):
                self.received_lines.set()

        await self._visitor._site.asgi(scope, receive, send)
        if not sent:
            return UploadReply(0, [])
        body = b"".join(message.get("body", b"") for message in sent[1:])
        return UploadReply(sent[0]["status"], [json.loads(line) for line in body.splitlines()])

    async def send_file(self, data: bytes, **query: str) -> UploadReply:
        return await self.upload(chunks_of(data), query=query)


def names_of_uploads() -> list[str]:
    """The names of uploads in the folder of temporary files."""
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(UPLOADS)]


def open_deleted_files() -> int:
    """Counts the files without a name that this process has open in the folder of temporary files."""
    folder = os.path.realpath(tempfile.gettempdir())
    links: Iterable[str] = (_target(path) for path in Path("/proc/self/fd").iterdir())
    return sum(link.startswith(f"{folder}/#") or (UPLOADS in link and "deleted" in link) for link in links)


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
