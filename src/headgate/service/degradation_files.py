"""Shares what is degraded among the workers of one service: whichever a health check reaches, it answers for all.

Each worker writes its sentences to a file of its own every SHARE_S, in the folder of the metrics (metrics.py), and
deletes it when nothing is degraded. The file of a worker that died is ignored when it is older than FORGET_S. A
folder that cannot be written is no problem of its own: then each worker answers for itself.

Law (tests/service/test_degradations.py): what one worker knows, all workers say, at most two seconds later.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

SHARE_S: Final = 1.0
FORGET_S: Final = 5.0
_PREFIX: Final = "degraded-"


class DegradationFiles:
    """The file of this worker, and those of the others. `folder` None: there are no others."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)

    def _file_in(self, folder: Path) -> Path:
        return folder / f"{_PREFIX}{os.getpid()}"

    def write(self, parts: Iterable[tuple[str, str]]) -> None:
        """Writes the parts that are degraded here, each with its sentence; no file if there are none."""
        if self._folder is None:
            return
        file, degraded = self._file_in(self._folder), [*parts]
        with suppress(OSError):
            if degraded:
                new = file.with_name(f".{file.name}")
                new.write_text(json.dumps(degraded), encoding="utf-8")
                new.replace(file)
            else:
                file.unlink(missing_ok=True)

    def of_others(self) -> Iterator[tuple[str, str]]:
        """Yields what is degraded in the other workers."""
        if self._folder is None:
            return
        file, oldest_s = self._file_in(self._folder), time.time() - FORGET_S
        for path in sorted(self._folder.glob(f"{_PREFIX}*")):
            with suppress(OSError, ValueError):
                if path != file and path.stat().st_mtime >= oldest_s:
                    document = json.loads(path.read_text(encoding="utf-8"))
                    yield from ((part, sentence) for part, sentence in document)
