"""Every benchmark can be imported without the peers: those are installed when a benchmark runs."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import benchmarks

MODULES = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__"]


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
