"""A middleware for aiohttp's client that waits its turn across all processes, and pauses all of them after a 429.

    limiter = AsyncLimiter("10/s", "redis://localhost:6379/0", name="partner", pausable=True)
    session = aiohttp.ClientSession(middlewares=[LimitedCalls(limiter)])
    # or AsyncLimiter.from_rules("partners.yaml", ...)

outbound.py describes a call. A call whose turn would come after `timeout` raises RateLimited. A call is sent again
only if its body is known as a whole (data as bytes or text, json): not a file or a generator.
"""

from __future__ import annotations

import sys
from typing import Unpack

from headgate.enforcement.adaptive_rules import DROPPED, IGNORED, SUCCESS
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.extras import require
from headgate.flow import arun
from headgate.integrations.outbound import Fields, OutboundCalls, OutboundSettings
from headgate.integrations.outbound_turns import Turn
from headgate.limiter import AsyncLimiter

require("headgate.integrations.aiohttp_client", "aiohttp", "aiohttp")

import aiohttp  # noqa: E402
from aiohttp.payload import BytesPayload  # noqa: E402

_DROPS = (TimeoutError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError)


class LimitedCalls:
    """A middleware of aiohttp.ClientSession: every request waits its turn. OutboundSettings lists the settings.

    >>> calls = LimitedCalls(AsyncLimiter("10/s", pausable=True), retries=2)
    """

    def __init__(
        self,
        limiter: AsyncLimiter | AsyncRuleLimiter | None = None,
        **settings: Unpack[OutboundSettings[aiohttp.ClientRequest]],
    ) -> None:
        self._calls: OutboundCalls[aiohttp.ClientRequest, aiohttp.ClientResponse] = OutboundCalls(
            limiter,
            awaited=True,
            host_of=_host_of,
            parts_of=_parts_of,
            answer_of=_answer_of,
            watch_body=_watch_body,
            drops=_DROPS,
            **settings,
        )

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Waits for a turn, sends the request, and pauses if the response says so."""

        async def send() -> aiohttp.ClientResponse:
            return await handler(request)

        return await arun(self._calls.call(request, send, _discard, _can_repeat(request)))


async def _discard(response: aiohttp.ClientResponse) -> None:
    response.release()


def _host_of(request: aiohttp.ClientRequest) -> str:
    return request.url.authority


def _parts_of(request: aiohttp.ClientRequest) -> tuple[str, str, Fields]:
    return request.method, request.url.raw_path_qs, request.headers.items()


def _answer_of(response: aiohttp.ClientResponse) -> tuple[int, Fields]:
    return response.status, response.headers.items()


def _can_repeat(request: aiohttp.ClientRequest) -> bool:
    """Returns whether the body is known as a whole, and can be sent again."""
    return isinstance(request.body, BytesPayload) or not request.body


def _watch_body(response: aiohttp.ClientResponse, turn: Turn) -> None:
    """Ends the turn when the response gives its connection back: its body has been read, cannot be, or is
    closed."""
    connection = response.connection
    if connection is None:  # the body came with the header
        turn.end(SUCCESS)
        return

    def end() -> None:
        if response.content.is_eof():
            turn.end(SUCCESS)
        else:
            error = response.content.exception() or sys.exception()
            turn.end(DROPPED if isinstance(error, _DROPS) else IGNORED)

    connection.add_callback(end)
