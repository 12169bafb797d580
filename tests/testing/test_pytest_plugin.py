"""The pytest plugin in real test runs: its fixtures, and what it costs runs that do not use them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo_rules.repository import ROOT
from tests.repo_rules.test_wheel import build

TESTS = """
import pytest
from headgate import Limiter, ManualClock

limiter = Limiter("1/hour")

def test_the_clock_moves(headgate_clock: ManualClock) -> None:
    limiter = Limiter("1/minute", clock=headgate_clock)
    assert limiter.take("ann") and not limiter.take("ann")
    headgate_clock.advance(60)
    assert limiter.take("ann")

def test_limits_are_off(headgate_limits_off: None) -> None:
    assert all(limiter.take("ann") for _ in range(3))

def test_limits_are_on() -> None:
    assert limiter.take("ann") and not limiter.take("ann")

@pytest.mark.usefixtures("headgate_limits_off")
class TestOff:
    def test_limits_are_off_for_a_class(self) -> None:
        assert all(limiter.take("ann") for _ in range(3))
"""
OTHER_PLUGINS = ("asyncio", "hypothesispytest", "schemathesis", "valkey", "xdist")  # installed, and not looked at
WITHOUT_LIMITS = """
import sys

def test_nothing_of_headgate_is_imported() -> None:
    assert "pytest_headgate" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] == "headgate"] == []
"""


def run_pytest(folder: Path, source: str, path: str, *options: str) -> str:
    """Runs pytest in a process of its own on one file, and returns what it prints."""
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    others = [word for name in OTHER_PLUGINS for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--rootdir", str(folder), *others, *options]
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [*command, str(folder)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_fixtures_of_the_module(tmp_path: Path) -> None:
    assert "4 passed" in run_pytest(tmp_path, TESTS, str(ROOT / "src"))


def test_a_run_without_limits_imports_nothing(tmp_path: Path) -> None:
    shown = run_pytest(tmp_path, WITHOUT_LIMITS, str(ROOT / "src"))
    assert "1 passed" in shown


def test_the_tests_of_the_documentation_pass(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "testing.md").read_text("utf-8")
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S))
    assert "2 passed" in run_pytest(tmp_path, source, str(ROOT / "src"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with the wheel installed in it."""
    wheel, folder = build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--target", str(folder), str(wheel)], check=True)
    return str(folder)


@pytest.mark.parametrize("source", [TESTS, WITHOUT_LIMITS], ids=["with limits", "without"])
def test_an_installed_plugin_is_found(installed: str, tmp_path: Path, source: str) -> None:
    assert " passed" in run_pytest(tmp_path, source, installed)
    listed = run_pytest(tmp_path, source, installed, "--fixtures")
    assert "headgate_clock" in listed
    assert "headgate_limits_off" in listed
