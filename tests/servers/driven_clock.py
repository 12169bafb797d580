"""Sets the wall clock of an unmodified server from a test.

`DrivenClock` owns eight bytes in a file; `driven_clock.c`, preloaded into the server, takes its time from
them. Setting the clock is a store into shared memory: the server sees it at its next reading, without a round
trip.
"""

import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.server_programs import MissingComponent

SOURCE = Path(__file__).with_suffix(".c")
CACHE = Path(__file__).parents[2] / ".cache" / "driven_clock"
CELL_VARIABLE = "HEADGATE_DRIVEN_CLOCK"
REAL_TIME = 0

# Where driven tests begin: 2023-11-14 22:13:20 UTC.
BASE_US = 1_700_000_000_000_000


class DrivenClock:
    """Microseconds since 1970 as the server will see them; 0 lets the real clock through."""

    def __init__(self, now_us: int = REAL_TIME) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-clock-"))
        self.path = self._folder / "now_us"
        self.path.write_bytes(bytes(8))
        with self.path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 8)
        # A native 8-byte view stores in one move. struct.pack_into("<q") may write byte by byte, and a server
        # that reads in between would see a time that never was.
        self._cell = memoryview(self._page).cast("q")
        self.set_us(now_us)

    def set_us(self, now_us: int) -> None:
        """Make it `now_us`, and let it stay so until the next call; forwards or backwards."""
        if now_us < 0:
            raise ValueError(f"a driven clock cannot show {now_us} us: it starts in 1970")
        self._cell[0] = now_us

    def now_us(self) -> int:
        """Returns the time that was last set; 0 while the server is on real time."""
        return self._cell[0]

    def advance_us(self, by_us: int) -> int:
        """Turn the clock by `by_us`, negative for a step back, and return the new time."""
        if self.now_us() == REAL_TIME:
            raise ValueError("the clock is on real time; set_us() it before turning it")
        self.set_us(self.now_us() + by_us)
        return self.now_us()

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of a process that lives by this clock."""
        return {"LD_PRELOAD": str(shim()), CELL_VARIABLE: str(self.path)}

    def close(self) -> None:
        """Remove the file. A server still attached keeps the last time it was shown."""
        self._cell.release()
        self._page.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def shim() -> Path:
    """The compiled shim, built when its source is new: the name carries a digest, so none is ever stale."""
    library = CACHE / f"driven_clock-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        _compile(library)
    return library


def _compile(library: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        raise MissingComponent("gcc", "the driven clock is compiled on demand", "gcc libc6-dev")
    library.parent.mkdir(parents=True, exist_ok=True)
    # Built aside and moved into place: two test runs may start at once.
    draft = library.with_suffix(f".{os.getpid()}")
    flags = ["-O2", "-Wall", "-Wextra", "-shared", "-fPIC"]
    command = [compiler, *flags, "-o", str(draft), str(SOURCE), "-ldl"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"{SOURCE.name} does not compile:\n{built.stderr}")
    draft.replace(library)
