"""Messages of every kind go through an outage and come back byte for byte; others are refused in clear words."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.message import Message
from pairbus.backlog.aliases import RESERVED
from pairbus.backlog.envelope import Envelope, overhead
from pairbus.client.errors import BacklogMessageTooLarge, PartlySent, ReservedPropertyError
from pairbus.pairing.failover import State
from tests.client.messages import id_of, of_every_kind, senders_part
from tests.client.world import Client, Sender, Stage, World, message
from tests.limits import slowness
from tests.scripted import Accept, Reject
from tests.sdk.flavours import Flavour

pytestmark = pytest.mark.slow
LIMIT = 1024 * 1024


@asynccontextmanager
async def away(world: World, client: Client, sender: Sender) -> AsyncIterator[None]:
    """An outage: of the network where that can be had, by an operator's hand on live namespaces."""
    path = sender.sender.entity_name
    if world.namespaces.live:
        client.client.force_failover(path)
        yield
        client.client.force_healthy(path)
        return
    world.nemesis().refuse()
    yield
    world.nemesis().heal()
    await client.until_state(path, State.HEALTHY, 6.0)


async def paired(world: World, flavour: Flavour, **options: Any) -> Client:
    if not world.namespaces.live:
        world.nemesis()
    return await world.client(flavour, **options)


async def sent_directly(world: World, queue: str, messages: list[Any]) -> None:
    async with (
        ServiceBusClient.from_connection_string(world.namespaces.connection_string("primary")) as client,
        client.get_queue_sender(queue) as sender,
    ):
        for one in messages:
            await sender.send_messages(one)


async def test_every_property_type_and_every_body_comes_home_byte_for_byte(world: World, flavour: Flavour) -> None:
    """The result is compared with a message sent by the plain SDK; the envelope must leave no trace."""
    here, there = world.namespaces.make_queue(), world.namespaces.make_queue()
    messages = list(of_every_kind().values())
    await sent_directly(world, here, list(of_every_kind().values()))
    client = await paired(world, flavour)
    sender = client.sender(there)
    async with away(world, client, sender):
        for one in messages:
            await sender.send(one)
    assert world.in_backlog() == len(messages)
    await world.bring_home()
    expected = {id_of(payload): senders_part(payload) for payload in await world.take(here, len(messages))}
    found = {id_of(payload): senders_part(payload) for payload in await world.take(there, len(messages))}
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        assert found[name] == part, name


async def test_a_list_of_every_kind_comes_home_byte_for_byte(world: World, flavour: Flavour) -> None:
    """In batches each message is encoded inside another."""
    here, there = world.namespaces.make_queue(), world.namespaces.make_queue()
    kinds = {name: one for name, one in of_every_kind().items() if name != "large"}
    await sent_directly(world, here, list(kinds.values()))
    client = await paired(world, flavour)
    sender = client.sender(there)
    async with away(world, client, sender):
        await sender.send(list(kinds.values()))
    await world.bring_home()
    expected = {id_of(payload): senders_part(payload) for payload in await world.take(here, len(kinds))}
    found = {id_of(payload): senders_part(payload) for payload in await world.take(there, len(kinds))}
    assert found == expected


async def test_batch_of_a_sync_sender_can_be_sent_by_asyncio(world: World) -> None:
    """An outage changes nothing here, though the batch is then wrapped in a form that the other SDK does not take."""
    queue = world.namespaces.make_queue()
    threads, tasks = await paired(world, "sync"), await paired(world, "aio")
    maker, sender = threads.sender(queue), tasks.sender(queue)
    async with away(world, tasks, sender):
        threads.client.force_failover(queue)
        await sender.send(message(message_id="first"))
        batch = await maker.batch()
        for name in ("second", "third"):
            batch.add_message(message(message_id=name))
        await sender.send(batch)
        assert world.in_backlog() == 3
        threads.client.force_healthy(queue)
    await world.bring_home()
    assert {id_of(payload) for payload in await world.take(queue, 3)} == {"first", "second", "third"}


async def test_a_session_id_comes_home(world: World, flavour: Flavour) -> None:
    """A backlog queue knows no sessions, so the id travels as a property."""
    queue = world.namespaces.make_queue()
    client = await paired(world, flavour)
    sender = client.sender(queue)
    async with away(world, client, sender):
        await sender.send(message("a", session_id="grüße"))
    assert world.in_backlog() == 1
    await world.bring_home()
    [payload] = await world.take(queue, 1)
    properties = Message.decode(payload).properties
    assert properties is not None and properties.group_id == "grüße"


