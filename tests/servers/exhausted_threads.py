"""Runs code in a process that cannot start another thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TOO_LARGE = 2**47  # bytes: no thread gets such a stack


@contextmanager
def no_thread_can_start() -> Iterator[None]:
    """Until the end of the block the kernel refuses every new thread of this process."""
    was = threading.stack_size(_TOO_LARGE)
    try:
        yield
    finally:
        threading.stack_size(was)
