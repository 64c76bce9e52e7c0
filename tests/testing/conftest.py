"""A broker behind a nemesis for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pairbus.broker import Broker, NamespaceOptions, QueueDescription
from pairbus.connection_string import ConnectionString
from pairbus.testing import Nemesis
from tests.testing.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    options = NamespaceOptions("contoso", queues=(QueueDescription("orders"), QueueDescription("invoices")))
    async with Broker([options], data=None) as broker:
        target = ConnectionString.parse(broker.connection_string("contoso"))
        assert target.port is not None
        async with Nemesis(target.host, target.port) as nemesis:
            world = World(broker, nemesis)
            yield world
            nemesis.heal()
            await world.close()
