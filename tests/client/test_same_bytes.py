"""Every kind of message reaches the peer with the bytes of the plain SDK: body, properties, batches, lists, schedules.

Message ids that the caller did not give, and times that the SDK derives from the clock, are compared apart.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.amqp.message import DATA, PROPERTIES, Message, sections
from pairbus.sdk.encoding import encode
from tests.client.messages import WHEN, of_every_kind, senders_part
from tests.client.plain import Caller, Who
from tests.client.world import Stage
from tests.scripted.mailbox import Received
from tests.sdk.flavours import Flavour

EMPTY_BYTES = len(encode(ServiceBusMessage(bytes(256), message_id="id"))) - 256 + 8  # of a message in a batch, no body
WHO: tuple[Who, ...] = ("plain", "paired")
OURS: tuple[Who, ...] = ("paired", "single")
CLOCK_MS = 60_000  # largest difference of times in the two sends of one message


class Subclass(ServiceBusMessage):
    """A message type of the application's own."""


def message(body: Any = b"x", **fields: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **{"message_id": "id", **fields})


def annotated(**fields: Any) -> AmqpAnnotatedMessage:
    body = {} if any(name.endswith("_body") for name in fields) else {"data_body": b"x"}
    return AmqpAnnotatedMessage(**{"properties": {"message_id": "id"}, **body, **fields})


def of_kind(name: str) -> Any:
    return of_every_kind()[name]


def with_property(value: Any) -> ServiceBusMessage:
    return message(application_properties={"p": value})


