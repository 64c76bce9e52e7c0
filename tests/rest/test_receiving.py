"""Receives and settlements over HTTP; the genuine SDK, or our own transport, is the other end."""

from __future__ import annotations

import asyncio
import json
import ssl
import uuid
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.amqp.message import Message, Properties
from pairbus.amqp.types import Described, Symbol, Timestamp, ULong
from pairbus.broker.store import Done
from pairbus.errors import StoreError
from pairbus.transport import connect
from tests.faults.conftest import until
from tests.limits import slowness
from tests.rest.world import HttpAnswer, HttpWorld, http_world, plain_request

WAIT_S = 10 * slowness()


async def send_raw(world: HttpWorld, message: Message, queue: str = "orders") -> None:
    async with await connect(world.connection_string) as connection:
        await (await connection.sender(queue)).send(message.encode(), timeout_s=WAIT_S)


async def test_message_of_the_sdk_is_shown_with_all_it_has(world: HttpWorld) -> None:
    """Its properties in `BrokerProperties`, its application properties as headers in the documented spelling."""
    sender = await world.sender()
    sent = ServiceBusMessage(
        b"\x00\xff",
        application_properties={
            "text": 'say "hi"',
            "number": 7,
            "price": 2.5,
            "active": False,
            "id": uuid.UUID(int=5),
            "when": datetime(2011, 12, 14, tzinfo=UTC),  # type: ignore[dict-item]
        },
        message_id="m-1",
        correlation_id="c-1",
        subject="Übung",
        content_type="application/json",
        to="to",
        reply_to="back",
        reply_to_session_id="talk",
        partition_key="key",
        time_to_live=timedelta(seconds=90),
    )
    await sender.send_messages(sent)
    answer = await world.lock("orders")
    assert (answer.body, answer.headers["Content-Type"]) == (b"\x00\xff", "application/json")
    shown = {name: answer.headers[name] for name in ("text", "number", "price", "active", "id", "when")}
    assert shown == {
        "text": '"say \\"hi\\""',
        "number": "7",
        "price": "2.5",
        "active": "false",
        "id": '"00000000-0000-0000-0000-000000000005"',
        "when": '"Wed, 14 Dec 2011 00:00:00 GMT"',
    }
    broker = answer.broker
    assert list(broker) == sorted(broker), "in the order of names, as the service writes them"
    locked_s = parsedate_to_datetime(broker.pop("LockedUntilUtc")) - parsedate_to_datetime(
        broker.pop("EnqueuedTimeUtc")
    )
    assert timedelta(seconds=59) <= locked_s <= timedelta(seconds=120)
    assert answer.headers["Location"] == world.url(f"orders/messages/1/{uuid.UUID(broker.pop('LockToken'))}")
    assert broker == {
        "CorrelationId": "c-1",
        "DeliveryCount": 1,
        "EnqueuedSequenceNumber": 0,
        "Label": "Übung",
        "MessageId": "m-1",
        "PartitionKey": "key",
        "ReplyTo": "back",
        "ReplyToSessionId": "talk",
        "SequenceNumber": 1,
        "State": "Active",
        "TimeToLive": 90,
        "To": "to",
    }


BODIES = [
    (Message(value="text ✓", has_value=True), "text ✓".encode()),
    (Message(value=b"\x00", has_value=True), b"\x00"),
    (Message(value=None, has_value=True), b""),
    (Message(value={"a": [1, 2.5, None]}, has_value=True), b'{"a": [1, 2.5, null]}'),
    (Message(value=[Timestamp(0)], has_value=True), b'["Thu, 01 Jan 1970 00:00:00 GMT"]'),
    (Message(sequences=[[1, "b"], [True]]), b'[1, "b", true]'),
    (Message(data=[b"one ", b"two"]), b"one two"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), BODIES)
async def test_every_kind_of_body_has_bytes(world: HttpWorld, message: Message, expected: bytes) -> None:
    """Data sections are bytes, a text is UTF-8, other values are JSON; and a data section comes back as it was."""
    message.properties = Properties(message_id="m")
    await send_raw(world, message)
    assert (await world.lock("orders")).body == expected


