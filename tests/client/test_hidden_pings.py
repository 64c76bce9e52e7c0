"""A client and brokers that say that they hide pings, which strict ones, like Azure, do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pairbus import ledger
from pairbus.pairing.failover import State
from tests.client.both import both_flavours
from tests.client.conftest import two_processes
from tests.client.test_rules_of_pings import lost
from tests.client.world import Namespaces, World, message
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    """Lenient ones, whose `open` has properties."""
    with two_processes(tmp_path_factory.mktemp("pair"), strict=False) as ours:
        yield ours


@pytest.mark.parametrize("ping", ["auto", "message"])
@both_flavours
async def test_ping_to_a_broker_that_hides_pings_is_never_received(
    world: World, flavour: Flavour, ping: str, tmp_path: Path
) -> None:
    """The ping passes on the wire and costs an operation, but is in no count; receivers get ordinary messages only."""
    queue, client = await lost(world, flavour, ping=ping, ledger=tmp_path)
    world.nemesis().heal()
    await client.until_state(queue, State.HEALTHY, 5.0)
    assert world.nemesis().counts.of(queue).pings == 1
    assert world.count(queue) == 0
    await client.sender(queue).send(message(message_id="real"))
    receiver = client.client.get_queue_receiver(queue)
    found = await client.call(receiver.receive_messages, 5, max_wait_time=1.0)
    assert [one.message_id for one in found] == ["real"]
    await client.call(receiver.close)
    await client.close()
    rows = [row for row in ledger.read(tmp_path) if row.kind == "ping"]
    assert [(row.side, row.entity, row.billable_operations) for row in rows if row.outcome == "ok"] == [
        ("primary", queue, 1)
    ]
    assert {row.cause for row in rows} == {"failover"}
