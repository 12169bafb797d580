"""The docstring of a folder's `__init__.py` names every module in it, so that a reader finds the file to open."""

import ast
import re
from pathlib import Path

from tests.repo_rules.repository import ROOT

_row = re.compile(r"^ {4}([a-z][a-z0-9_]+(?:, [a-z][a-z0-9_]+)*) {2,}\S", re.MULTILINE)


def test_every_module_is_listed() -> None:
    missing = [
        f"{init.parent.relative_to(ROOT)}: {name}"
        for init in sorted((ROOT / "src/headgate").rglob("__init__.py"))
        for name in sorted(_modules(init.parent))
        if not re.search(rf"\b{name}\b", ast.get_docstring(ast.parse(init.read_text())) or "")
    ]
    assert not missing, "\n".join(["name these in the docstring of their folder's __init__.py:", *missing])


def test_no_list_names_a_module_that_is_gone() -> None:
    folder = ROOT / "src/headgate/algorithms"
    listed = _row.findall(ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "")
    assert {name for row in listed for name in row.split(", ")} == _modules(folder)


def _modules(folder: Path) -> set[str]:
    files = {file.stem for file in folder.glob("*.py") if not file.stem.startswith("__")}
    return files | {inner.parent.name for inner in folder.glob("*/__init__.py")}
