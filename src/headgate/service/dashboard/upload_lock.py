"""UploadLock: one upload at a time in a service, whichever of its workers receives it.

It is a lock on a file in the folder for temporary files, named by the user and the admin address. The system
releases it when a worker ends, however that ends; the file is deleted with each release.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from headgate.service.settings import Address


class UploadLock:
    """The lock of the service at an admin address."""

    def __init__(self, admin: Address | None) -> None:
        name = hashlib.sha256(str(admin).encode()).hexdigest()[:16]
        self._name = f"headgate-{os.getuid()}-{name}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Takes the lock; returns False if it is taken, here or in another worker. Raises OSError."""
        if self._descriptor is not None:
            return False
        path = Path(tempfile.gettempdir()) / self._name
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_file_of(path, descriptor):
                    self._descriptor, self._path = descriptor, path
                    return True
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # it was deleted in the meantime

    def is_free(self) -> bool:
        """Returns whether the lock could be taken now."""
        if not self.acquire():
            return False
        self.release()
        return True

    def release(self) -> None:
        """Gives the lock back."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None


def _is_file_of(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
