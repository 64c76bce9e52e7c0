"""The messages of one call as bytes: the SDK's own, in as few sends as the links take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from pairbus.amqp.message import BATCH_FORMAT, Message, encode_batch
from pairbus.backlog.envelope import Home, unwrap
from pairbus.client.errors import ReservedPropertyError
from pairbus.client.outgoing import (
    BATCH_LIMIT,
    ENVELOPE_BYTES,
    THE_PRIMARY,
    Order,
    Outgoing,
    PairedMessageBatch,
    new_batch,
    outgoing_of,
    parcels,
    scheduled,
)
from pairbus.sdk.encoding import encode

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


def messages(count: int, size: int = 300) -> list[ServiceBusMessage]:
    return [ServiceBusMessage("x" * size, message_id=f"id-{number}") for number in range(count)]


def encoded(count: int, size: int = 300) -> list[bytes]:
    return [encode(message) for message in messages(count, size)]


def batch_of(batch: ServiceBusMessageBatch, count: int) -> ServiceBusMessageBatch:
    for message in messages(count):
        batch.add_message(message)
    return batch


def going_of(given: Any) -> Outgoing:
    outgoing = outgoing_of(given)
    assert outgoing is not None
    return outgoing


FORMS: list[tuple[str, Callable[[], Any], int, bool]] = [
    ("a message", lambda: messages(1)[0], 1, False),
    ("a list", lambda: messages(3), 3, True),
    ("a list of one", lambda: messages(1), 1, True),
    ("a generator", lambda: (one for one in messages(3)), 3, True),
    ("a mapping", lambda: {"body": "x" * 300, "message_id": "id-0"}, 1, False),
    ("a batch of the SDK", lambda: batch_of(ServiceBusMessageBatch(), 3), 3, True),
    ("a paired batch", lambda: batch_of(new_batch(0, None, {}), 3), 3, True),
]


@pytest.mark.parametrize(("form", "made", "count", "is_batch"), FORMS, ids=lambda value: str(value)[:20])
def test_every_form_becomes_the_sdks_bytes(form: str, made: Callable[[], Any], count: int, is_batch: bool) -> None:
    """The primary gets a message, or one batch, as the plain SDK would send it."""
    outgoing = going_of(made())
    assert (outgoing.payloads, outgoing.ids) == (encoded(count), [f"id-{number}" for number in range(count)])
    expected = (encode_batch(encoded(count)), BATCH_FORMAT) if is_batch else (encoded(1)[0], 0)
    assert outgoing.for_primary() == expected


@pytest.mark.parametrize("nothing", [[], (), {}, ServiceBusMessageBatch(), new_batch(0, None, {})])
def test_nothing_to_send_is_none(nothing: Any) -> None:
    assert outgoing_of(nothing) is None


@pytest.mark.parametrize("form", ["message", "list", "batch"])
def test_a_message_without_an_id_gets_one(form: str) -> None:
    """The caller's object stays as it was; the id is in the bytes."""
    message = ServiceBusMessage("x")
    message.message_id = None
    given: Any = [message] if form == "list" else message
    if form == "batch":
        given = ServiceBusMessageBatch()
        given.add_message(message)
    outgoing = going_of(given)
    read = Message.decode(outgoing.payloads[0])
    assert read.properties is not None and read.properties.message_id == outgoing.ids[0]
    assert message.message_id is None


@pytest.mark.parametrize("form", ["message", "list", "batch", "scheduled"])
def test_a_reserved_property_is_refused_in_every_form(form: str) -> None:
    message = ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
    with pytest.raises(ReservedPropertyError, match="x-ms-path"):
        if form == "scheduled":
            scheduled(message, AT)
        batch = ServiceBusMessageBatch()
        batch.add_message(message)
        outgoing_of({"message": message, "list": [message], "batch": batch}[form])


# ── to the backlog ──


def test_every_message_comes_home_as_it_was() -> None:
    """Unwrapped, a copy has the bytes that the primary would have got."""
    homes = [unwrap(payload) for payload in going_of(messages(3)).wrapped("orders", 5, None)]
    assert [home.payload for home in homes if isinstance(home, Home)] == encoded(3)
    assert {(home.path, home.first_attempt_ms) for home in homes if isinstance(home, Home)} == {("orders", 5)}


def test_a_message_keeps_its_number() -> None:
    """The number is the same after each wrapping, and after any messages that were stored before it."""
    order, outgoing = Order(), going_of(messages(3))

    def numbers() -> list[int | None]:
        homes = [unwrap(payload) for payload in outgoing.wrapped("orders", None, order)]
        assert all(isinstance(home, Home) and home.sender == order.sender for home in homes)
        return [home.counter for home in homes if isinstance(home, Home)]

    assert numbers() == numbers() == [1, 2, 3]
    outgoing.stored(1, "b/0")
    assert numbers() == [2, 3]
    assert [entry.counter for entry in outgoing.entries("orders", None, order)] == [2, 3]
    assert next(order.numbers) == 4


