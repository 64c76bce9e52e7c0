"""Paired senders of real topics and session queues: healthy, failed over, spooled, and brought home."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusError
from azure.servicebus.management import SqlRuleFilter

from pairbus.pairing.events import PingSent, Recovered, SpoolForwarded
from pairbus.pairing.failover import State
from tests.client.both import both_flavours
from tests.client.world import Client, Sender, World, message, until
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
BACK_S = 10.0
Found = list[tuple[str, str | None]]
"Message id and session id."


def make_topic(world: World, **settings: Any) -> str:
    """Make a topic: subscription `all` gets all messages, `red` the red ones, and `sessions` all by session."""
    admin, topic = world.namespaces.admin("primary"), f"news/{uuid.uuid4().hex[:10]}"
    admin.create_topic(topic, **settings)
    admin.create_subscription(topic, "all")
    admin.create_subscription(topic, "sessions", requires_session=True)
    admin.create_subscription(topic, "red")
    admin.delete_rule(topic, "red", "$Default")
    admin.create_rule(topic, "red", "only", filter=SqlRuleFilter("colour = 'red'"))
    return topic


def coloured(number: int, **fields: Any) -> ServiceBusMessage:
    colour = "red" if number % 2 else "blue"
    fields = {"message_id": f"m{number}", "session_id": f"s{number % 3}", **fields}
    return message(f"{number}", application_properties={"colour": colour}, **fields)


async def subscribed(world: World, topic: str, name: str) -> Found:
    """Take all that a subscription holds, as the genuine SDK receives it."""
    counts = world.namespaces.admin("primary").get_subscription_runtime_properties(topic, name)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with (
        ServiceBusClient.from_connection_string(world.namespaces.connection_string("primary")) as client,
        client.get_subscription_receiver(topic, name, receive_mode=mode) as receiver,
    ):
        return await received(receiver, counts.total_message_count or 0)


async def in_session(world: World, session_id: str, count: int, **entity: str) -> list[str]:
    """Take the message ids of one session in their order, by a genuine session receiver."""
    async with ServiceBusClient.from_connection_string(world.namespaces.connection_string("primary")) as client:
        kind: Any = client.get_queue_receiver if "queue_name" in entity else client.get_subscription_receiver
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        async with kind(session_id=session_id, receive_mode=mode, **entity) as receiver:
            found = await received(receiver, count)
            assert {session for _, session in found} == {session_id}
            assert await receiver.receive_messages(max_wait_time=0.2) == []
            return [message_id for message_id, _ in found]


async def received(receiver: Any, count: int) -> Found:
    found: Found = []
    while len(found) < count:
        page = await receiver.receive_messages(max_message_count=count - len(found), max_wait_time=10)
        assert page, f"{count - len(found)} of {count} did not come"
        found += [(one.message_id, one.session_id) for one in page]
    return found


async def send_around_an_outage(world: World, client: Client, sender: Sender, path: str) -> None:
    """Send two messages before, four during and two after it; a ping finds that it is over; all are brought home."""
    for number in (0, 1):
        await sender.send(coloured(number))
    world.nemesis().refuse()
    await sender.send(coloured(2))
    await sender.send([coloured(3), coloured(4)])
    await sender.send(coloured(5))
    assert client.state(path) is State.FAILED_OVER
    assert client.diverted_ids == ["m2", "m3", "m4", "m5"]
    world.nemesis().heal()
    await client.until_state(path, State.HEALTHY, BACK_S)
    await until(lambda: [event.accepted for event in client.told(PingSent)][-1:] == [True], "the ping is told")
    for number in (6, 7):
        await sender.send(coloured(number))
    assert len(client.diverted_ids) == 4
    assert (await world.bring_home()).moved == 4
    assert world.in_backlog() == 0


def ids(*numbers: int) -> list[str]:
    return [f"m{number}" for number in numbers]


@both_flavours
async def test_a_topic_that_was_away_reaches_all_matching_subscriptions(world: World, flavour: Flavour) -> None:
    """Rules see a message that came home as one that was sent there; no subscription ever shows a ping."""
    world.nemesis()
    topic = make_topic(world)
    client = await world.client(flavour)
    await send_around_an_outage(world, client, client.topic_sender(topic), topic)
    found = {name: await subscribed(world, topic, name) for name in ("all", "red")}
    assert sorted(one for one, _ in found["all"]) == ids(*range(8))
    assert sorted(one for one, _ in found["red"]) == ids(1, 3, 5, 7)
    assert all(session == f"s{int(one[1:]) % 3}" for each in found.values() for one, session in each)
    for number, expected in enumerate((ids(0, 3, 6), ids(1, 4, 7), ids(2, 5))):
        got = await in_session(world, f"s{number}", len(expected), topic_name=topic, subscription_name="sessions")
        assert sorted(got) == expected
    assert world.namespaces.admin("primary").get_topic_runtime_properties(topic).size_in_bytes == 0, (
        "the topic holds no messages and no pings"
    )


@both_flavours
async def test_a_session_queue_that_was_away_has_its_sessions_again(world: World, flavour: Flavour) -> None:
    """A session id travels in an alias through the secondary, whose backlog queues have no sessions."""
    world.nemesis()
    queue = world.namespaces.make_queue(requires_session=True)
    client = await world.client(flavour)
    await send_around_an_outage(world, client, client.sender(queue), queue)
    for number, expected in enumerate((ids(0, 3, 6), ids(1, 4, 7), ids(2, 5))):
        assert sorted(await in_session(world, f"s{number}", len(expected), queue_name=queue)) == expected
    assert world.count(queue) == 0, "no ping is in a session of the queue"


@both_flavours
async def test_a_trial_brings_topics_and_session_queues_back(world: World, flavour: Flavour) -> None:
    """Without ping messages an attach makes the next send the trial, which is stored like any other."""
    world.nemesis()
    topic, queue = make_topic(world), world.namespaces.make_queue(requires_session=True)
    client = await world.client(flavour, ping="attach")
    senders = {topic: client.topic_sender(topic), queue: client.sender(queue)}
    world.nemesis().refuse()
    for sender in senders.values():
        await sender.send(coloured(0))
    world.nemesis().heal()
    await until(lambda: len({event.path for event in client.told(PingSent) if event.accepted}) == 2, "links open")
    for path, sender in senders.items():
        assert client.state(path) is State.FAILED_OVER
        await sender.send(coloured(1))
        assert client.state(path) is State.HEALTHY
    assert [event.by for event in client.told(Recovered)] == ["a trial send"] * 2
    assert client.diverted_ids == ["m0", "m0"]
    assert await subscribed(world, topic, "all") == [("m1", "s1")]
    assert await in_session(world, "s1", 1, queue_name=queue) == ids(1)
    assert (await world.bring_home()).moved == 2
    assert await in_session(world, "s0", 1, queue_name=queue) == ids(0)


@both_flavours
async def test_spooled_messages_reach_topic_and_session_queue_in_order(
    world: World, flavour: Flavour, tmp_path: Path
) -> None:
    """The two namespaces were away: spooled messages go where they belong, with their session."""
    nemeses = world.nemesis(), world.nemesis("secondary")
    topic, queue = make_topic(world), world.namespaces.make_queue(requires_session=True)
    client = await world.client(flavour, spool_dir=tmp_path / "spool", backlog_retry_interval=1)
    senders = client.topic_sender(topic), client.sender(queue)
    for nemesis in nemeses:
        nemesis.refuse()
    for number in range(4):
        for sender in senders:
            await sender.send(coloured(number, session_id="one"))
    nemeses[0].heal()
    await until(lambda: sum(event.count for event in client.told(SpoolForwarded)) >= 8, "forwarded", within_s=20)
    assert [one for one, _ in await subscribed(world, topic, "all")] == ids(0, 1, 2, 3)
    assert [one for one, _ in await subscribed(world, topic, "red")] == ids(1, 3)
    assert await in_session(world, "one", 4, topic_name=topic, subscription_name="sessions") == ids(0, 1, 2, 3)
    assert await in_session(world, "one", 4, queue_name=queue) == ids(0, 1, 2, 3)


@both_flavours
async def test_a_message_without_a_session_id_is_the_callers_mistake(world: World, flavour: Flavour) -> None:
    """The refusal of a session queue says nothing about the health of the entity: nothing is diverted."""
    queue = world.namespaces.make_queue(requires_session=True)
    client = await world.client(flavour)
    error = await client.sender(queue).error(message())
    assert isinstance(error, ServiceBusError) and "session" in str(error).lower()
    assert (client.state(queue), client.diverted_ids) == (State.HEALTHY, [])


@both_flavours
async def test_a_disabled_topic_is_told_to_the_caller(world: World, flavour: Flavour) -> None:
    """A disabled topic is like a disabled queue: its owner wants it so, and its messages are not diverted."""
    topic = make_topic(world)
    admin = world.namespaces.admin("primary")
    client = await world.client(flavour)
    sender = client.topic_sender(topic)
    described = admin.get_topic(topic)
    described.status = "SendDisabled"
    admin.update_topic(described)
    assert isinstance(await sender.error(coloured(0)), MessagingEntityDisabledError)
    assert (client.state(topic), client.diverted_ids) == (State.HEALTHY, [])
    described.status = "Active"
    admin.update_topic(described)
    await sender.send(coloured(1))
    assert await subscribed(world, topic, "all") == [("m1", "s1")]