VALUES: dict[str, Any] = {
    "text": "grüße",
    "empty text": "",
    "small": 5,
    "negative": -(2**40),
    "largest": 2**63 - 1,
    "float": 0.1,
    "true": True,
    "false": False,
    "bytes": b"bytes",
    "null": None,
    "uuid": uuid.UUID(int=7),
    "time": WHEN,
    "naive time": datetime(2030, 1, 2, 3, 4, 5),
}
MESSAGES: dict[str, Callable[[], Any]] = {
    **{f"kind: {name}": partial(of_kind, name) for name in of_every_kind()},
    **{f"property: {name}": partial(with_property, value) for name, value in VALUES.items()},
    "property name in bytes": lambda: message(application_properties={b"p": "v"}),
    "text body": lambda: message("grüße"),
    "empty text body": lambda: message(""),
    "bytearray body": lambda: annotated(data_body=bytearray(b"bytes")),
    "list of bytes": lambda: message([b"one", b"two"]),
    "list of texts": lambda: message(["one", "two"]),
    "empty body list": lambda: annotated(data_body=[]),
    "no id": lambda: ServiceBusMessage(b"x"),
    "no id and more": lambda: ServiceBusMessage(b"x", subject="s", session_id="s"),
    "id in bytes": lambda: annotated(properties={"message_id": b"id"}),
    "id as uuid": lambda: annotated(properties={"message_id": uuid.UUID(int=5)}),
    "id as number": lambda: annotated(properties={"message_id": 5}),
    "long id": lambda: message(message_id="i" * 128),
    "time to live": lambda: message(time_to_live=timedelta(minutes=5)),
    "time to live, annotated": lambda: annotated(header={"time_to_live": 5000}),
    "longest time to live": lambda: message(time_to_live=timedelta(days=10_000)),
    "scheduled": lambda: message(scheduled_enqueue_time_utc=WHEN),
    "session": lambda: message(session_id="s"),
    "partition": lambda: message(partition_key="p"),
    "session and partition": lambda: message(session_id="s", partition_key="s"),
    "all texts": lambda: message(
        subject="s", to="t", reply_to="r", reply_to_session_id="rs", correlation_id="c", content_type="application/json"
    ),
    "empty texts": lambda: message(subject="", to="", correlation_id="", content_type=""),
    "empty properties": lambda: message(application_properties={}),
    "header without fields": lambda: annotated(header=AmqpMessageHeader()),
    "durable header": lambda: annotated(header=AmqpMessageHeader(durable=True, priority=0, first_acquirer=True)),
    "delivery count": lambda: annotated(header=AmqpMessageHeader(delivery_count=3)),
    "delivery annotations": lambda: annotated(delivery_annotations={"d": 1}),
    "annotations": lambda: annotated(annotations={"x-opt-a": 1, "b": "t"}),
    "footer": lambda: annotated(footer={"f": b"x"}),
    "user id": lambda: annotated(properties=AmqpMessageProperties(message_id="id", user_id="me")),
    "subclass": lambda: Subclass(b"x", message_id="id"),
    "mapping": lambda: {"body": "x", "message_id": "id", "application_properties": {"a": 1}, "session_id": "s"},
    "large": lambda: message(bytes(200_000)),
}
LISTS: dict[str, Callable[[], Any]] = {
    "list of one": lambda: [message()],
    "list of some": lambda: [message(message_id=str(number)) for number in range(5)],
    "tuple": lambda: (message(message_id="a"), message(message_id="b")),
    "generator of one": lambda: (message() for _ in range(1)),
    "generator of some": lambda: (message(message_id=str(number)) for number in range(3)),
    "set of one": lambda: {message()},
    "list of mappings": lambda: [{"body": "x", "message_id": "a"}, {"body": "y", "message_id": "b"}],
    "list of annotated": lambda: [annotated(), annotated(value_body={"a": 1})],
    "list of every kind": lambda: [one for name, one in of_every_kind().items() if name != "large"],
    "list with session": lambda: [message(session_id="s"), message(session_id="s", message_id="b")],
    "list with partition": lambda: [message(partition_key="p"), message(partition_key="p")],
    "list with time to live": lambda: [message(time_to_live=timedelta(minutes=5)), message()],
    "list without ids": lambda: [ServiceBusMessage("a"), ServiceBusMessage("b", session_id="s")],
    "first without id": lambda: [ServiceBusMessage("a", partition_key="p"), message(partition_key="p")],
    "id in bytes first": lambda: [annotated(properties={"message_id": b"id"}), message()],
    "id as uuid first": lambda: [annotated(properties={"message_id": uuid.UUID(int=5)}), message()],
    "large ones": lambda: [message(bytes(300)), message(bytes(70_000))],
    "a number that does not fit": lambda: [message(), message(application_properties={"p": 2**40})],
    "no message among them": lambda: [message(), "text"],
    "more than a batch holds": lambda: [message(bytes(200_000)), message(bytes(200_000))],
    "empty list": list,
    "empty mapping": dict,
    "text": lambda: "text",
    "nothing": lambda: None,
    "the same twice": lambda: [one := message(), one],
}


ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"A random id, of the SDK or of ours: no message above has such a text of its own."
NEW_ID = str(uuid.UUID(int=0)).encode()


def nameless(payload: bytes) -> bytes:
    return ID.sub(NEW_ID, payload)


def without_clock(payload: bytes) -> tuple[list[Any], list[int]]:
    """The sections, with the properties decoded; and apart the times that the SDK derives from the clock."""
    properties = Message.decode(payload).properties
    assert properties is not None
    times = [int(one) for one in (properties.creation_time, properties.absolute_expiry_time) if one is not None]
    properties.creation_time = properties.absolute_expiry_time = None
    found = sections(payload)
    return [properties if code == PROPERTIES else payload[start:end] for code, start, _, end in found], times


def assert_same_message(plain: bytes, paired: bytes) -> None:
    """Compare one encoded message, or the envelope of a batch."""
    plain, paired = nameless(plain), nameless(paired)
    if paired == plain:
        return
    (plain_parts, plain_times), (paired_parts, paired_times) = without_clock(plain), without_clock(paired)
    assert paired_parts == plain_parts
    (created, expires), (plainly_created, plainly_expires) = paired_times, plain_times
    assert expires - created == plainly_expires - plainly_created and abs(created - plainly_created) < CLOCK_MS


def assert_same(plain: Received, paired: Received) -> None:
    assert (paired.message_format, len(paired.messages)) == (plain.message_format, len(plain.messages))
    for one, other in zip(plain.messages, paired.messages, strict=True):
        assert_same_message(one, other)
    if plain.is_batch:
        assert_same_message(*(envelope(each.payload) for each in (plain, paired)))