def test_stored_messages_are_taken_off_and_told() -> None:
    """Another queue, or the spool, gets only the messages that are not stored yet."""
    outgoing = going_of(messages(3))
    outgoing.stored(2, "b/0")
    assert (outgoing.ids, outgoing.stored_ids, outgoing.untold) == (
        ["id-2"],
        ["id-0", "id-1"],
        (("b/0", ("id-0", "id-1")),),
    )
    assert outgoing.payloads == encoded(3)[2:]
    [entry] = outgoing.entries("orders", 7, None)
    assert (entry.path, entry.payload, entry.message_id) == ("orders", encoded(3)[2], "id-2")


def test_doubts_name_each_place_once() -> None:
    """The first backlog queue that may have a message is told; the primary is not one."""
    outgoing = going_of(messages(3))
    outgoing.unanswered(THE_PRIMARY)
    outgoing.unanswered("b/0", 2)
    outgoing.unanswered("b/0", 2)
    outgoing.unanswered("b/1")
    assert outgoing.doubts["b/0"] == ("id-0", "id-1")
    assert outgoing.doubted == {"id-0": "b/0", "id-1": "b/0", "id-2": "b/1"}
    outgoing.stored(2, "b/2")
    assert outgoing.may_be_in == (THE_PRIMARY, "b/1"), "places of the messages that are left"


# ── parcels ──


def test_parcels_hold_what_the_link_takes() -> None:
    """Copies for a backlog queue are larger than their originals: a list may need several sends."""
    payloads = encoded(4, 400)
    limit = ENVELOPE_BYTES + 2 * (len(payloads[0]) + 8)
    assert parcels(payloads, limit, 0) == [
        (encode_batch(payloads[:2]), BATCH_FORMAT, 2),
        (encode_batch(payloads[2:]), BATCH_FORMAT, 2),
    ]
    assert [count for _, _, count in parcels(payloads, limit - 1, 0)] == [1, 1, 1, 1]
    assert parcels(payloads, limit - 1, 0)[0] == (payloads[0], 0, 1), "a single message is not sent as a batch"
    assert [count for _, _, count in parcels(payloads, 0, 0)] == [4], "no link has told a limit"


def test_message_larger_than_a_batch_goes_alone() -> None:
    """The largest batch of the Premium tier has 1 MB, the largest message 100 MB."""
    small, large = encoded(1, 10)[0], encoded(1, 5000)[0]
    limit = ENVELOPE_BYTES + 2 * (len(small) + 8)
    assert [count for _, _, count in parcels([small, small, large, small], limit, 10_000)] == [2, 1, 1]
    assert parcels([large], limit, 10_000) == [(large, 0, 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_a_message_that_no_parcel_holds_is_refused(count: int) -> None:
    payloads = encoded(count)
    with pytest.raises(MessageSizeExceededError):
        parcels(payloads, 0, len(payloads[0]) - 1)


# ── batches ──


def test_a_batch_looks_at_messages_when_they_are_added() -> None:
    """The send does not look again, so a missing id or a forbidden name must be found here."""
    batch = new_batch(0, None, {})
    batch.add_message(ServiceBusMessage("no id"))
    batch.add_message({"body": "a mapping, without an id"})
    batch.add_message(AmqpAnnotatedMessage(data_body=b"x"))
    assert type(batch) is PairedMessageBatch
    assert batch.ids == [message.message_id for message in batch._messages] and all(batch.ids)
    with pytest.raises(ReservedPropertyError):
        batch.add_message(ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"}))
    assert len(batch) == len(batch.ids) == 3


def test_a_batch_that_is_full_takes_no_id() -> None:
    batch = new_batch(1000, None, {})
    batch.add_message(messages(1, 500)[0])
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(messages(1, 500)[0])
    assert len(going_of(batch)) == len(batch.ids) == 1


def test_the_limit_of_a_batch_is_that_of_the_link() -> None:
    assert new_batch(0, None, {}).max_size_in_bytes == BATCH_LIMIT
    assert new_batch(5000, None, {}).max_size_in_bytes == 5000
    assert new_batch(5000, 3000, {}).max_size_in_bytes == 3000
    with pytest.raises(ValueError, match="acceptable max batch size is: 5000 bytes"):
        new_batch(5000, 6000, {})


# ── schedules ──


def test_scheduled_messages_carry_their_time() -> None:
    """The caller's objects do not."""
    given = messages(2)
    entries, outgoing = scheduled(given, AT)
    assert outgoing is not None and [entry.payload for entry in entries] == outgoing.payloads
    assert [entry.message_id for entry in entries] == outgoing.ids == ["id-0", "id-1"]
    for entry in entries:
        annotations = Message.decode(entry.payload).annotations
        assert annotations is not None and "x-opt-scheduled-enqueue-time" in annotations
    assert given[0].scheduled_enqueue_time_utc is None
    assert scheduled([], AT) == ([], None)


FORK = """
import os
from pairbus.client.outgoing import Order

order = Order()
next(order.numbers)
if os.fork():
    os.wait()
os.write(1, f"{order.sender} {next(order.numbers)}\\n".encode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system cannot fork")
def test_a_forked_child_numbers_its_messages_under_another_id() -> None:
    """With one id, two messages would have the same number, and the syphon would take one for the other."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    child, parent = (line.split() for line in done.stdout.splitlines())
    assert child[0] != parent[0]
    assert (child[1], parent[1]) == ("1", "2")
