"""Fixtures: an operator who knows the token of a service on the in-memory engine."""

from collections.abc import AsyncIterator

import pytest

from tests.service.admin.admin_harness import BOOK, Operator


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    async with Operator(BOOK) as operator:
        yield operator
