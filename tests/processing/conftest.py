"""One broker in a thread for each file, and a desk for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pairbus.testing.broker_thread import BrokerThread
from tests.processing.desk import Desk
from tests.sdk.flavours import Flavour


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as broker:
        yield broker


@pytest.fixture(params=["sync", "aio"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return "aio" if request.param == "aio" else "sync"


@pytest.fixture
async def desk(broker: BrokerThread, flavour: Flavour) -> AsyncIterator[Desk]:
    desk = Desk(broker, flavour)
    yield desk
    await desk.close()
