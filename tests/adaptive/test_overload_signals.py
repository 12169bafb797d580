"""Guards beside the response time."""

import asyncio
from pathlib import Path

import pytest

from headgate.adaptive.overload_signals import CpuUsage, EventLoopLag
from headgate.errors import InvalidRule


class SignalClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _container(folder: Path, seconds: float, quota: str = "200000 100000") -> None:
    (folder / "cpu.max").write_text(f"{quota}\n")
    (folder / "cpu.stat").write_text(f"usage_usec {int(seconds * 1e6)}\nuser_usec 1\nsystem_usec 1\n")


def test_a_container_is_measured_by_its_quota(tmp_path: Path) -> None:
    clock = SignalClock()
    _container(tmp_path, 10.0)
    usage = CpuUsage(0.9, cgroup=tmp_path, clock=clock)
    for second in range(1, 11):
        clock.now = float(second)
        _container(tmp_path, 10.0 + 1.0 * second)  # one of two processors
        assert not usage.strained()
    assert usage.usage == pytest.approx(0.5, abs=0.01)
    for second in range(11, 21):
        clock.now = float(second)
        _container(tmp_path, 20.0 + 2.0 * (second - 10))
        usage.strained()
    assert usage.strained()


def test_a_container_of_the_first_version_is_read_too(tmp_path: Path) -> None:
    for name, text in (
        ("cpu/cpu.cfs_quota_us", "50000"),
        ("cpu/cpu.cfs_period_us", "100000"),
        ("cpuacct/cpuacct.usage", "0"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    clock = SignalClock()
    usage = CpuUsage(0.4, cgroup=tmp_path, clock=clock)
    (tmp_path / "cpuacct/cpuacct.usage").write_text(str(int(0.5e9)))
    clock.now = 1.0
    assert usage.strained()
    assert usage.usage == 0.5  # half of the way to all of its half processor


def test_without_a_quota_the_machine_counts(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 1000 0 0 0 0 0 0\n")
    _container(tmp_path, 0.0, quota="max 100000")
    clock = SignalClock()
    usage = CpuUsage(0.9, cgroup=tmp_path, proc_stat=stat, clock=clock)
    clock.now = 1.0
    stat.write_text("cpu  100 0 100 1100 0 0 0 0 0 0\n")
    assert not usage.strained()
    assert usage.usage == 0.0


def test_where_nothing_can_be_read_the_process_counts(tmp_path: Path) -> None:
    usage = CpuUsage(cgroup=tmp_path, proc_stat=tmp_path / "none")
    assert usage.strained() in (True, False)


async def test_a_blocked_loop_is_late() -> None:
    lag = EventLoopLag(threshold=0.01, interval=0.001)
    lag.start()
    loop = asyncio.get_running_loop()
    while not lag.strained():
        until = loop.time() + 0.05
        while loop.time() < until:
            pass
        await asyncio.sleep(0)
    lag.stop()
    lag.stop()
    assert lag.lag > 0.01


@pytest.mark.parametrize("threshold", [0, 1.5, "high"])
def test_a_threshold_is_a_part_of_the_cpu(threshold: float) -> None:
    with pytest.raises(InvalidRule, match="threshold is a number above 0, at most 1; not"):
        CpuUsage(threshold)
