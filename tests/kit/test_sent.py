"""Recorded sends: what was accepted, in order, also when it was received meanwhile."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from pairbus.broker.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.namespace import Namespace
from pairbus.broker.store import Done
from pairbus.testing import SentMessage
from pairbus.testing.sent import sent_message
from tests.kit.world import World, received, world


def sent(namespace: Namespace, entity: str) -> list[SentMessage]:
    assert namespace.recorder is not None
    return [sent_message(one) for one in namespace.recorder.of(entity)]


async def test_sends_are_recorded_with_everything_their_sender_gave() -> None:
    """As plain objects: bytes, text, numbers, dates."""
    async with world(record_sends=True) as here:
        await here.namespace.create(QueueDescription("orders"))
        before = here.namespace.clock.now() - timedelta(milliseconds=1)
        message = ServiceBusMessage(
            b'{"id": 1}',
            message_id="m-1",
            session_id="ann",
            correlation_id="c-1",
            subject="order",
            content_type="application/json",
            reply_to="answers",
            reply_to_session_id="bob",
            to="somebody",
            time_to_live=timedelta(minutes=5),
            application_properties={"colour": "red", "count": 3, "share": 0.5, "new": True},
        )
        await here.send("orders", message)
        [found] = sent(here.namespace, "Orders")
        assert before <= found.accepted_at <= here.namespace.clock.now()
        assert found == SentMessage(
            body=b'{"id": 1}',
            message_id="m-1",
            session_id="ann",
            correlation_id="c-1",
            subject="order",
            content_type="application/json",
            reply_to="answers",
            reply_to_session_id="bob",
            to="somebody",
            time_to_live=timedelta(minutes=5),
            application_properties={"colour": "red", "count": 3, "share": 0.5, "new": True},
            sequence_number=1,
            accepted_at=found.accepted_at,
            scheduled_for=None,
        )
        assert found.json() == {"id": 1} and str(found) == '{"id": 1}'
        plain = [type(value) for value in found.application_properties.values()]
        assert plain == [str, int, float, bool]


async def test_received_and_scheduled_messages_stay_recorded() -> None:
    """In the order in which they were accepted; a batch in its own."""
    async with world(record_sends=True) as here:
        await here.namespace.create(QueueDescription("orders"))
        sender, receiver = await here.sender("orders"), await here.receiver("orders")
        await sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
        for message in await received(receiver, 2):
            await receiver.complete_message(message)
        due = datetime(2090, 1, 1, tzinfo=UTC)
        await sender.schedule_messages(ServiceBusMessage("three"), due)
        found = sent(here.namespace, "orders")
        assert [str(one) for one in found] == ["one", "two", "three"]
        assert [one.scheduled_for for one in found] == [None, None, due]
        assert [one.sequence_number for one in found] == [1, 2, 3]
        await here.namespace.reset()
        assert sent(here.namespace, "orders") == []
        await sender.send_messages(ServiceBusMessage("four"))
        assert [str(one) for one in sent(here.namespace, "orders")] == ["four"]


async def test_message_accepted_by_an_emptied_queue_stays_recorded() -> None:
    """The queue takes messages as soon as the reset is committed, while the reset still waits for earlier sends."""
    async with world(record_sends=True) as here:
        namespace, commits = here.namespace, asyncio.Queue[Done]()
        await namespace.create(QueueDescription("gone"))
        await here.send("gone", ServiceBusMessage("before"))
        await namespace.delete("gone")
        await namespace.create(QueueDescription("orders"))
        await here.send("orders", ServiceBusMessage("before"))
        resetting = asyncio.create_task(namespace.reset())
        await asyncio.sleep(0)  # lets the reset end all faults, which would let the commits go on
        namespace.store.hindrance = lambda takes_room, done: commits.put_nowait(done)
        (await commits.get())(None)
        of_barrier, accepted = await commits.get(), asyncio.Future[Any]()
        namespace.catalog.queues["orders"].send([Draft(b"after")], namespace.now_ms(), accepted.set_result)
        of_barrier(None)
        (await commits.get())(None)
        namespace.store.hindrance = None
        assert accepted.result() is None
        await resetting
        assert namespace.recorder is not None
        assert [one.draft.body for one in namespace.recorder.of("orders")] == [b"after"]
        assert namespace.recorder.of("gone") == []


async def test_only_accepted_sends_are_recorded() -> None:
    """A dropped duplicate, a refused send and a message that another entity forwarded are not recorded."""
    async with world(record_sends=True) as here:
        await here.namespace.create(QueueDescription("last"))
        await here.namespace.create(QueueDescription("orders", requires_duplicate_detection=True, forward_to="last"))
        await here.namespace.create(QueueDescription("off"))
        off = await here.sender("off")
        await here.namespace.update(QueueDescription("off", status="SendDisabled"))
        with pytest.raises(Exception, match="SendDisabled"):
            await off.send_messages(ServiceBusMessage("refused"))
        await here.send("orders", *(ServiceBusMessage("same", message_id="1") for _ in range(2)))
        await received(await here.receiver("last"))
        assert [len(sent(here.namespace, name)) for name in ("orders", "last", "off")] == [1, 0, 0]


async def test_sends_to_a_topic_are_recorded_once() -> None:
    """The number of subscriptions does not matter."""
    async with world(record_sends=True) as here:
        await here.namespace.create(TopicDescription("news"))
        await here.send("news", ServiceBusMessage("nobody reads it"))
        for name in ("one", "two"):
            await here.namespace.create(SubscriptionDescription("news", name))
        value = AmqpAnnotatedMessage(value_body={"n": [1, "two"]})
        assert value.body_type is AmqpMessageBodyType.VALUE
        await here.send("news", value)  # type: ignore[arg-type]
        assert [one.body for one in sent(here.namespace, "news")] == [b"nobody reads it", {"n": [1, "two"]}]


async def test_nothing_is_recorded_unless_asked(world: World) -> None:
    """A broker that nobody tests with keeps no message twice."""
    assert world.namespace.recorder is None
