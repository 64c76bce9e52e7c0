"""Messages that come home: unaltered, each to its destination, and completed only when they are there."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairbus.amqp.message import Header, Message, Properties
from pairbus.amqp.types import Int, Long, Symbol, Timestamp, UInt
from pairbus.backlog.envelope import EXPIRED, ORIGINAL_ID, REMEMBERED, Envelope, enqueued_ms_of, wrap
from pairbus.broker import QueueDescription
from pairbus.pairing.events import DeadLettered, MaybeDuplicated, Moved, Stayed
from pairbus.syphon import redrive
from pairbus.syphon.decide.dead_letter import REFUSED
from pairbus.transport import ConnectionLost, ReceivedMessage
from tests.pairing.test_envelope import SDK_MESSAGES, sdk_bytes
from tests.syphon.world import BACKLOG, QUICK, bare, message, numbers, pair, running, until

ORDERS, BILLS = QueueDescription("orders"), QueueDescription("bills")


async def test_messages_come_home_byte_for_byte() -> None:
    """From the properties on, a receiver gets the bytes that the application's SDK encoded."""
    lasting = [one for name, one in SDK_MESSAGES.items() if name not in ("everything", "a short time to live")]
    payloads = [sdk_bytes(one) for one in lasting]
    payloads.append(
        Message(
            properties=Properties(message_id="typed", correlation_id=b"raw", group_id="s", subject="label"),
            application_properties={"int": Int(1), "long": Long(1), "when": Timestamp(5), "none": None},
            sequences=[[Int(1), "two"], [None]],
            footer={Symbol("f"): UInt(7)},
        ).encode()
    )
    with_ids = [payload for payload in payloads if Message.decode(payload).properties is not None]
    async with pair(ORDERS) as world:
        await world.divert("orders", with_ids)
        progress = await world.syphon().run_once()
        assert (progress.moved, progress.blocked, progress.errors) == (len(with_ids), 0, 0)
        got = await world.arrived("orders", len(with_ids))
        assert [bare(payload) for payload in got] == [bare(payload) for payload in with_ids]
        assert world.waiting() == 0


async def test_the_genuine_sdk_reads_what_came_home() -> None:
    """Session, time to live and schedule are back where its users look for them."""
    soon = datetime.now(UTC) + timedelta(seconds=1)
    sent = ServiceBusMessage(
        "body",
        message_id="m1",
        session_id="s1",
        time_to_live=timedelta(minutes=5),
        scheduled_enqueue_time_utc=soon,
        application_properties={"own": 1},
    )
    async with pair(ORDERS) as world:
        await world.divert("orders", [sdk_bytes(sent)], first_attempt_ms=1, sender="me", counter=1)
        await world.syphon().run_once()
        client = ServiceBusClient.from_connection_string(world.broker.connection_string("contoso"))
        async with client, client.get_queue_receiver("orders") as receiver:
            [got] = await receiver.receive_messages(1, max_wait_time=10)
            assert (str(got), got.message_id, got.session_id) == ("body", "m1", "s1")
            assert got.time_to_live == timedelta(minutes=5)
            assert got.enqueued_time_utc is not None and got.enqueued_time_utc >= soon - timedelta(milliseconds=1)
            assert got.application_properties == {b"own": 1}
            await receiver.complete_message(got)


async def test_each_message_comes_home_to_its_destination_in_queue_order() -> None:
    """A batch has messages for several destinations, and there is more than one batch."""
    async with pair(ORDERS, BILLS) as world:
        payloads = [message(number) for number in range(250)]
        await world.put(BACKLOG, [wrap(one, Envelope(("Orders", "bills")[n % 2])) for n, one in enumerate(payloads)])
        assert (await world.syphon().run_once()).moved == 250
        assert numbers(await world.arrived("orders", 125)) == list(range(0, 250, 2))
        assert numbers(await world.arrived("bills", 125)) == list(range(1, 250, 2))
        moved = world.told(Moved)
        assert sorted(i for event in moved for i in event.message_ids) == sorted(f"m{n}" for n in range(250))
        assert all(event.count == len(event.message_ids) and event.queue == BACKLOG for event in moved)
        assert world.metered("send") == world.metered("receive") == world.metered("complete") == 250


@pytest.mark.timed  # shipments are as large as can be moved in time
async def test_messages_of_one_destination_that_lie_apart_share_a_send() -> None:
    """Twenty destinations: of a batch of a hundred each gets five, of a shipment of several batches more."""
    paths = [f"orders-{number}" for number in range(20)]
    async with pair(*map(QueueDescription, paths)) as world:
        await world.put(BACKLOG, [wrap(message(number), Envelope(paths[number % 20])) for number in range(4000)])
        assert (await world.syphon().run_once()).moved == 4000
        sends = [event for event in world.told(Moved) if event.path == paths[0]]
        assert max(event.count for event in sends) > 5
        assert numbers(await world.arrived(paths[0], 200)) == list(range(0, 4000, 20))
        assert world.waiting() == 0


