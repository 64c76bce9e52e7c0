"""Sends over HTTP, and what the genuine SDK receives."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from tests.brokers import BrokerProcess
from tests.limits import slowness
from tests.rest.world import JSON_BATCH, HttpWorld, plain_request

WAIT_S = 10 * slowness()


async def received(world: HttpWorld, count: int = 1, queue: str = "orders") -> list[ServiceBusReceivedMessage]:
    """The next messages, as the SDK receives and completes them."""
    receiver = await world.receiver(queue)
    messages: list[ServiceBusReceivedMessage] = []
    while len(messages) < count:
        got = await receiver.receive_messages(count - len(messages), max_wait_time=WAIT_S)
        assert got, f"{len(messages)} of {count} messages came"
        for message in got:
            await receiver.complete_message(message)
        messages += got
    return messages


async def test_message_has_all_that_its_sender_gave(world: HttpWorld) -> None:
    """Broker properties, custom properties with their types, the content type and the bytes of the body."""
    broker = {
        "CorrelationId": "c-1",
        "Label": "résumé",
        "MessageId": "m-1",
        "PartitionKey": "key",
        "ReplyTo": "answers",
        "ReplyToSessionId": "talk",
        "TimeToLive": 90.5,
        "To": "somebody",
    }
    await world.send(
        "orders",
        b"\x00\xff body",
        **{
            "BrokerProperties": json.dumps(broker),
            "Content-Type": "application/pdf",
            "Priority": '"High"',
            "quoted": '"This \\"should\\" work"',
            "number": "42",
            "price": "299.98",
            "active": "true",
            "dob": '"Wed, 14 Dec 2011 00:00:00 GMT"',
        },
    )
    [message] = await received(world)
    assert (message.correlation_id, message.subject, message.message_id) == ("c-1", "résumé", "m-1")
    assert (message.partition_key, message.reply_to, message.reply_to_session_id) == ("key", "answers", "talk")
    assert (message.time_to_live, message.to) == (timedelta(seconds=90.5), "somebody")
    assert (b"".join(message.body), message.content_type) == (b"\x00\xff body", "application/pdf")
    assert message.body_type == AmqpMessageBodyType.DATA
    assert message.application_properties == {
        b"Priority": b"High",
        b"quoted": b'This "should" work',
        b"number": 42,
        b"price": 299.98,
        b"active": True,
        b"dob": 1323820800000,
    }


async def test_client_of_the_standard_library_sends_and_receives(world: HttpWorld) -> None:
    """A plain HTTP client has no headers of its own that would be properties; a message without an id gets one."""
    sent = await asyncio.to_thread(plain_request, world, "POST", "orders/messages", b"plain", {"Color": '"red"'})
    assert sent[0] == 201
    status, headers, body = await asyncio.to_thread(plain_request, world, "DELETE", "orders/messages/head?timeout=5")
    assert (status, body, headers["Color"]) == (200, b"plain", '"red"')
    properties = json.loads(headers["BrokerProperties"])
    assert len(properties["MessageId"]) == 32
    assert properties["TimeToLive"] == pytest.approx(922337203685.4775)
    assert headers["Content-Type"] == "application/xml; charset=utf-8"


async def test_headers_of_http_are_not_properties(world: HttpWorld) -> None:
    """Proxies, browsers and tracing add headers that no sender wrote."""
    await world.send(
        "orders", b"x", **{"traceparent": "00-a-b-01", "X-Forwarded-For": "1.2.3.4", "Sec-Fetch-Mode": "cors", "n": "1"}
    )
    [message] = await received(world)
    assert message.application_properties == {b"n": 1}


async def test_batch_arrives_whole(world: HttpWorld) -> None:
    """The example of the documentation, and types of custom properties."""
    batch = [
        {"Body": "first", "BrokerProperties": {"Label": "M1", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "second ✓", "BrokerProperties": {"Label": "M2"}, "UserProperties": {"Priority": "Low"}},
        {"Body": "third", "UserProperties": {"n": 3, "f": 1.5, "b": True, "none": None}},
        {},
    ]
    await world.send("orders", json.dumps(batch).encode(), **{"Content-Type": f"{JSON_BATCH}; charset=utf-8"})
    first, second, third, empty = await received(world, 4)
    assert (str(first), first.subject, first.time_to_live) == ("first", "M1", timedelta(seconds=40))
    assert (str(second), second.subject, second.application_properties) == ("second ✓", "M2", {b"Priority": b"Low"})
    assert (str(third), third.application_properties) == ("third", {b"n": 3, b"f": 1.5, b"b": True, b"none": None})
    assert (str(empty), empty.content_type) == ("", None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[1]",
        b'[{"Body": {"a": 1}}]',
        b'[{"Body": "\\ud800"}]',
        b'[{"BrokerProperties": "text"}]',
        b'[{"UserProperties": {"a": [1]}}]',
        b'[{"UserProperties": {"a": 18446744073709551616}}]',
        b'[{"Body": "good"}, {"BrokerProperties": {"TimeToLive": -1}}]',
        b'[{"Body": "good"}, {"BrokerProperties": {"MessageId": "' + b"m" * 129 + b'"}}]',
        b"[" * 100_000,
        b"[" + b"{}," * 5000 + b"{}]",
    ],
)
async def test_bad_batch_is_refused_whole(world: HttpWorld, body: bytes) -> None:
    """Whatever is wrong with one message, none is taken."""
    answer = await world.ask("POST", "orders/messages", body, headers={"Content-Type": JSON_BATCH})
    assert answer.status == 400
    assert answer.body.startswith(b"<Error><Code>400</Code><Detail>SubCode=40000. ")
    assert world.waiting() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Color": "red"},
        {"BrokerProperties": "{'Label': 'M1'}"},
        {"BrokerProperties": json.dumps({"SessionId": "a", "PartitionKey": "b"})},
        {"BrokerProperties": json.dumps({"MessageId": "m" * 129})},
        {"Content-Encoding": "gzip"},
    ],
)
async def test_bad_header_is_refused(world: HttpWorld, headers: dict[str, str]) -> None:
    """The text names the header, as the service's does."""
    answer = await world.ask("POST", "orders/messages", b"x", headers=headers)
    assert answer.status == 400
    assert world.waiting() == 0


