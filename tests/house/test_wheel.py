"""The wheel: an installed headgate has its Lua for nginx, as files."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.house.tree import ROOT


def test_an_installed_headgate_names_lua_that_luajit_finds(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(tmp_path / "site")
    assert len(names) == len(set(names))
    place = "headgate/nginx/lib/resty/headgate/model/token_bucket.lua"
    model = ROOT / "src" / "headgate" / "lua" / "model" / "token_bucket.lua"
    assert (tmp_path / "site" / place).read_bytes() == model.read_bytes()
    ran = subprocess.run(
        [sys.executable, "-m", "headgate.cli", "lua", "path"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    path = ran.stdout.strip()
    assert path == f"{tmp_path}/site/headgate/nginx/lib/?.lua"
    program = f"package.path = '{path}' require 'resty.headgate.match' require 'resty.headgate.model.token_bucket'"
    subprocess.run(["luajit", "-e", program], check=True, cwd=tmp_path)
