"""Receives an uploaded file into a temporary file without a name, as it comes: never as a whole in memory.

A file without a name is deleted by the system when it is closed, however this process ends, so no upload is ever
left on the disk.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import suppress
from typing import IO, Final

from headgate.service.asgi import HttpError, Request

MAX_UPLOAD_BYTES: Final = 100_000_000
CHUNK_TIMEOUT_S: Final = 30.0  # between two parts of it
UPLOAD_TIMEOUT_S: Final = 1800.0
_WRITE_BYTES: Final = 1 << 20
_CLOSE_CONNECTION: Final = [("connection", "close")]  # the rest of the body is not read


async def receive_file(request: Request, max_bytes: int = MAX_UPLOAD_BYTES) -> IO[bytes]:
    """Returns the body of a request as an open file. Raises HttpError, or ClientDisconnected."""
    length = request.field(b"content-length") or ""
    if len(length) > 18 or (length.isdigit() and int(length) > max_bytes):
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            return await _receive(request, max_bytes)
    except TimeoutError:
        raise HttpError(408, "The file did not come in time. Try again.", _CLOSE_CONNECTION) from None
    except OSError as error:
        folder, reason = tempfile.gettempdir(), os.strerror(error.errno or 0)
        raise HttpError(
            507,
            f"The file cannot be stored in {folder}: {reason}. Make room there, or name another folder by TMPDIR.",
            _CLOSE_CONNECTION,
        ) from None


def _nameless_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="headgate-upload-")


async def _receive(request: Request, max_bytes: int) -> IO[bytes]:
    file: IO[bytes] = await asyncio.to_thread(_nameless_file)
    try:
        chunks, size, buffered = request.chunks(), 0, bytearray()
        while True:
            async with asyncio.timeout(CHUNK_TIMEOUT_S):
                chunk = await anext(chunks, None)
            buffered += chunk or b""
            size += len(chunk or b"")
            if size > max_bytes:
                raise _too_large(max_bytes)
            if len(buffered) >= _WRITE_BYTES or chunk is None:
                await asyncio.to_thread(file.write, bytes(buffered))
                buffered.clear()
            if chunk is None:
                await asyncio.to_thread(file.flush)
                return file
    except BaseException:
        with suppress(OSError):  # of bytes that could not be written
            file.close()
        raise


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(
        413,
        f"A log may have at most {max_bytes / 1e6:g} MB. Compress it by gzip or zstd, upload a part of it, or run "
        "headgate suggest on the command line.",
        _CLOSE_CONNECTION,
    )
