"""Settles accounts in the background: threads, for the sync engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from headgate.engines.layers.fallback.shard import Shard


class Settlers:
    """Runs at most one thread for each part of the engine."""

    def __init__(self) -> None:
        self._shard_names: set[Hashable] = set()

    def start(self, settle: Callable[[Shard], None], shard: Shard) -> None:
        """Settles a part, unless that is being done."""
        if shard.name not in self._shard_names:
            self._shard_names.add(shard.name)
            args = settle, shard, self._shard_names
            try:
                threading.Thread(target=_settle, args=args, name="headgate-settle", daemon=True).start()
            except RuntimeError:  # the process has as many threads as it may have: the next answer tries again
                self._shard_names.discard(shard.name)

    def stop(self) -> None:
        """Waits for nothing: a thread ends by itself once nothing is unsettled."""

    def reset(self) -> None:
        """Forgets the threads, in a forked child: fork copies only the thread that called it."""
        self._shard_names = set()


def _settle(settle: Callable[[Shard], None], shard: Shard, shard_names: set[Hashable]) -> None:
    try:
        settle(shard)
    finally:
        shard_names.discard(shard.name)
