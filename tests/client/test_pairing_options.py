"""Pairing itself: its rights, its errors, starting without the secondary, and turning it off again."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import azure.servicebus
import azure.servicebus.aio
import pytest
from azure.servicebus.exceptions import (
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)

import pairbus
import pairbus.aio
import pairbus.client
from pairbus import ledger
from pairbus.client.errors import ClientClosed, PairingUnauthorized, ScheduleWhileFailedOver, SecondaryUnreachable
from pairbus.client.sides import Side
from pairbus.errors import PairingError
from pairbus.pairing.events import Closed, Event, FailedOver, Paired, PairingCleared, Unpaired
from pairbus.pairing.failover import State
from pairbus.telemetry import operations
from tests.client.world import SEND_ONLY, Stage, World, message, until
from tests.sdk.flavours import Flavour, in_thread


def send_only(world: World) -> str:
    process = world.namespaces.process("secondary")
    return process.connection_string("secondary", key_name=str(SEND_ONLY["Name"]), key=str(SEND_ONLY["Key"]))


# ── rights ──


async def test_pairing_finds_or_creates_the_queues_and_tells_how_many(world: World, flavour: Flavour) -> None:
    """The second client finds the queues that the first one created."""
    first = await world.client(flavour)
    assert first.client.options.backlog_queue_count == 2
    assert [event.backlog_queues for event in first.told(Paired)] == [2]
    names = {queue.name for queue in world.namespaces.admin("secondary").list_queues()}
    assert set(world.backlog) <= names
    second = await world.client(flavour)
    assert second.client.options.backlog_queue_count == 2
    assert {queue.name for queue in world.namespaces.admin("secondary").list_queues()} == names


async def test_pairing_without_the_manage_claim_is_an_authorization_error(world: World, flavour: Flavour) -> None:
    """No message may be sent, not even to the primary: the application believes that it is paired."""
    queue = world.namespaces.make_queue()
    client = world.new_client(flavour, secondary=send_only(world))
    with pytest.raises(PairingUnauthorized, match="Manage claim") as raised:
        await client.pair()
    assert isinstance(raised.value, ServiceBusAuthorizationError)
    assert isinstance(await client.sender(queue).error(message()), PairingUnauthorized)
    assert world.count(queue) == 0


async def test_send_rights_are_enough_where_the_queues_exist(world: World, flavour: Flavour) -> None:
    """The client has the least rights: a user with Manage made the queues once."""
    await world.client(flavour)
    queue = world.namespaces.make_queue()
    client = world.new_client(flavour, secondary=send_only(world), create_backlog_queues=False)
    await client.pair()
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    assert world.in_backlog() == 1


# ── without the secondary ──


async def test_a_secondary_that_is_away_is_an_error_of_pairing(world: World, flavour: Flavour) -> None:
    queue = world.namespaces.make_queue()
    world.nemesis("secondary").refuse()
    client = world.new_client(flavour)
    with pytest.raises(SecondaryUnreachable, match="require_secondary=False") as raised:
        await client.pair()
    assert isinstance(raised.value, ServiceBusConnectionError)
    assert isinstance(await client.sender(queue).error(message()), SecondaryUnreachable)
    assert world.count(queue) == 0
    world.nemesis("secondary").heal()
    await client.sender(queue).send(message())
    assert world.count(queue) == 1, "the next call pairs"


async def test_a_certificate_that_is_not_trusted_is_an_error_with_the_remedy(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate of a broker on another machine is not fetched from there: its user has to trust it."""
    monkeypatch.setattr("pairbus.client.sides.is_loopback", lambda host: False)
    client = world.new_client(flavour)
    with pytest.raises(SecondaryUnreachable, match=r"secondary_kwargs=.*connection_verify"):
        await client.pair()


