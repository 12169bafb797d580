"""Writes a file completely or not at all: to a temporary file first, then renamed over the old one.

A process that reads it meanwhile, as a running nginx may, reads the old file to its end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headgate.errors import InvalidRule


def write(path: Path, data: bytes) -> None:
    """Writes the file with the permissions of new files. If the path is a symbolic link, the link stays."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise InvalidRule(f"{path} is not a file: it cannot be written.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise InvalidRule(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):  # its folder may be none
            temporary.unlink(missing_ok=True)
