"""Two namespaces for each test, on one broker for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.testing.broker_thread import BrokerThread
from tests.cli.command import Command
from tests.control.world import World


@pytest.fixture(scope="module")
def bus() -> Iterator[BrokerThread]:
    with BrokerThread(["unused"]) as running:
        yield running


@pytest.fixture
def world(bus: BrokerThread, capsys: pytest.CaptureFixture[str]) -> Iterator[World]:
    world = World(bus, Command(capsys))
    yield world
    world.close()