async def test_backlog_message_has_no_session_time_to_live_or_schedule(stage: Stage, flavour: Flavour) -> None:
    """A backlog queue would apply these settings: expire the message, hide it, or refuse it without sessions."""
    client = stage.client(flavour)
    await client.pair()
    client.client.force_failover("orders")
    due = datetime.now(UTC) + timedelta(hours=1)
    await client.sender("orders").send(
        message(session_id="s", time_to_live=timedelta(minutes=5), scheduled_enqueue_time_utc=due, partition_key="s")
    )
    [payload] = stage.in_backlog()
    kept = Message.decode(payload)
    assert kept.properties is not None and kept.properties.group_id is None
    assert kept.header is None or kept.header.ttl is None
    assert kept.annotations == {"x-opt-partition-key": "s"}
    assert kept.application_properties == {
        "x-ms-sessionid": "s",
        "x-ms-timetolive": 300_000,
        "x-ms-scheduledenqueuetimeutc": int(due.timestamp() * 1000),
        "x-ms-path": "orders",
    }
    assert stage.primary.received == []


async def test_a_time_to_live_starts_again_at_home(world: World, flavour: Flavour) -> None:
    """The original behaviour; a message must not die of the outage."""
    here, there = world.namespaces.make_queue(), world.namespaces.make_queue()
    client = await paired(world, flavour)
    sender = client.sender(there)
    short = timedelta(seconds=4)  # longer than the time from a commit to a receiver, on a busy machine too
    mortals = [message("short", time_to_live=short), message("long", time_to_live=timedelta(hours=1))]
    async with world.taking(here, 2) as take:
        await sent_directly(world, here, mortals)
        expected = [senders_part(payload, without_times=True) for payload in await take()]
    async with away(world, client, sender):
        for one in mortals:
            await sender.send(one)
        await asyncio.sleep(short.total_seconds() + 0.2)
    async with world.taking(there, 2) as take:
        await world.bring_home()
        found = await take()
    assert [senders_part(payload, without_times=True) for payload in found] == expected
    ttl_ms = [header.ttl for payload in found if (header := Message.decode(payload).header) is not None]
    assert ttl_ms == [4_000, 3_600_000]


async def test_a_scheduled_message_comes_home_and_waits_there(world: World, flavour: Flavour) -> None:
    """A message with a scheduled time can be sent while failed over, although schedule_messages cannot be called
    then.
    """
    queue = world.namespaces.make_queue()
    client = await paired(world, flavour)
    sender = client.sender(queue)
    due = datetime.now(UTC) + timedelta(hours=2)
    async with away(world, client, sender):
        await sender.send(message("later", scheduled_enqueue_time_utc=due))
    await world.bring_home()
    async with (
        ServiceBusClient.from_connection_string(world.namespaces.connection_string("primary")) as plain,
        plain.get_queue_receiver(queue) as receiver,
    ):
        [peeked] = await receiver.peek_messages(5)
        assert peeked.state is ServiceBusMessageState.SCHEDULED
        assert peeked.scheduled_enqueue_time_utc is not None
        assert abs(peeked.scheduled_enqueue_time_utc - due) < timedelta(milliseconds=1)
        assert await receiver.receive_messages(1, max_wait_time=0.5) == []


# ── sizes ──


async def test_a_batch_that_fits_the_primary_and_not_the_backlog_is_split(world: World, flavour: Flavour) -> None:
    """The caller filled it to the brim while all was well; aliases cost bytes."""
    queue = world.namespaces.make_queue()
    client = await paired(world, flavour)
    sender = client.sender(queue)
    batch = await sender.batch()
    ids = []
    while True:
        one = message("x" * 500)
        try:
            batch.add_message(one)
        except MessageSizeExceededError:
            break
        ids.append(str(one.message_id))
    assert len(ids) > 300
    async with away(world, client, sender):
        await sender.send(batch)
    assert sorted(client.diverted_ids) == sorted(ids)
    await world.bring_home()
    assert sorted(id_of(payload) for payload in await world.take(queue, len(ids))) == sorted(ids)
    assert world.count(queue) == 0


