"""Closing, faulting, and a side that somebody else closes; the syphon inside a client."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from azure.servicebus.exceptions import ServiceBusError

from pairbus.client.errors import ClientClosed, PairedMessagingFactoryError, SendAvailabilityBacklogError
from pairbus.errors import PairingError
from pairbus.pairing.events import Closed, Faulted, Moved, SecondaryLost
from pairbus.pairing.failover import State
from pairbus.sdk.clients import call_when_closed
from tests.client.world import Stage, World, message, until
from tests.limits import slowness
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow


async def test_a_client_with_the_syphon_brings_home_what_another_client_diverted(
    world: World, flavour: Flavour
) -> None:
    """Receivers usually turn it on, senders leave it off."""
    queue = world.namespaces.make_queue()
    sender_side = await world.client(flavour)
    sender_side.client.force_failover(queue)
    sender = sender_side.sender(queue)
    for _ in range(3):
        await sender.send(message())
    assert world.in_backlog() == 3
    receiver_side = await world.client(flavour, enable_syphon=True)
    await until(lambda: world.count(queue) == 3, "they come home")
    await sender.send(message())
    await until(lambda: world.count(queue) == 4, "the next one too, while the pumps wait for it")
    await until(lambda: world.in_backlog() == 0, "what is at home is completed")
    await until(lambda: sum(event.count for event in receiver_side.told(Moved)) == 4, "and told")
    began = time.monotonic()
    await receiver_side.close()
    assert time.monotonic() - began < 7.0
    assert len(receiver_side.told(Closed)) == 1


@pytest.mark.parametrize("fault", ["none", "black_hole"])
async def test_closing_takes_no_longer_than_the_pumps_five_seconds(world: World, flavour: Flavour, fault: str) -> None:
    """Silent peers on both sides, failed over, with the syphon on, are the worst case."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, enable_syphon=True)
    sender = client.sender(queue)
    await sender.send(message())
    if fault == "black_hole":
        nemeses[0].black_hole()
        await sender.send(message())
        assert client.state(queue) is State.FAILED_OVER
        nemeses[1].black_hole()
    began = time.monotonic()
    await client.close()
    took_s = time.monotonic() - began
    assert took_s < (2.0 if fault == "none" else 10.0) * slowness(), f"{took_s:.1f} s"
    await client.close()


async def test_closing_ends_sends_that_wait_and_tells_the_truth_about_them(world: World, flavour: Flavour) -> None:
    """A send that pauses between attempts does not hold a process that wants to end."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    nemesis.stall_transfers(queue)
    sending = [asyncio.create_task(sender.error(message())) for _ in range(3)]
    await until(lambda: nemesis.counts.of(queue).transfers_held > 0, "it waits for an answer")
    began = time.monotonic()
    await client.close()
    errors = await asyncio.gather(*sending)
    assert time.monotonic() - began < 7.0
    assert [type(error) for error in errors] == [ClientClosed] * 3, errors
    told = [error.outcome_unknown for error in errors if isinstance(error, ClientClosed)]
    assert told == [True, True, True], "all were under way: the primary may have each of them"


async def test_call_after_close_starts_no_thread(stage: Stage) -> None:
    """A program that faults or forces its closed clients would collect threads and sockets."""
    client = stage.client("sync")
    await client.pair()
    await client.close()
    engine = client.client._life.thread
    for name, args in (("pair", ()), ("force_failover", ("orders",)), ("clear_pairing", ())):
        with pytest.raises(ClientClosed):
            await client.call(getattr(client.client, name), *args)
    await client.call(client.client.fault, "primary")
    assert client.client._life.thread is engine and not engine.is_usable


async def test_closing_closes_the_clients_of_both_sides(world: World, flavour: Flavour) -> None:
    """The SDK's clients are closed with every connection: a closed client leaves nothing on the wire."""
    queue = world.namespaces.make_queue()
    nemeses = world.nemesis(), world.nemesis("secondary")
    client = await world.client(flavour, enable_syphon=True)
    sender = client.sender(queue)
    await sender.send(message())
    client.client.force_failover(queue)
    await sender.send(message())
    closed: list[str] = []
    for side in ("primary", "secondary"):
        call_when_closed(client.client._state.sides[side].client, partial(closed.append, side))
    assert all(nemesis.open_connections for nemesis in nemeses)
    await client.close()
    assert closed == ["primary", "secondary"]
    await until(lambda: not any(nemesis.open_connections for nemesis in nemeses), "every connection is closed")


