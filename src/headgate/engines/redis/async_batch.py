"""Requests that the async batcher wrote together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headgate.engines.redis.protocol import TakeBuilder

ReplyFuture = asyncio.Future[Any]

# When it came, its future; then for a take its builder, key and cost, otherwise None, a request, whether ASKING.
# A plain tuple, because a named one takes longer to make.
Call = tuple[float, ReplyFuture, TakeBuilder | None, Any, Any]


class Batch:
    """Requests that were written together."""

    __slots__ = ("calls", "missing_replies")

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls: Sequence[Call] = calls
        self.missing_replies: int = 0
