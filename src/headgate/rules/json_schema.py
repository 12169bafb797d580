"""The rulebook's JSON Schema (draft 2020-12), for editors and for programs that write rulebooks.

Law (tests/rules/test_json_schema.py): every book that loads is valid by the schema. Of the others it refuses those
that a look at one field can tell; whether names exist, parts contradict each other or limits can be exact, only
the loader knows.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def text() -> str:
    return files("headgate.rules").joinpath("rulebook.schema.json").read_text(encoding="utf-8")


def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text())
    return found