async def test_a_running_syphon_takes_what_comes_later() -> None:
    """The long poll ends with the first message."""
    async with pair(ORDERS) as world, running(world.syphon()) as syphon:
        for number in range(3):
            await world.divert("orders", [message(number)])
            await until(lambda n=number: syphon.progress().moved == n + 1)  # type: ignore[misc]
        assert numbers(await world.arrived("orders", 3)) == [0, 1, 2]


async def test_many_syphons_share_the_work() -> None:
    """Competing consumers: a lock belongs to one of them, and none waits for another."""
    async with pair(ORDERS, backlogs=2) as world:
        queues = (BACKLOG, f"{BACKLOG[:-1]}1")
        for queue in queues:
            await world.divert("orders", [message(number) for number in range(500)], queue)
        syphons = [world.syphon(queues=queues) for _ in range(3)]
        progress = await asyncio.gather(*[syphon.run_once() for syphon in syphons])
        assert sum(each.moved for each in progress) == 1000
        assert sorted(numbers(await world.arrived("orders", 1000))) == sorted([*range(500)] * 2)
        assert world.home.queue_info("orders").active == 0


async def test_a_crash_between_acceptance_and_completion_duplicates_and_never_loses() -> None:
    """If the syphon dies there, the backlog still has the message; it comes again when its lock has run out."""
    async with pair(ORDERS, lock_s=1.0) as world:
        await world.divert("orders", [message(number) for number in range(10)])
        secondary = await world.secondary.connection()

        def crash(namespace: str, kind: str) -> None:
            if kind == "send":
                secondary._wire.lose(ConnectionLost("the process is gone"))
                secondary._wire.abort()

        world.on_meter = crash
        assert (await world.syphon().run_once()).errors > 0
        world.on_meter = lambda namespace, kind: None
        assert numbers(await world.arrived("orders", 10)) == list(range(10))
        assert world.waiting() == 10
        async with running(world.syphon()):
            assert numbers(await world.arrived("orders", 10)) == list(range(10))
            await until(lambda: world.waiting() == 0)


async def test_where_the_destination_detects_duplicates_a_second_copy_is_not_stored() -> None:
    """The message id is the sender's own, so that both copies have the same."""
    orders = QueueDescription("orders", requires_duplicate_detection=True)
    async with pair(orders) as world:
        await world.divert("orders", [message(1), message(1)], first_attempt_ms=1)
        assert (await world.syphon().run_once()).moved == 2
        assert world.home.queue_info("orders").active == 1


async def test_a_message_that_comes_home_after_the_window_is_reported() -> None:
    """The outcome was unknown, and the id is not remembered any more: a person may want to look."""
    async with pair(ORDERS) as world:
        now_ms = 10_000_000
        await world.divert("orders", [message(1)], first_attempt_ms=now_ms - 700_000)
        await world.divert("orders", [message(2)], first_attempt_ms=now_ms - 500_000)
        await world.syphon(wall_ms=lambda: now_ms).run_once()
        [told] = world.told(MaybeDuplicated)
        assert (told.path, told.message_id, told.reason) == ("orders", "m1", "it came home after 700s")


async def test_time_in_the_backlog_is_deducted_from_the_time_to_live() -> None:
    """A price of yesterday is not sold as one of today."""
    short = Message(header=Header(ttl=UInt(5_000)), properties=Properties(message_id="short"), data=[b"1"]).encode()
    long = Message(header=Header(ttl=UInt(90_000)), properties=Properties(message_id="long"), data=[b"2"]).encode()
    async with pair(ORDERS) as world:
        await world.divert("orders", [short, long])
        later_ms = int(datetime.now().timestamp() * 1000) + 30_000
        progress = await world.syphon(replace(QUICK, ttl_policy="deduct"), wall_ms=lambda: later_ms).run_once()
        assert (progress.moved, progress.dead_lettered) == (1, 1)
        [told] = world.told(DeadLettered)
        assert (told.message_id, told.reason) == ("short", EXPIRED)
        [got] = await world.arrived("orders", 1)
        header = Message.decode(got).header
        assert header is not None and header.ttl is not None and 55_000 < header.ttl <= 60_000


async def test_a_budget_is_kept() -> None:
    """Live traffic needs the namespace's operations too."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(number) for number in range(150)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await world.syphon(replace(QUICK, max_messages_per_second=100)).run_once(wait_s=0.1)
        assert loop.time() - began > 1.35  # ten messages at once, then a hundred a second
        assert len(await world.arrived("orders", 150)) == 150


async def test_no_second_has_much_more_than_a_second_of_the_budget() -> None:
    """The first second is no exception, though all messages are in one queue."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(number) for number in range(1200)])
        await world.syphon(replace(QUICK, max_messages_per_second=400)).run_once(wait_s=0.1)
        stored_ms = [enqueued_ms_of(payload) or 0 for payload in await world.arrived("orders", 1200)]
    assert max(sum(began <= at < began + 1000 for at in stored_ms) for began in set(stored_ms)) <= 600


