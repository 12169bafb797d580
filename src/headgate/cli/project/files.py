"""Finds the files of a project that are worth reading."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

MAX_FILES = 5_000
_MAX_FILE_BYTES = 1_000_000
_SKIPPED_FOLDERS = frozenset(
    ("node_modules", "site-packages", "venv", "env", "build", "dist", "test", "tests", "migrations", "vendor")
)
_test_file = re.compile(r"(test_.*|.*_test|conftest)\.py")
_compose_file = re.compile(r"(docker-)?compose([.-][\w.-]+)?\.ya?ml")
_env_file = re.compile(r"\.env(\..+)?|.+\.env")


class ProjectFiles(NamedTuple):
    """The files of a project, by what they are; `complete` is False if there are too many to read all."""

    python: list[Path]
    compose: list[Path]
    env: list[Path]
    nginx: list[Path]
    complete: bool


def find_files(folder: Path) -> ProjectFiles:
    """Finds files by their names; hidden folders, virtual environments and tests are left out."""
    found = ProjectFiles([], [], [], [], complete=True)
    for number, path in enumerate(_walk(folder)):
        if number >= MAX_FILES:
            return found._replace(complete=False)
        if path.suffix == ".py" and not _test_file.fullmatch(path.name):
            found.python.append(path)
        elif _compose_file.fullmatch(path.name):
            found.compose.append(path)
        elif path.suffix == ".conf":
            found.nginx.append(path)
        elif _env_file.fullmatch(path.name):
            found.env.append(path)
    return found


def read_text(path: Path) -> str | None:
    """Returns the text of a file; None if it is no text, too large, or cannot be read."""
    try:
        return None if path.stat().st_size > _MAX_FILE_BYTES else path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None


def read_source(path: Path) -> str:
    """Returns the text of a file that `read_text` reads, with its line ends and its byte order mark."""
    return path.read_bytes().decode("utf-8")


def _walk(folder: Path) -> list[Path]:
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not (here / name / "pyvenv.cfg").exists()
        )
        found += [here / name for name in sorted(names)]
        if len(found) > MAX_FILES:
            break
    return found
