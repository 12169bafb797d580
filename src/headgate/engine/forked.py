"""After fork: whatever a child must not share with its parent is dropped in the child.

gunicorn's preload, Celery's prefork and multiprocessing copy a process with its open sockets, its leases and its
locks, some of them held by threads that the child does not have. Engines register what drops them; a fork costs
nothing on the way of a decision.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod

_droppers: list[WeakMethod[Callable[[], None]]] = []


def on_fork(drop: Callable[[], None]) -> None:
    """Call this bound method in every child that is forked from now on, as long as its owner lives."""
    _droppers.append(WeakMethod(drop, _droppers.remove))


def _in_child() -> None:
    for reference in tuple(_droppers):
        drop = reference()
        if drop is not None:
            drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
