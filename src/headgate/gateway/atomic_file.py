"""A file that is there as a whole or not at all: written aside, then renamed over the old one.

Whoever reads it meanwhile, as a running nginx may, reads the old one to its end.
"""

from __future__ import annotations

import os
from pathlib import Path

from headgate.errors import InvalidRule


def write(path: Path, data: bytes) -> None:
    """Write it, with the rights that new files have here. Where a link leads to it, the link stays."""
    place = path.resolve()
    if place.exists() and not place.is_file():
        raise InvalidRule(f"{path} is not a file: it cannot be written.")
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(place)
    except OSError as error:
        raise InvalidRule(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        aside.unlink(missing_ok=True)
