"""Away and home again: any message comes home byte for byte; a message that cannot go home says why."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.amqp.message import Header, Message, Properties, section
from pairbus.amqp.types import Described, Int, Long, Symbol, Timestamp, UInt, encode
from pairbus.backlog.aliases import RESERVED
from pairbus.backlog.envelope import (
    EXPIRED,
    INVALID_ALIAS,
    NO_DESTINATION,
    SERVICE_OWNED,
    UNDECODABLE,
    Envelope,
    Home,
    Spoiled,
    Wrapper,
    enqueued_ms_of,
    home_payload,
    overhead,
    redriven,
    unwrap,
    wrap,
)
from tests.amqp.test_message import messages
from tests.amqp.test_types import text

SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
NOW_MS = 1_800_000_000_000
aways = st.builds(
    Envelope,
    text.filter(lambda path: path.strip("/") and "$" not in path),
    first_attempt_ms=st.none() | st.integers(0, 1 << 42),
    sender=st.none() | text,
    counter=st.integers(0, 1 << 40),
)


def opened(payload: bytes) -> Home:
    home = unwrap(payload)
    assert isinstance(home, Home), home
    return home


def backlog_message(**properties: Any) -> bytes:
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    return Message(
        properties=Properties(message_id="m1"), application_properties=named or None, data=[b"body"]
    ).encode()


def as_delivered(payload: bytes, delivery_count: int = 0) -> bytes:
    """Return the message as a service delivers it: own header and annotations, then the sender's annotations."""
    message = Message.decode(payload)
    message.header = Header(delivery_count=UInt(delivery_count))
    message.delivery_annotations = None
    message.annotations = {
        Symbol("x-opt-sequence-number"): Long(7 + (1 << 40)),
        Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS),
        Symbol("x-opt-locked-until"): Timestamp(NOW_MS + 60_000),
        **(message.annotations or {}),
    }
    return message.encode()


# ── there and back ──


@given(messages, aways, st.none() | st.integers(0, 1 << 42))
@example(Message(header=Header(), annotations={}, properties=Properties(), application_properties={}), Envelope("q"), 5)
def test_a_message_comes_home_byte_for_byte(message: Message, away: Envelope, scheduled_ms: int | None) -> None:
    """Every type, every kind of body, every section there or not: nothing is encoded a second time."""
    if message.header is not None:
        message.header = replace(message.header, delivery_count=None)  # only the service counts deliveries
    if scheduled_ms is not None:
        message.annotations = {SCHEDULED_TIME: Timestamp(scheduled_ms), **(message.annotations or {})}
    payload = message.encode()
    wrapped = wrap(payload, away)
    home = opened(wrapped)
    assert home.payload == payload
    assert (home.path, home.first_attempt_ms, home.scheduled_ms) == (away.path, away.first_attempt_ms, scheduled_ms)
    assert (home.sender, home.counter) == ((away.sender, away.counter) if away.sender is not None else (None, None))
    assert len(wrapped) <= len(payload) + overhead(away)
    Message.decode(wrapped)


@given(message=messages, path=text, first_ms=st.none() | st.integers(0, 2**40))
def test_wrapping_many_gives_the_same_bytes_as_wrapping_each(message: Message, path: str, first_ms: int | None) -> None:
    """The wrapper remembers forms of messages; a form of one message must not be used for another."""
    away = Envelope(path, first_ms)
    wrapper = Wrapper(away)
    properties = message.properties or Properties()
    family = [
        replace(message, properties=replace(properties, message_id=message_id, group_id=session))
        for message_id in ("a", "b" * 40)
        for session in (None, "s")
    ]
    family += [replace(each, application_properties={"key": "x" * size}) for each in family for size in (1, 180, 250)]
    for each in [*family, message, *family]:
        payload = each.encode()
        assert wrapper.wrap(bytearray(payload)) == wrap(payload, away)


def test_a_wrapper_remembers_few_of_many_forms() -> None:
    """A wrapper lives as long as its client sends, and a correlation id of its own gives every message another form."""
    away = Envelope("orders")
    wrapper = Wrapper(away)
    for number in range(2000):
        payload = Message(
            properties=Properties(message_id="m", correlation_id=f"request-{number}"), data=[b"body"]
        ).encode()
        assert wrapper.wrap(payload) == wrap(payload, away)
    assert len(wrapper._known) <= 256


