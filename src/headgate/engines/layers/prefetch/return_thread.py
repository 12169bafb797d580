"""The prefetch engine's thread: gives back in time what was fetched ahead and not used."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING
from weakref import ref

from headgate.algorithms.limit import SECOND

if TYPE_CHECKING:
    from headgate.engines.layers.prefetch.engines import PrefetchEngine

MIN_WAKE_US = 1000
IDLE_S = 5.0  # the thread ends when nothing was held for so long


class ReturnThread(Thread):
    """Gives back prefetched units in time. It does not keep its engine alive."""

    def __init__(self, engine: PrefetchEngine) -> None:
        super().__init__(name="headgate-prefetch", daemon=True)
        wake = Event()
        self.wake: Event = wake
        self._engine = ref(engine, lambda _: wake.set())

    def run(self) -> None:
        idle = False
        while True:
            self.wake.clear()  # before looking, so that no call is missed
            engine = self._engine()
            if engine is None or not engine.keeps_thread(self, leaving=idle):
                return
            due_us = engine.give_back_expired()
            del engine
            woken = self.wake.wait(IDLE_S if due_us is None else max(due_us, MIN_WAKE_US) / SECOND)
            idle = due_us is None and not woken