async def test_message_that_fits_only_the_primary_warns_and_cannot_divert(
    world: World, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """The night of the outage is too late to learn of it; the error says how much is too much."""
    queue = world.namespaces.make_queue()
    client = await paired(world, flavour)
    sender = client.sender(queue)
    room = LIMIT - 40  # everything but the body takes less than 40 bytes
    brim = ServiceBusMessage(bytes(room), message_id="x")
    with caplog.at_level(logging.WARNING, logger="pairbus"):
        await sender.send(brim)
        await sender.send(brim)
    warnings = [record for record in caplog.records if "would be refused" in record.getMessage()]
    assert len(warnings) == 1 and queue in warnings[0].getMessage()
    async with away(world, client, sender):
        error = await sender.error(brim)
        assert isinstance(error, BacklogMessageTooLarge) and isinstance(error, MessageSizeExceededError)
        assert error.overhead_bytes >= overhead(Envelope(queue))
        assert str(error.overhead_bytes) in str(error)
        smaller = ServiceBusMessage(bytes(room - error.overhead_bytes), message_id="y")
        await sender.send(smaller)
    assert client.diverted_ids == ["y"]
    await world.bring_home()
    assert world.count(queue) == 3


@pytest.mark.parametrize("is_list", [False, True])
async def test_message_that_the_backlog_queue_takes_is_diverted_whatever_its_size(
    world: World, flavour: Flavour, is_list: bool
) -> None:
    """The Premium tier takes 100 MB. The largest batch is smaller, and no limit is known before the link is open."""
    queue = world.namespaces.make_queue(max_message_size_in_kilobytes=4096)
    for path in world.backlog:
        world.namespaces.make_queue("secondary", path, max_message_size_in_kilobytes=4096)
    client = await paired(world, flavour)
    client.client.force_failover(queue)
    bodies = [300_000, 3_000_000, 10] if is_list else [3_000_000]
    messages = [ServiceBusMessage(bytes(size), message_id=str(size)) for size in bodies]
    await client.sender(queue).send(messages if is_list else messages[0])
    assert sorted(client.diverted_ids) == sorted(map(str, bodies))
    too_large = [ServiceBusMessage("small"), ServiceBusMessage(bytes(5_000_000))]
    error = await client.sender(queue).error(too_large)
    assert isinstance(error, BacklogMessageTooLarge) and "takes 4194304" in str(error)
    assert world.in_backlog() == len(bodies), "a list with a message that is too large is refused whole"
    await world.bring_home()
    assert world.count(queue) == len(bodies)


async def test_a_part_that_fails_is_told_with_the_ids_of_both_parts(stage: Stage, flavour: Flavour) -> None:
    """The caller can then send again the messages that are not stored, and no others."""
    client = stage.client(flavour)
    await client.pair()
    client.client.force_failover("orders")
    stage.secondary.on("transfer", Accept(), times=1)
    stage.secondary.on("transfer", Reject("amqp:resource-limit-exceeded"))
    messages = [message("x" * 90_000) for _ in range(5)]
    error = await client.sender("orders").error(messages)
    assert isinstance(error, PartlySent)
    assert error.stored_ids == [one.message_id for one in messages[:2]]
    assert error.unsent_ids == [one.message_id for one in messages[2:]]
    assert [id_of(payload) for payload in stage.in_backlog()] == error.stored_ids
    assert messages[2].message_id is not None and messages[2].message_id in str(error)


# ── reserved names, and the caller's own objects ──


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_reserved_property_is_refused_healthy_or_not(stage: Stage, flavour: Flavour, is_away: bool) -> None:
    """A message that could not be brought home must be noticed on the first day, not in the outage."""
    client = stage.client(flavour)
    await client.pair()
    if is_away:
        client.client.force_failover("orders")
    sender = client.sender("orders")
    for name in sorted(RESERVED):
        for key in (name, name.encode()):
            error = await sender.error(message(application_properties={key: "mine"}))
            assert isinstance(error, ReservedPropertyError) and isinstance(error, ValueError)
            assert name in str(error)
    assert isinstance(
        await sender.error([message(), message(application_properties={"x-ms-path": 1})]), ReservedPropertyError
    )
    assert stage.primary.received == stage.secondary.received == []


def snapshot(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return the values reachable from a message, as plain values; the SDK's objects know each other in circles."""
    if id(value) in above:
        return "above"
    above = (*above, id(value))
    if isinstance(value, dict):
        return {"dict": [(key, snapshot(one, above)) for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(snapshot(one, above) for one in value)]
    if hasattr(value, "__dict__") and type(value).__module__.startswith("azure"):
        own = {name: one for name, one in vars(value).items() if name != "_message"}  # the SDK makes it at every send
        return type(value).__name__, {name: snapshot(one, above) for name, one in own.items()}
    return value


@pytest.mark.parametrize("away", [False, True], ids=["healthy", "away"])
async def test_the_callers_message_is_never_modified(stage: Stage, flavour: Flavour, away: bool) -> None:
    """The application may send its message again, to another queue, by another thread. The SDK modifies it: binary
    properties become text.
    """
    client = stage.client(flavour)
    await client.pair()
    if away:
        client.client.force_failover("orders")
    sender = client.sender("orders")
    due = datetime(2031, 1, 1, tzinfo=UTC)
    full = message(
        session_id="s",
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time_utc=due,
        application_properties={"a": 1, b"b": b"c"},
    )
    nameless = AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(subject="s"))
    given = [full, ServiceBusMessage("y"), nameless, AmqpAnnotatedMessage(value_body={"a": [1]})]
    before = [snapshot(one) for one in given]
    for one in given:
        await sender.send(one)
    await sender.send(given)
    assert [snapshot(one) for one in given] == before
    assert len(stage.in_backlog() if away else stage.primary.stored("orders")) == 8


async def test_a_message_without_an_id_has_the_same_one_in_every_attempt(stage: Stage, flavour: Flavour) -> None:
    """Duplicate detection knows it again when two attempts have stored it."""
    client = stage.client(flavour)
    stage.primary.on("transfer", Reject("amqp:internal-error"))
    one = AmqpAnnotatedMessage(data_body=b"x")
    began = time.monotonic()
    await client.sender("orders").send(one)
    assert time.monotonic() - began < 2.0 * slowness()
    tried = {id_of(each.payload) for each in stage.primary.received_by("orders")}
    [kept] = stage.in_backlog()
    assert tried == {id_of(kept)} and len(stage.primary.received_by("orders")) >= 2
    assert one.properties is None or one.properties.message_id is None
