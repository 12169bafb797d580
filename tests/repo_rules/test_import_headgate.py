"""`pip install headgate` alone is enough to import and use the core."""

import subprocess
import sys
from types import ModuleType

import headgate
from tests.repo_rules.repository import ROOT

# -S leaves site-packages out, so only the standard library and src can be imported at all.
PROGRAM = """
import sys
sys.path.insert(0, "src")
sys.modules["redis"] = sys.modules["hiredis"] = None
import headgate, headgate.cli, headgate.testing
allowed = sys.stdlib_module_names | {"__main__", "headgate", "redis", "hiredis"}
print(*sorted({name.partition(".")[0] for name in sys.modules} - allowed))
"""


def test_the_core_needs_only_the_standard_library() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == []


def test_the_public_names_are_sorted() -> None:
    assert list(headgate.__all__) == sorted(headgate.__all__, key=str.casefold)


def test_the_public_names_are_all_there_is() -> None:
    names = {name for name in dir(headgate) if not isinstance(getattr(headgate, name), ModuleType)}
    public = {name for name in names if not name.startswith("_")} - {"annotations"}
    assert public == {name for name in headgate.__all__ if not name.startswith("_")}


COUNT_OURS = """
import asyncio, sys
sys.path.insert(0, "src")
import headgate
print(sum(name.partition(".")[0] == "headgate" for name in sys.modules))
"""
MAX_MODULES = 50
TRAFFIC = """
import sys
sys.path.insert(0, "src")
import headgate
print(*[name for name in sys.modules if name.startswith("headgate.traffic")])
"""


def test_traffic_is_loaded_on_first_use() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TRAFFIC], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []


def test_rulebooks_and_layers_are_loaded_on_first_use() -> None:
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", COUNT_OURS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) <= MAX_MODULES
