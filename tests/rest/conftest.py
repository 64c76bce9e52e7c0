"""One broker for each test, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.rest.world import HttpWorld, http_world


@pytest.fixture
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world() as made:
        yield made
