"""The two namespaces are away: messages are kept on this machine, and forwarded in order when either is back."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.errors import SendAvailabilityBacklogError
from pairbus.errors import SpoolError
from pairbus.pairing.events import Spooled, SpoolForwarded
from pairbus.pairing.failover import State
from pairbus.sdk.encoding import encode
from pairbus.spool import Spool, SpoolEntry
from tests.client.messages import id_of
from tests.client.world import Stage, World, message, until
from tests.scripted.script import Delay, Reject
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
    """Spooled messages are the application's secret; two forwarders of one spool would send everything twice."""
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
    """The caller gets an error and still owns the message; messages stored before are forwarded."""
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


async def test_spool_runs_dry_during_constant_sends(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """A send to the disk is faster than one to the namespace: those behind the spool must not outrun it for ever. Each
    message has a session of its own, so that they go one by one; all of one sender's keep their order, although its
    link to the primary is open."""
    stage.primary.on("transfer", Delay(0.01), path="orders")
    spool = Spool(tmp_path)
    left = [f"left-{number}" for number in range(100)]
    spool.append([SpoolEntry("orders", encode(message(message_id=one, session_id=one)), one) for one in left])
    spool.close()
    client = stage.client(flavour, spool_dir=tmp_path)
    await client.pair()
    sender = client.sender("orders")
    await sender.batch()
    sent: list[str] = []
    async with asyncio.timeout(60):
        while "spool=" in repr(client.client):
            sent.append(f"sent-{len(sent)}")
            await sender.send(message(message_id=sent[-1], session_id=sent[-1]))
    assert client.told(Spooled), "some messages were spooled while the lane was forwarded"
    await sender.send(message(message_id="direct"))
    assert [id_of(payload) for payload in stage.primary.stored("orders")] == [*left, *sent, "direct"]


@pytest.mark.parametrize("timeout", [None, 20.0], ids=["usual", "with a time-out"])
async def test_nothing_overtakes_the_spool_on_the_way_to_the_backlog(
    stage: Stage, flavour: Flavour, tmp_path: Path, timeout: float | None
) -> None:
    """A sender that has diverted before knows its queue; its messages in the spool go there first."""
    options = {"backlog_queue_count": 1, "backlog_retry_interval": 1, "spool_dir": tmp_path, "enable_syphon": False}
    client = stage.client(flavour, **options)
    await client.pair()
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message(message_id="before"))
    outage = stage.secondary.on("transfer", Reject("amqp:internal-error"))
    left = [f"left-{number}" for number in range(12)]
    for one in left:
        await sender.send(message("x" * 100_000, message_id=one))  # at most two such messages fit a batch
    assert sum(event.count for event in client.told(Spooled)) == 12
    stage.secondary.on("transfer", Delay(0.2))
    stage.secondary.remove(outage)
    await until(lambda: len(stage.in_backlog()) > 1, "it is being forwarded", within_s=20)
    await sender.send(message(message_id="after"), timeout=timeout)
    await until(lambda: len(stage.in_backlog()) == 14, "all of it is", within_s=20)
    assert [id_of(payload) for payload in stage.in_backlog()] == ["before", *left, "after"]


async def test_sender_and_counters_agree_on_a_held_over_entity(stage: Stage, flavour: Flavour, tmp_path: Path) -> None:
    """A message is in a backlog queue or in the spool, and its entity in one state, whomever one asks."""
    client = stage.client(flavour, backlog_queue_count=1, spool_dir=tmp_path)
    await client.pair()
    client.client.force_failover("orders")
    sender = client.sender("orders")
    await sender.send(message())
    stage.secondary.on("transfer", Reject("amqp:internal-error"))
    await sender.send([message(), message()])
    counts = client.client.counters["entities"]["orders"]
    assert (counts["state"], counts["diverted"], counts["spooled"]) == ("HELD_OVER", 1, 2)
    assert client.state("orders") is State.HELD_OVER
    assert repr(sender.sender).startswith("<PairedSender orders HELD_OVER backlog=0/1 diverted=1 spooled=2 for ")


async def test_spooling_does_not_wait_for_the_threads_of_the_application(stage: Stage, tmp_path: Path) -> None:
    """The application's threads may all be busy for longer than the send has: the client has threads of its own,
    for forwarding too.
    """
    for endpoint in (stage.primary, stage.secondary):
        endpoint.on("open", Reject("amqp:internal-error"))
    others = set(threading.enumerate())
    client = stage.client("aio", spool_dir=tmp_path, backlog_retry_interval=1)
    await client.pair()
    loop, is_over = asyncio.get_running_loop(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        blocked = loop.run_in_executor(None, is_over.wait)
        try:
            await client.sender("orders").send(message(message_id="m"), timeout=3, within_s=20)
            assert client.told(Spooled)
            stage.primary.heal()
            await until(lambda: stage.primary.stored("orders"), "forwarded", within_s=20)
        finally:
            is_over.set()
            await blocked
    loop.set_default_executor(ThreadPoolExecutor())
    await client.close()
    own = [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("pairbus-disk")]
    assert not any(map(lives, own))


def lives(thread: threading.Thread) -> bool:
    thread.join(5)
    return thread.is_alive()
