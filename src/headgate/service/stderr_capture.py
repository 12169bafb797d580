"""Logs what libraries write to stderr by themselves, line by line, so that a JSON log contains nothing else.

granian (in Rust) and libraries in C do not use Python's logging: their messages, such as a panic, go to file
descriptor 2. It becomes a pipe here, and a thread reads it; the log keeps the real stderr. If the
pipe is full, messages are dropped: no thread may block because of a log.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

_STDERR = 2
_LAST_LINES_TIMEOUT_S = 1.0
_log = logging.getLogger("headgate.service")


@contextmanager
def logged_native_output() -> Iterator[None]:
    """Captures stderr from the block's beginning until the process ends, or until the block fails.

    If it fails, stderr is restored, so that the failure can be reported. Do not fork inside: the thread would run
    in one of the two processes only.
    """
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    streams = [handler.stream for handler in handlers]
    stderr = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    for handler in handlers:
        handler.setStream(stderr)
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.dup2(write, _STDERR)
    os.close(write)
    reader = threading.Thread(
        target=_log_lines, args=(os.fdopen(read, "rb"),), name="headgate-stderr", daemon=True
    )
    reader.start()
    try:
        yield
    except BaseException:
        os.dup2(stderr.fileno(), _STDERR)  # closes the pipe's last writer, so the reader ends
        reader.join(_LAST_LINES_TIMEOUT_S)
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
        stderr.close()
        raise


def _log_lines(pipe: BinaryIO) -> None:
    with pipe:
        for line in pipe:
            if text := line.decode("utf-8", "backslashreplace").strip():
                _log.warning("a library wrote to stderr: %s", text)
