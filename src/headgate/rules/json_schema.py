"""The JSON Schema of rulebooks (draft 2020-12), for editors and for programs that write rulebooks.

Law (tests/rules/test_json_schema.py): every book that loads is valid by the schema. The schema rejects what one
field alone makes invalid; only the loader checks whether names exist, fields contradict each other or limits can
be exact.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def text() -> str:
    """Returns the schema as JSON text."""
    return files("headgate.rules").joinpath("rulebook.schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    """Returns the parsed schema."""
    parsed: dict[str, Any] = json.loads(text())
    return parsed