async def test_message_that_is_too_large_is_refused(world: HttpWorld) -> None:
    """By its Content-Length before it is read, and without one as soon as it is known."""
    limit = 1 << 20
    large = b"x" * (limit + 1)

    async def parts() -> object:
        yield large

    for body in (large, parts()):
        url, headers = world.url("small/messages"), {"Authorization": world.token()}
        async with world.session.post(url, data=body, headers=headers) as answer:
            assert answer.status == 413
    assert (await world.ask("POST", "small/messages", b"x" * (limit - 10))).status == 413, "with its properties"
    assert (await world.ask("POST", "small/messages", b"x" * (limit - 200))).status == 201
    assert world.namespace.budget.arriving.used == 0


async def test_topic_gives_copies_to_its_subscriptions(world: HttpWorld) -> None:
    """A subscription shows the topic's number too; segments of the path compare without case."""
    await world.send("Events", b"for all", color='"red"')
    answer = await world.ask("DELETE", "events/SUBSCRIPTIONS/Audit/Messages/Head?timeout=5")
    assert (answer.status, answer.body, answer.headers["color"]) == (200, b"for all", '"red"')
    assert (answer.broker["EnqueuedSequenceNumber"], answer.broker["SequenceNumber"]) == (1, 1)
    refused = await world.ask("POST", "events/subscriptions/audit/messages", b"x")
    assert (refused.status, b"send to its topic" in refused.body) == (400, True)


async def test_scheduled_message_waits_for_its_time(world: HttpWorld) -> None:
    """`ScheduledEnqueueTimeUtc` is a date of HTTP."""
    when = world.namespace.clock.now() + timedelta(hours=1)
    properties = {"ScheduledEnqueueTimeUtc": when.strftime("%a, %d %b %Y %H:%M:%S GMT")}
    await world.send("orders", BrokerProperties=json.dumps(properties))
    assert (await world.ask("DELETE", "orders/messages/head?timeout=0")).status == 204
    await world.namespace.clock.advance(3601)
    answer = await world.ask("DELETE", "orders/messages/head?timeout=0")
    assert answer.status == 200
    assert answer.broker["ScheduledEnqueueTimeUtc"] == properties["ScheduledEnqueueTimeUtc"]


