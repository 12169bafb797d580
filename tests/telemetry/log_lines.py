"""Reads decision logs in tests, and replays them as the command line does."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headgate.cli import main


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def replay(logs: Sequence[Path], rules: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns what `headgate replay --json` prints."""
    book = folder / "replayed-rules.json"
    book.write_text(json.dumps(rules))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["replay", *map(str, logs), "--rules", str(book), "--json"]) == 0
    document: dict[str, Any] = json.loads(printed.getvalue())
    return document
