"""A new algorithm takes one Python file, one Lua file, a row in the table, a word in the syntax, a parity walk.

The toy in tests/algorithms/spaced is added that way to a copy of the tree; then everything that knows limits must
know it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

SPACED = Path(__file__).with_name("spaced")
ROW = ("src/headgate/algorithms/__init__.py", '        "smooth",\n', '        "smooth",\n        "spaced",\n')
WORD = (
    "src/headgate/limit_syntax.py",
    '    "smooth": _LimitParser._smooth,\n',
    '    "smooth": _LimitParser._smooth,\n'
    '    "spaced": lambda parser, rate, rest: Spaced(parser.parse_whole(rate.amount), rate.per),\n',
)
IMPORT = (
    "src/headgate/limit_syntax.py",
    "from headgate.algorithms.token_bucket",
    "from headgate.algorithms.spaced import Spaced\nfrom headgate.algorithms.token_bucket",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree with the toy."""
    for folder in ("src", "tests", "nginx"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(SPACED / "spaced.py", tmp_path / "src/headgate/algorithms")
    shutil.copy(SPACED / "spaced.lua", tmp_path / "src/headgate/lua/algorithms")
    shutil.copy(SPACED / "walk.py", tmp_path / "tests/parity/walks/spaced.py")
    for path, old, new in (ROW, WORD, IMPORT):
        file = tmp_path / path
        text = file.read_text()
        assert text.count(old) == 1, f"{path}: {old!r}"
        file.write_text(text.replace(old, new))
    return tmp_path


def run(tree: Path, *command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.servers
@pytest.mark.slow
def test_a_new_algorithm_agrees_with_its_twin_in_every_lua_and_on_servers(tree: Path) -> None:
    ran = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/parity/test_parity.py", "-k", "spaced")
    assert "5 passed" in ran, ran[-500:]


@pytest.mark.servers
def test_a_new_algorithm_is_explained_and_follows_rules_also_in_nginx(
    tree: Path, redis_server: RedisServer
) -> None:
    assert run(tree, "-m", "tests.algorithms.spaced.use_spaced_limit", redis_server.url).splitlines() == [
        "<Spaced 2/minute spaced>",
        "passes       one every 30 s",
        "1/90s spaced (2, 2)",
        """True False slow ('RateLimit-Policy', '"slow";q=1;w=30')""",
        "6/minute spaced 6/minute spaced",
        """True False slow ('RateLimit-Policy', '"slow";q=1;w=30')""",
        "6/minute spaced 6/minute spaced",
        "['90000000'] 90 ['90000000']",
        '200 429 "gate";q=1;w=30',
        '200 429 "gate";q=1;w=30',
    ]
