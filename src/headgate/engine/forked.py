"""After fork: whatever a child must not share with its parent is dropped in the child.

gunicorn's preload, Celery's prefork and multiprocessing copy a process with its open sockets, its leases and its
locks, some of them held by threads that the child does not have. Engines register what drops them; a fork costs
nothing on the way of a decision.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

_drops: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def on_fork(drop: Callable[[], None]) -> None:
    """Call this bound method in every child that is forked from now on, as long as its owner lives."""
    if not isinstance(drop, MethodType):
        raise TypeError("What is dropped has an owner: give a bound method.")
    _drops[drop.__self__] = drop.__func__


def _in_child() -> None:
    for owner, drop in list(_drops.items()):
        drop(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
