"""The service's processes: one, or several workers that share its addresses under one that watches them.

HTTP is listened at once, before there are workers, and all of them accept from it: whoever waits to be accepted
waits on when a worker dies. (grpc takes no socket; there each worker listens at the same address, and the kernel
deals out connections.) A worker that dies is replaced at once; one that dies as soon as it is started is a mistake
of the settings, and ends the service with what it said. Told to stop, the watcher tells the workers, and waits as
long as `drain` says and a little longer.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

try:
    import uvloop as loops
except ImportError:  # it is not made for every platform
    import asyncio as loops  # type: ignore[no-redef]

from headgate.enforcement.rule_limiter import RULEBOOK_WARNING
from headgate.errors import HeadgateError, InvalidSetting
from headgate.service.settings import Address, Settings
from headgate.service.stderr_capture import logged_native_output

EARLY = 5.0  # seconds after which a worker's death is its own, and not the settings'
FAILED, INVALID = 1, 2  # exit codes, as those of the command line
_SLACK = 2.0
_BACKLOG = 1024
_GARBAGE = 2_000  # new objects after which cycles among them are looked for: a request leaves none
_READY, _OVER = b".", b"!"  # what workers say to their watcher
_log = logging.getLogger("headgate.service")


class Sockets(NamedTuple):
    """What the service listens at, and all workers accept from."""

    http: socket.socket | None
    admin: socket.socket | None


def run(settings: Settings, ready: Callable[[], object]) -> int:
    """Serve until told to stop; the exit code. `ready` is called when the service can be asked."""
    _check_certificates(settings)
    # Connections are descriptors, and what a shell allows by itself is for programs with few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if settings.grpc is not None:
        _check_free(settings.grpc)
    sockets = Sockets(*(None if each is None else listening(each) for each in (settings.http, settings.admin)))
    try:
        if settings.workers == 1:
            _serve(settings, sockets, ready)
            return 0
        return _Watcher(settings, sockets).run(ready)
    finally:
        for each in (settings.http, settings.admin):
            if each is not None and each.path is not None:
                Path(each.path).unlink(missing_ok=True)


def listening(address: Address) -> socket.socket:
    """A socket that listens there; InvalidSetting if it cannot."""
    try:
        if address.path is None:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            made = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        else:
            if stale(address.path):
                Path(address.path).unlink()
            made = socket.socket(socket.AF_UNIX)
            made.bind(address.path)
            made.listen(_BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # without what Python adds to it
        raise InvalidSetting(f"{address} cannot be listened at: {why}.") from None
    made.setblocking(False)
    return made


def stale(path: str) -> bool:
    """Whether a socket lies there that nobody listens at any more."""
    if not Path(path).is_socket():
        return False
    with closing(socket.socket(socket.AF_UNIX)) as tried:
        return tried.connect_ex(path) == errno.ECONNREFUSED


def _check_certificates(settings: Settings) -> None:
    """Here, because of a bad one grpc only says that it cannot listen."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # nobody is asked for one
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key} are no certificate chain in PEM and its "
            f"key without a password: {_why(error)}."
        ) from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise InvalidSetting(
                f"tls_client_ca {settings.tls_client_ca} has no certificates in PEM: {_why(error)}."
            ) from None


def _why(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def _check_free(address: Address) -> None:
    """Nobody else may be listening: grpc's workers share an address, so the kernel would let us, and calls would
    be dealt out between two services."""
    if address.path is None:
        with closing(listening(address)):
            pass


def _serve(settings: Settings, sockets: Sockets, ready: Callable[[], object], number: int = 0) -> None:
    """Be a worker. Number 0 logs the rulebook's warnings for all."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc begins; see grpcs.py
    if number > 0:
        logging.getLogger("headgate").addFilter(lambda record: record.msg != RULEBOOK_WARNING)
    with logged_native_output() if settings.log == "json" else nullcontext():
        from headgate.service.worker import work  # after a fork: grpc must not have begun before it

        looped(work(settings, sockets, ready))


def looped(main: Coroutine[Any, Any, None]) -> None:
    """Run it as processes run that answer many: they are not interrupted for each packet that comes, where a core
    has more than one thing to do (a tenth to a third more answers), and seldom look for garbage."""
    with suppress(AttributeError, OSError):  # where the system knows it, and allows it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    gc.freeze()
    gc.set_threshold(_GARBAGE)
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(main)


class _Watcher:
    """Starts workers and replaces those that die."""

    def __init__(self, settings: Settings, sockets: Sockets) -> None:
        self._settings, self._sockets = settings, sockets
        self._workers: dict[int, tuple[float, int]] = {}  # process: when it was started, and its number
        self._stopping = False

    def run(self, ready: Callable[[], object]) -> int:
        said, says = os.pipe()
        for caught in (signal.SIGTERM, signal.SIGINT):
            signal.signal(caught, self._stop)
        try:
            for number in range(self._settings.workers):
                self._start(says, number)
            if all(os.read(said, 1) == _READY for _ in range(self._settings.workers)):
                ready()
            return self._watch(says)
        finally:
            os.close(said)
            os.close(says)

    def _start(self, says: int, number: int) -> None:
        pid = os.fork()
        if pid:
            self._workers[pid] = time.monotonic(), number
            return
        code = FAILED
        try:
            for caught in (signal.SIGTERM, signal.SIGINT):
                signal.signal(caught, signal.SIG_DFL)
            _serve(self._settings, self._sockets, lambda: os.write(says, _READY), number)
            code = 0
        except HeadgateError as error:
            _log.error("%s", error)
            code = INVALID
        except BaseException:
            _log.exception("a worker failed")
        finally:
            os.write(says, _OVER)
            logging.shutdown()
            os._exit(code)

    def _watch(self, says: int) -> int:
        """Until all of them have ended; the exit code."""
        code = 0
        while self._workers:
            pid, status = os.waitpid(-1, 0)
            known = self._workers.pop(pid, None)
            if known is None or self._stopping:
                continue
            started, number = known
            if time.monotonic() - started < EARLY:
                _log.error("a worker ended as soon as it was started: the service stops")
                code = max(os.waitstatus_to_exitcode(status), FAILED)
                self._stop()
                continue
            _log.error("worker %d died (%s) and is replaced", pid, os.waitstatus_to_exitcode(status))
            self._start(says, number)
        return code

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        signal.signal(signal.SIGALRM, self._kill)
        signal.setitimer(signal.ITIMER_REAL, self._settings.drain + _SLACK)

    def _kill(self, *_: object) -> None:
        for pid in self._workers:
            _log.warning("worker %d did not stop and is killed", pid)
            os.kill(pid, signal.SIGKILL)
