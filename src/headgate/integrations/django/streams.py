"""Counts the bytes of a response that is a stream, for limits that settle by them."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import cast

from django.http import StreamingHttpResponse

from headgate.integrations.request_record import RequestRecord


def count_bytes(response: StreamingHttpResponse, record: RequestRecord) -> None:
    """Counts in the record what the stream produces from now on."""
    content = response.streaming_content
    if response.is_async:
        response.streaming_content = _count_async(cast("AsyncIterable[bytes]", content), record)
    else:
        response.streaming_content = _count(cast("Iterable[bytes]", content), record)


def _count(chunks: Iterable[bytes], record: RequestRecord) -> Iterator[bytes]:
    for chunk in chunks:
        record.bytes_sent += len(chunk)
        yield chunk


async def _count_async(chunks: AsyncIterable[bytes], record: RequestRecord) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        record.bytes_sent += len(chunk)
        yield chunk
