"""The rulebook's meaning in Lua: one luajit that answers a line for each line (vectors.lua).

Texts cross as bytes, one character of JSON for each: neither side reads them as UTF-8 on the way.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.repo_rules.repository import ROOT

DRIVER = Path(__file__).with_name("match_driver.lua")


class LuajitProcess:
    """A luajit that runs a driver."""

    def __init__(self, driver: Path = DRIVER, *options: str) -> None:
        self._process = subprocess.Popen(
            ["luajit", *options, driver, ROOT / "nginx" / "lib"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def call_driver(self, verb: str, **question: Any) -> Any:
        to, back, errors = self._process.stdin, self._process.stdout, self._process.stderr
        assert to is not None
        assert back is not None
        assert errors is not None
        line = json.dumps(driver_value({"verb": verb, **question}), ensure_ascii=False)
        to.write(line.encode("latin-1") + b"\n")
        to.flush()
        answer = back.readline()
        assert answer, errors.read().decode()
        return json.loads(answer.decode("latin-1"))

    def close(self) -> None:
        self._process.communicate(timeout=10)


def driver_value(value: Any) -> Any:
    """Every text and number as it crosses. Lua's numbers are doubles, so others are handed over as text."""
    if isinstance(value, dict):
        return {driver_value(name): driver_value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [driver_value(inner) for inner in value]
    if isinstance(value, int) and float(value) != value:
        value = str(value)
    if isinstance(value, str):
        value = raw_bytes(value)
    return value.decode("latin-1") if isinstance(value, bytes) else value


def raw_bytes(text: str) -> bytes:
    """The bytes of a text, with those that are not UTF-8 as they came."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