async def test_properties_without_a_form_are_left_out(world: HttpWorld) -> None:
    """The message comes all the same, and none of its properties replaces or adds a header of the answer."""
    properties = {
        "good": 1,
        "big": ULong(1 << 63),
        "span": Described(Symbol("com.microsoft:timespan"), 15_000_000),
        "null": None,
        "binary": b"b",
        "Location": "http://elsewhere",
        "Content-Length": "1",
        "Transfer-Encoding": "chunked",
        "a b": "name",
        "split\r\nInjected": "name",
        "line": "one\r\nInjected: yes",
    }
    await send_raw(
        world, Message(properties=Properties(message_id="m"), application_properties=properties, data=[b"x"])
    )
    answer = await world.lock("orders")
    assert answer.body == b"x"
    standard = {"Content-Type", "BrokerProperties", "Location", "Content-Length", "Date", "Server"}
    assert {name: text for name, text in answer.headers.items() if name not in standard} == {
        "good": "1",
        "big": "9223372036854775808",
        "span": "1.5",
        "line": '"one\\u000d\\u000aInjected: yes"',
    }
    assert answer.headers["Location"].startswith(world.url("orders/messages/"))


async def test_properties_that_fill_no_answer_end_among_the_dead_letters(world: HttpWorld) -> None:
    """Otherwise one message would keep all behind it from clients over HTTP; each try counts as a delivery."""
    large = Message(properties=Properties(message_id="m"), application_properties={"a": "x" * 70_000}, data=[b"x"])
    await send_raw(world, large, "brief")
    for method in ("POST", "DELETE"):
        answer = await world.ask(method, "brief/messages/head?timeout=5")
        assert (answer.status, b"as HTTP headers" in answer.body) == (500, True)
    assert (await world.ask("POST", "brief/messages/head?timeout=0")).status == 204
    assert world.namespace.queue_info("brief").dead_lettered == 1


# ── settling ──


async def test_lock_is_settled_by_its_address(world: HttpWorld) -> None:
    """Unlock counts as a delivery, renew moves the end, complete removes the message."""
    await world.send("orders")
    first = await world.lock("orders")
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 204
    await world.namespace.clock.advance(40)
    assert (await world.ask("POST", first.headers["Location"])).status == 200
    await world.namespace.clock.advance(40)
    assert (await world.ask("PUT", first.headers["Location"])).status == 200
    second = await world.lock("orders")
    assert (second.broker["DeliveryCount"], second.broker["MessageId"]) == (2, first.broker["MessageId"])
    assert second.broker["LockToken"] != first.broker["LockToken"]
    assert (await world.ask("DELETE", second.headers["Location"])).status == 200
    assert world.waiting() == world.locks() == 0


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_lost_lock_is_gone(world: HttpWorld, method: str) -> None:
    """410 for a lock that has ended, 404 for an address that never was one; then nothing has changed."""
    await world.send("orders")
    location = (await world.lock("orders")).headers["Location"]
    number, lock = location.split("/")[-2:]
    assert (await world.ask(method, f"orders/messages/{number}/{uuid.uuid4()}")).status == 410
    assert (await world.ask(method, f"orders/messages/wrong/{lock}")).status == 404
    assert (await world.ask("DELETE", f"orders/messages/{number}/no-lock")).status == 404
    assert world.locks() == 1
    await world.namespace.clock.advance(61)
    assert (await world.ask(method, location)).status == 410
    assert world.waiting() == 1


async def test_message_is_named_by_its_id_or_its_number(world: HttpWorld) -> None:
    """An id may have any characters; in the address they are encoded."""
    await world.send("orders", BrokerProperties='{"MessageId": "a/b c?"}')
    lock = (await world.lock("orders")).broker["LockToken"]
    assert (await world.ask("POST", f"orders/messages/1/{lock}")).status == 200
    assert (await world.ask("DELETE", f"orders/messages/a%2Fb%20c%3F/{lock.upper()}")).status == 200
    assert world.waiting() == 0


