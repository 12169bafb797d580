"""Counts the bytes of a response that is a stream, and finishes the request before its last byte.

A client may send its next request as soon as it has that byte: with the last one that Content-Length promises, or
with the end of the stream. The server closes the response later.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import cast

from django.http import StreamingHttpResponse

from headgate.integrations.request_record import RequestRecord


def finish_with_stream(
    response: StreamingHttpResponse,
    record: RequestRecord,
    finish: Callable[[], None],
    afinish: Callable[[], Awaitable[None]],
) -> None:
    """Counts in the record what the stream produces from now on, and finishes the request with its last part."""
    content = response.streaming_content
    length = response.headers.get("Content-Length")
    promised = int(length) if length is not None and length.isdecimal() else None
    if response.is_async:
        chunks = cast("AsyncIterable[bytes]", content)
        response.streaming_content = _count_async(chunks, record, promised, afinish)
    else:
        response.streaming_content = _count(cast("Iterable[bytes]", content), record, promised, finish)


def _count(
    chunks: Iterable[bytes], record: RequestRecord, promised: int | None, finish: Callable[[], None]
) -> Iterator[bytes]:
    for chunk in chunks:
        record.bytes_sent += len(chunk)
        if promised is not None and record.bytes_sent >= promised:
            finish()
        yield chunk
    finish()


async def _count_async(
    chunks: AsyncIterable[bytes],
    record: RequestRecord,
    promised: int | None,
    afinish: Callable[[], Awaitable[None]],
) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        record.bytes_sent += len(chunk)
        if promised is not None and record.bytes_sent >= promised:
            await afinish()
        yield chunk
    await afinish()
