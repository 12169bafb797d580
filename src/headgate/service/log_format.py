"""Formats the service's log: one line for each event, as text or JSON. No key, token or body is logged.

A client can cause a warning with each of its calls: so of one message, MAX_REPEATS_PER_S are written in a second,
and the next one reports how many were dropped. Operators' actions are always written.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any

# A client's text must not begin a new line, nor send control characters to a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)} | {10: "\\n"}
_STANDARD_ATTRIBUTES = frozenset(
    (*vars(logging.makeLogRecord({})), "message", "asctime", "color_message", "taskName")
)

MAX_REPEATS_PER_S = 10
AUDIT_LOGGER = "headgate.admin"


class RepeatFilter(logging.Filter):
    """Drops repeated warnings, so that one message does not fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[str, list[int]] = {}  # by message: second, written, dropped

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING or record.name == AUDIT_LOGGER:
            return True
        second = int(record.created)
        counts = self._counts.setdefault(str(record.msg)[:200], [second, 0, 0])
        if counts[0] != second:
            counts[:2] = second, 0
        counts[1] += 1
        if counts[1] > MAX_REPEATS_PER_S:
            counts[2] += 1
            return False
        if counts[2]:
            record.not_written, counts[2] = counts[2], 0
        if len(self._counts) > 1000:
            self._counts.clear()
        return True


class TextFormatter(logging.Formatter):
    """Writes text: 2026-11-16T12:00:00.123Z info service started workers=2."""

    def format(self, record: logging.LogRecord) -> str:
        fields = [_timestamp(record), record.levelname.lower(), record.getMessage()]
        fields += [f"{name}={value}" for name, value in _extra_fields(record).items()]
        text = " ".join(fields).translate(_ESCAPES)
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """Writes JSON: {"time": "...", "level": "info", "message": "service started", "workers": 2}."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
            **_extra_fields(record),
        }
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


def configure_logging(form: str, level: str) -> None:
    """Sends all log records to stderr in this format; also warnings, and uncaught exceptions."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # otherwise logging reports failed writes as plain text
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    sys.unraisablehook = lambda args: _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def error_line(message: str, **more: Any) -> str:
    """Returns an error as a line of JSON, for a program without a log."""
    record = {"name": "headgate.service", "levelno": logging.ERROR, "levelname": "ERROR", "msg": message}
    return JsonFormatter().format(logging.makeLogRecord(record | more))


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    logging.getLogger("headgate.service").critical(
        "an exception was not caught: %s", kind.__name__, exc_info=(kind, error or kind(), trace)
    )


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Returns the fields that `extra` adds to the message."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}