async def test_lock_of_a_link_is_settled_over_http(world: HttpWorld) -> None:
    """And the SDK is told that its lock is gone."""
    sender, receiver = await world.sender(), await world.receiver()
    await sender.send_messages(ServiceBusMessage("one"))
    [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
    path = f"orders/messages/{message.sequence_number}/{message.lock_token}"
    assert (await world.ask("DELETE", path)).status == 200
    assert world.waiting() == 0


async def test_dead_letters_are_received_with_their_reason(world: HttpWorld) -> None:
    """From `…/$DeadLetterQueue` of a queue and of a subscription, in any case."""
    await world.send("brief")
    for _ in range(2):
        assert (await world.ask("PUT", (await world.lock("brief")).headers["Location"])).status == 200
    answer = await world.lock("brief/$deadletterqueue")
    assert answer.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert (await world.ask("DELETE", answer.headers["Location"])).status == 200
    assert world.namespace.queue_info("brief").dead_lettered == 0
    await world.send("events")
    for _ in range(10):
        location = (await world.lock("events/Subscriptions/audit")).headers["Location"]
        assert (await world.ask("PUT", location)).status == 200
    dead = await world.ask("DELETE", "Events/subscriptions/Audit/$DeadLetterQueue/messages/head?timeout=5")
    assert (dead.status, dead.body) == (200, b"one")


async def test_messages_travel_over_tls(world: HttpWorld) -> None:
    """On the same port; the address of a locked message has the scheme of the request."""
    trusted = ssl.create_default_context(cafile=str(world.broker.ca_file))
    base, headers = world.url("orders/messages").replace("http://", "https://"), {"Authorization": world.token()}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        async with session.post(base, data=b"x" * 200_000) as answer:
            assert answer.status == 201
        async with session.post(f"{base}/head?timeout=5") as answer:
            location = answer.headers["Location"]
            assert (answer.status, len(await answer.read())) == (201, 200_000)
        assert location.startswith(base)
        async with session.delete(location) as answer:
            assert answer.status == 200
    assert world.waiting() == 0


async def test_failing_store_leaves_message_and_lock(world: HttpWorld) -> None:
    """500: a lock goes on, and a message that could not be deleted is free again without a counted delivery."""

    def fail(_takes_room: bool, done: Done) -> None:
        asyncio.get_running_loop().call_soon(done, StoreError("the disk is broken"))

    await world.send("orders", b"first")
    await world.send("orders", b"second")
    location = (await world.lock("orders")).headers["Location"]
    world.namespace.store.hindrance = fail
    for method in ("PUT", "DELETE"):
        assert (await world.ask(method, location)).status == 500
    assert (await world.ask("DELETE", "orders/messages/head?timeout=5")).status == 500
    assert (world.waiting(), world.locks()) == (2, 1)
    world.namespace.store.hindrance = None
    assert (await world.ask("DELETE", location)).status == 200
    answer = await world.ask("DELETE", "orders/messages/head?timeout=5")
    assert (answer.body, answer.broker["DeliveryCount"]) == (b"second", 1)


# ── waiting ──


async def test_request_waits_for_a_message(world: HttpWorld) -> None:
    """And gets it when it comes; several requests get one each."""
    waits = [asyncio.create_task(world.ask("DELETE", "orders/messages/head?timeout=60")) for _ in range(3)]
    await until(lambda: len(world.namespace.waiting_requests) == 3)
    sender = await world.sender()
    await sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
    answers: list[HttpAnswer] = await asyncio.gather(*waits)
    assert sorted((answer.status, answer.body) for answer in answers) == [(200, b"0"), (200, b"1"), (200, b"2")]
    assert len(world.namespace.waiting_requests) == 0


async def test_wait_ends_without_a_message(world: HttpWorld) -> None:
    """204 after the time that the client named; a time that is no number is refused."""
    began = asyncio.get_running_loop().time()
    answer = await world.ask("POST", "orders/messages/head?timeout=1&api-version=2013-10")
    assert (answer.status, answer.body) == (204, b"")
    assert 1 <= asyncio.get_running_loop().time() - began < 20 * slowness()
    for text in ("-1", "soon", "1.5", "٣", ""):
        assert (await world.ask("POST", f"orders/messages/head?timeout={text}")).status == 400


async def test_links_and_requests_share_a_queue(world: HttpWorld) -> None:
    """Each message goes to one of them, and both get some."""
    receiver = await world.receiver()
    seen: list[str] = []

    async def over_http() -> int:
        count = 0
        while len(seen) < 40:
            answer = await world.ask("DELETE", "orders/messages/head?timeout=1")
            if answer.status == 200:
                seen.append(answer.body.decode())
                count += 1
        return count

    async def over_amqp() -> int:
        count = 0
        while len(seen) < 40:
            for message in await receiver.receive_messages(1, max_wait_time=1):
                seen.append(str(message))
                await receiver.complete_message(message)
                count += 1
        return count

    taking = [asyncio.create_task(over_http()), asyncio.create_task(over_amqp())]
    await until(lambda: len(world.namespace.waiting_requests) == 1)
    sender = await world.sender()
    for number in range(40):
        await sender.send_messages(ServiceBusMessage(str(number)))
    counts = await asyncio.gather(*taking)
    assert sorted(map(int, seen)) == list(range(40))
    assert min(counts) > 0


async def test_deleted_queue_ends_the_wait(world: HttpWorld) -> None:
    """With the answer for an entity that does not exist."""
    waiting = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
    await until(lambda: len(world.namespace.waiting_requests) == 1)
    await world.namespace.delete("orders")
    assert (await waiting).status == 404
    assert (await world.ask("POST", "orders/messages", b"x")).status == 404


async def test_reset_leaves_requests_waiting(world: HttpWorld) -> None:
    """As it leaves links: the queue has the same name, and is empty."""
    waiting = asyncio.create_task(world.ask("DELETE", "orders/messages/head?timeout=60"))
    await until(lambda: len(world.namespace.waiting_requests) == 1)
    await world.namespace.reset()
    await world.send("orders", b"after")
    answer = await waiting
    assert (answer.status, answer.body) == (200, b"after")


async def test_stopping_broker_ends_the_wait() -> None:
    """At once, with an error that a client repeats."""
    async with http_world() as world:
        waiting = asyncio.create_task(world.ask("POST", "orders/messages/head?timeout=60"))
        await until(lambda: len(world.namespace.waiting_requests) == 1)
        await world.broker.stop()
        assert (await waiting).status == 503


# ── beside the administration ──


async def test_entity_whose_name_ends_like_a_request_is_administered(world: HttpWorld) -> None:
    """A queue may be called `orders/messages/head`; its messages have a longer path."""
    admin = await world.admin()
    name = "orders/messages/head"
    await admin.create_queue(name)
    assert (await admin.get_queue(name)).name == name
    await world.send(name, b"there")
    assert (await world.ask("DELETE", f"{name}/messages/head?timeout=5")).body == b"there"
    await admin.delete_queue(name)
    assert world.namespace.queue(name) is None
    assert (await world.ask("DELETE", f"{name}?timeout=0")).status == 204


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "absent/messages", 404),
        ("POST", "absent/messages/head", 404),
        ("DELETE", "events/messages/head", 400),
        ("POST", "orders/$deadletterqueue/messages", 400),
        ("POST", "events/subscriptions/absent/messages/head", 404),
        ("PATCH", "orders/messages/head", 405),
        ("PUT", "orders/messages/head", 400),
    ],
)
async def test_impossible_request_has_its_status(world: HttpWorld, method: str, path: str, status: int) -> None:
    """And the XML of all errors."""
    answer = await world.ask(method, path, b"x" if method == "POST" else None)
    assert answer.status == status, answer
    assert answer.body.startswith(f"<Error><Code>{status}</Code><Detail>".encode())


async def test_annotated_message_of_the_sdk_is_received(world: HttpWorld) -> None:
    """A value body and properties that the SDK writes with its own types."""
    sender = await world.sender()
    message = AmqpAnnotatedMessage(value_body="hello", application_properties={"n": 5, "s": "x"})
    await sender.send_messages(message)
    status, headers, body = await asyncio.to_thread(plain_request, world, "DELETE", "orders/messages/head?timeout=5")
    assert (status, body, headers["n"], headers["s"]) == (200, b"hello", "5", '"x"')
    assert json.loads(headers["BrokerProperties"])["SequenceNumber"] == 1