def test_wrapped_message_has_no_session_time_to_live_or_schedule() -> None:
    """A backlog queue has no sessions, and nothing may expire or wait there for reasons of its own."""
    payload = Message(
        header=Header(ttl=UInt(30_000)),
        annotations={Symbol("x-opt-partition-key"): "s1", SCHEDULED_TIME: Timestamp(NOW_MS)},
        properties=Properties(message_id="m1", group_id="s1", subject="label"),
        application_properties={"own": Int(1)},
        data=[b"body"],
    ).encode()
    away = Message.decode(wrap(payload, Envelope("Orders/New", first_attempt_ms=5, sender="me", counter=9)))
    assert away.header == Header()
    assert away.annotations == {"x-opt-partition-key": "s1"}
    assert away.properties == Properties(message_id="m1", subject="label")
    assert away.application_properties == {
        "own": 1,
        "x-ms-path": "Orders/New",
        "x-ms-timetolive": 30_000,
        "x-ms-scheduledenqueuetimeutc": NOW_MS,
        "x-ms-sessionid": "s1",
        "x-pairbus-first-attempt": 5,
        "x-pairbus-sender": "me",
        "x-pairbus-counter": 9,
    }
    assert type(away.application_properties["x-ms-timetolive"]) is Long
    assert type(away.application_properties["x-ms-scheduledenqueuetimeutc"]) is Timestamp
    assert set(away.application_properties) - {"own"} <= RESERVED
    home = opened(as_delivered(away.encode()))
    assert (home.session_id, home.ttl_ms, home.message_id) == ("s1", 30_000, "m1")


@pytest.mark.parametrize("delivery_count", [0, 3, 300])
def test_what_the_service_added_stays_behind(delivery_count: int) -> None:
    """Sequence numbers and lock times of the secondary mean nothing at home."""
    payload = Message(properties=Properties(message_id="m1"), data=[b"body"]).encode()
    home = opened(as_delivered(wrap(payload, Envelope("orders")), delivery_count))
    assert home.payload == payload
    assert (home.enqueued_ms, home.locked_until_ms) == (NOW_MS, NOW_MS + 60_000)


def test_the_senders_annotations_come_home_among_the_services() -> None:
    """A partition key is the sender's; a lock token in delivery annotations is not."""
    payload = Message(
        annotations={SCHEDULED_TIME: Timestamp(9), Symbol("x-opt-partition-key"): "p"},
        properties=Properties(group_id="p"),
        value=Described(Symbol("any"), [Int(1)]),
        has_value=True,
    ).encode()
    delivered = Message.decode(as_delivered(wrap(payload, Envelope("orders"))))
    assert delivered.annotations is not None
    delivered.annotations |= {Symbol(name.decode()): Long(1) for name in SERVICE_OWNED}
    delivered.delivery_annotations = {Symbol("x-opt-lock-token"): b"token"}
    assert opened(delivered.encode()).payload == payload


def test_a_time_to_live_that_the_backlog_queue_gave_does_not_travel() -> None:
    """A queue with a default of its own writes it into every header; the sender's was unlimited."""
    delivered = Message.decode(wrap(Message(data=[b"x"]).encode(), Envelope("orders")))
    delivered.header = Header(ttl=UInt(5000), delivery_count=UInt(0))
    assert opened(delivered.encode()).payload == Message(data=[b"x"]).encode()


@pytest.mark.parametrize("annotation", [(SCHEDULED_TIME, None), (Symbol("own"), str(SCHEDULED_TIME))])
def test_annotation_that_sets_no_time_is_left_alone(annotation: tuple[Symbol, Any]) -> None:
    """The scheduled time is null, or its name is a value of the user: home must not wait for it."""
    payload = Message(annotations=dict([annotation]), data=[b"x"]).encode()
    wrapped = wrap(payload, Envelope("orders"))
    assert Message.decode(wrapped).application_properties == {"x-ms-path": "orders"}
    home = opened(wrapped)
    assert (home.payload, home.scheduled_ms) == (payload, None)


