"""Runs a function in a thread whose start a signal handler cannot break.

threading.Thread.start takes several steps in the caller's thread. If a signal handler raises among them (Celery's
soft time limit), Python forgets the new thread, which then dies of a KeyError before it has done anything. Here a
thread is started by one call of C, and Python runs no signal handler within it.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable
from os import getpid
from threading import Event
from typing import Any


class SignalSafeThread:
    """A daemon thread. `start` raises RuntimeError if the process can have no more threads."""

    def __init__(self, work: Callable[..., object], *args: Any) -> None:
        self._work, self._args = work, args
        self._process = 0  # the process in which it runs: a forked child does not have it
        self._ended = Event()

    def start(self) -> None:
        """Starts the thread."""
        run = self._run
        self._process = getpid()
        # No call comes between: interrupted before, it is not alive; interrupted after, it runs.
        try:
            start_new_thread(run, ())
        except RuntimeError:
            self._process = 0
            raise

    def _run(self) -> None:
        try:
            self._work(*self._args)
        finally:
            self._process = 0
            self._ended.set()

    def is_alive(self) -> bool:
        """Returns whether it runs, in this process."""
        return self._process == getpid()

    def join(self, timeout: float) -> None:
        """Waits until it has ended, at most `timeout` seconds."""
        if self.is_alive():
            self._ended.wait(timeout)
