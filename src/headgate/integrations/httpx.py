"""Transports for httpx that wait their turn across all processes, and pause all of them after a 429.

    limiter = Limiter("10/s", "redis://localhost:6379/0", name="partner", pausable=True)
    client = httpx.Client(transport=LimitedTransport(limiter))        # or Limiter.from_rules("partners.yaml", ...)

outbound.py describes a call. A call whose turn would come after `timeout` raises RateLimited. A call is sent again
only if its body is known as a whole (content, data, json): not a stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, Unpack

from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.enforcement.rule_limiter import AsyncRuleLimiter, RuleLimiter
from headgate.extras import require
from headgate.flow import arun, run
from headgate.integrations.outbound import Fields, OutboundCalls, OutboundSettings
from headgate.integrations.outbound_turns import Turn
from headgate.limiter import AsyncLimiter, Limiter

require("headgate.integrations.httpx", "httpx", "httpx")

import httpx  # noqa: E402

_DROPS = (
    *(httpx.ConnectTimeout, httpx.ReadTimeout, httpx.WriteTimeout),  # not PoolTimeout: that is this side's pool
    *(httpx.NetworkError, httpx.RemoteProtocolError),
)


class LimitedTransport(httpx.BaseTransport):
    """A transport of httpx.Client: every request waits its turn. OutboundSettings lists the settings.

    >>> limiter = Limiter("10/s", pausable=True)
    >>> client = httpx.Client(transport=LimitedTransport(limiter, retries=2))
    """

    def __init__(
        self,
        limiter: Limiter | RuleLimiter | None = None,
        transport: httpx.BaseTransport | None = None,
        **settings: Unpack[OutboundSettings[httpx.Request]],
    ) -> None:
        self._transport = httpx.HTTPTransport() if transport is None else transport
        self._calls: OutboundCalls[httpx.Request, httpx.Response] = OutboundCalls(
            limiter,
            awaited=False,
            host_of=_host_of,
            parts_of=_parts_of,
            answer_of=_answer_of,
            watch_body=_watch_body,
            drops=_DROPS,
            **settings,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Waits for a turn, sends the request, and pauses if the response says so."""

        def send() -> httpx.Response:
            return self._transport.handle_request(request)

        return run(self._calls.call(request, send, httpx.Response.close, _can_repeat(request)))

    def close(self) -> None:
        """Closes the inner transport. The limiter stays open: other clients may use it."""
        self._transport.close()

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(kind, error, trace)


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """A transport of httpx.AsyncClient: every request waits its turn. OutboundSettings lists the settings.

    >>> limiter = AsyncLimiter("10/s", pausable=True)
    >>> client = httpx.AsyncClient(transport=AsyncLimitedTransport(limiter, timeout=30))
    """

    def __init__(
        self,
        limiter: AsyncLimiter | AsyncRuleLimiter | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        **settings: Unpack[OutboundSettings[httpx.Request]],
    ) -> None:
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport
        self._calls: OutboundCalls[httpx.Request, httpx.Response] = OutboundCalls(
            limiter,
            awaited=True,
            host_of=_host_of,
            parts_of=_parts_of,
            answer_of=_answer_of,
            watch_body=_watch_awaited_body,
            drops=_DROPS,
            **settings,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Waits for a turn, sends the request, and pauses if the response says so."""

        async def send() -> httpx.Response:
            return await self._transport.handle_async_request(request)

        return await arun(self._calls.call(request, send, httpx.Response.aclose, _can_repeat(request)))

    async def aclose(self) -> None:
        """Closes the inner transport. The limiter stays open: other clients may use it."""
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)


def _host_of(request: httpx.Request) -> str:
    return request.url.netloc.decode("ascii")


def _parts_of(request: httpx.Request) -> tuple[str, str, Fields]:
    return request.method, request.url.raw_path.decode("ascii"), request.headers.multi_items()


def _answer_of(response: httpx.Response) -> tuple[int, Fields]:
    return response.status_code, response.headers.multi_items()


def _can_repeat(request: httpx.Request) -> bool:
    """Returns whether the body is known as a whole, and can be sent again."""
    return isinstance(request.stream, httpx.ByteStream)


class _WatchedStream(httpx.SyncByteStream):
    """A body that ends the turn of its call when it has been read, or cannot be."""

    def __init__(self, stream: httpx.SyncByteStream, turn: Turn) -> None:
        self._stream = stream
        self._turn = turn

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except BaseException as error:
            self._turn.end(_outcome_of_error(error))
            raise
        self._turn.end(SUCCESS)

    def close(self) -> None:
        self._turn.end(IGNORED)
        self._stream.close()


class _WatchedAwaitedStream(httpx.AsyncByteStream):
    """The same, awaited."""

    def __init__(self, stream: httpx.AsyncByteStream, turn: Turn) -> None:
        self._stream = stream
        self._turn = turn

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except BaseException as error:
            self._turn.end(_outcome_of_error(error))
            raise
        self._turn.end(SUCCESS)

    async def aclose(self) -> None:
        self._turn.end(IGNORED)
        await self._stream.aclose()


def _watch_body(response: httpx.Response, turn: Turn) -> None:
    if response.is_closed or not isinstance(response.stream, httpx.SyncByteStream):  # it is known as a whole
        turn.end(SUCCESS)
    else:
        response.stream = _WatchedStream(response.stream, turn)


def _watch_awaited_body(response: httpx.Response, turn: Turn) -> None:
    if response.is_closed or not isinstance(response.stream, httpx.AsyncByteStream):
        turn.end(SUCCESS)
    else:
        response.stream = _WatchedAwaitedStream(response.stream, turn)


def _outcome_of_error(error: BaseException) -> str:
    return DROPPED if isinstance(error, _DROPS) else IGNORED
