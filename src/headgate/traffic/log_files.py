"""Opens logs: plain, gzip or zstd, files or standard input; and counts the bytes that were read."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, cast

from headgate.errors import InvalidLog, MissingExtra
from headgate.extras import require

STDIN = "-"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF16 = b"\xff\xfe", b"\xfe\xff"
_PEEK_BYTES = 4096
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a]")


class LogFile:
    """An open log: its name, its size if it is known, and its lines."""

    def __init__(self, path: str) -> None:
        self.name: str = "standard input" if path == STDIN else path
        self._raw = _open(path)
        self.size: int | None = os.fstat(self._raw.fileno()).st_size if path != STDIN else None
        self.written_s: float | None = os.fstat(self._raw.fileno()).st_mtime if path != STDIN else None
        self._errors: tuple[type[Exception], ...] = (EOFError, OSError, ValueError, zlib.error)
        try:
            data = self._decompressed(self._raw.peek(_PEEK_BYTES)[:_PEEK_BYTES])
            beginning = data.peek(_PEEK_BYTES)[:_PEEK_BYTES]
        except MissingExtra:
            self._raw.close()
            raise
        except self._errors as error:
            self._raw.close()
            raise InvalidLog(f"{self.name} cannot be decompressed: {error}.") from error
        if b"\0" in beginning and not _has_text_lines(beginning):
            self._raw.close()
            raise InvalidLog(
                f"{self.name} is UTF-16: convert it first, by iconv -f UTF-16 -t UTF-8."
                if beginning.startswith(_UTF16)
                else f"{self.name} is binary, not a log of lines of text. Text, gzip and zstd can be read."
            )
        self._text = io.TextIOWrapper(cast(BinaryIO, data), "utf-8", "surrogateescape", newline="\n")

    def _decompressed(self, beginning: bytes) -> io.BufferedReader:
        if beginning.startswith(_GZIP):
            return io.BufferedReader(cast(Any, gzip.GzipFile(fileobj=self._raw)))
        if beginning.startswith(_ZSTD):
            zstd = _zstd_module()
            self._errors = (*self._errors, zstd.ZstdError)
            return io.BufferedReader(zstd.ZstdFile(self._raw))
        return self._raw

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self._text
        except self._errors as error:
            raise InvalidLog(f"{self.name} cannot be read to its end: {error}.") from error

    @property
    def position(self) -> int:
        """The bytes that were read, of the file as it is on disk."""
        try:
            return self._raw.tell()
        except OSError:
            return 0

    def close(self) -> None:
        if self.name != "standard input":
            self._text.close()
            self._raw.close()


def _has_text_lines(beginning: bytes) -> bool:
    """Returns whether at least half of the lines are text: a crash may leave a line of zeros in a log."""
    *lines, _ = beginning.split(b"\n")
    return bool(lines) and 2 * sum(_CONTROL.search(line) is None for line in lines) >= len(lines)


def _open(path: str) -> io.BufferedReader:
    if path == STDIN:
        return cast(io.BufferedReader, sys.stdin.buffer)
    try:
        return io.BufferedReader(io.FileIO(path), 1 << 17)
    except OSError as error:
        raise InvalidLog(f"{path} cannot be read: {error.strerror}.") from error


def _zstd_module() -> Any:
    module = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    require("Reading zstd", "zstd", module)
    return import_module(module)
