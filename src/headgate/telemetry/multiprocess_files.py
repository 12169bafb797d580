"""Reserves room for the files of prometheus_client's multiprocess mode, so that a full disk ends no process.

prometheus_client maps its files into memory. A file that it makes has holes; if the disk is full when a number is
written into a hole, the kernel ends the process (SIGBUS). So the bytes that are about to be written are reserved
before, by posix_fallocate: where that fails, nothing is written until there is room again.

A file that is made here is never empty. One that prometheus_client makes is, for a moment, and a scrape at that
moment fails.

Laws (tests/telemetry/test_multiprocess_files.py): what is reserved is backed by the disk; what is in a file stays.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
KINDS: Final = ("counter", "histogram", "gauge_mostrecent", "gauge_max", "gauge_livesum")  # of our metrics
HEADROOM: Final = 1 << 16  # bytes behind what is used
MAX_BYTES_PER_RULE: Final = 1 << 13  # of all series of a rule, or of a limit

_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)  # the file system reserves nothing


def reserve(folder: str | os.PathLike[str], more: int = 0) -> None:
    """Reserves HEADROOM and `more` bytes in each file of this process; raises OSError if there is no room."""
    if not hasattr(os, "posix_fallocate"):
        return
    for kind in KINDS:
        _reserve(Path(folder) / f"{kind}_{os.getpid()}.db", HEADROOM + more)


def _reserve(path: Path, more: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        used = int.from_bytes(os.pread(descriptor, 4, 0), "little")
        os.posix_fallocate(descriptor, 0, used + more)
    except OSError as error:
        if not os.fstat(descriptor).st_size:
            path.unlink(missing_ok=True)  # an empty file would fail the scrapes of all processes
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)