async def test_time_to_live_of_months_is_kept(world: HttpWorld) -> None:
    """An AMQP header has room for 49 days."""
    await world.send("orders", BrokerProperties='{"TimeToLive": 8640000}')
    await world.namespace.clock.advance(60 * 86_400)
    answer = await world.ask("POST", "orders/messages/head?timeout=0")
    assert answer.broker["TimeToLive"] == 8640000
    assert (await world.ask("DELETE", answer.headers["Location"])).status == 200
    await world.send("orders", BrokerProperties='{"TimeToLive": 10}')
    await world.namespace.clock.advance(11)
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 204


async def test_session_id_is_needed_where_the_queue_has_sessions(world: HttpWorld) -> None:
    """A session cannot be received over HTTP, as on Azure; the SDK receives it."""
    refused = await world.ask("POST", "talks/messages", b"x")
    assert (refused.status, b"SessionId was not set" in refused.body) == (400, True)
    await world.send("talks", b"hello", BrokerProperties='{"SessionId": "s-1", "PartitionKey": "s-1"}')
    for method in ("POST", "DELETE"):
        answer = await world.ask(method, "talks/messages/head?timeout=0")
        assert (answer.status, b"requires sessions" in answer.body) == (400, True)
    client = await world.client()
    async with client.get_queue_receiver("talks", session_id="s-1") as receiver:
        [message] = await receiver.receive_messages(1, max_wait_time=WAIT_S)
        assert (str(message), message.session_id) == ("hello", "s-1")


async def test_ping_over_http_is_never_seen(world: HttpWorld) -> None:
    """It proves that the queue takes messages, as over AMQP."""
    await world.send("orders", b"", **{"Content-Type": "application/vnd.ms-servicebus-ping"})
    assert world.waiting() == 0


async def test_full_disk_refuses_and_stores_nothing(world: HttpWorld) -> None:
    """An answer other than 201 means that the message is not there."""
    world.faults.add("disk-full")
    answer = await world.ask("POST", "orders/messages", b"x")
    assert (answer.status, b"The disk is full" in answer.body) == (500, True)
    assert world.waiting() == 0
    world.faults.clear()
    await world.check_whole()


async def test_message_waits_for_its_commit_before_it_is_accepted(world: HttpWorld) -> None:
    """While the disk is slow there is no answer, and nobody receives the message."""
    world.faults.add("slow-disk", delay_s=3600)
    sending = asyncio.create_task(world.ask("POST", "orders/messages", b"x"))
    async with asyncio.timeout(30):
        while not world.faults.held.owns_any():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)
    assert (await world.ask("POST", "orders/messages/head?timeout=0")).status == 204
    assert not sending.done()
    world.faults.clear()
    assert (await sending).status == 201
    assert (await world.ask("POST", "orders/messages/head?timeout=5")).status == 201


async def test_accepted_message_survives_a_kill(tmp_path: Path) -> None:
    """201 is said after the commit, and so is 200 for what was deleted or completed."""
    with BrokerProcess(tmp_path / "data", namespaces=["contoso"]) as process:
        with process.admin() as admin:
            admin.create_queue("orders")
        headers = {"Authorization": process.token("orders")}
        async with aiohttp.ClientSession(headers=headers) as session:
            url = f"http://127.0.0.1:{process.ports['contoso']}/orders/messages"
            for number in range(20):
                async with session.post(url, data=b"%d" % number) as answer:
                    assert answer.status == 201
        process.kill()
        process.start()
        async with aiohttp.ClientSession(headers=headers) as session:
            for number in range(10):
                async with session.delete(f"{url}/head?timeout=10") as answer:
                    assert (answer.status, await answer.read()) == (200, b"%d" % number)
            for number in range(10, 20):
                async with session.post(f"{url}/head?timeout=10") as answer:
                    assert (answer.status, await answer.read()) == (201, b"%d" % number)
                    location = answer.headers["Location"]
                async with session.delete(location) as answer:
                    assert answer.status == 200
        process.kill()
        process.start()
        async with aiohttp.ClientSession(headers=headers) as session, session.post(f"{url}/head?timeout=0") as answer:
            assert answer.status == 204


async def test_message_of_the_sdk_and_of_http_are_in_one_order(world: HttpWorld) -> None:
    """Both are messages of the same queue."""
    sender = await world.sender()
    for number in range(6):
        if number % 2:
            await world.send("orders", b"%d" % number)
        else:
            await sender.send_messages(ServiceBusMessage(str(number)))
    bodies = [(await world.ask("DELETE", "orders/messages/head?timeout=5")).body for _ in range(6)]
    assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
