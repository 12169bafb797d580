"""Measures the decisions a second that are left when they are counted, measured and logged.

A limiter without observers, and the same with Counts; with Prometheus's metrics on shared counts, on Redis also
with recent records (all that the service does); and with a decision log of a tenth of the calls in addition. In
turns. In memory: one key that is always allowed, 100,000 keys in random order, a key that is always refused (a
log has all refusals), and a rulebook of one rule. On Redis: 5,000 keys, with counts and records that are shared
through the same server. Speed is by CPU time: it includes the threads that write, and on Redis what the server
spends.
"""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from benchmarks.interleaved_runs import (
    Stretch,
    Subject,
    decisions_per_second,
    last_core,
    median,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server, server_cpu_us
from benchmarks.report import BenchmarkReport, figure, thousands

ONE, MANY, REFUSED, RULES = "1 key", "100,000 keys", "1 key, refused", "a rulebook, 1 key"
REDIS = "Redis, 5,000 keys"
SPEED = "per_cpu_second"
IN_MEMORY = ONE, MANY, REFUSED, RULES
PLAIN, COUNTED, ALL, LOGGED = "without observers", "counts", "counts and metrics", "and 10 % logged"
SUBJECTS = PLAIN, COUNTED, ALL, LOGGED
# The share of the decisions per second that must be left: in memory, and on Redis.
LEAST = {COUNTED: (0.6, 0.93), ALL: (0.6, 0.93), LOGGED: (0.5, 0.9)}

RULEBOOK = {"rules": [{"name": "api", "key": "user", "missing": "deny", "limit": "1000000/s"}]}


def answer(report: BenchmarkReport) -> None:
    report.say("Decisions per second of CPU time; medians. Ratios are formed within each round.")
    core, rows = last_core(), []
    for case in IN_MEMORY:
        subjects = [Subject(name, in_memory, (case, name)) for name in SUBJECTS]
        rows.append(_row(report, case, subjects, core))
    with pinned_server(core) as server:
        subjects = [Subject(name, on_redis, (server.url, server.pid, name)) for name in SUBJECTS]
        rows.append(_row(report, REDIS, subjects, core))
    report.table(["", *SUBJECTS, *(f"{name}, of plain" for name in SUBJECTS[1:])], rows)


def _row(report: BenchmarkReport, case: str, subjects: list[Subject], core: int) -> list[str]:
    samples = run_interleaved(report, case, subjects, rounds=20, seconds=0.2, core=core)
    left = {name: ratio(samples, name, PLAIN, SPEED) for name in SUBJECTS[1:]}
    for name, share in left.items():
        if (case, name) != (REFUSED, LOGGED):  # where all is refused, all is logged
            report.target(f"{name}, {case}", share, at_least=LEAST[name][case == REDIS])
    speeds = (thousands(median(samples, name, SPEED)) for name in SUBJECTS)
    return [case, *speeds, *map(figure, left.values())]


def observers_of(name: str, url: str | None = None) -> list[Any]:
    """The observers of a subject."""
    from headgate import Counts

    if name in (PLAIN, COUNTED):
        return [] if name == PLAIN else [Counts(shared_at=url)]
    from prometheus_client import CollectorRegistry

    from headgate.telemetry.decision_log import DecisionLog
    from headgate.telemetry.prometheus import PrometheusMetrics
    from headgate.telemetry.recent_records import RecentRecords

    observers: list[Any] = [PrometheusMetrics(registry=CollectorRegistry(), counts=Counts(shared_at=url))]
    if url is not None:
        observers.append(RecentRecords(url))
    if name == LOGGED:
        observers.append(DecisionLog(Path(mkdtemp()) / "decisions.jsonl", sample=0.1))
    return observers


def in_memory(case: str, name: str) -> Stretch:
    """Calls in this process."""
    from headgate import Limiter

    keys = [f"user={number}" for number in range(100_000 if case == MANY else 1)]
    random.Random(1).shuffle(keys)
    call: Callable[[str], Any]
    if case == RULES:
        by_rules = Limiter.from_rules(RULEBOOK, observers=observers_of(name))
        attributes = {"user": "ann"}

        def call(key: str) -> Any:
            return by_rules.check(attributes)
    else:
        limit = {REFUSED: "1/day", MANY: "1000/s"}.get(case, "1000000/s")
        call = Limiter(limit, name="api", observers=observers_of(name)).take
    return over_keys(call, keys)


def on_redis(url: str, server_pid: int, name: str) -> Stretch:
    """Calls to a server, by one thread. Speed is by the CPU time of both."""
    from headgate import Limiter

    limiter = Limiter("1000000/s", f"{url}?deadline=30s", name=f"api {name}", observers=observers_of(name, url))
    on_client = over_keys(limiter.take, [f"user={number}" for number in range(5000)])

    def stretch(calls: int) -> dict[str, float]:
        server_us = server_cpu_us(server_pid)
        sample = on_client(calls)
        server_us = server_cpu_us(server_pid) - server_us
        return sample | {SPEED: calls / (calls / sample[SPEED] + server_us / 1e6)}

    return stretch


def over_keys(call: Callable[[str], Any], keys: list[str]) -> Stretch:
    """The keys in turn."""
    turn = itertools.cycle(keys)
    for key in itertools.islice(turn, len(keys)):
        call(key)
    return lambda calls: decisions_per_second(call, list(itertools.islice(turn, calls)))
