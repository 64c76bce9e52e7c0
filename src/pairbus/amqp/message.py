"""The sections of a message (AMQP 3.2). Code that only passes a message on keeps its sections as bytes.

`sections` finds the position of each section and decodes none; `Message` decodes all of them, for the few messages
that are read here: requests and answers of `$cbs` and `$management`, and those that tests look at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.performatives import (
    ANY,
    BINARY,
    BOOLEAN,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UBYTE,
    UINT,
    Composite,
    composite,
    row,
)
from pairbus.amqp.types import (
    Symbol,
    UByte,
    ULong,
    decode,
    encode,
    encode_binary,
    encode_string,
    encode_symbol,
    encode_uint,
    list_of,
    map_of,
    skip,
)

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x74, 0x75, 0x76, 0x77, 0x78
BATCH_FORMAT = 0x80013700
"The message-format of a batch: every data section holds a whole encoded message."

_REPEATED = (DATA, SEQUENCE)

_SYMBOLS = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}


@composite(HEADER, "header")
class Header(Composite):
    durable: bool | None = row(BOOLEAN)
    priority: int | None = row(UBYTE)
    ttl: int | None = row(UINT)
    first_acquirer: bool | None = row(BOOLEAN)
    delivery_count: int | None = row(UINT)


@composite(PROPERTIES, "properties")
class Properties(Composite):
    message_id: Any = row(ANY)
    user_id: bytes | None = row(BINARY)
    to: Any = row(ANY)
    subject: str | None = row(STRING)
    reply_to: Any = row(ANY)
    correlation_id: Any = row(ANY)
    content_type: str | None = row(SYMBOL)
    content_encoding: str | None = row(SYMBOL)
    absolute_expiry_time: int | None = row(TIMESTAMP)
    creation_time: int | None = row(TIMESTAMP)
    group_id: str | None = row(STRING)
    group_sequence: int | None = row(UINT)
    reply_to_group_id: str | None = row(STRING)


SectionSpan = tuple[int, int, int, int]


def sections(payload: bytes) -> list[SectionSpan]:
    """Return (section code, start of its descriptor, start of its value, end) of each section, in order of the wire.

    ProtocolError when the bytes are not a row of known sections in the standard's order, with one kind of body.
    Every message goes through this function; so the usual forms are measured in place, which is faster.
    """
    return _walk(payload, _MAY_FOLLOW)


def in_order(payload: bytes) -> tuple[bytes, list[SectionSpan]]:
    """Return the payload with its sections in the standard's order (the same object if they are), and its `sections`.

    The Python SDK writes delivery annotations behind the body, the JavaScript one may write the body behind the footer.
    """
    try:
        return payload, sections(payload)
    except ProtocolError:
        spans = sorted(_walk(payload, _ANY_ORDER), key=lambda row: row[0])
        ordered = b"".join([payload[start:end] for _, start, _, end in spans])
        return ordered, sections(ordered)


def _walk(payload: bytes, may_follow: frozenset[int]) -> list[SectionSpan]:
    pos, total, before = 0, len(payload), 0
    spans: list[SectionSpan] = []
    try:
        while pos < total:
            if payload[pos] != 0x00:
                raise ProtocolError(DECODE_ERROR, f"no section at byte {pos}: 0x{payload[pos]:02x}")
            if payload[pos + 1] == 0x53:
                code, value_at = payload[pos + 2], pos + 3
            else:
                code, value_at = _unusual_section(payload, pos)
            form = payload[value_at]
            if form in _SIZE_8:
                end = value_at + 2 + payload[value_at + 1]
            elif form == 0xB0:
                end = value_at + 5 + int.from_bytes(payload[value_at + 1 : value_at + 5], "big")
            else:
                end = skip(payload, value_at)
            if end > total or (before << 8 | code) not in may_follow:
                raise ProtocolError(DECODE_ERROR, f"section 0x{code:02x} at byte {pos} is cut, unknown or out of order")
            spans.append((code, pos, value_at, end))
            before, pos = code, end
    except IndexError as error:
        raise ProtocolError(DECODE_ERROR, f"section at byte {pos} is cut") from error
    return spans


_SIZE_8 = b"\xa0\xc0\xc1"  # a binary, a list, a map whose size is in one byte


def _orders() -> frozenset[int]:
    """Return before << 8 | code for every section that may follow another (3.2); before is 0 at the beginning.

    Sections come in the standard's order, each at most once; data and sequence may repeat. Only one kind of body is
    allowed.
    """
    pairs = set()
    for before in (0, *range(HEADER, FOOTER + 1)):
        for code in range(HEADER, FOOTER + 1):
            another_body = DATA <= before <= VALUE and DATA <= code <= VALUE
            if (code > before and not another_body) or (code == before and code in _REPEATED):
                pairs.add(before << 8 | code)
    return frozenset(pairs)


_MAY_FOLLOW = _orders()
_ANY_ORDER = frozenset(
    before << 8 | code for before in (0, *range(HEADER, FOOTER + 1)) for code in range(HEADER, FOOTER + 1)
)


def _unusual_section(payload: bytes, pos: int) -> tuple[int, int]:
    descriptor, value_at = decode(payload, pos + 1)
    if isinstance(descriptor, Symbol):
        return _SYMBOLS.get(descriptor, 0), value_at
    return (int(descriptor) if isinstance(descriptor, ULong) else 0), value_at


@dataclass(slots=True)
class Message:
    """A message with all its sections decoded. It has at most one of data, sequences and value."""

    header: Header | None = None
    delivery_annotations: dict[Any, Any] | None = None
    annotations: dict[Any, Any] | None = None
    properties: Properties | None = None
    application_properties: dict[Any, Any] | None = None
    data: list[bytes] = field(default_factory=list)
    sequences: list[list[Any]] = field(default_factory=list)
    value: Any = None
    has_value: bool = False
    footer: dict[Any, Any] | None = None

    @property
    def body(self) -> Any:
        """The value, or the data as one bytes object, or the lists of the sequences."""
        if self.has_value:
            return self.value
        return self.sequences if self.sequences else b"".join(self.data)

    def property(self, name: str) -> Any:
        """Return an application property; None when the message has none of this name."""
        return (self.application_properties or {}).get(name)

    def encode(self) -> bytes:
        parts = [self.header.encode()] if self.header is not None else []
        for code, value in ((DELIVERY_ANNOTATIONS, self.delivery_annotations), (MESSAGE_ANNOTATIONS, self.annotations)):
            if value is not None:
                parts.append(section(code, encode(value)))
        if self.properties is not None:
            parts.append(self.properties.encode())
        if self.application_properties is not None:
            parts.append(section(APPLICATION_PROPERTIES, encode(self.application_properties)))
        parts += [section(DATA, encode_binary(data)) for data in self.data]
        parts += [section(SEQUENCE, encode(sequence)) for sequence in self.sequences]
        if self.has_value:
            parts.append(section(VALUE, encode(self.value)))
        if self.footer is not None:
            parts.append(section(FOOTER, encode(self.footer)))
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> Message:
        """Decode a message; ProtocolError when the bytes are not a message."""
        message = cls()
        payload, spans = in_order(payload)
        for code, _, value_at, end in spans:
            value, stop = decode(payload, value_at)
            if stop != end or (code != VALUE and type(value) is not _SECTION_TYPES[code]):
                raise ProtocolError(DECODE_ERROR, f"section 0x{code:02x} holds {value!r:.80}")
            if code == HEADER:
                message.header = _composite(Header, value)
            elif code == PROPERTIES:
                message.properties = _composite(Properties, value)
            elif code == DATA:
                message.data.append(value)
            elif code == SEQUENCE:
                message.sequences.append(value)
            elif code == VALUE:
                message.value, message.has_value = value, True
            else:
                setattr(message, _MAP_SECTIONS[code], value)
        return message


_SECTION_TYPES: dict[int, type] = {
    HEADER: list,
    DELIVERY_ANNOTATIONS: dict,
    MESSAGE_ANNOTATIONS: dict,
    PROPERTIES: list,
    APPLICATION_PROPERTIES: dict,
    DATA: bytes,
    SEQUENCE: list,
    FOOTER: dict,
}
_MAP_SECTIONS = {
    DELIVERY_ANNOTATIONS: "delivery_annotations",
    MESSAGE_ANNOTATIONS: "annotations",
    APPLICATION_PROPERTIES: "application_properties",
    FOOTER: "footer",
}


def _composite(kind: type[Any], values: list[Any]) -> Any:
    return kind.from_values(values)


def section(code: int, encoded: bytes) -> bytes:
    """Return a section around a value that is already encoded."""
    return b"\x00\x53" + bytes((code,)) + encoded


def encode_batch(messages: list[bytes]) -> bytes:
    """Return the payload of a batch (format BATCH_FORMAT) of encoded messages.

    Message-id, group-id and partition key of the first message stand before all messages, as in the SDKs: by them,
    entities with sessions and partitions find the place of the whole batch.
    """
    envelope = batch_envelope(messages[0]) if messages else b""
    return envelope + b"".join([section(DATA, encode_binary(message)) for message in messages])


def batch_envelope(message: bytes) -> bytes:
    """Return the sections before the messages of a batch that begins with `message`; empty when that is not a message.

    Only the sections before the body are looked at: there, every client keeps the standard's order.
    """
    annotations = properties = b""
    pos, total, code = 0, len(message), 0
    try:
        while pos < total and code < PROPERTIES and message[pos] == 0x00:
            code, value_at = (message[pos + 2], pos + 3) if message[pos + 1] == 0x53 else _unusual_section(message, pos)
            if code == MESSAGE_ANNOTATIONS:
                annotations = _partition_section(message, value_at)
            elif code == PROPERTIES:
                properties = _id_section(_fields(message, value_at))
            pos = skip(message, value_at)
    except (IndexError, ProtocolError):
        return b""  # the peer will refuse the batch with a reason
    return annotations + properties


_GROUP_ID = 10
_BINARY = (0xA0, 0xB0)  # a string has the next code, and the same form
_PARTITION_KEY = encode_symbol("x-opt-partition-key")


def _partition_section(message: bytes, value_at: int) -> bytes:
    """Return the partition key among the annotations at `value_at`, as a section of its own."""
    if message.find(_PARTITION_KEY, value_at) < 0:
        return b""
    annotations, _ = decode(message, value_at)
    key = annotations.get("x-opt-partition-key") if isinstance(annotations, dict) else None
    if not isinstance(key, str) or not key:
        return b""
    return section(MESSAGE_ANNOTATIONS, map_of(_PARTITION_KEY + encode_string(key), 2))


def _id_section(fields: list[bytes]) -> bytes:
    """Return a properties section with only message id and group id; all thirteen fields are there, as in the SDK."""
    message_id, group_id = (_as_text(fields[at]) if at < len(fields) else b"\x40" for at in (0, _GROUP_ID))
    if message_id == group_id == b"\x40":
        return b""
    return section(PROPERTIES, list_of([message_id, *[b"\x40"] * (_GROUP_ID - 1), group_id, b"\x40", b"\x40"]))


def _as_text(field: bytes) -> bytes:
    """Return a binary value as a string, as the SDK writes ids of the first message; any other value as it is."""
    if field[0] not in _BINARY:
        return field
    try:
        field[2 if field[0] == 0xA0 else 5 :].decode()
    except UnicodeDecodeError:
        return field
    return bytes((field[0] + 1,)) + field[1:]


def _fields(message: bytes, value_at: int) -> list[bytes]:
    """Return the elements of the list at `value_at`, each as its bytes."""
    form = message[value_at]
    if form == 0xC0:
        count, at = message[value_at + 2], value_at + 3
    elif form == 0xD0:
        count, at = int.from_bytes(message[value_at + 5 : value_at + 9], "big"), value_at + 9
    else:
        return []
    fields = []
    for _ in range(count):
        end = skip(message, at)
        fields.append(message[at:end])
        at = end
    return fields


def header_section(ttl_ms: int, delivery_count: int, sent: Header | None = None) -> bytes:
    """Return a header with the number of earlier deliveries, with the time to live unless it is 0, and with the other
    fields as the sender gave them."""
    ttl = encode_uint(min(ttl_ms, 0xFFFFFFFF)) if ttl_ms else b"\x40"
    durable = priority = first_acquirer = b"\x40"
    if sent is not None:
        durable, first_acquirer = encode(sent.durable), encode(sent.first_acquirer)
        priority = encode(sent.priority if sent.priority is None else UByte(sent.priority))
    return b"\x00\x53\x70" + list_of([durable, priority, ttl, first_acquirer, encode_uint(delivery_count)])