async def test_dead_letters_are_driven_back_to_their_queue_or_to_another() -> None:
    """The messages lose the reason for which they were dead-lettered, and are otherwise unchanged."""
    async with pair(ORDERS, BILLS) as world:
        for target in (None, "bills"):
            sender = await world.primary.sender("orders")
            for number in range(3):
                await sender.send(message(number))
            receiver = await world.primary.receiver("orders")
            batch: list[ReceivedMessage] = []
            while len(batch) < 3:
                batch += await receiver.receive(3, 5.0)
            await receiver.dead_letter(batch, "why", "because")
            await receiver.close()
            assert world.home.queue_info("orders").dead_lettered == 3
            back = redrive(world.primary, "orders", target=target, publish=world.events.append, duplicate_window_s=0)
            assert (await back.run_once()).moved == 3
            got = await world.arrived(target or "orders", 3)
            assert [bare(payload) for payload in got] == [bare(message(number)) for number in range(3)]
            assert world.home.queue_info("orders").dead_lettered == 0


async def test_a_single_drain_ends_though_its_messages_come_back() -> None:
    """A consumer that dead-letters them again would keep it busy for ever. Each goes once."""
    async with pair(ORDERS) as world:
        sender = await world.primary.sender("orders")
        for number in range(3):
            await sender.send(message(number))
        receiver = await world.primary.receiver("orders")

        async def refuse_everything() -> None:
            while True:
                await receiver.dead_letter(await receiver.receive(10, 5.0), "poison")

        consumer = asyncio.create_task(refuse_everything())
        await until(lambda: world.home.queue_info("orders").dead_lettered == 3)
        back = redrive(world.primary, "orders", publish=world.events.append, duplicate_window_s=0)
        async with asyncio.timeout(10):
            assert (await back.run_once()).moved == 3
        await until(lambda: world.home.queue_info("orders").dead_lettered == 3)
        consumer.cancel()


async def test_a_single_drain_leaves_what_is_diverted_meanwhile() -> None:
    """Senders still failed over would keep the drain busy for ever. Their messages are given back at once."""
    async with pair(ORDERS) as world:
        await world.divert("orders", [message(number) for number in range(150)])
        late = 0

        def divert_more(namespace: str, kind: str) -> None:
            nonlocal late
            if kind == "send":
                late += 1
                sending.append(asyncio.create_task(world.divert("orders", [message(1000 + late)])))

        sending: list[asyncio.Task[None]] = []
        world.on_meter = divert_more
        async with asyncio.timeout(10):
            progress = await world.syphon().run_once()
        await asyncio.gather(*sending)
        assert (progress.moved, progress.blocked) == (150, 0)
        assert numbers(await world.arrived("orders", 150)) == list(range(150))
        assert late and world.waiting() == late
        world.on_meter = lambda namespace, kind: None
        assert (await world.syphon().run_once()).moved == late


async def test_a_dead_letter_that_its_queue_remembers_stays_or_gets_another_id() -> None:
    """The queue would accept it as a duplicate of itself and drop it: completed after that, it would be nowhere."""
    async with pair(QueueDescription("orders", requires_duplicate_detection=True, lock_duration_ms=3000)) as world:
        sender = await world.primary.sender("orders")
        await sender.send(message(1))
        receiver = await world.primary.receiver("orders")
        await receiver.dead_letter(await receiver.receive(1, 5.0), "why", "because")
        await receiver.close()
        back = redrive(world.primary, "orders", publish=world.events.append, duplicate_window_s=600)
        progress = await back.run_once()
        assert (progress.moved, progress.blocked) == (0, 1)
        assert world.home.queue_info("orders").dead_lettered == 1
        [told] = world.told(Stayed)
        assert (told.message_ids, told.reason) == (("m1",), REMEMBERED)
        assert "for 11 more minutes" in told.description
        back = redrive(world.primary, "orders", publish=world.events.append, duplicate_window_s=600, new_ids=True)
        async with running(back):
            [got] = [Message.decode(payload) for payload in await world.arrived("orders", 1)]
        assert got.properties is not None and got.properties.message_id not in (None, "m1")
        assert got.application_properties == {ORIGINAL_ID: "m1"}
        assert world.home.queue_info("orders").dead_lettered == 0


async def test_a_dead_letter_that_cannot_go_back_stays_where_it_is() -> None:
    """A dead letter has no further dead-letter queue; an event names the message and the reason why it stays."""
    async with pair(QueueDescription("orders", max_message_size_kb=4096), QueueDescription("small")) as world:
        sender = await world.primary.sender("orders")
        await sender.send(Message(properties=Properties(message_id="big"), data=[bytes(1_100_000)]).encode())
        receiver = await world.primary.receiver("orders")
        await receiver.dead_letter(await receiver.receive(1, 5.0), "why")
        await receiver.close()
        back = redrive(world.primary, "orders", target="small", publish=world.events.append, duplicate_window_s=0)
        progress = await back.run_once()
        assert (progress.moved, progress.blocked, progress.errors) == (0, 1, 1)
        assert world.home.queue_info("orders").dead_lettered == 1
        [told] = world.told(Stayed)
        assert (told.queue, told.count, told.message_ids, told.reason) == ("orders", 1, ("big",), REFUSED)
        assert "'small' refuses this message" in told.description
