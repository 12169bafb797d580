"""Both type checkers find in public_types.py exactly what it states."""

import subprocess
import sys

import pytest

from tests.repo_rules.repository import ROOT


@pytest.mark.parametrize(
    "checker", [["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]], ids=["mypy", "pyright"]
)
def test_the_public_types_are_as_stated(checker: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", *checker, "tests/typing/public_types.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
