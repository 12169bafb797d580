"""Measures suggest and replay beside goaccess, and beside a loop that parses lines and calls check.

One combined log, drawn from a seed: 500,000 lines, 85,000 addresses, two days. goaccess reads it into a JSON
report, headgate suggest into a suggestion, headgate replay through one rule by address. The loop is what anybody
would write: a regular expression, times by slices and a table of days, and `check` on a limiter in memory. Each
runs in a process of its own, in turns. Seconds are those of the processor, of all processes together.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.report import BenchmarkReport, figure, thousands

LINES = 500_000
ADDRESSES = 85_000
SPAN_S = 2 * 86_400
RULE = {"name": "per-address", "key": "address", "missing": "skip", "limit": "4/minute burst 24"}
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)

LOOP = """
import re, sys
from datetime import datetime
from headgate import Limiter, ManualClock
line_pattern = re.compile(
    r'(\\S+) \\S+ \\S+ \\[([^]]+)\\] "(\\S+) (\\S+) [^"]*" (\\d+) (\\d+) "([^"]*)" "([^"]*)"'
)
clock = ManualClock()
limiter = Limiter.from_rules(sys.argv[2], clock=clock)
refused = 0
days = {}
for line in open(sys.argv[1], encoding="utf-8", errors="replace"):
    match = line_pattern.match(line)
    if match is None:
        continue
    text = match[2]
    day = days.get(text[:11])
    if day is None:
        midnight = datetime.strptime(text[:11] + text[20:], "%d/%b/%Y %z")
        day = days[text[:11]] = int(midnight.timestamp())
    clock.set_us((day + int(text[12:14]) * 3600 + int(text[15:17]) * 60 + int(text[18:20])) * 1_000_000)
    call = {"address": match[1], "method": match[3], "path": match[4]}
    refused += not limiter.check(call).allowed
print(refused)
"""


def answer(report: BenchmarkReport) -> None:
    lines = LINES // 10 if report.quick else LINES
    with tempfile.TemporaryDirectory(prefix="headgate-traffic-") as name:
        folder = Path(name)
        log, rules = folder / "access.log", folder / "rules.json"
        write_log(log, lines)
        rules.write_text(json.dumps({"rules": [RULE]}), "utf-8")
        headgate = [sys.executable, "-m", "headgate"]
        programs = {
            "headgate suggest": [*headgate, "suggest", str(log), "--json"],
            "headgate replay": [*headgate, "replay", str(log), "--rules", str(rules), "--json"],
            "loop: parse, check": [sys.executable, "-c", LOOP, str(log), str(rules)],
        }
        if goaccess := shutil.which("goaccess"):
            output = str(folder / "report.json")
            programs["goaccess"] = [
                goaccess,
                str(log),
                "--log-format=COMBINED",
                "--no-global-config",
                "-o",
                output,
            ]
        else:
            report.say("goaccess is not installed (Debian package goaccess): left out")
        processor, elapsed = _run_in_turns(report, programs, report.rounds(3))
    report.say(f"{lines:,} lines; medians")
    rows = [
        [name, figure(processor[name]), thousands(lines / processor[name]), figure(elapsed[name])]
        for name in programs
    ]
    report.table(["", "processor seconds", "lines per second", "elapsed seconds"], rows)
    ratio = processor["headgate replay"] / processor["loop: parse, check"]
    report.target("replay, processor time by that of the loop", ratio, at_most=1.5)


def _run_in_turns(
    report: BenchmarkReport, programs: dict[str, list[str]], rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the medians of processor and elapsed seconds."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, words in programs.items():
            sample = _seconds(words)
            samples[name].append(sample)
            report.keep(program=name, processor_s=sample[0], elapsed_s=sample[1])
    middle = rounds // 2
    processor = {name: sorted(each[0] for each in taken)[middle] for name, taken in samples.items()}
    return processor, {name: sorted(each[1] for each in taken)[middle] for name, taken in samples.items()}


def _seconds(words: Sequence[str]) -> tuple[float, float]:
    """Returns the processor seconds that a program and its children took, and the elapsed ones."""
    before, started = os.times(), time.perf_counter()
    subprocess.run(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
    )
    elapsed, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used, elapsed


def write_log(path: Path, lines: int) -> None:
    """Writes a combined log: a few addresses call often, most seldom, and they open several files at once."""
    chance = random.Random(23)
    agents = [
        f"Mozilla/5.0 (X11; Linux x86_64; rv:{number}.0) Gecko/20100101 Firefox/{number}.0" for number in range(40)
    ]
    calls: list[tuple[float, str]] = []
    while len(calls) < lines:
        number = min(
            ADDRESSES - 1,
            int(chance.paretovariate(0.35)) if chance.random() < 0.1 else chance.randrange(ADDRESSES),
        )
        at = chance.uniform(0, SPAN_S)
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        calls += [(at + file * 0.3, address) for file in range(chance.randint(1, 6))]
    calls.sort()
    with path.open("w", encoding="utf-8") as log:
        for seconds, address in calls[:lines]:
            at_text = (BEGIN + timedelta(seconds=seconds)).strftime("%d/%b/%Y:%H:%M:%S +0000")
            path = f"/page/{chance.randint(1, 5000)}?from={chance.randint(1, 99)}"
            status = 404 if chance.random() < 0.03 else 200
            log.write(
                f'{address} - - [{at_text}] "GET {path} HTTP/1.1" '
                f'{status} {chance.randint(200, 90_000)} "https://shop.example/" "{chance.choice(agents)}"\n'
            )
