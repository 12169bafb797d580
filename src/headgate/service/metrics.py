"""The metrics of the service for Prometheus: GET /metrics, of one worker or of several together.

Several workers share their values through files in a folder of their own (prometheus_client's multiprocess mode):
whichever worker Prometheus asks, it answers for all. prometheus_client reads the name of that folder from the
environment when it is imported, so the supervisor sets it before it starts the workers, and imports nothing here
that imports prometheus_client.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headgate.telemetry.counts import Counts
from headgate.telemetry.multiprocess_files import FOLDER_VARIABLE, reserve

_log = logging.getLogger("headgate.service")


@contextmanager
def shared_by_workers(workers: int) -> Iterator[None]:
    """Lets several workers share their metrics while a block runs; removes the files afterwards."""
    if workers == 1 or FOLDER_VARIABLE in os.environ:
        yield
        return
    folder = os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="headgate-metrics-")
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def forget_worker(pid: int) -> None:
    """Removes what a worker that died said of its own state. What it counted stays."""
    folder = os.environ.get(FOLDER_VARIABLE)
    for path in Path(folder).glob(f"gauge_live*_{pid}.db") if folder else ():
        with suppress(OSError):
            path.unlink()


class WorkerMetrics:
    """The metrics of one worker. `observer` is to be given to its limiter, in place of the counts."""

    def __init__(self, counts: Counts) -> None:
        _check_folder()
        from prometheus_client import CollectorRegistry

        from headgate.telemetry.prometheus import PrometheusMetrics

        self._registry = CollectorRegistry()
        self.observer: PrometheusMetrics = PrometheusMetrics(registry=self._registry, counts=counts)

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        from headgate.telemetry.prometheus import is_multiprocess

        if not is_multiprocess():
            return generate_latest(self._registry)
        self.observer.move_counts()
        of_all = CollectorRegistry()
        MultiProcessCollector(of_all)  # type: ignore[no-untyped-call]
        return generate_latest(of_all)


def _check_folder() -> None:
    """Lets this worker keep its metrics to itself if there is no room for its files."""
    folder = os.environ.get(FOLDER_VARIABLE)
    try:
        if folder:
            reserve(folder)
    except OSError as error:
        del os.environ[FOLDER_VARIABLE]
        _log.error(
            "the metrics of this worker cannot be written to %s: %s. /metrics of this worker has its own only, "
            "and that of the others lacks them",
            folder,
            error.strerror or error,
        )
