"""The examples in docstrings of public names run, those of the client on a real service."""

from __future__ import annotations

import asyncio
import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.rules import load
from headgate.rules.attributes import Attributes
from tests.repo_rules.public_names import MODULES, documentation, public_names
from tests.service.service_harness import Service
from tests.traffic.sample_logs import combined_log

EXAMPLES = {name: text for name, thing in public_names() if ">>> " in (text := documentation(thing))}
RULES = {"rules": [{"name": "login", "key": "user", "missing": "deny", "limit": "2/minute"}]}
SERVED = {
    "rules": [
        {"name": "user", "key": "user", "missing": "skip", "limit": "10/s burst 20"},
        {"name": "jobs", "when": {"path": "/jobs"}, "limit": "9 slots"},
    ]
}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(SERVED) as running:
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_are_true(
    name: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ((float(second), f"192.0.2.{second % 20}", f"/page/{second}") for second in range(60))
    combined_log(tmp_path / "access.log", calls)
    monkeypatch.chdir(tmp_path)
    text = EXAMPLES[name].replace('"http://127.0.0.1:8080"', f'"{service.url}", timeout=60')
    names: dict[str, Any] = {"asyncio": asyncio, "RULES": RULES, **vars(headgate)}
    names |= {"Attributes": Attributes, "load": load}
    module = next(module for module in reversed(MODULES) if name.startswith(f"{module.__name__}."))
    names |= {each: value for each, value in vars(module).items() if not each.startswith("_")}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    shown: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.DocTestRunner(optionflags=flags).run(example, out=shown.append, clear_globs=False)
    if "gate" in example.globs:
        example.globs["gate"].close()
    assert tried
    assert not failed, "".join(shown)
