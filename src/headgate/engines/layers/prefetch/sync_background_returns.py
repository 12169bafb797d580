"""Gives back in time what was fetched ahead and not used: a thread, for the sync engine."""

from __future__ import annotations

import logging
from threading import Event, Thread, current_thread
from weakref import ref

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import SECOND
from headgate.clock import Clock
from headgate.engines.layers.prefetch.prefetched_batches import HotKeys
from headgate.engines.layers.prefetch.prefetched_units import MIN_WAKE_US, PrefetchedUnits
from headgate.engines.layers.prefetch.sync_give_back import give_back_expired

IDLE_S = 5.0  # the thread ends when nothing was held for so long
_log = logging.getLogger("headgate")


class BatchReturns:
    """Sees to it that batches are given back in time. Without a thread nothing is fetched ahead."""

    def __init__(self, hot_keys: HotKeys, clock: Clock) -> None:
        self.hot_keys: HotKeys = hot_keys
        self.clock: Clock = clock
        self._thread: ReturnThread | None = None
        self._has_warned = False

    def ready(self) -> bool:
        """Returns whether a thread can give back in time what is fetched now; starts one if there is none."""
        try:
            with self.hot_keys.lock:
                if self._thread is None or not self._thread.is_alive():
                    thread = ReturnThread(self)
                    thread.start()
                    self._thread, self._has_warned = thread, False
        except RuntimeError as error:  # the process has as many threads as it may have
            if not self._has_warned:
                self._has_warned = True
                _log.warning("headgate: nothing is fetched ahead, because no thread could be started: %s", error)
            return False
        return True

    def watch(self, batch: PrefetchedUnits) -> None:
        """Wakes the thread for a batch. Without a thread, later calls for the key give it back, or close does."""
        if self.ready():
            with self.hot_keys.lock:
                if self._thread is not None and self.hot_keys.next_is(batch):
                    self._thread.wake.set()

    def finish(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of a fetch: nothing cancels a call that blocks."""
        return outcome

    def keeps_thread(self, thread: ReturnThread, leaving: bool = False) -> bool:
        """Returns whether that thread is to go on; one that wants to end may, if nothing is held."""
        with self.hot_keys.lock:
            if leaving and self._thread is thread and not self.hot_keys.pending_count:
                self._thread = None
            return self._thread is thread

    def reset(self) -> None:
        """Forgets the thread, which a forked child does not have."""
        self._thread = None

    def stop(self) -> None:
        """Ends the thread."""
        thread, self._thread = self._thread, None
        if thread is not None and thread is not current_thread():
            thread.wake.set()
            thread.join()


class ReturnThread(Thread):
    """Gives back prefetched units in time. It does not keep their engine alive."""

    def __init__(self, returns: BatchReturns) -> None:
        super().__init__(name="headgate-prefetch", daemon=True)
        wake = Event()
        self.wake: Event = wake
        self._returns = ref(returns, lambda _: wake.set())

    def run(self) -> None:
        idle = False
        while True:
            self.wake.clear()  # before looking, so that no call is missed
            returns = self._returns()
            if returns is None or not returns.keeps_thread(self, leaving=idle):
                return
            due_us = give_back_expired(returns.hot_keys, returns.clock)
            del returns
            woken = self.wake.wait(IDLE_S if due_us is None else max(due_us, MIN_WAKE_US) / SECOND)
            idle = due_us is None and not woken