def test_session_and_schedule_get_the_sections_that_they_need() -> None:
    """Other software may leave out sections of properties and annotations that would be empty."""
    home = opened(
        Message(
            application_properties={
                "x-ms-path": "orders",
                "x-ms-sessionid": "s",
                "x-ms-scheduledenqueuetimeutc": Timestamp(NOW_MS),
            },
            data=[b"x"],
        ).encode()
    )
    assert Message.decode(home.payload) == Message(
        annotations={SCHEDULED_TIME: Timestamp(NOW_MS)}, properties=Properties(group_id="s"), data=[b"x"]
    )


def test_mark_of_a_destination_that_is_there_again_is_taken_off() -> None:
    """A syphon writes null over its mark: the message is as good as one without."""
    home = opened(backlog_message(x_ms_path="orders", x_pairbus_missing_since=None))
    assert home.missing_since_ms is None and Message.decode(home.payload).application_properties is None


ARRIVALS: dict[str, tuple[bytes, int | None]] = {
    "as the service writes it": (as_delivered(Message(data=[b"x"]).encode()), NOW_MS),
    "behind a long annotation": (
        Message(annotations={Symbol("own"): "x" * 600, Symbol("x-opt-enqueued-time"): Timestamp(NOW_MS)}).encode(),
        NOW_MS,
    ),
    "a time that is a text": (Message(annotations={Symbol("x-opt-enqueued-time"): "now"}).encode(), None),
    "no time": (Message(data=[b"x"]).encode(), None),
    "no message": (b"\xff", None),
}


@pytest.mark.parametrize(("payload", "enqueued_ms"), ARRIVALS.values(), ids=ARRIVALS.keys())
def test_time_of_arrival_is_read_or_missing(payload: bytes, enqueued_ms: int | None) -> None:
    """A message that does not say when it came must not stop the pump that asks."""
    assert enqueued_ms_of(payload) == enqueued_ms


def test_wide_forms_stay_wide() -> None:
    """Other encoders write four bytes of size where one would do."""
    wide_map = b"\xd1\x00\x00\x00\x09\x00\x00\x00\x02\xa1\x01a\x54\x01"
    wide_list = b"\xd0\x00\x00\x00\x14\x00\x00\x00\x0b" + b"\x40" * 10 + b"\xb1\x00\x00\x00\x01s"
    wide_header = b"\xd0\x00\x00\x00\x08\x00\x00\x00\x03\x40\x40\x52\x64"
    payload = section(0x70, wide_header) + section(0x73, wide_list) + section(0x74, wide_map) + section(0x75, b"\xa0\0")
    assert Message.decode(payload).application_properties == {"a": 1}
    assert opened(wrap(payload, Envelope("orders"))).payload == payload
    by_symbol = b"\x00\xa3\x14amqp:properties:list" + wide_list + b"\x00\x53\x75\xa0\x00"
    assert opened(wrap(by_symbol, Envelope("orders"))).payload == by_symbol


def sdk_bytes(message: ServiceBusMessage | AmqpAnnotatedMessage) -> bytes:
    raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
    encoded = bytearray()
    encode_payload(encoded, PyamqpTransport.to_outgoing_amqp_message(raw))
    return bytes(encoded)


SDK_MESSAGES: dict[str, ServiceBusMessage | AmqpAnnotatedMessage] = {
    "plain": ServiceBusMessage(b"x" * 1000),
    "everything": ServiceBusMessage(
        b"body",
        session_id="s" * 128,
        partition_key="s" * 128,
        time_to_live=timedelta(days=30),
        scheduled_enqueue_time_utc=datetime(2030, 1, 1, tzinfo=UTC),
        subject="label",
        content_type="application/json",
        reply_to_session_id="r",
        application_properties={f"name-{n}": n for n in range(40)},
    ),
    "a short time to live": ServiceBusMessage("t", time_to_live=timedelta(milliseconds=1000)),
    "a value": AmqpAnnotatedMessage(value_body={"a": [1, None, b"x"]}, annotations={"own": 1}, footer={"f": True}),
    "sequences": AmqpAnnotatedMessage(sequence_body=[[1, 2], ["three"]], application_properties={"k": 1.5}),
    "no body": ServiceBusMessage(None),
}


