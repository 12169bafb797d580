"""python -m tests.chaos [FAULT ...]: break real servers under load, and print what the callers saw."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tests.chaos import failover_faults, resource_leaks, result_table, single_server_faults
from tests.chaos.run_load import ChaosLoad
from tests.chaos.thresholds import MARGIN, judge_load

LOCAL = ("local",)
EVERY = ("local", "allow", "deny", None)
ATTEMPTS = 3  # where the machine is too busy to tell


class FaultScenario(NamedTuple):
    """A row of the table, or several."""

    name: str
    words: str
    story: Callable[[ChaosLoad], None]
    fallbacks: tuple[str | None, ...] = LOCAL
    threads: bool = False  # also by threads
    broken: float = 3.0
    harmless: bool = False


FAULTS = (
    FaultScenario("kill", "killed, back in 3 s", single_server_faults.kill, EVERY, threads=True),
    FaultScenario("pause", "hangs for 10 s", single_server_faults.pause, EVERY, threads=True, broken=10),
    FaultScenario("slow", "link 200 ms slow", single_server_faults.slow_link, EVERY),
    FaultScenario("silent", "link swallows all", single_server_faults.silent_link, EVERY, threads=True),
    FaultScenario("far", "18 ms away, gone for 3 s", single_server_faults.far_away),
    FaultScenario("sentinel", "sentinel failover", failover_faults.sentinel_failover),
    FaultScenario("cluster", "cluster loses a master", failover_faults.cluster_master),
    FaultScenario("reshard", "resharding", failover_faults.resharding, broken=5, harmless=True),
    FaultScenario("scripts", "SCRIPT FLUSH, 100 a second", single_server_faults.script_flush, harmless=True),
    FaultScenario("clock-forward", "clock steps +1 h", single_server_faults.clock_forward, harmless=True),
    FaultScenario("clock-back", "clock steps -1 h", single_server_faults.clock_back, harmless=True),
    FaultScenario("memory", "maxmemory reached", single_server_faults.out_of_memory),
    FaultScenario("replica", "read-only, promoted late", single_server_faults.read_only),
    FaultScenario("clients", "connection limit reached", single_server_faults.connection_limit),
    FaultScenario("upgrade", "two key layouts at once", single_server_faults.upgrade, harmless=True),
)
LEAKS = "leaks"


def main(arguments: list[str]) -> int:
    scenarios = [*(fault.name for fault in FAULTS), LEAKS]
    if unknown := [word for word in arguments if word not in scenarios]:
        sys.stderr.write(f'faults: there is no fault "{unknown[0]}". There are: {", ".join(scenarios)}.\n')
        return 2
    _print(result_table.table_head())
    good = [_run(fault) for fault in FAULTS if not arguments or fault.name in arguments]
    if not arguments or LEAKS in arguments:
        result = resource_leaks.run_outage_cycles()
        _print(result.lines())
        good.append(not result.failures)
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    _print([f"{'All bars hold' if all(good) else 'NOT all bars hold'}. Load averages of the machine: {load}."])
    return 0 if all(good) else 1


def _run(fault: FaultScenario) -> bool:
    ways = [*((fallback, False) for fallback in fault.fallbacks), *[("local", True)] * fault.threads]
    good = [_row(fault, fallback, threads, ATTEMPTS) for fallback, threads in ways]
    return all(good)


def _row(fault: FaultScenario, fallback: str | None, threads: bool, attempts: int) -> bool:
    load = ChaosLoad(fallback, threads, broken=fault.broken)
    fault.story(load)
    result = judge_load(fault.words, load, harmless=fault.harmless)
    _print(result_table.row_lines(result))
    if result.failures and result.timer > MARGIN and attempts > 1:
        _print([f"    the machine itself stood still for {result.timer * 1000:.0f} ms: once more"])
        return _row(fault, fallback, threads, attempts - 1)
    return not result.failures


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
