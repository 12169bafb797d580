"""The repository contains nothing that must not be committed."""

import re
from pathlib import Path

from tests.repo_rules.repository import ROOT, SOURCE, files, texts

# Spelled with brackets so that this file does not find itself.
REGISTRIES = re.compile(r"pypi[.]org|python[h]osted|index[-]url|find[-]links|deb[.]debian|registry[.]npmjs")
MACHINE_PATHS = re.compile(r"(?<![\w.*$}-])/(?:home|root|Users|work|workspace)/[\w.]")
SKIPS = re.compile(r"pytest[.](?:skip|importorskip|xfail)|mark[.](?:skip|skipif|xfail)")
DRAWERS = {"base", "common", "core", "helpers", "impl", "manager", "misc", "util", "utils"}


def test_no_package_registry_is_named() -> None:
    assert _lines_with(REGISTRIES) == []


def test_no_path_of_one_machine_is_named() -> None:
    places = [re.escape(f"{place}/") for place in (ROOT, Path.home()) if len(place.parts) > 1]
    here = re.compile("|".join(places))
    assert _lines_with(MACHINE_PATHS) + _lines_with(here) == []


def test_no_test_can_skip() -> None:
    """A missing component fails: a test that did not run has shown nothing."""
    assert [line for line in _lines_with(SKIPS) if line.startswith("tests/")] == []


def test_no_file_is_a_drawer() -> None:
    assert [str(path.relative_to(ROOT)) for path in files() if path.stem.lstrip("_") in DRAWERS] == []


def test_a_long_file_gives_its_reason() -> None:
    """Over 400 lines, the opening of the file says why: a line with the word 'reason'. (A schema is data.)"""
    code = [path for path in files() if path.is_relative_to(SOURCE) and path.suffix != ".json"]
    long = [path for path in code if _length(path) > 400]
    assert [path.name for path in long if "reason" not in path.read_text()[:3000]] == []


def _length(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]
