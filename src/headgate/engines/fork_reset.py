"""Resets, in a forked child, everything the child must not share with its parent.

gunicorn's preload, Celery's prefork and multiprocessing copy a process with its open sockets, its counts and its
locks, some of them held by threads that the child does not have. Every owner of a lock, a thread, an event loop or
a connection registers a method that resets it. A decision pays nothing for that.

A child begins like a process that was just started: it has new locks, opens its own connections, and inherits none
of the counts, leases and cached answers of its parent. The configuration stays: limits, rules, overrides. (Holding
every lock through the fork would keep the counts consistent, too. But a signal handler that forks would then stop
the parent for good, and a child would wait for slots that nothing in it will ever release.)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

_log = logging.getLogger("headgate")
_resets: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def on_fork(reset: Callable[[], None]) -> None:
    """Calls this bound method in every child that is forked from now on, as long as its owner lives."""
    if not isinstance(reset, MethodType):
        raise TypeError("A reset after fork needs an owner: pass a bound method.")
    _resets[reset.__self__] = reset.__func__


def _reset_in_child() -> None:
    for owner, reset in list(_resets.items()):
        try:
            reset(owner)
        except Exception:  # the other owners must be reset all the same
            _log.exception("headgate: %s could not be reset in a forked child.", type(owner).__name__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
