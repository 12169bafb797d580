"""Agrees on the limits of adaptive rules with all other processes, through Redis, once a second.

A thread sends one request with the limits of this process (about 20 bytes for each rule), and gets those of all
others; adaptive/agreement.py says what becomes of them. No call waits for it. If Redis does not answer, each
process goes on alone, from where it is; one line is logged then, and one when it answers again.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Lock
from typing import Any, Final

from headgate.adaptive.agreement import agreed_limit
from headgate.enforcement.adaptive_rules import AdaptiveRule
from headgate.engines.fork_reset import on_fork
from headgate.engines.redis.signal_safe_thread import SignalSafeThread
from headgate.engines.url import open_adaptive_limits_store
from headgate.errors import CorruptState, EngineUnavailable

INTERVAL_S: Final = 1.0
LIVE_US: Final = 5_000_000  # for which the limits of a process count after its last request
MAX_RULES: Final = 100  # of a process; the others learn by themselves

_log = logging.getLogger("headgate")


class AdaptiveAgreement:
    """Exchanges the limits of this process with the others."""

    def __init__(self, url: str, prefix: str, rules: Callable[[], Mapping[str, AdaptiveRule]]) -> None:
        self._store: Any = open_adaptive_limits_store(url, prefix)
        self._rules = rules
        self._start_anew()
        on_fork(self._start_anew)

    def _start_anew(self) -> None:
        """Begins as a process of its own, also in a forked child."""
        self._process = secrets.token_hex(6)
        self._is_lost = False
        self._closed = Event()
        self._lock = Lock()
        self._thread: SignalSafeThread | None = None

    def start(self) -> None:
        """Starts the thread, unless it runs. If the process can have no more threads, it is tried again later."""
        if self._thread is None and not self._closed.is_set():
            with self._lock:
                if self._thread is None:
                    thread = SignalSafeThread(self._run)
                    with suppress(RuntimeError):
                        thread.start()
                        self._thread = thread

    def _run(self) -> None:
        while not self._closed.wait(INTERVAL_S):
            self.exchange()

    def exchange(self) -> None:
        """Sends the limits of this process, and goes on from what all agree on."""
        rules = {name: rule for name, rule in list(self._rules().items())[:MAX_RULES] if rule.is_agreed}
        if not rules:
            return
        process_votes = {_ballot(rule): vote for rule in rules.values() if (vote := rule.vote()) is not None}
        try:
            replies = self._store.exchange(
                self._process, LIVE_US, json.dumps(process_votes, separators=(",", ":")).encode()
            )
        except (EngineUnavailable, CorruptState) as error:
            self._report_outage(error)
            return
        self._report_recovery()
        votes = [json.loads(reply) for reply in replies]
        for rule in rules.values():
            ballot = _ballot(rule)
            limit = agreed_limit([float(each[ballot]) for each in votes if ballot in each])
            if limit is not None:
                rule.agree(limit)

    def _report_outage(self, error: Exception) -> None:
        if not self._is_lost:
            self._is_lost = True
            _log.warning(
                "headgate: adaptive limits are not agreed on through Redis at %s (%s). Each process "
                "goes on alone.",
                self._store.text,
                error,
            )

    def _report_recovery(self) -> None:
        if self._is_lost:
            self._is_lost = False
            _log.warning("headgate: adaptive limits are agreed on through Redis at %s again.", self._store.text)

    def close(self) -> None:
        """Ends the thread. The limits of this process are dead after a few seconds."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2 * INTERVAL_S)
        self._store.close()


def _ballot(rule: AdaptiveRule) -> str:
    """Returns what a vote is about. While a changed rulebook spreads, a rule is a rate here and calls in flight
    there."""
    return f"{rule.limit.kind} {rule.name}"
