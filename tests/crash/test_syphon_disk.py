"""The syphon between two brokers, of which the secondary's disk is full."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pairbus.backlog.envelope import Envelope, wrap
from pairbus.pairing.events import Event
from pairbus.syphon import Syphon, SyphonSettings
from pairbus.transport import Carrier
from tests.brokers import BrokerProcess
from tests.crash.test_disk import Disk, disk  # noqa: F401
from tests.syphon.world import BACKLOG, message, numbers, until

pytestmark = pytest.mark.slow
COUNT = 10
LOCK_S = 5


async def test_a_full_disk_of_the_secondary_multiplies_nothing(disk: Disk, tmp_path: Path) -> None:  # noqa: F811
    """Whether or not it can still store completions: each message is home once, over three locks."""
    with (
        BrokerProcess(tmp_path / "home", namespaces=["contoso"]) as home,
        BrokerProcess(disk.data, namespaces=["fabrikam"]) as away,
    ):
        with home.admin("contoso") as admin, away.admin("fabrikam") as other:
            admin.create_queue("orders")
            other.create_queue(BACKLOG, lock_duration=f"PT{LOCK_S}S", max_delivery_count=2147483647)
        async with (
            Carrier(home.connection_string("contoso")) as primary,
            Carrier(away.connection_string("fabrikam")) as secondary,
        ):
            sender = await secondary.sender(BACKLOG)
            for number in range(COUNT):
                await sender.send(wrap(message(number), Envelope("orders")))
            disk.fill()
            events: list[Event] = []
            syphon = Syphon(primary, secondary, [BACKLOG], settings=SyphonSettings(), publish=events.append)
            task = asyncio.create_task(syphon.run())
            await asyncio.sleep(3 * LOCK_S)
            with home.admin("contoso") as admin:
                assert int(admin.get_queue_runtime_properties("orders").active_message_count or 0) <= COUNT
            disk.free()
            await until(lambda: syphon.progress().moved == COUNT and not syphon.progress().uncompleted, 40.0)
            await syphon.stop()
            await task
            receiver = await (await primary.connection()).receiver("orders", mode="receive-and-delete")
            came = []
            while batch := await receiver.receive(100, 1.0):
                came += [received.payload for received in batch]
            assert sorted(numbers(came)) == list(range(COUNT)), events
