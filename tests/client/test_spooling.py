"""Both namespaces are away: messages are kept on this machine, and forwarded in order when either is back."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.errors import SpoolError
from pairbus.pairing.events import Spooled, SpoolForwarded
from pairbus.pairing.failover import State
from pairbus.send_errors import SendAvailabilityBacklogError
from tests.client.messages import id_of
from tests.client.world import World, message, until
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


async def test_without_a_spool_the_caller_gets_the_error(world: World, flavour: Flavour) -> None:
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour)
    world.nemesis().refuse()
    world.nemesis("secondary").refuse()
    error = await client.sender(queue).error(message())
    assert isinstance(error, SendAvailabilityBacklogError)


@pytest.mark.parametrize("first_back", ["primary", "secondary"])
async def test_what_neither_namespace_takes_is_spooled_and_forwarded_in_order(
    world: World, flavour: Flavour, first_back: str, tmp_path: Path
) -> None:
    """Later sends queue behind it, so that order is kept; either side that comes back will do."""
    queue = world.namespaces.make_queue()
    nemeses = {"primary": world.nemesis(), "secondary": world.nemesis("secondary")}
    client = await world.client(flavour, spool_dir=tmp_path / "spool", backlog_retry_interval=1)
    sender = client.sender(queue)
    await world.send(sender, message(message_id="home"))
    for nemesis in nemeses.values():
        nemesis.refuse()
    sent = [f"spooled-{number}" for number in range(5)]
    for one in sent:
        await world.send(sender, message(message_id=one))
    assert sum(event.count for event in client.told(Spooled)) == 5
    assert "spool=5" in repr(client.client)
    nemeses[first_back].heal()
    await until(lambda: sum(event.count for event in client.told(SpoolForwarded)) >= 5, "forwarded", within_s=20)
    if first_back == "primary":
        await client.until_state(queue, State.HEALTHY, 6.0)
        payloads = await world.take(queue, 6)
        assert [id_of(payload) for payload in payloads] == ["home", *sent]
    else:
        assert world.in_backlog() == 5
        nemeses["primary"].heal()
        await client.until_state(queue, State.HEALTHY, 6.0)
        await world.send(sender, message(message_id="after"))
        doubtful = client.doubtful_ids
        verdict = await world.judge(queue)
        assert (verdict.lost, verdict.misrouted, verdict.altered, verdict.unexpected) == ((), (), (), ()), str(verdict)
        assert verdict.accepted == 7 and set(verdict.duplicated) <= doubtful


async def test_a_spool_survives_its_client(world: World, flavour: Flavour, tmp_path: Path) -> None:
    """Success was reported: a restart must not lose it. The next client on the folder forwards it."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, spool_dir=tmp_path)
    for nemesis in nemeses:
        nemesis.refuse()
    await client.sender(queue).send(message(message_id="kept"))
    await client.close()
    for nemesis in nemeses:
        nemesis.heal()
    await world.client(flavour, spool_dir=tmp_path)
    await until(lambda: world.count(queue) == 1, "forwarded by the next client", within_s=15)
    assert [id_of(payload) for payload in await world.take(queue, 1)] == ["kept"]


async def test_a_spool_is_private_and_two_clients_never_share_one(
    world: World, flavour: Flavour, tmp_path: Path
) -> None:
    """What waits there is the application's secret; two forwarders of one spool would send everything twice."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    folder = tmp_path / "spool"
    clients = [await world.client(flavour, spool_dir=folder, backlog_retry_interval=1) for _ in range(2)]
    for nemesis in nemeses:
        nemesis.refuse()
    for number, client in enumerate(clients):
        await client.sender(queue).send(message(message_id=f"of-{number}"))
        assert "spool=1" in repr(client.client)
    kept = [path for path in folder.rglob("*") if path.name != "1"]
    assert len(kept) >= 4 and {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (folder, folder / "1")} == {0o700}
    nemeses[0].heal()
    await until(lambda: world.count(queue) == 2, "each forwards its own", within_s=20)
    assert sorted(id_of(payload) for payload in await world.take(queue, 2)) == ["of-0", "of-1"]


async def test_a_full_spool_takes_nothing_more_and_loses_nothing(
    world: World, flavour: Flavour, tmp_path: Path
) -> None:
    """The caller gets an error and still owns the message; what was stored before is forwarded."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, spool_dir=tmp_path, spool_max_bytes=1 << 16)
    for nemesis in nemeses:
        nemesis.refuse()
    sender = client.sender(queue)
    await sender.send(message("x" * 40_000, message_id="fits"))
    error = await sender.error(message("x" * 40_000, message_id="does not"))
    assert isinstance(error, ServiceBusError | SpoolError), repr(error)
    assert sum(event.count for event in client.told(Spooled)) == 1
    nemeses[0].heal()
    await until(lambda: world.count(queue) == 1, "what was stored is forwarded", within_s=20)
    assert [id_of(payload) for payload in await world.take(queue, 1)] == ["fits"]
