"""Finds what does not work while the service answers: engine, rulebook source, decision log, adaptive rules.

/healthz and /readyz list these sentences; gRPC health reports each part under its name. None of them makes the
service unready: it still decides, by the fallback of each rule. Of several workers each answers for all
(degradation_files.py).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from time import monotonic

from headgate.enforcement.rule_limiter import AsyncRuleLimiter
from headgate.observer import Observer
from headgate.service.degradation_files import SHARE_S, DegradationFiles
from headgate.telemetry.decision_log import DecisionLog
from headgate.telemetry.multiprocess_files import FOLDER_VARIABLE

ENGINE, RULEBOOK, DECISION_LOG, ADAPTIVE_RULES = "engine", "rulebook", "decision_log", "adaptive_rules"
PARTS = (ENGINE, RULEBOOK, DECISION_LOG, ADAPTIVE_RULES)
FAILURE_S = 5.0  # how long a call that could not be decided makes the engine count as degraded


class EngineFailures(Observer):
    """Notes the last call that could not be decided, because its rules have no fallback."""

    def __init__(self) -> None:
        self._last: tuple[float, str] | None = None

    def failed(self, error: Exception, latency_us: int | None) -> None:
        self._last = monotonic(), str(error)

    @property
    def recent_error(self) -> str | None:
        """The last error, if it was within FAILURE_S."""
        return self._last[1] if self._last is not None and monotonic() - self._last[0] < FAILURE_S else None


class Degradations:
    """Finds what is degraded now, in this worker and in the others of its service."""

    def __init__(self, limiter: AsyncRuleLimiter, observers: Sequence[Observer] = (), workers: int = 1) -> None:
        self._limiter = limiter
        self._workers = workers
        self._logs = [each for each in observers if isinstance(each, DecisionLog)]
        self._failures = [each for each in observers if isinstance(each, EngineFailures)]
        self._files = DegradationFiles(os.environ.get(FOLDER_VARIABLE) if workers > 1 else None)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to share what is degraded here with the other workers."""
        if self._workers > 1:
            self._task = asyncio.ensure_future(self._share())

    async def _share(self) -> None:
        while True:
            self._files.write(self._parts_here())
            await asyncio.sleep(SHARE_S)

    async def close(self) -> None:
        """Stops sharing."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._files.write(())

    def sentences(self) -> list[str]:
        """Returns a sentence for everything that is degraded."""
        return [sentence for _, sentence in self.parts()]

    def parts(self) -> list[tuple[str, str]]:
        """Returns the name of each degraded part, and a sentence about it; each sentence once."""
        return [*dict.fromkeys([*self._parts_here(), *self._files.of_others()])]

    def _parts_here(self) -> Iterator[tuple[str, str]]:
        """Yields what is degraded in this worker."""
        engine = self._limiter.engine
        for name, _ in engine.degraded_shards():
            server = engine.describe_shard(name)
            yield ENGINE, f"{server} does not answer; calls are decided by the fallbacks of their rules."
        for failures in self._failures:
            if (error := failures.recent_error) is not None:
                yield ENGINE, f"Calls could not be decided: {error}"
        watcher = self._limiter.watcher
        if watcher is not None:
            if watcher.source_unavailable:
                yield RULEBOOK, "The rulebook's source cannot be read; the current rulebook stays in force."
            elif watcher.error is not None:
                yield RULEBOOK, f"A new rulebook is refused; the current one stays in force. {watcher.error}"
        for rule in self._limiter.adaptive.rules.values():
            if self._workers > 1:
                yield (
                    ADAPTIVE_RULES,
                    f'The adaptive rule "{rule.name}" learns in each of {self._workers} workers by itself, and '
                    "a report may reach another one than the check did. Run one worker.",
                )
            elif rule.stands_still:
                yield (
                    ADAPTIVE_RULES,
                    (
                        f'The adaptive rule "{rule.name}" stands still: nobody reports how calls end. Ask with '
                        '"receipt": true, and POST the receipt to /v1/finish.'
                    ),
                )
        for log in self._logs:
            if (problem := log.problem) is not None:
                yield DECISION_LOG, problem
