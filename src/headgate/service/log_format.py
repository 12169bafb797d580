"""How the service logs: one line for each event, for people or for machines. No key, token or body is told.

A warning that anybody can cause comes once for each of their calls: of one sentence, MANY a second are written,
and the next one says how many were not. What operators did is always written.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any

# What somebody sent must not begin a line of its own, nor paint a terminal.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)} | {10: "\\n"}
_KNOWN = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName"))

MANY = 10
JOURNAL = "headgate.admin"


class Seldom(logging.Filter):
    """Keeps one sentence from filling the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, list[int]] = {}  # by what is said: in which second, how many, how many not

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name == JOURNAL:
            return True
        second = int(record.created)
        seen = self._seen.setdefault(str(record.msg)[:200], [second, 0, 0])
        if seen[0] != second:
            seen[:2] = second, 0
        seen[1] += 1
        if seen[1] > MANY:
            seen[2] += 1
            return False
        if seen[2]:
            record.not_written, seen[2] = seen[2], 0
        if len(self._seen) > 1000:
            self._seen.clear()
        return True


class Line(logging.Formatter):
    """2026-11-16T12:00:00.123Z info service started workers=2"""

    def format(self, record: logging.LogRecord) -> str:
        words = [_when(record), record.levelname.lower(), record.getMessage()]
        words += [f"{name}={value}" for name, value in _more(record).items()]
        text = " ".join(words).translate(_CONTROL)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class Document(logging.Formatter):
    """{"time": "...", "level": "info", "message": "service started", "workers": 2}"""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **_more(record),
        }
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def set_up(form: str, level: str) -> None:
    """Everything that is logged goes to stderr, in this form; so do warnings, and exceptions nobody caught."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Document() if form == "json" else Line())
    handler.addFilter(Seldom())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # what cannot be written would be told in words, by logging itself
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda found: _uncaught(found.exc_type, found.exc_value, found.exc_traceback)
    sys.unraisablehook = lambda found: _uncaught(found.exc_type, found.exc_value, found.exc_traceback)


def error_line(message: str, **more: Any) -> str:
    """An error as a line of JSON, for one who has no log yet."""
    record = {"name": "headgate.service", "levelno": logging.ERROR, "levelname": "ERROR", "msg": message}
    return Document().format(logging.makeLogRecord(record | more))


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    logging.getLogger("headgate.service").critical(
        "an exception was not caught: %s", kind.__name__, exc_info=(kind, error or kind(), trace)
    )


def _when(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _more(record: logging.LogRecord) -> dict[str, Any]:
    """What was said beside the message, by `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _KNOWN}
