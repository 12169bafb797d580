"""Prepares the files and servers that commands shown in the documentation need.

A scene's `before` has, for a command, the steps that the page does not show: commands, seconds by which the clock
of Redis moves on, and functions that fill it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from headgate import Counts, Limiter, ManualClock
from headgate.gateway import lua_library
from tests.repo_rules.repository import ROOT
from tests.traffic.sample_logs import BEGIN_US, combined_text, scan, visits


@dataclass(frozen=True)
class PageSetup:
    files: Mapping[str, str]
    before: Mapping[str, Sequence[str | float | Callable[[str], None]]] = field(default_factory=dict)
    skipped: Collection[str] = ()  # commands that look at the reader's machine


def blocks(page: str, language: str = "yaml") -> list[str]:
    """The code blocks of a page."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    code_blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return code_blocks


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


BOOK, *_REST = blocks("how-to/rules.md")
TABLE = next(text for text in _REST if "\ncases:" in text)
MINUTES = _replaced(
    BOOK,
    (
        "cases: {free: 2/s, pro: 20/s}, otherwise: 1/s}",
        "cases: {free: 20/minute, pro: 200/minute}, otherwise: 10/minute}",
    ),
    ("    missing: one\n", "    missing: one\n    overrides: true\n"),
)
NEW = _replaced(MINUTES, ("limit: 5/minute", "limit: 5/minute fixed"), ("pro: 200/minute", "pro: 400/minute"))
NGINX = "http {\n  limit_req_zone $binary_remote_addr zone=all:10m rate=5r/s;\n  limit_req zone=all burst=10;\n}\n"
BROKEN = """\
worker_processes 1;
events { worker_connections 64; }

http {
  access_log off;

  server {
    lissten 8000;
  }
}
"""
WRONG = f"""\
load_module /usr/share/nginx/modules/ndk_http_module.so;
load_module /usr/share/nginx/modules/ngx_http_lua_module.so;
events {{ worker_connections 64; }}
http {{
  lua_package_path "{lua_library.folder()}/?.lua;;";
  lua_shared_dict headgate 1m;
  init_by_lua_block {{ require("resty.headgate").init {{ redsi = "redis://127.0.0.1" }} }}
}}
"""

MISSPELLED = """\
rules:
  - name: login
    when: {path: /login}
    key: ip
    missing: skip
    limit: 5/minute
"""

TIGHTER, TENTH, EVERYONE = blocks("tutorial/evening-walk.md")
VISITS = [*visits(400), *scan(1500, 900, per_second=3)]

SIMULATED = blocks("reference/simulation-cases.md")[0]


def searches(url: str) -> None:
    """Counts searches of 2,000 addresses: most make 3, ten make 30 to 48, and three make far more."""
    rule = {"name": "search", "key": "address", "missing": "skip", "limit": "100/minute", "candidate": "20/minute"}
    calls = {f"198.51.{number // 250}.{number % 250}": 3 for number in range(2000)}
    calls |= {f"198.51.100.{number}": 30 + 2 * number for number in range(10)}
    calls |= {"203.0.113.9": 140, "203.0.113.20": 75, "192.0.2.77": 52}
    counts = Counts(shared_at=url)
    with Limiter.from_rules({"rules": [rule]}, clock=ManualClock(), observers=[counts]) as limiter:
        for address, number in calls.items():
            for _ in range(number):
                limiter.check({"address": address})


def _in_shadow(calls: Iterable[tuple[int, str]], url: str, counted_at: ManualClock, clock: ManualClock) -> None:
    """Shares the counts of calls, by microsecond and address, that the tutorial's rule decides in shadow mode."""
    rule = yaml.safe_load(EVERYONE)["rules"][0] | {"mode": "shadow"}
    counts = Counts(shared_at=url, clock=counted_at)
    with Limiter.from_rules({"rules": [rule]}, clock=clock, observers=[counts]) as limiter:
        for at_us, address in calls:
            clock.set_us(at_us)
            limiter.check({"address": address})
    counts.close()


def evening(url: str) -> None:
    """Counts the visits of the log once more, as if all had come five minutes ago."""
    calls = ((BEGIN_US + round(seconds * 1_000_000), address) for seconds, address, _ in sorted(VISITS))
    _in_shadow(calls, url, ManualClock(_now_us() - 300_000_000), ManualClock(BEGIN_US))


