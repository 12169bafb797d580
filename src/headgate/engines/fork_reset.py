"""Starts afresh, in a forked child, whatever the child must not share with its parent.

gunicorn's preload, Celery's prefork and multiprocessing copy a process with its open sockets, its counts and its
locks, some of them held by threads that the child does not have. Every owner of a lock, a thread, an event loop
or a connection registers a method that starts it afresh. A decision pays nothing for that.

A child begins like a process that was just started: it has new locks and opens its own connections, and what its
parent counted, held or remembered stays its parent's. What was configured stays: limits, rules, overrides.
(Holding every lock through the fork would keep the counts consistent, too. But a signal handler that forks would
then stop the parent for good, and a child would wait for slots that nobody in it will ever release.)
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
