"""The return of an entity of a real broker: when pings are sent, what they leave behind, what else may prove it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient

from pairbus.amqp.message import Message
from pairbus.pairing.events import FailedOver, PingRefused, PingSent, Recovered
from pairbus.pairing.failover import State
from tests.client.both import both_flavours
from tests.client.world import Client, Stage, World, message, until
from tests.limits import slowness
from tests.scripted import Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
PING = "application/vnd.ms-servicebus-ping"


async def lost(world: World, flavour: Flavour, **options: Any) -> tuple[str, Client]:
    """A queue that is failed over, because its links are cut, and the client that had to divert."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, **options)
    nemesis.cut_links(queue, "detach")
    await client.sender(queue).send(message(message_id="diverted"))
    assert client.state(queue) is State.FAILED_OVER
    return queue, client


@both_flavours
async def test_pings_come_one_interval_after_the_failover_and_after_each_other(world: World, flavour: Flavour) -> None:
    """An entity to which a ping was delivered is healthy, and pings stop."""
    queue, client = await lost(world, flavour)
    await until(lambda: len(client.told(PingSent)) >= 2, "two pings that fail")
    world.nemesis().heal()
    await client.until_state(queue, State.HEALTHY, 4.0)
    pings = client.told(PingSent)
    times = [client.told(FailedOver)[0].at_s, *(event.at_s for event in pings)]
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(times)), times
    assert [event.accepted for event in pings] == [False] * (len(pings) - 1) + [True]
    assert [event.by for event in client.told(Recovered)] == ["a ping"]
    await asyncio.sleep(1.3)
    assert client.told(PingSent) == pings


@both_flavours
async def test_a_ping_waits_for_its_answer_as_long_as_the_interval(world: World, flavour: Flavour) -> None:
    """The next one comes an interval after it was given up; `tests/pairing/test_pings.py` shows the time-out itself."""
    queue = world.namespaces.make_queue()
    nemesis = world.nemesis()
    client = await world.client(flavour, attempt_timeout=1)
    nemesis.stall_transfers(queue)
    await client.sender(queue).send(message())
    await until(lambda: len(client.told(PingSent)) >= 2, "two pings that nobody answers", within_s=12.0 * slowness())
    first, second = [event.at_s for event in client.told(PingSent)[:2]]
    assert first - client.told(FailedOver)[0].at_s >= 1.9, "a ping interval and a second of silence have passed"
    assert second - first >= 1.9
    await until(
        lambda: nemesis.counts.of(queue).transfers_held >= 3, "the message and two pings", within_s=12.0 * slowness()
    )


@both_flavours
async def test_recovery_can_require_several_accepted_pings(world: World, flavour: Flavour) -> None:
    queue, client = await lost(world, flavour, healthy_pings_required=2)
    world.nemesis().heal()
    await client.until_state(queue, State.HEALTHY, 8.0)
    assert [event.accepted for event in client.told(PingSent)][-2:] == [True, True]
    assert world.nemesis().counts.of(queue).pings == 2


@both_flavours
async def test_deleted_queue_stays_failed_over_and_is_reported_once(world: World, flavour: Flavour) -> None:
    """Waiting does not heal it, a person does."""
    queue, client = await lost(world, flavour)
    world.namespaces.admin("primary").delete_queue(queue)
    world.nemesis().heal()
    await until(lambda: len(client.told(PingSent)) >= 3, "three pings")
    [refused] = client.told(PingRefused)
    assert refused.path == queue and "could not be found" in refused.reason
    assert client.state(queue) is State.FAILED_OVER
    await client.sender(queue).send(message())
    assert world.in_backlog() == 2
    world.namespaces.admin("primary").create_queue(queue)
    await client.until_state(queue, State.HEALTHY, 5.0)


async def test_ping_is_never_received_nor_dead_lettered(world: World) -> None:
    """Sent here by the plain SDK, to a queue that keeps what expires; a waiting receiver would be first to see it."""
    queue = world.namespaces.make_queue(dead_lettering_on_message_expiration=True)
    ping = ServiceBusMessage(b"", content_type=PING, time_to_live=timedelta(seconds=1), session_id="s")
    mortal = ServiceBusMessage(b"", message_id="mortal", time_to_live=timedelta(seconds=1))
    text = world.connection_string("primary")
    async with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender(queue) as sender:
        async with client.get_queue_receiver(queue) as receiver:
            await sender.send_messages(ping)
            assert await receiver.receive_messages(1, max_wait_time=0.5) == []
            assert await receiver.peek_messages(5) == []
        await sender.send_messages([ping, mortal])
        admin = world.namespaces.admin("primary")

        def dead() -> int:
            return admin.get_queue_runtime_properties(queue).dead_letter_message_count or 0

        await until(lambda: dead() > 0, "the message beside it expires")
        async with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as letters:
            found = await letters.receive_messages(5, max_wait_time=1.0)
            assert [one.message_id for one in found] == ["mortal"]


@pytest.mark.parametrize("ping", ["auto", "attach"])
@both_flavours
async def test_without_ping_messages_a_trial_send_brings_the_entity_back(
    world: World, flavour: Flavour, ping: str
) -> None:
    """A probe opens a link, which proves too little by itself; the next real send is the trial.

    So it is with `auto` where the broker does not say that it hides pings, as Azure does not.
    """
    queue, client = await lost(world, flavour, ping=ping)
    nemesis = world.nemesis()
    nemesis.heal()
    await until(lambda: any(event.accepted for event in client.told(PingSent)), "the link opens")
    attached = nemesis.counts.of(queue).attaches
    assert attached >= 1
    await asyncio.sleep(1.5)  # more than an interval: another ping would be due
    assert client.state(queue) is State.FAILED_OVER
    assert (nemesis.counts.of(queue).pings, nemesis.counts.of(queue).transfers) == (0, 0)
    await client.sender(queue).send(message(message_id="trial"))
    assert client.state(queue) is State.HEALTHY
    assert [event.by for event in client.told(Recovered)] == ["a trial send"]
    assert (nemesis.counts.of(queue).pings, nemesis.counts.of(queue).transfers) == (0, 1)
    assert client.diverted_ids == ["diverted"] and world.count(queue) == 1


@both_flavours
async def test_failed_trial_is_stored_in_the_backlog_by_the_same_call(world: World, flavour: Flavour) -> None:
    """The link opens and messages do not pass: the entity stays away, and nobody has lost anything."""
    queue, client = await lost(world, flavour, ping="attach", attempt_timeout=1, ping_primary_interval=1)
    nemesis = world.nemesis()
    nemesis.heal()
    nemesis.stall_transfers(queue)
    await until(lambda: any(event.accepted for event in client.told(PingSent)), "the link opens")
    assert await client.sender(queue).send(message(message_id="trial")) < 5.0 * slowness()
    assert client.state(queue) is State.FAILED_OVER
    assert client.diverted_ids == ["diverted", "trial"] and world.in_backlog() == 2


async def test_no_two_pings_have_the_same_session(stage: Stage, flavour: Flavour) -> None:
    """A random one each: whoever receives by sessions would otherwise find one that only grows."""
    client = stage.client(flavour)
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    await client.sender("orders").send(message())
    await until(lambda: sum(each.is_ping for each in stage.primary.received) >= 3, "three pings")
    pings = [Message.decode(each.payload).properties for each in stage.primary.received if each.is_ping]
    sessions = [properties.group_id for properties in pings if properties is not None]
    assert all(sessions) and len(set(sessions)) == len(pings) >= 3
