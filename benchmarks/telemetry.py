"""How many decisions a second are left when all of them are counted?

A limiter without observers, and the same with Counts, in turns. In memory: one key that is always allowed, 100,000
keys in random order, a key that is always refused, and a rulebook of one rule. On Redis: 5,000 keys, with counts
that are shared through the same server, as the service does. Speed in memory is by CPU time.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

from benchmarks.interleave import (
    Stretch,
    Subject,
    decisions_per_second,
    last_core,
    median,
    ratio,
    run_interleaved,
)
from benchmarks.redis_process import pinned_server
from benchmarks.report import BenchmarkReport, figure, thousands

ONE, MANY, REFUSED, RULES = "1 key", "100,000 keys", "1 key, refused", "a rulebook, 1 key"
REDIS = "Redis, 5,000 keys"
IN_MEMORY = ONE, MANY, REFUSED, RULES
PLAIN, COUNTED = "without observers", "with counts"
LEAST = {**dict.fromkeys(IN_MEMORY, 0.6), REDIS: 0.93}  # the share of the decisions per second that must be left

RULEBOOK = {"rules": [{"name": "api", "key": "user", "missing": "deny", "limit": "1000000/s"}]}


def answer(report: BenchmarkReport) -> None:
    report.say("Decisions per second; medians. Ratios are formed within each round.")
    core, rows = last_core(), []
    for case in IN_MEMORY:
        subjects = [Subject(name, in_memory, (case, name)) for name in (PLAIN, COUNTED)]
        rows.append(_row(report, case, subjects, core, "per_cpu_second"))
    with pinned_server(core) as server:
        subjects = [Subject(name, on_redis, (server.url, name)) for name in (PLAIN, COUNTED)]
        rows.append(_row(report, REDIS, subjects, core, "per_second"))
    report.table(["", PLAIN, COUNTED, "of plain"], rows)


def _row(report: BenchmarkReport, case: str, subjects: list[Subject], core: int, speed: str) -> list[str]:
    samples = run_interleaved(report, case, subjects, rounds=20, seconds=0.2, core=core)
    left = ratio(samples, COUNTED, PLAIN, speed)
    report.target(f"counted, {case}", left, at_least=LEAST[case])
    return [case, *(thousands(median(samples, name, speed)) for name in (PLAIN, COUNTED)), figure(left)]


def observers_of(name: str, url: str | None = None) -> list[Any]:
    """The observers of a subject."""
    from headgate import Counts

    return [] if name == PLAIN else [Counts(shared_at=url)]


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


def on_redis(url: str, name: str) -> Stretch:
    """Calls to a server, by one thread."""
    from headgate import Limiter

    limiter = Limiter("1000000/s", f"{url}?deadline=1s", name=f"api {name}", observers=observers_of(name, url))
    return over_keys(limiter.take, [f"user={number}" for number in range(5000)])


def over_keys(call: Callable[[str], Any], keys: list[str]) -> Stretch:
    """The keys in turn."""
    turn = itertools.cycle(keys)
    for key in itertools.islice(turn, len(keys)):
        call(key)
    return lambda calls: decisions_per_second(call, list(itertools.islice(turn, calls)))
