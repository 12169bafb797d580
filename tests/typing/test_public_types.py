"""Both type checkers find in public_types.py exactly what it states."""

import shutil
import subprocess

import pytest

from tests.house.tree import ROOT

CHECKERS = {"mypy": ["mypy", "--strict"], "pyright": ["pyright"]}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_public_types_are_as_stated(checker: str) -> None:
    program, *words = CHECKERS[checker]
    assert shutil.which(program), f"{program} is missing: scripts/bootstrap installs it."
    ran = subprocess.run(
        [program, *words, "tests/typing/public_types.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