async def test_every_call_of_a_faulted_client_names_both_namespaces(world: World, flavour: Flavour) -> None:
    """Every call of the client and of its senders raises, also on senders that were made before the fault."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender, due = client.sender(queue).sender, datetime.now(UTC) + timedelta(hours=1)
    batch = await client.call(sender.create_message_batch)
    batch.add_message(message())
    client.client.fault("primary")
    awaited: dict[str, tuple[Any, ...]] = {
        "a message": (sender.send_messages, message()),
        "a list": (sender.send_messages, [message(), message()]),
        "a batch": (sender.send_messages, batch),
        "schedule": (sender.schedule_messages, message(), due),
        "cancel": (sender.cancel_scheduled_messages, [1]),
        "create a batch": (sender.create_message_batch,),
        "pair": (client.client.pair,),
    }
    errors = []
    for name, (call, *given) in awaited.items():
        with pytest.raises(PairedMessagingFactoryError) as raised:
            pytest.fail(f"{name}: {await client.call(call, *given)}")
        errors.append(raised.value)
    enter = "__aenter__" if flavour == "aio" else "__enter__"
    for of in (client.client, sender):
        with pytest.raises(PairedMessagingFactoryError):
            await client.call(getattr(of, enter))
    calls = client.client
    named = calls.get_queue_sender, calls.get_topic_sender, calls.get_queue_receiver
    for call in (*named, calls.force_failover, calls.force_healthy):
        with pytest.raises(PairedMessagingFactoryError):
            call(queue)
    with pytest.raises(PairedMessagingFactoryError):
        calls.get_subscription_receiver("topic", "subscription")
    for error in errors:
        for side in ("primary", "secondary"):
            assert world.connection_string(side).split("//")[1].split(";")[0].rstrip("/") in str(error)
    assert [event.side for event in client.told(Faulted)] == ["primary"]
    assert (world.count(queue), world.in_backlog()) == (0, 0)
    await client.close()


async def test_repr_of_a_closed_or_faulted_client_says_why(stage: Stage, flavour: Flavour) -> None:
    """The repr of its senders says why too: every call raises, whatever was known about their entities."""
    faulted, closed = stage.client(flavour), stage.client(flavour)
    senders = []
    for client in (faulted, closed):
        await client.pair()
        for number in range(5):
            client.client.force_failover(f"orders-{number}")
        senders.append(client.client.get_queue_sender("orders-0"))
    faulted.client.fault("primary")
    await closed.close()
    assert " faulted (primary: fault() was called) backlog=2/2>" in repr(faulted.client)
    assert repr(senders[0]) == "<PairedSender orders-0 faulted (primary: fault() was called)>"
    assert " closed backlog=2/2>" in repr(closed.client)
    assert repr(senders[1]) == "<PairedSender orders-0 closed>"


@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_side_closed_by_somebody_else_faults_both_sides_with_syphon(
    world: World, flavour: Flavour, side: str
) -> None:
    """Five seconds after the syphon noticed, and not before: whoever closes both has time for the second."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour, enable_syphon=True)
    sender = client.sender(queue)
    await sender.send(message())
    began = time.monotonic()
    await client.call(client.client._state.sides[side].client.close)
    await until(lambda: len(client.told(Faulted)) == 2, "the other one is faulted")
    assert 5.0 <= time.monotonic() - began < 5.0 + 3.0 * slowness()
    assert [fault.side == side for fault in client.told(Faulted)] == [True, False]
    assert isinstance(await sender.error(message()), PairedMessagingFactoryError)


