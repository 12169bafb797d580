"""EngineAvailability: whether the engine's server answers, by one cheap request before each page.

A page makes a dozen reads, each with a deadline of seconds: without this, an operator would wait for the sum of
them just when something is wrong. If the server does not answer the first request, nothing more is sent for this
page, and it shows what the process knows.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from headgate.errors import CorruptState, EngineUnavailable

if TYPE_CHECKING:
    from headgate.engines.redis.async_engine import AsyncRedisEngine

PROBE_DEADLINE_S: Final = 1.0
RETRY_S: Final = 2.0  # a server that did not answer is asked again then


class NothingSent(EngineUnavailable):
    """The server did not answer a moment ago, so this request was not sent."""


class EngineAvailability:
    """Asks the engine's server whether it answers; `engine` is None with memory://."""

    def __init__(self, engine: AsyncRedisEngine | None) -> None:
        self._engine: Any = engine
        self._probe: asyncio.Task[None] | None = None
        self._failed_at = float("-inf")
        self.problem: str | None = None  # why the server does not answer; None: it does

    async def probe(self) -> None:
        """Asks the server whether it answers. Pages that are loaded at the same time share one request.

        Sends nothing for RETRY_S after the server did not answer.
        """
        if self._engine is None or time.monotonic() - self._failed_at < RETRY_S:
            return
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._send_probe())
        await asyncio.shield(self._probe)

    async def _send_probe(self) -> None:
        from headgate.engines.redis import keys
        from headgate.engines.redis.protocol import RedisRequest, command

        key = keys.staged_key(self._engine.prefix)
        try:
            await self._engine.execute(RedisRequest(command("GET", key), None, key), PROBE_DEADLINE_S)
        except EngineUnavailable as error:
            self.note(error)
        except CorruptState:
            self.problem = None
        else:
            self.problem = None

    def note(self, error: EngineUnavailable) -> None:
        """Notes that a request has failed. A server that refuses one by an error answers all the same."""
        if _is_answer(error):
            self.problem = None
        elif not isinstance(error, NothingSent):
            self.problem, self._failed_at = str(error), time.monotonic()

    def check(self) -> None:
        """Raises NothingSent if the server did not answer just now."""
        if self.problem is not None:
            raise NothingSent(f"{self.problem} Nothing was sent.")


def may_have_happened(error: EngineUnavailable) -> bool:
    """Returns whether a change may have been made although there was no reply."""
    if isinstance(error, NothingSent) or _is_answer(error):
        return False
    from headgate.engines.redis.errors import ConnectFailed

    return not isinstance(error.__cause__, ConnectFailed)


def _is_answer(error: EngineUnavailable) -> bool:
    from headgate.engines.redis.errors import ServerError

    return isinstance(error.__cause__, ServerError)
