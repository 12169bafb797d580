"""Runs the questions: python -m benchmarks [--quick] [--write] [NAME...]"""

import importlib
import sys
import time

from benchmarks.report import BenchmarkReport

QUESTIONS = (
    "memory_engine_speed",
    "memory_engine_threads",
    "memory_engine_stalls",
    "memory_engine_bytes_per_key",
    "redis_sync",
    "redis_async",
    "redis_threads",
    "batching_overhead",
    "cost_by_keys_and_rules",
    "denial_cache_flood",
    "prefetch_hot_key",
    "redis_server_cost",
    "redis_bytes_per_key",
    "rule_matching",
    "telemetry",
    "recorded_traffic",
    "nginx",
    "nginx_telemetry",
    "service",
    "dashboard_streams",
    "rls",
    "integrations",
    "comparison",
    "adaptive",
    "adaptive_server",
    "adaptive_nginx",
)


def main(words: list[str]) -> int:
    quick = "--quick" in words
    write = "--write" in words
    names = [word for word in words if word not in ("--quick", "--write")]
    unknown = [name for name in names if name not in QUESTIONS]
    if unknown:
        print(f"benchmarks: there is no {unknown[0]}; there are {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    outcomes = []
    for name in names or QUESTIONS:
        module = importlib.import_module(f"benchmarks.{name}")
        started = time.monotonic()
        with BenchmarkReport(name, (module.__doc__ or "").splitlines()[0], quick=quick, write=write) as report:
            module.answer(report)
            report.say(f"{time.monotonic() - started:.0f} s; samples in {report.path}")
        outcomes += report.outcomes
    print("\n# Targets\n")
    for line in outcomes:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
