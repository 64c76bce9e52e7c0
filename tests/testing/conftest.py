"""A broker behind a nemesis, or a scripted endpoint, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.testing import Nemesis
from tests.scripted import ScriptedEndpoint
from tests.testing.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"), QueueDescription("invoices")))
    async with Broker([options], data=None) as broker, Nemesis.before(broker.connection_string("contoso")) as nemesis:
        world = World(broker, nemesis)
        yield world
        nemesis.heal()
        await world.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[ScriptedEndpoint]:
    async with ScriptedEndpoint() as endpoint:
        yield endpoint
