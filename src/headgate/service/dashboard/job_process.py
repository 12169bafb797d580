"""The process that does one long job for a page: reads the job on stdin, and writes lines of JSON on stdout.

    {"phase": "reading", "share": 0.4}      how far it is
    {"result": {...}}, {"error": "..."}     the last line

It runs at low priority, with bounded memory and computing time, so that the service decides calls meanwhile. It is
not a command for people; `headgate suggest` and `headgate simulate` are.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from typing import Any, Final

from headgate.errors import HeadgateError
from headgate.traffic.formats.field_names import attribute_name
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.refusal_grid import refusal_grid
from headgate.traffic.replay_counts import DELAYED, PASSED, REFUSED
from headgate.traffic.report.documents import simulation_document, suggestion_document
from headgate.traffic.report.svg_charts import merge_values
from headgate.traffic.shapes import TrafficShape
from headgate.traffic.simulate_shape import SimulatedLimit, limit_rulebook, simulate
from headgate.traffic.suggest_and_replay import attributes_to_read, parse_dimensions, read_table
from headgate.traffic.suggestion import suggest_limit
from headgate.traffic.where_condition import parse_where

SUGGEST: Final = "suggest"
SIMULATE: Final = "simulate"
READING, CHOOSING, COUNTING = "reading", "choosing", "counting"
MAX_POINTS: Final = 240  # of a chart over time
MAX_REMARKS: Final = 8
_NICENESS: Final = 10
_PROGRESS_EVERY_S: Final = 0.2


def main() -> None:
    with suppress(OSError):  # where a sandbox forbids it
        os.nice(_NICENESS)
    job = json.load(sys.stdin)
    max_bytes, cpu_s = job["max_bytes"], job["cpu_s"]
    _bound(resource.RLIMIT_AS, max_bytes)
    signal.signal(signal.SIGXCPU, _stop)
    _bound(resource.RLIMIT_CPU, cpu_s)
    out_of_memory = _encode(_beyond(f"{max_bytes / 1e9:g} GB of memory", job))  # now there is memory for it
    try:
        result: dict[str, Any] = {"result": {SUGGEST: suggest_job, SIMULATE: simulate_job}[job["job"]](job)}
    except HeadgateError as error:
        result = {"error": str(error).replace(job.get("path", "\0"), job.get("name", ""))}
    except MemoryError:
        os.write(sys.stdout.fileno(), out_of_memory)
        return
    except _CpuTimeUsedUp:
        result = _beyond(f"{cpu_s} s of computing", job)
    _write(result)


class _CpuTimeUsedUp(Exception):
    """The job has computed for as long as it may."""


def _bound(kind: int, value: int) -> None:
    """Lowers a limit of this process."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _stop(*_: object) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)  # it comes every second from now on
    raise _CpuTimeUsedUp


def _beyond(bound: str, job: dict[str, Any]) -> dict[str, Any]:
    text = f"This needs more than {bound}, and a page gets no more. Run headgate {job['job']} on the command line."
    return {"error": text}


def suggest_job(job: dict[str, Any]) -> dict[str, Any]:
    """Suggests a limit from the log of an open descriptor; it is closed, and so deleted, once it was read."""
    by = parse_dimensions(job["by"])
    where = parse_where(job["where"]) if job["where"] else None
    fields = {attribute_name(name): field for name, field in job["fields"].items()}
    needed = attributes_to_read(by, where)
    options = ReadOptions(format=job["format"] or None, fields=fields, zone=job["zone"], needed=needed)
    try:
        reader = LogReader([job["path"]], options, _Progress(READING))
    finally:
        os.close(job["descriptor"])  # the reader has a descriptor of its own
    table = read_table(reader, by, where)
    suggestion = suggest_limit(table, job["refuse_keys"], options.timezone(), _Progress(CHOOSING))
    grid = refusal_grid(table, suggestion, _Progress(COUNTING))
    [summary] = reader.summaries
    remarks = list(summary.remarks(options.window_us))[:MAX_REMARKS]
    return suggestion_document(suggestion) | {
        "line": summary.line(),
        "remarks": remarks,
        "without_key": table.without_key,
        "grid": grid.document(),
    }


def simulate_job(job: dict[str, Any]) -> dict[str, Any]:
    """Plays a shape of traffic through limits."""
    shape = TrafficShape(**job["shape"])
    results = [
        simulate(shape, limit, limit_rulebook(limit, job["per_client"]), job["duration"])
        for limit in job["limits"]
    ]
    document = simulation_document(shape, results)
    for each, result in zip(document["limits"], results, strict=True):
        each["series"] = series(result)
    return document


def series(limit: SimulatedLimit) -> dict[str, list[float]]:
    """Returns the calls a second over time, in at most MAX_POINTS points.

    >>> series(SimulatedLimit("9/s", seconds=[[3, 1, 2], [0, 0, 0]]))
    {'t': [0, 1], 'offered': [6, 0], 'passed': [4, 0], 'delayed': [1, 0], 'refused': [2, 0]}
    """
    step = -(-len(limit.seconds) // MAX_POINTS) or 1

    def per_second(values: list[int]) -> list[float]:
        return [value if step == 1 else value / step for value in merge_values(values, MAX_POINTS)]

    lines: dict[str, list[float]] = {"t": [number * step for number in range(-(-len(limit.seconds) // step))]}
    lines["offered"] = per_second([sum(second) for second in limit.seconds])
    lines["passed"] = per_second([second[PASSED] + second[DELAYED] for second in limit.seconds])
    lines["delayed"] = per_second([second[DELAYED] for second in limit.seconds])
    lines["refused"] = per_second([second[REFUSED] for second in limit.seconds])
    return lines


class _Progress:
    """Writes how far a phase is, now and then."""

    def __init__(self, phase: str) -> None:
        self._phase, self._next = phase, 0.0

    def __call__(self, share: float | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_EVERY_S
            _write({"phase": self._phase, "share": share})


def _write(document: dict[str, Any]) -> None:
    sys.stdout.buffer.write(_encode(document))
    sys.stdout.flush()


def _encode(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()


if __name__ == "__main__":
    main()