async def test_primary_closed_by_somebody_else_is_faulted_at_once(world: World, flavour: Flavour) -> None:
    """Also without the syphon. Its receivers would fail in words of the SDK, or open the closed client again."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    await client.call(client.client._primary.close)
    error = await sender.error(message())
    assert isinstance(error, PairedMessagingFactoryError)
    assert "the client of the primary was closed by somebody else" in str(error)
    with pytest.raises(PairedMessagingFactoryError):
        client.client.get_queue_receiver(queue)
    assert [fault.side for fault in client.told(Faulted)] == ["primary"]
    await client.close()
    assert len(client.told(Faulted)) == 1, "the client's own closing is no fault"


@pytest.mark.parametrize("how", ["closed", "faulted"])
async def test_primary_stays_usable_without_its_secondary(world: World, flavour: Flavour, how: str) -> None:
    """Without a syphon sends go on, also those of an entity that is failed over; one event says that nothing can be
    diverted, and an operator who asks for a failover is told so."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour)
    sender = client.sender(queue)
    await sender.send(message())
    if how == "closed":
        await client.call(client.client._state.secondary.client.close)
    else:
        client.client.fault("secondary")
    await sender.send(message())
    assert world.count(queue) == 2
    await until(lambda: len(client.told(SecondaryLost)) == 1, "it is told")
    with pytest.raises(PairingError, match="was lost, sends go to"):
        client.client.force_failover(queue)
    await sender.send(message())
    assert world.count(queue) == 3 and client.state(queue) is State.HEALTHY


@pytest.mark.parametrize("how", ["cleared", "disabled"])
async def test_plain_client_outlives_its_secondary(
    stage: Stage, flavour: Flavour, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No syphon runs without a pairing, although the option asks for one; and nothing would have been diverted."""
    if how == "disabled":
        monkeypatch.setenv("PAIRBUS_DISABLED", "1")
    client = stage.client(flavour, enable_syphon=True)
    sender = client.sender("orders")
    await sender.send(message())
    if how == "cleared":
        await client.clear_pairing()
    await client.call(client.client._state.secondary.client.close)
    await sender.send(message())
    assert len(stage.primary.stored("orders")) == 2
    assert client.told(SecondaryLost) == []


async def test_fault_ends_the_wait_of_a_throttled_send(stage: Stage, flavour: Flavour) -> None:
    """The service asks for ten seconds, but the client will not send again."""
    client = stage.client(flavour)
    throttled = stage.primary.on("transfer", Reject("com.microsoft:server-busy"))
    sending = asyncio.create_task(client.sender("orders").error(message()))
    await until(lambda: throttled.hits == 1, "it waits")
    began = time.monotonic()
    client.client.fault("primary")
    assert isinstance(await sending, PairedMessagingFactoryError)
    assert time.monotonic() - began < 2.0 * slowness()


async def test_failed_over_entity_is_sent_to_when_the_secondary_is_lost(stage: Stage, flavour: Flavour) -> None:
    """Before a ping succeeds too: there is no other place."""
    client = stage.client(flavour, ping_primary_interval=60)
    sender = client.sender("orders")
    stage.primary.on("transfer", Reject("amqp:internal-error"), times=3)
    await sender.send(message())
    assert client.state("orders") is State.FAILED_OVER and len(stage.in_backlog()) == 1
    client.client.fault("secondary")
    await sender.send(message())
    assert len(stage.primary.stored("orders")) == 1 and client.state("orders") is State.HEALTHY
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    error = await sender.error(message())
    assert isinstance(error, SendAvailabilityBacklogError) and "the secondary was lost" in str(error)


async def test_fault_ends_receivers_and_background_tasks_at_once(world: World, flavour: Flavour) -> None:
    """A receiver that waits for messages ends with an error, and the next call of it says why."""
    queue = world.namespaces.make_queue()
    client = await world.client(flavour, enable_syphon=True)
    receiver = client.client.get_queue_receiver(queue)
    waiting = asyncio.create_task(client.call(receiver.receive_messages, max_wait_time=20))
    await asyncio.sleep(1.0)  # by now the receiver has opened its link and waits
    began = time.monotonic()
    client.client.fault("primary")
    with pytest.raises((ServiceBusError, ValueError)):
        await waiting
    assert time.monotonic() - began < 5.0 * slowness()
    with pytest.raises((ServiceBusError, ValueError)):
        await client.call(receiver.receive_messages, max_wait_time=1)


async def test_losing_connections_is_never_a_fault(world: World, flavour: Flavour) -> None:
    """The syphon goes on when the secondary is back."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis("secondary")
    client = await world.client(flavour, enable_syphon=True)
    await client.sender(queue).send(message())
    nemesis.refuse()
    await asyncio.sleep(7.0)
    assert client.told(Faulted) == []
    nemesis.heal()
    client.client.force_failover(queue)
    await client.sender(queue).send(message())
    await until(lambda: world.count(queue) == 2, "the syphon brings it home", within_s=15)
