"""After fork: whatever a child must not share with its parent starts afresh in the child.

gunicorn's preload, Celery's prefork and multiprocessing copy a process with its open sockets, its counts and its
locks, some of them held by threads that the child does not have. Whoever owns a lock, a thread, an event loop or a
connection registers what starts it afresh; a fork costs nothing on the way of a decision.

A child begins like a process that was just started: it has new locks and opens connections of its own, and what its
parent counted, held or remembered is its parent's. (Holding every lock through the fork would keep counts whole, too,
but it would stop the parent for good where a signal handler forks, and a child would wait for slots that nobody in it
will ever release.) What was configured stays: limits, rules, overrides.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

_log = logging.getLogger("headgate")
_drops: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def on_fork(start_afresh: Callable[[], None]) -> None:
    """Call this bound method in every child that is forked from now on, as long as its owner lives."""
    if not isinstance(start_afresh, MethodType):
        raise TypeError("What starts afresh has an owner: give a bound method.")
    _drops[start_afresh.__self__] = start_afresh.__func__


def _in_child() -> None:
    for owner, start_afresh in list(_drops.items()):
        try:
            start_afresh(owner)
        except Exception:  # the others must start afresh all the same
            _log.exception("headgate: %s did not start afresh in a forked child.", type(owner).__name__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
