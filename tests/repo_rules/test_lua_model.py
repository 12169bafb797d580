"""The Lua model touches nothing but arithmetic, so that Redis, Valkey and nginx can all run it.

luacheck holds the same from the source; this asks the compiler, which cannot be told to look away.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.repo_rules.repository import SOURCE
from tests.servers.server_programs import command

MODEL = SOURCE / "lua" / "algorithms"
MAY_READ = {"ipairs", "math", "string", "table", "tonumber", "type"}


@pytest.mark.parametrize("path", sorted(MODEL.rglob("*.lua")), ids=lambda path: path.stem)
def test_it_reads_no_global_but_arithmetic_and_sets_none(path: Path) -> None:
    read, written = _globals_of(path)
    assert read - MAY_READ == set()
    assert written == set()


@pytest.mark.parametrize("source", ["x = 1", "return tostring(1)", "return redis.call()", "return os.time()"])
def test_the_rule_can_see(source: str, tmp_path: Path) -> None:
    path = tmp_path / "offender.lua"
    path.write_text(source)
    read, written = _globals_of(path)
    assert (read - MAY_READ) | written


def _globals_of(path: Path) -> tuple[set[str], set[str]]:
    compiler = command("luac5.1", "lua5.1")
    listing = subprocess.run([compiler, "-p", "-l", path], capture_output=True, text=True, check=True).stdout
    read = set(re.findall(r"\bGETGLOBAL\b.*; (\w+)", listing))
    written = set(re.findall(r"\bSETGLOBAL\b.*; (\w+)", listing))
    return read, written