async def test_a_client_that_may_start_without_its_secondary_pairs_when_it_can(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deployment must not fail because the backup is being repaired."""
    monkeypatch.setattr("pairbus.client.background.PAIR_AGAIN_S", 0.3)
    queue = world.namespaces.make_queue()
    primary, secondary = world.nemesis(), world.nemesis("secondary")
    secondary.refuse()
    client = world.new_client(flavour, require_secondary=False)
    await client.pair()
    assert len(client.told(Unpaired)) == 1
    sender = client.sender(queue)
    await sender.send(message("unpaired"))
    primary.refuse()
    error = await sender.error(message("nowhere to go"))
    assert isinstance(error, ServiceBusConnectionError), "the error of the primary is raised"
    secondary.heal()
    await client.until_event(Paired, 5.0)
    await sender.send(message("diverted"))
    assert (len(client.told(Unpaired)), client.client.options.backlog_queue_count) == (1, 2)
    assert world.in_backlog() == 1


# ── a plain client ──


async def test_pairing_can_be_disabled_by_the_environment(
    world: World, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's hand that needs no new release: a plain client, which never asks for the secondary."""
    monkeypatch.setenv("PAIRBUS_DISABLED", "1")
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    world.nemesis("secondary").refuse()
    client = world.new_client(flavour)
    await client.pair()
    sender = client.sender(queue)
    await sender.send(message())
    nemesis.refuse()
    assert isinstance(await sender.error(message()), ServiceBusConnectionError)
    nemesis.heal()
    await sender.send(message())
    assert world.count(queue) == 2
    assert client.events == []
    assert "plain" in repr(client.client)


async def test_clearing_the_pairing_leaves_a_plain_client_behind(world: World, flavour: Flavour) -> None:
    """All state and timers are forgotten: an entity that was failed over is the primary's again."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    nemesis.refuse()
    await sender.send(message("diverted"))
    await client.clear_pairing()
    assert client.state(queue) is State.HEALTHY
    assert isinstance(await sender.error(message()), ServiceBusConnectionError)
    nemesis.heal()
    await sender.send(message("home"))
    assert len(client.told(PairingCleared)) == 1 and len(client.told(FailedOver)) == 1
    assert (world.count(queue), world.in_backlog()) == (1, 1)
    assert nemesis.counts.of(queue).pings == 0


async def test_an_operator_moves_an_entity_away_and_back(world: World, flavour: Flavour) -> None:
    """An entity that is held over by hand stays away, also if pings would succeed."""
    queue, other = world.namespaces.make_queue(), world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    client.client.force_failover(queue.upper())
    await sender.send(message("away"))
    await asyncio.sleep(1.3)  # more than a ping interval
    assert client.state(queue) is State.HELD_OVER
    await sender.send(message("still away"))
    await client.sender(other).send(message("another entity"))
    client.client.force_healthy(queue)
    await sender.send(message("home"))
    assert (world.count(queue), world.count(other), world.in_backlog()) == (1, 1, 2)
    assert [event.forced for event in client.told(FailedOver)] == [True]


async def test_an_entity_cannot_be_moved_away_where_there_is_no_other_place(
    stage: Stage, flavour: Flavour, tmp_path: Path
) -> None:
    """An operator who is told that an entity is held over relies on this: no message reaches the primary any more."""
    await stage.secondary.stop()
    away = {"create_backlog_queues": True, "require_secondary": False}
    client = stage.client(flavour, **away)
    await client.pair()
    with pytest.raises(PairingError, match=r"orders was not failed over: .* is not paired, sends go to .* only"):
        client.client.force_failover("orders")
    await client.sender("orders").send(message())
    assert client.state("orders") is State.HEALTHY
    spooling = stage.client(flavour, spool_dir=tmp_path, **away)
    await spooling.pair()
    spooling.client.force_failover("orders")
    await spooling.sender("orders").send(message(), timeout=2)
    assert spooling.client.counters["spool_depth"] == 1, "an entity can fail over to the spool"
    assert len(stage.primary.stored("orders")) == 1
    await spooling.clear_pairing()
    with pytest.raises(PairingError, match="is not paired"):
        spooling.client.force_failover("orders")


# ── the rest of a sender ──


async def test_scheduling_works_healthy_and_names_the_alternative_while_failed_over(
    world: World, flavour: Flavour
) -> None:
    """A backlog queue has no numbers to cancel by."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    due = datetime.now(UTC) + timedelta(hours=1)
    numbers = await sender.schedule([message("a"), message("b")], due)
    assert len(numbers) == 2 and world.count(queue) == 2
    await sender.cancel(numbers[0])
    assert world.count(queue) == 1
    client.client.force_failover(queue)
    with pytest.raises(ScheduleWhileFailedOver, match="scheduled_enqueue_time_utc"):
        await sender.schedule(message("c"), due)
    with pytest.raises(ScheduleWhileFailedOver):
        await sender.cancel(numbers[1])
    assert (world.count(queue), world.in_backlog()) == (1, 0)


async def test_failures_of_scheduling_count_as_those_of_sends_do(world: World, flavour: Flavour) -> None:
    """An application that only schedules would otherwise never fail over."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    nemesis.refuse()
    with pytest.raises(ServiceBusError):
        await sender.schedule(message(), datetime.now(UTC) + timedelta(hours=1), timeout=8)
    assert client.state(queue) is State.FAILED_OVER
    await sender.send(message())
    assert world.in_backlog() == 1


@pytest.mark.parametrize("fault", ["refuse", pytest.param("black_hole", marks=pytest.mark.slow)])
async def test_batch_can_be_made_while_the_primary_never_answered(world: World, flavour: Flavour, fault: str) -> None:
    """The plain SDK asks the link for its limit, and there is no link."""
    queue = world.namespaces.make_queue()
    getattr(world.nemesis(), fault)()
    client = await world.client(flavour)
    sender = client.sender(queue)
    batch = await sender.batch()
    assert batch.max_size_in_bytes == 262_144
    batch.add_message(message())
    await sender.send(batch)
    assert world.in_backlog() == 1


async def test_a_closed_client_and_a_closed_sender_say_so(world: World, flavour: Flavour) -> None:
    """The error is that of the plain SDK, which is a ValueError."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    await sender.close()
    assert isinstance(await sender.error(message()), ClientClosed)
    another = client.sender(queue)
    await client.close()
    error = await another.error(message())
    assert isinstance(error, ClientClosed) and isinstance(error, ValueError)
    with pytest.raises(ClientClosed):
        client.sender(queue)


async def test_clients_of_the_sdk_can_be_given(world: World, flavour: Flavour) -> None:
    """The long form, as the original had it; the administration client stays the user's."""
    module: Any = azure.servicebus.aio if flavour == "aio" else azure.servicebus
    queue = world.namespaces.make_queue()
    kind: Any = pairbus.aio.PairedServiceBusClient if flavour == "aio" else pairbus.PairedServiceBusClient
    strings = [world.connection_string(side) for side in ("primary", "secondary")]
    given = [module.ServiceBusClient.from_connection_string(text, retry_total=0) for text in strings]
    side = Side.from_connection_string(strings[1])
    admin: Any = await in_thread(side.new_admin, aio=flavour == "aio")
    options = pairbus.SendAvailabilityPairedNamespaceOptions(
        admin, given[1], 2, failover_interval=0, primary_name=world.primary_name
    )
    client = kind(given[0], options)
    world.namespaces.backlog_made(world.backlog)
    if flavour == "aio":
        async with client:
            client.force_failover(queue)
            async with client.get_queue_sender(queue) as sender:
                await sender.send_messages(message())
        await admin.close()
    else:

        def use() -> None:
            with client:
                client.force_failover(queue)
                with client.get_queue_sender(queue) as sender:
                    sender.send_messages(message())
            admin.close()

        await in_thread(use)
    assert world.in_backlog() == 1


# ── what is told ──


async def test_events_can_be_iterated_and_a_listener_that_fails_harms_nobody(world: World) -> None:
    """Every reader gets every event; the iteration ends with the client."""
    queue = world.namespaces.make_queue()

    def fails(event: Event) -> None:
        raise RuntimeError(f"cannot handle {event}")

    client = await world.client("aio", on_event=fails)
    seen: list[Event] = []

    async def listen() -> None:
        seen.extend([event async for event in client.client.events()])

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    await client.close()
    async with asyncio.timeout(5):
        await listening
    assert [type(event).__name__ for event in seen] == ["FailedOver", "Diverted", "Closed"]
    assert all(event.at_s > 1_700_000_000 for event in seen) and isinstance(seen[-1], Closed)
    assert client.client.counters["entities"][queue]["diverted"] == 1


@pytest.mark.slow
async def test_every_diverted_send_is_traced_where_the_application_traces(
    stage: Stage, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each diverted send has a span of ours with OpenTelemetry; the SDK's own tracing: `test_same_spans.py`."""
    spans: list[str] = []

    def span(operation: str, *_: object) -> AbstractContextManager[None]:
        spans.append(operation)
        return nullcontext()

    monkeypatch.setattr(operations, "is_traced", lambda: True)
    monkeypatch.setattr(operations, "span", span)
    client = stage.client(flavour)
    await client.pair()
    client.client.force_failover("orders")
    sender = client.sender("orders")
    for _ in range(3):
        await sender.send(message(application_properties={}))
    assert len(stage.in_backlog()) == 3
    assert spans == ["divert"] * 3


async def test_the_ledger_shows_the_journey_of_a_diverted_message(
    world: World, flavour: Flavour, tmp_path: Path
) -> None:
    """Sent away by one process, moved home by another: each step is a row with the message id."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour, ledger=tmp_path)
    sender = client.sender(queue)
    await sender.send(message("home"))
    client.client.force_failover(queue)
    await sender.send(message(message_id="traveller"))
    syphon = await world.client(flavour, ledger=tmp_path, enable_syphon=True)
    await until(lambda: world.count(queue) == 2, "the syphon brings it home")
    await syphon.close()
    await client.close()
    rows = sorted(ledger.read(tmp_path), key=lambda row: row.at_s)
    journey = [(row.kind, row.entity) for row in rows if row.message_id == "traveller"]
    assert journey == [("diverted", queue), ("moved", queue)]
    sends = {(row.side, row.cause) for row in rows if row.kind == "send"}
    assert {("primary", "application"), ("secondary", "failover"), ("primary", "syphon")} <= sends
    assert [row.event for row in rows if row.kind == "event" and row.event == "FailedOver"] == ["FailedOver"]


# ── a drop-in ──

CONTEXTS = ("__enter__", "__exit__", "__aenter__", "__aexit__")
MADE_OTHERWISE = {"from_connection_string"}
"from_connection_strings takes two."


def surface(kind: Any) -> dict[str, Any]:
    """Public methods and context managers; properties are None."""
    found = inspect.getmembers(kind, callable)
    methods = {name: one for name, one in found if name in CONTEXTS or not name.startswith("_")}
    properties = inspect.getmembers(kind, lambda member: isinstance(member, property))
    return {**methods, **dict.fromkeys((name for name, _ in properties if not name.startswith("_")))}


@pytest.mark.parametrize("what", ["client", "sender"])
async def test_every_public_method_of_the_sdk_has_the_same_arguments(world: World, flavour: Flavour, what: str) -> None:
    """An application that changes one line to pair must not have to change a second one."""
    client = world.new_client(flavour).client
    module: Any = azure.servicebus.aio if flavour == "aio" else azure.servicebus
    theirs = module.ServiceBusClient if what == "client" else module.ServiceBusSender
    ours = client if what == "client" else client.get_queue_sender("orders")
    checked = 0
    for name, method in surface(theirs).items():
        if name in MADE_OTHERWISE:
            continue
        assert hasattr(ours, name), f"{name} is missing"
        mine = getattr(ours, name)
        if method is None or name in CONTEXTS:
            continue
        assert inspect.iscoroutinefunction(mine) == inspect.iscoroutinefunction(method), name
        takes = inspect.signature(mine).parameters
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
                continue
            by_position = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            assert parameter.name in takes or (takes_any and not by_position), f"{name}({parameter.name})"
            if parameter.name in takes:
                assert takes[parameter.name].kind is parameter.kind, f"{name}({parameter.name})"
        checked += 1
    assert checked >= 5


async def test_attributes_of_the_sdks_objects_are_there(world: World, flavour: Flavour) -> None:
    client = await world.client(flavour)
    primary = world.connection_string("primary")
    assert client.client.fully_qualified_namespace in primary
    sender = client.sender("orders").sender
    assert sender.entity_name == "orders"
    assert sender.fully_qualified_namespace == client.client.fully_qualified_namespace
    assert sender.client_identifier.startswith("SBSender-")
    assert client.sender("orders", client_identifier="me").sender.client_identifier == "me"