def envelope(batch: bytes) -> bytes:
    """The sections of a batch before its messages, which are data sections."""
    first = next(start for code, start, _, _ in sections(batch) if code == DATA)
    return batch[:first]


async def recorded(stage: Stage, who: Who, flavour: Flavour, kinds: dict[str, Any]) -> dict[str, Received | str]:
    """Send each kind with one sender: the transfer that it became, or the error."""
    caller = Caller(stage, who, flavour)
    found: dict[str, Received | str] = {}
    sender = caller.client.get_queue_sender("orders")
    for name, make in kinds.items():
        before = len(stage.primary.received)
        try:
            await caller.call(sender.send_messages, make(), timeout=20)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = next(iter(stage.primary.received[before:]), "nothing was sent")
    await caller.call(sender.close)
    await caller.close()
    return found


async def compared(stage: Stage, flavour: Flavour, kinds: dict[str, Any]) -> None:
    plain = await recorded(stage, "plain", flavour, kinds)
    wrong = []
    for who in OURS:
        ours = await recorded(stage, who, flavour, kinds)
        for name, expected in plain.items():
            try:
                other = ours[name]
                if isinstance(expected, str) or isinstance(other, str):
                    assert other == expected
                else:
                    assert_same(expected, other)
            except AssertionError as error:
                wrong.append(f"{name}, {who}: {str(error)[:600]}")
    assert not wrong, "\n".join(wrong)


async def test_message_without_an_id_differs_by_the_id_only(stage: Stage, flavour: Flavour) -> None:
    """The SDK gives one to its own message type only; every copy of a diverted message must be known again."""
    kinds = {"one": lambda: AmqpAnnotatedMessage(data_body=b"x", annotations={"x-opt-a": 1})}
    plain = await recorded(stage, "plain", flavour, kinds)
    paired = await recorded(stage, "paired", flavour, kinds)
    given, kept = (Message.decode(each["one"].payload) for each in (paired, plain))  # type: ignore[union-attr]
    assert kept.properties is None and given.properties is not None
    assert ID.fullmatch(str(given.properties.message_id).encode())
    given.properties = None
    assert given == kept


async def filled(caller: Caller, sender: Any, messages: list[Any]) -> ServiceBusMessageBatch:
    batch: ServiceBusMessageBatch = await caller.call(sender.create_message_batch)
    for one in messages:
        batch.add_message(one)
    return batch


async def test_batch_has_the_bytes_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """A batch of the paired sender, and one that a sender of the plain SDK made."""
    plain, paired = Caller(stage, "plain", flavour), Caller(stage, "paired", flavour)
    theirs, ours = (each.client.get_queue_sender("orders") for each in (plain, paired))
    for make in (make for name, make in LISTS.items() if name.startswith(("list", "first", "id", "la"))):
        batches = [
            (plain, theirs, await filled(plain, theirs, list(make()))),
            (paired, ours, await filled(paired, ours, list(make()))),
            (paired, ours, await filled(plain, theirs, list(make()))),
        ]
        for caller, sender, batch in batches:
            await caller.call(sender.send_messages, batch)
        expected, own, foreign = stage.primary.received[-3:]
        assert_same(expected, own)
        assert_same(expected, foreign)
        assert [len(batch) for _, _, batch in batches[:2]] == [len(expected.messages)] * 2
        assert batches[0][2].size_in_bytes == batches[1][2].size_in_bytes
        assert batches[0][2].max_size_in_bytes == batches[1][2].max_size_in_bytes
    await plain.close()


async def test_batch_that_is_full_is_sent_with_its_envelope(stage: Stage, flavour: Flavour) -> None:
    """The limit is for its messages: the envelope makes the transfer larger than the link's limit, as in the SDK."""
    caller = Caller(stage, "paired", flavour)
    sender = caller.client.get_queue_sender("orders")
    batch = await filled(caller, sender, [message()])
    batch.add_message(message(bytes(batch.max_size_in_bytes - batch.size_in_bytes - EMPTY_BYTES)))
    assert batch.size_in_bytes == batch.max_size_in_bytes
    await caller.call(sender.send_messages, batch)
    [received] = stage.primary.received
    assert len(received.payload) > batch.max_size_in_bytes


