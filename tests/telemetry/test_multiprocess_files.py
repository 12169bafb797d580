"""A full disk under prometheus_client's multiprocess mode ends no process, and loses no count."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import pytest

from headgate.telemetry.multiprocess_files import HEADROOM, KINDS, reserve
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer
from tests.servers.server_programs import command
from tests.servers.wait_until import until
from tests.service.service_harness import Service

BOOK = {"rules": [{"name": "login", "key": "user", "missing": "skip", "limit": "2/hour"}]}

APP = """
import errno, logging, os, sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from headgate import Limiter
from headgate.telemetry.prometheus import PrometheusMetrics

logging.basicConfig(stream=sys.stdout, format="%(message)s")
metrics = PrometheusMetrics()
limiter = Limiter("2/hour", name="login", observers=[metrics])
allocate = os.posix_fallocate

def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

def text():
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return generate_latest(registry).decode()

os.posix_fallocate = full
print([limiter.take("ann").allowed for _ in range(3)])
metrics.move_counts()
metrics.move_counts()
print('outcome="refused"' in text())
os.posix_fallocate = allocate
metrics.move_counts()
print('headgate_decisions_total{outcome="refused",rule="login"} 1.0' in text())
"""


def test_what_is_reserved_is_backed_by_the_disk_and_what_is_there_stays(tmp_path: Path) -> None:
    reserve(tmp_path)
    for kind in KINDS:
        path = tmp_path / f"{kind}_{os.getpid()}.db"
        assert path.stat().st_size == HEADROOM
        with path.open("r+b") as file:
            file.write((300_000).to_bytes(4, "little") + b"    abc")
    reserve(tmp_path, 5000)
    for kind in KINDS:
        path = tmp_path / f"{kind}_{os.getpid()}.db"
        status = path.stat()
        assert status.st_size == 300_000 + HEADROOM + 5000
        assert status.st_blocks * 512 >= status.st_size
        assert path.read_bytes()[4:11] == b"    abc"


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_no_file_is_left_empty(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    full = pytest.raises(OSError, match="No space left") if code == errno.ENOSPC else nullcontext()
    with full:  # a file system that reserves nothing is taken as it is
        reserve(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_counts_wait_until_there_is_room(tmp_path: Path) -> None:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([sys.executable, "-c", APP], capture_output=True, text=True, env=environment)
    lines = ran.stdout.splitlines()
    lines.sort(key=lambda line: line != "[True, True, False]")  # the thread that moves counts may be the first
    assert lines == [
        "[True, True, False]",
        f"headgate: metrics cannot be written to {tmp_path}: No space left on device. They stand still until they "
        "can be; calls are decided and counted as before.",
        "False",
        f"headgate: metrics are written to {tmp_path} again.",
        "True",
    ], ran.stderr


def _root_is_a_mount() -> bool:
    return any(line.split()[4] == "/" for line in Path("/proc/self/mountinfo").read_text().splitlines())


class ServiceOnSmallDisk(Service):
    """A service of two workers whose metrics are on a disk of 2 MB, in a mount namespace of its own."""

    def __init__(self, redis: str, disk: Path) -> None:
        super().__init__(BOOK, engine=f"{redis}?deadline=10s", workers=2)
        self._disk = disk
        mount = f'mount -t tmpfs -o size=2m none {disk} && exec "$@"'
        namespace = ["--mount"] if os.getuid() == 0 else ["--user", "--map-root-user", "--mount"]
        if not _root_is_a_mount():  # in a chroot there is no propagation to change
            namespace += ["--propagation", "unchanged"]
        self.before = [str(command("unshare", "util-linux")), *namespace, "sh", "-c", mount, "sh"]

    @property
    def disk(self) -> Path:
        """Its disk as other processes see it."""
        return Path(f"/proc/{self.pid}/root{self._disk}")

    def fill_disk(self) -> None:
        with (self.disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def metric(self, name: str) -> float:
        """The sum of a metric in one scrape."""
        lines = self.send_request("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"headgate_{name}{{"))


@contextmanager
def on_small_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[ServiceOnSmallDisk]:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    with RedisServer() as redis, ServiceOnSmallDisk(redis.url, folder) as service:
        yield service


@pytest.mark.servers
def test_a_full_disk_ends_no_worker_of_the_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with on_small_disk(monkeypatch, tmp_path) as service:
        workers = service.worker_pids
        service.fill_disk()
        answers = [service.check(user=f"user {number % 5}")["allowed"] for number in range(40)]
        assert (answers.count(True), answers.count(False)) == (10, 30)
        line = "metrics cannot be written"
        until(lambda: None if line in service.output else "no line", 30)
        assert service.worker_pids == workers
        (service.disk / "filling").unlink()
        until(lambda: None if service.metric("decisions_total") == 40 else "too few", 30)
        assert service.output.count(line) <= len(workers)


@pytest.mark.servers
def test_workers_that_start_on_a_full_disk_count_by_themselves(redis_server: RedisServer) -> None:
    service = Service(BOOK, engine=f"{redis_server.url}?deadline=10s", workers=2)
    service.before = [str(command("prlimit", "util-linux")), "--fsize=60000"]  # less than the smallest file
    with service:
        assert service.output.count("the metrics of this worker cannot be written") == 2
        for _ in range(10):
            service.check(user="ann")
            assert b"headgate_decision_seconds_count" in service.send_request("GET", "/metrics").body
