"""Reads tests/vectors/match.jsonl and keys.jsonl. The README beside them describes their format."""

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.rules.attributes import request

FOLDER = Path(__file__).parents[1] / "vectors"


def lines(name: str) -> list[Any]:
    """Every line as a parameter, named by its number and its note."""
    texts = (FOLDER / name).read_text().splitlines()
    vectors = [spelled(json.loads(text)) for text in texts]
    return [pytest.param(line, id=f"{number}: {line['note']}"[:60]) for number, line in enumerate(vectors, 1)]


def spelled(value: Any) -> Any:
    """Long texts are written as {"repeat": [text, times]} and {"join": [texts]}."""
    if isinstance(value, list):
        return [spelled(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"repeat"}:
        text, times = value["repeat"]
        return str(text) * int(times)
    if value.keys() == {"join"}:
        return "".join(spelled(value["join"]))
    return {name: spelled(one) for name, one in value.items()}


def attributes_of(line: dict[str, Any]) -> Any:
    """The attributes of a line: as a caller gave them, or of a request whose texts are bytes."""
    if "attributes" in line:
        return line["attributes"]
    given = line["request"]
    headers = [(_bytes(name), _bytes(value)) for name, value in given["headers"]]
    return request(_bytes(given["method"]), _bytes(given["target"]), headers, given["address"])


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