SCHEDULED: dict[str, Callable[[], Any]] = {
    "one": message,
    "list": lambda: [message(), message(message_id="b", session_id="s"), message(partition_key="p")],
    "empty session": lambda: message(session_id=""),
    "with a time of its own": lambda: message(scheduled_enqueue_time_utc=WHEN - timedelta(days=1)),
    "properties": lambda: message(application_properties={"a": 1, "b": "t"}, time_to_live=timedelta(hours=1)),
    "annotated": lambda: annotated(value_body={"a": [1]}),
    "mapping": lambda: {"body": "x", "message_id": "id"},
    "id in bytes": lambda: annotated(properties={"message_id": b"id"}),
    "id as number": lambda: annotated(properties={"message_id": 5}),
    "generator": lambda: (message(message_id=str(number)) for number in range(2)),
}


async def test_scheduled_messages_are_asked_for_as_the_plain_sdk_asks(stage: Stage, flavour: Flavour) -> None:
    """The request to `$management` entry by entry, and the sequence numbers that come back."""
    answers: dict[Who, list[int]] = {}
    for who in WHO:
        caller = Caller(stage, who, flavour)
        sender = caller.client.get_queue_sender("orders")
        scheduled = [await caller.call(sender.schedule_messages, make(), WHEN) for make in SCHEDULED.values()]
        for numbers in scheduled:
            await caller.call(sender.cancel_scheduled_messages, numbers)
        answers[who] = list(map(len, scheduled))
        if who == "plain":
            await caller.close()
    assert answers["plain"] == answers["paired"] and all(answers["plain"])
    requests = stage.primary.requests
    plain, paired = requests[: len(requests) // 2], requests[len(requests) // 2 :]
    assert [operation for _, operation, _ in plain] == [operation for _, operation, _ in paired]
    for (_, _, theirs), (_, _, ours) in zip(plain, paired, strict=True):
        assert len(theirs.get("messages", ())) == len(ours.get("messages", ()))
        for one, other in zip(theirs.get("messages", ()), ours.get("messages", ()), strict=True):
            assert_same_message(bytes(one.pop("message")), bytes(other.pop("message")))
            assert one == other
        assert [theirs.keys(), *map(type, theirs.values())] == [ours.keys(), *map(type, ours.values())]


async def test_received_message_is_sent_again_as_the_plain_sdk_sends_it(stage: Stage, flavour: Flavour) -> None:
    """A received message may be given to a sender: the SDK leaves out what the broker wrote into it."""
    for who in WHO:
        caller = Caller(stage, who, flavour)
        sender = caller.client.get_queue_sender("orders")
        receiver = caller.client.get_queue_receiver("letters")
        stage.primary.put("letters", *(encode(one) for one in (message(session_id="s"), annotated(footer={"f": 1}))))
        received = await caller.call(receiver.receive_messages, 2, max_wait_time=10)
        while len(received) < 2:
            received += await caller.call(receiver.receive_messages, 1, max_wait_time=10)
        for one in received:
            await caller.call(sender.send_messages, one)
        await caller.call(sender.send_messages, received)
        await caller.call(receiver.close)
        if who == "plain":
            await caller.close()
    plain, paired = stage.primary.received[:3], stage.primary.received[3:]
    for one, other in zip(plain, paired, strict=True):
        assert [senders_part(each) for each in one.messages] == [senders_part(each) for each in other.messages]
        assert [keys_of(each) for each in one.messages] == [keys_of(each) for each in other.messages]


def keys_of(payload: bytes) -> set[str]:
    return set(Message.decode(payload).annotations or ())


async def test_message_of_every_kind_has_the_bytes_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """Body kinds, property types, header, annotations, times; what the SDK cannot encode raises the same error."""
    await compared(stage, flavour, MESSAGES)


async def test_list_of_messages_has_the_bytes_of_the_plain_sdk(stage: Stage, flavour: Flavour) -> None:
    """The SDK sends every iterable as one batch, also one of a single message; a mapping is one message."""
    await compared(stage, flavour, LISTS)
