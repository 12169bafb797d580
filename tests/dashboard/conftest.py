"""Fixtures: a site, an operator, a viewer and a stranger."""

from collections.abc import AsyncIterator

import pytest

from tests.dashboard.dashboard_harness import VIEWER_TOKEN, Site, Visitor


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as site:
        yield site


@pytest.fixture
async def operator(site: Site) -> Visitor:
    visitor = Visitor(site)
    await visitor.log_in()
    return visitor


@pytest.fixture
async def viewer(site: Site) -> Visitor:
    visitor = Visitor(site, "192.0.2.2")
    await visitor.log_in(VIEWER_TOKEN, "vera")
    return visitor


@pytest.fixture
def stranger(site: Site) -> Visitor:
    return Visitor(site, "192.0.2.3")