@pytest.mark.parametrize("name", SDK_MESSAGES)
def test_what_the_genuine_sdk_encodes_comes_home_byte_for_byte(name: str) -> None:
    """The SDK's habits, of narrow and wide forms and of the order of annotations, are the ones that matter."""
    payload = sdk_bytes(SDK_MESSAGES[name])
    assert opened(wrap(payload, Envelope("orders", 5, "me", 1))).payload == payload


# ── what cannot go home ──


@pytest.mark.parametrize(
    ("payload", "reason", "names"),
    [
        (backlog_message(), NO_DESTINATION, "x-ms-path"),
        (backlog_message(own=1), NO_DESTINATION, "x-ms-path"),
        (backlog_message(x_ms_path=5), NO_DESTINATION, "x-ms-path"),
        (backlog_message(x_ms_path=Symbol("orders")), NO_DESTINATION, "x-ms-path"),
        (backlog_message(x_ms_path=""), NO_DESTINATION, "x-ms-path"),
        (backlog_message(x_ms_path="/"), NO_DESTINATION, "x-ms-path"),
        (backlog_message(x_ms_path="p" * 261), NO_DESTINATION, "260 characters"),
        (backlog_message(x_ms_path="orders/$management"), NO_DESTINATION, "nodes of the service"),
        (backlog_message(x_ms_path="$cbs"), NO_DESTINATION, "nodes of the service"),
        (backlog_message(x_ms_path="q", x_ms_sessionid=b"s"), INVALID_ALIAS, "x-ms-sessionid"),
        (backlog_message(x_ms_path="q", x_ms_sessionid=None), INVALID_ALIAS, "x-ms-sessionid"),
        (backlog_message(x_ms_path="q", x_ms_timetolive="5"), INVALID_ALIAS, "x-ms-timetolive"),
        (backlog_message(x_ms_path="q", x_ms_timetolive=True), INVALID_ALIAS, "x-ms-timetolive"),
        (backlog_message(x_ms_path="q", x_ms_timetolive=-1), INVALID_ALIAS, "x-ms-timetolive"),
        (backlog_message(x_ms_path="q", x_ms_timetolive=Described(Symbol("other"), 5)), INVALID_ALIAS, "Described"),
        (backlog_message(x_ms_path="q", x_ms_scheduledenqueuetimeutc=Long(5)), INVALID_ALIAS, "a timestamp"),
        (backlog_message(x_pairbus_counter="1", x_ms_path="q"), INVALID_ALIAS, "x-pairbus-counter"),
    ],
)
def test_an_alias_that_is_missing_or_wrong_spoils_the_message(payload: bytes, reason: str, names: str) -> None:
    """The description names the property, and the id finds the message: an operator reads this at night."""
    spoiled = unwrap(payload)
    assert isinstance(spoiled, Spoiled)
    assert (spoiled.reason, spoiled.message_id) == (reason, "m1")
    assert names in spoiled.description and "dead-letter queue" in spoiled.description


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff",
        wrap(Message(data=[b"x"]).encode(), Envelope("q"))[:-1],
        section(0x74, b"\xc1\x05\x02\xa1\x01a\x54") + section(0x75, b"\xa0\x00"),
        section(0x74, encode(["a list"])),
        section(0x74, b"\xc1\x0f\x02\xa1\x09x-ms-path\xa1\x01\xff"),
    ],
)
def test_bytes_that_are_no_message_are_spoiled_and_raise_nothing(payload: bytes) -> None:
    """One such message must not stop the pump that receives it."""
    spoiled = unwrap(payload)
    assert isinstance(spoiled, Spoiled) and spoiled.reason == UNDECODABLE


@given(st.binary(max_size=60), messages, st.data())
def test_no_bytes_make_unwrap_raise(noise: bytes, message: Message, data: st.DataObject) -> None:
    """A backlog message may have been damaged on its way."""
    assert isinstance(unwrap(noise), Home | Spoiled)
    wrapped = bytearray(wrap(message.encode(), Envelope("orders")))
    wrapped[data.draw(st.integers(0, len(wrapped) - 1))] = data.draw(st.integers(0, 255))
    assert isinstance(unwrap(bytes(wrapped)), Home | Spoiled)