def last_minute(url: str) -> None:
    """Counts a minute of a scanner and three visitors.

    The calls of ten seconds are counted in one of them: so the last ten hold the same calls for the next eight.
    """
    clock = ManualClock(_now_us() - 52_000_000)
    times_us = [clock.now_us() + second * 1_000_000 for second in range(0, 60, 10) for _ in range(42)]
    addresses = ["203.0.113.66"] * 30 + [f"192.0.2.{number % 3}" for number in range(12)]
    _in_shadow(zip(times_us, addresses * 6, strict=True), url, clock, clock)


def _now_us() -> int:
    return time.time_ns() // 1000


def proxied_log() -> str:
    """A decision log of a program behind a proxy that it was not told of."""
    verdict = {"rule": "login", "key": "address=10.0.0.5", "limit": "5/minute", "cost": 1, "allowed": True}
    record = {"at_us": 1794800944000000, "attributes": {"path": "/login", "address": "10.0.0.5"}, "allowed": True}
    return f"{json.dumps(record | {'rule': 'login', 'verdicts': [verdict], 'shadow': []})}\n" * 250


SHOP = """\
import os

from fastapi import FastAPI

app = FastAPI()


@app.post("/login")
async def login() -> str:
    return "welcome"


@app.get("/health")
async def health() -> str:
    return "fine"
"""

SCENES = {
    "docs/how-to/init.md": PageSetup({"main.py": SHOP, ".env": "REDIS_URL=redis://localhost:6379/0\n"}),
    "docs/how-to/doctor.md": PageSetup(
        {"rules.yaml": BOOK, "decisions.jsonl": proxied_log()},
    ),
    "docs/how-to/try-a-limit.md": PageSetup({}, {"headgate rules report search": [searches]}),
    "docs/tutorial/evening-walk.md": PageSetup(
        {"access.log": combined_text(VISITS), "tighter.yaml": TIGHTER, "tenth.yaml": TENTH}
        | {"everyone.yaml": EVERYONE},
        {
            "headgate rules report per-address --max-refused 1%": [evening],
            "headgate top --once": [last_minute],
        },
    ),
    "docs/reference/traffic.md": PageSetup({}),
    "docs/reference/simulation-cases.md": PageSetup({"staged.yaml": SIMULATED}),
    "docs/reference/command-line.md": PageSetup(
        {
            "rules.yaml": MINUTES,
            "new.yaml": NEW,
            "bad.yaml": _replaced(MINUTES, ("5/minute", "5/minit")),
            "rules-test.yaml": _replaced(TABLE, ("retry_after: 11s", "retry_after: 12s")),
            "misspelled.yaml": MISSPELLED,
            "broken.conf": BROKEN,
            "wrong.conf": WRONG,
        },
        {
            'headgate limit "100/s burst 200" --engine "redis://host/0?fallback=local" --nodes 4': [
                'headgate rules push rules.yaml --note "the first book"'
            ],
            "headgate take ann --limit 3/minute --json": [2.592747],
            "headgate keys": [
                3.57,
                "headgate take address=192.0.2.7 --rule login --cost 4",
                "headgate take 'user=bob|sku=7' --rule items --attribute plan=",
                1.25,
            ],
            "headgate keys --json": [1.37],
            "headgate stats --rule search --keys candidate_refused --mask": [searches],
            "headgate rules explain rules.yaml --method POST --path /login --address 192.0.2.7 --cost 3 "
            "--engine redis://localhost:6379/0": [0.93],
            'headgate rules push new.yaml --note "more for pro"': [40.0],
            'headgate rules rollback --note "too much"': [83.0],
        },
    ),
    "docs/how-to/rules.md": PageSetup(
        {"rules.yaml": BOOK, "typo.yaml": _replaced(BOOK, ("5/minute", "5/minit")), "rules-test.yaml": TABLE}
        | {"nginx.conf": NGINX, "minutes.yaml": MINUTES},
        {
            'headgate rules push rules.yaml --author ann --note "flash sale tonight" '
            "--engine redis://localhost:6379/0": ["headgate rules push minutes.yaml"],
        },
    ),
    "docs/how-to/testing.md": PageSetup({"limits_test.yaml": blocks("how-to/testing.md")[0]}),
    "docs/how-to/import.md": PageSetup({"nginx.conf": NGINX}),
    "docs/how-to/nginx.md": PageSetup({}, skipped=["headgate nginx check"]),
}
