"""Where operators are served: the verbs that routes.py names, each a method of one of these."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Awaitable, Callable

import msgspec

import headgate
from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.service.admin import schema
from headgate.service.admin.counter_handlers import CounterHandlers
from headgate.service.admin.engine_clients import EngineClients
from headgate.service.admin.request import AdminRequest
from headgate.service.admin.rule_handlers import SAMPLE, RuleHandlers
from headgate.service.settings import Settings

Verb = Callable[[AdminRequest], Awaitable[msgspec.Struct]]


class AdminHandlers:
    def __init__(self, limiter: AsyncRuleLimiter, settings: Settings) -> None:
        self._limiter, self._settings = limiter, settings
        self._lines = EngineClients(limiter, settings)
        self._counts = CounterHandlers(limiter, self._lines)
        self._rooms = RuleHandlers(limiter, settings, self._lines), self._counts, self
        self._since = time.monotonic()

    def verb(self, name: str) -> Verb:
        found: Verb = next(getattr(room, name) for room in self._rooms if hasattr(room, name))
        return found

    async def status(self, asked: AdminRequest) -> schema.Status:
        limiter, engine = self._limiter, self._limiter.engine
        watch = limiter.watch
        paper = None if watch is None else watch.paper
        shards = [(name, engine.state(name).value) for name in tuple(getattr(engine, "shards", ()))]
        return schema.Status(
            version=headgate.__version__,
            pid=os.getpid(),
            uptime=time.monotonic() - self._since,
            engine=re.sub(r"(password=)[^&]*", r"\1", self._settings.told_engine),
            rules=len(limiter.rulebook),
            source=SAMPLE if watch is None else watch.source.name,
            edition=None if paper is None else paper.version,
            source_away=watch is not None and watch.away,
            refused_changes=limiter.refused_changes,
            refused_why=None if watch is None else watch.error,
            degraded=[schema.Degraded(str(name), state) for name, state in shards if state != "closed"],
            degraded_decisions=getattr(engine, "degraded", 0),
        )

    async def close(self) -> None:
        self._counts.stop()
        await self._lines.close()
