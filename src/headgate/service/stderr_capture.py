"""Logs what libraries write to stderr by themselves, line by line, so that a log in JSON holds nothing else.

grpc (in C++) and granian (in Rust) know no logging of Python's: what they want to say, as of a panic, goes to file
descriptor 2. It becomes a pipe here, and a thread reads it; the log keeps the real stderr. Whatever does not fit
into the pipe is dropped: nobody may stand still because of a log.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

_STDERR = 2
_LAST_LINES_S = 1.0
_log = logging.getLogger("headgate.service")


@contextmanager
def logged_native_output() -> Iterator[None]:
    """From the block's beginning until the process ends, or until the block fails: then stderr is what it was, for
    whoever tells of the failure. Not before a fork: the thread would be in one of two processes."""
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    before = [handler.stream for handler in handlers]
    real = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    for handler in handlers:
        handler.setStream(real)
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.dup2(write, _STDERR)
    os.close(write)
    reader = threading.Thread(target=_read, args=(os.fdopen(read, "rb"),), name="headgate-stderr", daemon=True)
    reader.start()
    try:
        yield
    except BaseException:
        os.dup2(real.fileno(), _STDERR)  # nobody can write to the pipe any more: the reader ends
        reader.join(_LAST_LINES_S)
        for handler, stream in zip(handlers, before, strict=True):
            handler.setStream(stream)
        real.close()
        raise


def _read(pipe: BinaryIO) -> None:
    with pipe:
        for line in pipe:
            if text := line.decode("utf-8", "backslashreplace").strip():
                _log.warning("a library wrote to stderr: %s", text)
