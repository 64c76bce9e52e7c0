"""Requests that a running `pairbus syphon` makes, in this process: a quarter of an hour may be a second here."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.cli import backlogs, pumping
from pairbus.cli.pumping import Pumping
from pairbus.client.sides import Side
from pairbus.ledger import read
from pairbus.syphon import SyphonSettings
from tests.backlog import put_diverted
from tests.brokers import BrokerProcess

BACKLOG = "contoso/x-servicebus-transfer"
NEVER_S = 3600.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("bus") / "data", strict=True) as process:
        for namespace, queue in (("contoso", "orders"), ("fabrikam", f"{BACKLOG}/0"), ("fabrikam", f"{BACKLOG}/1")):
            with process.admin(namespace) as admin:
                admin.create_queue(queue)
        yield process


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("COUNT_LOOK_S", 0.05), ("LOG_S", 0.1), ("COUNT_S", 0.1), ("IDLE_COUNT_S", NEVER_S)):
        monkeypatch.setattr(pumping, name, seconds)


class Running:
    """A syphon that is told to end when the test is through."""

    def __init__(self, broker: BrokerProcess, ledger: Path) -> None:
        home, away = (Side.from_connection_string(broker.connection_string(name)) for name in ("contoso", "fabrikam"))
        self._ledger = ledger
        self._task = asyncio.create_task(
            Pumping(home, away, SyphonSettings(), ledger).syphon("contoso", None, once=False)
        )

    async def end(self) -> Counter[str]:
        """The operations that were metered, by kind."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        counted: Counter[str] = Counter()
        for row in read(self._ledger):
            counted[row.kind] += row.count or 0
        return counted


async def divert(broker: BrokerProcess, queue: str) -> None:
    await put_diverted(broker.connection_string("fabrikam"), queue, "orders", [ServiceBusMessage("1")])


async def arrived(broker: BrokerProcess) -> None:
    async with ServiceBusClient.from_connection_string(broker.connection_string("contoso")) as client:
        receiver = client.get_queue_receiver("orders", receive_mode="receiveanddelete")
        assert await receiver.receive_messages(max_wait_time=20)


async def test_an_idle_syphon_costs_its_long_polls(broker: BrokerProcess, tmp_path: Path) -> None:
    """One list at the start, and none until something is moved."""
    running = Running(broker, tmp_path / "idle")
    await asyncio.sleep(2.0)
    assert (await running.end())["management"] == 1
    running = Running(broker, tmp_path / "busy")
    await divert(broker, f"{BACKLOG}/0")
    await arrived(broker)
    await asyncio.sleep(1.0)
    assert 2 <= (await running.end())["management"] <= 4


async def test_backlog_queues_are_asked_by_name_among_many_queues(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list is a request for each hundred queues of the namespace."""
    monkeypatch.setattr(backlogs, "PAGE_SIZE", 1)
    with broker.admin("fabrikam") as admin:
        admin.create_queue("other")
        running = Running(broker, tmp_path / "ledger")
        await divert(broker, f"{BACKLOG}/1")
        await arrived(broker)
        await asyncio.sleep(1.0)
        await running.end()
        admin.delete_queue("other")
    asked = {row.entity for row in read(tmp_path / "ledger") if row.kind == "management"}
    assert asked == {"$Resources/queues", f"{BACKLOG}/0", f"{BACKLOG}/1"}


async def test_queues_that_are_created_meanwhile_are_drained(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Senders that pair later have more of them."""
    monkeypatch.setattr(pumping, "IDLE_COUNT_S", 0.2)
    running = Running(broker, tmp_path / "ledger")
    await divert(broker, f"{BACKLOG}/0")
    await arrived(broker)
    with broker.admin("fabrikam") as admin:
        admin.create_queue(f"{BACKLOG}/7")
        for number in (7, 0, 7):  # messages of queue 0 are still moved too
            await divert(broker, f"{BACKLOG}/{number}")
            await arrived(broker)
        await running.end()
        admin.delete_queue(f"{BACKLOG}/7")
    assert f"new backlog queues: {BACKLOG}/7\n" in capsys.readouterr().err
