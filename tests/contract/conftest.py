"""Runs every contract test on every engine."""

from collections.abc import Iterator

import pytest

from tests.contract.engine_harness import NAMES, EngineHarness

_PLACES = [pytest.param(name, marks=pytest.mark.servers if "memory" not in name else ()) for name in NAMES]


@pytest.fixture(params=_PLACES)
def harness(request: pytest.FixtureRequest) -> Iterator[EngineHarness]:
    kind = request.param.partition(" ")[0]
    server = None if kind == "memory" else request.getfixturevalue(f"driven_{kind}")
    harness = EngineHarness(request.param, server)
    yield harness
    harness.close()
