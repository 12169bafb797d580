"""Runs two computations at once, on two cores, where that is possible.

The second runs in a forked child, which shares the memory of the parent and sends its result back. Without a
second core, without fork, or in a process that has threads, which a fork could leave in any state, both run one
after the other.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def can_fork() -> bool:
    """Returns whether a second process helps, and this one may fork."""
    return hasattr(os, "fork") and (os.cpu_count() or 1) > 1 and threading.active_count() == 1


def run_both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
    """Returns both results. The second must be one that can be pickled.

    >>> run_both(lambda: 1 + 1, lambda: "b")
    (2, 'b')
    """
    if not can_fork():
        return first(), second()
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        _run_child(receiving, sending, second)
    os.close(sending)
    finished = False
    try:
        result = first()
        finished = True
    finally:
        if not finished:
            os.close(receiving)  # the child fails at its next write
            os.waitpid(child, 0)
    with open(receiving, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not data:
        return result, second()  # the child was killed, or failed: its error is raised here
    other: B = pickle.loads(data)
    return result, other


def _run_child(receiving: int, sending: int, compute: Callable[[], object]) -> None:
    """Computes, sends the result, and ends the process without any of the parent's cleanups."""
    code = 1
    try:
        os.close(receiving)
        with open(sending, "wb") as pipe:
            pipe.write(pickle.dumps(compute(), pickle.HIGHEST_PROTOCOL))
        code = 0
    finally:
        os._exit(code)
