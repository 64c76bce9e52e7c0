"""One broker in memory for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.kit.world import World
from tests.kit.world import world as new_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with new_world() as world:
        yield world
