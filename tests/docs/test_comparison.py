"""The comparison page: its table belongs to the programs as they are, and to the pinned versions of the peers."""

from __future__ import annotations

import re

import headgate
from benchmarks.comparison import BEGIN, END, FRAMEWORKS, HEAD, PAGE, PROGRAMS, SUBJECTS, count_lines
from tests.repo_rules.repository import ROOT


def _rows() -> list[list[str]]:
    table = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    ]


def test_the_page_has_a_row_for_each_program() -> None:
    head, ruler, *rows = _rows()
    assert (head, set(ruler)) == (list(HEAD), {"---"})
    assert [row[0] for row in rows] == [subject.name for subject in SUBJECTS]
    assert {path.stem for path in PROGRAMS.glob("*_*.py")} == {"__init__", *(each.module for each in SUBJECTS)}


def test_versions_and_lines_are_those_of_today() -> None:
    text = (ROOT / "constraints.txt").read_text("utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", text, re.M), headgate=headgate.__version__)
    versions = {name.lower(): version for name, version in pinned.items()}
    for name in FRAMEWORKS:
        assert f"{name} {versions[name.lower()]}" in PAGE.read_text("utf-8")
    assert [row[1:3] for row in _rows()[2:]] == [
        [pinned[subject.package], str(count_lines(subject.module))] for subject in SUBJECTS
    ]


def test_the_common_fastapi_case_takes_fewer_lines_than_slowapi() -> None:
    assert count_lines("headgate_fastapi") < count_lines("slowapi_fastapi")


def test_headgate_does_all_that_is_compared() -> None:
    for name, _, _, *cells in _rows()[2:]:
        if name.startswith("headgate"):
            assert set(cells) <= {"yes", "-", "503"}, name