@pytest.mark.parametrize(
    ("ttl", "header"),
    [
        (Long(30_000), Header(ttl=UInt(30_000))),
        (Int(30_000), Header(ttl=UInt(30_000))),
        (Described(Symbol("com.microsoft:timespan"), Long(30_000 * 10_000)), Header(ttl=UInt(30_000))),
        (Long(90 * 86_400_000), Header(ttl=UInt(0xFFFFFFFF))),
        (Long(922_337_203_685_477), None),
    ],
)
def test_every_way_to_say_a_time_to_live_is_understood(ttl: Any, header: Header | None) -> None:
    """The original software wrote time spans, whose longest means never; AMQP itself can say 49 days at most."""
    home = opened(backlog_message(x_ms_path="orders", x_ms_timetolive=ttl))
    assert Message.decode(home.payload).header == header


# ── time to live at home ──


def wrapped_with_ttl(**away: Any) -> Home:
    payload = Message(header=Header(ttl=UInt(30_000)), data=[b"x"]).encode()
    return opened(as_delivered(wrap(payload, Envelope("orders", **away))))


def test_restored_the_time_to_live_starts_again() -> None:
    """The time to live starts again at home, as in the original software."""
    home = wrapped_with_ttl()
    assert home_payload(home, "restore", NOW_MS + 60_000) == home.payload


def test_deducted_the_time_away_counts_and_what_is_over_is_spoiled() -> None:
    """The time counts from the first attempt when there was one, otherwise from the backlog queue's own time."""
    home = wrapped_with_ttl()
    left = home_payload(home, "deduct", NOW_MS + 10_000)
    assert isinstance(left, bytes) and Message.decode(left).header == Header(ttl=UInt(20_000))
    earlier = home_payload(wrapped_with_ttl(first_attempt_ms=NOW_MS - 5000), "deduct", NOW_MS + 10_000)
    assert isinstance(earlier, bytes) and Message.decode(earlier).header == Header(ttl=UInt(15_000))
    late = home_payload(home, "deduct", NOW_MS + 30_000)
    assert isinstance(late, Spoiled) and late.reason == EXPIRED and "30 s" in late.description
    endless = opened(as_delivered(wrap(Message(data=[b"x"]).encode(), Envelope("orders"))))
    assert home_payload(endless, "deduct", NOW_MS + 10**12) == endless.payload


def test_a_scheduled_message_begins_to_age_at_its_time() -> None:
    """Until then it could not have been received at home either."""
    payload = Message(
        header=Header(ttl=UInt(30_000)), annotations={SCHEDULED_TIME: Timestamp(NOW_MS + 60_000)}, data=[b"x"]
    ).encode()
    home = opened(as_delivered(wrap(payload, Envelope("orders"))))
    early = home_payload(home, "deduct", NOW_MS + 50_000)
    assert isinstance(early, bytes) and Message.decode(early).header == Header(ttl=UInt(30_000))
    assert isinstance(home_payload(home, "deduct", NOW_MS + 90_000), Spoiled)


# ── dead letters ──


def test_a_dead_letter_goes_back_without_what_dead_lettering_added() -> None:
    """Aliases of the dead letter, if it has any, stay: it goes back to where it was, and the syphon still needs
    them.
    """
    payload = Message(
        header=Header(ttl=UInt(5000)), properties=Properties(message_id="m1"), application_properties={"own": Int(1)}
    ).encode()
    letter = Message.decode(as_delivered(payload))
    letter.header = Header(ttl=UInt(5000), delivery_count=UInt(11))
    letter.application_properties = {
        "own": Int(1),
        "DeadLetterReason": "MaxDeliveryCountExceeded",
        "DeadLetterErrorDescription": "11",
    }
    home = redriven(letter.encode(), "orders")
    assert isinstance(home, Home) and home.path == "orders"
    got = Message.decode(home.payload)
    assert got == Message.decode(
        Message(
            header=Header(ttl=UInt(5000)),
            properties=Properties(message_id="m1"),
            application_properties={"own": Int(1)},
        ).encode()
    )
    letter.application_properties = {"DeadLetterReason": "x", "DeadLetterErrorDescription": "y"}
    only = redriven(letter.encode(), "orders")
    assert isinstance(only, Home) and Message.decode(only.payload).application_properties is None
    assert isinstance(redriven(b"\x00", "orders"), Spoiled)
