"""The service's processes: one, or several workers that share its addresses under a supervisor.

The supervisor opens the sockets before it starts workers, and all workers accept from them: a client that waits
to be accepted keeps its place when a worker dies. A worker that dies is replaced at once; one that dies as soon
as it is started is a mistake of the settings, and ends the service with its message. On SIGTERM the supervisor
stops the workers, and waits for `drain` and a little longer.
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

from headgate.enforcement.rulebook_follower import RULEBOOK_WARNING
from headgate.errors import HeadgateError, InvalidSetting
from headgate.service.metrics import forget_worker, shared_by_workers
from headgate.service.settings import Address, Settings
from headgate.service.stderr_capture import logged_native_output

EARLY_EXIT_S = 5.0  # a worker that ends earlier failed because of its settings
FAILED, INVALID = 1, 2  # exit codes, as those of the command line
_KILL_AFTER_S = 2.0
_BACKLOG = 1024
_GC_THRESHOLD = 2_000  # new objects until the next collection; requests leave no cycles
_READY, _ENDED = b".", b"!"  # what workers write to the supervisor's pipe
_log = logging.getLogger("headgate.service")


class Sockets(NamedTuple):
    """The sockets that all workers accept from."""

    http: socket.socket | None
    grpc: socket.socket | None
    admin: socket.socket | None


def run(settings: Settings, ready: Callable[[], object]) -> int:
    """Serves until a signal stops it, and returns the exit code. `ready` is called when the service answers."""
    _check_certificates(settings)
    # Connections need descriptors, and a shell's default is for programs with few.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    addresses = settings.http, settings.grpc, settings.admin
    sockets = Sockets(
        *(
            None if address is None else open_listener(address, both_families=address is settings.grpc)
            for address in addresses
        )
    )
    try:
        if settings.workers == 1:
            _run_worker(settings, sockets, ready)
            return 0
        with shared_by_workers(settings.workers):
            return _Supervisor(settings, sockets).run(ready)
    finally:
        for address in addresses:
            if address is not None and address.path is not None:
                Path(address.path).unlink(missing_ok=True)


def open_listener(address: Address, *, both_families: bool = False) -> socket.socket:
    """Returns a socket that listens at the address; raises InvalidSetting if it cannot.

    With `both_families`, [::] is IPv4 as well, where the system allows it.
    """
    try:
        if address.path is None:
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            both = both_families and address.host == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server(
                (address.host, address.port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
            )
        else:
            if is_stale_socket(address.path):
                Path(address.path).unlink()
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address.path)
            listener.listen(_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error  # without Python's prefix
        raise InvalidSetting(f"The service cannot listen at {address}: {reason}.") from None
    listener.setblocking(False)
    return listener


def is_stale_socket(path: str) -> bool:
    """Returns whether there is a socket file at which no process listens any more."""
    if not Path(path).is_socket():
        return False
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _check_certificates(settings: Settings) -> None:
    """Checks the TLS files, so that what is wrong with them is said once and not by each worker."""
    if settings.tls_cert is None or settings.tls_key is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # do not prompt for one
    except (OSError, ValueError) as error:
        raise InvalidSetting(
            f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key} are not a certificate chain in "
            "PEM and its "
            f"key without a password: {_reason(error)}."
        ) from None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise InvalidSetting(
                f"tls_client_ca {settings.tls_client_ca} has no certificates in PEM: {_reason(error)}."
            ) from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)


def _run_worker(settings: Settings, sockets: Sockets, ready: Callable[[], object], number: int = 0) -> None:
    """Runs a worker. Number 0 logs the rulebook's warnings for all."""
    if number > 0:
        logging.getLogger("headgate").addFilter(lambda record: record.msg != RULEBOOK_WARNING)
    with logged_native_output() if settings.log == "json" else nullcontext():
        from headgate.service.worker import work  # after the fork: granian must not start before it

        run_server_loop(work(settings, sockets, ready))


def run_server_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine in an event loop that is tuned for servers.

    Under SCHED_BATCH it is not interrupted for each packet, where a core has more than one thing to do (a tenth to
    a third more answers); garbage is collected seldom.
    """
    with suppress(AttributeError, OSError):  # where the system has it, and allows it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(main)


class _Supervisor:
    """Starts workers and replaces those that die."""

    def __init__(self, settings: Settings, sockets: Sockets) -> None:
        self._settings, self._sockets = settings, sockets
        self._workers: dict[int, tuple[float, int]] = {}  # by pid: start time and number
        self._stopping = False

    def run(self, ready: Callable[[], object]) -> int:
        pipe_read, pipe_write = os.pipe()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, self._stop)
        try:
            for number in range(self._settings.workers):
                self._start(pipe_write, number)
            if all(os.read(pipe_read, 1) == _READY for _ in range(self._settings.workers)):
                ready()
            return self._watch(pipe_write)
        finally:
            os.close(pipe_read)
            os.close(pipe_write)

    def _start(self, pipe_write: int, number: int) -> None:
        pid = os.fork()
        if pid:
            self._workers[pid] = time.monotonic(), number
            return
        code = FAILED
        try:
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(signal_number, signal.SIG_DFL)
            _run_worker(self._settings, self._sockets, lambda: os.write(pipe_write, _READY), number)
            code = 0
        except HeadgateError as error:
            _log.error("%s", error)
            code = INVALID
        except BaseException:
            _log.exception("a worker failed")
        finally:
            os.write(pipe_write, _ENDED)
            logging.shutdown()
            os._exit(code)

    def _watch(self, pipe_write: int) -> int:
        """Waits until all workers have ended, and returns the exit code."""
        code = 0
        while self._workers:
            pid, status = os.waitpid(-1, 0)
            forget_worker(pid)
            worker = self._workers.pop(pid, None)
            if worker is None or self._stopping:
                continue
            started, number = worker
            if time.monotonic() - started < EARLY_EXIT_S:
                _log.error("a worker ended as soon as it was started: the service stops")
                code = max(os.waitstatus_to_exitcode(status), FAILED)
                self._stop()
                continue
            _log.error("worker %d died (%s) and is replaced", pid, os.waitstatus_to_exitcode(status))
            self._start(pipe_write, number)
        return code

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        signal.signal(signal.SIGALRM, self._kill)
        signal.setitimer(signal.ITIMER_REAL, self._settings.drain + _KILL_AFTER_S)

    def _kill(self, *_: object) -> None:
        for pid in self._workers:
            _log.warning("worker %d did not stop and is killed", pid)
            os.kill(pid, signal.SIGKILL)
