"""Performatives, termini, outcomes and errors as field tables, in the order of the standard (AMQP 2.7, 2.8, 3.4, 3.5).

A row is a field: its name, its kind, its default. From the rows come decoder, encoder, defaults and checks. The two
performatives that are sent for every message have written-out encoders at the end of the file.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, dataclass_transform

from pairbus.amqp.errors import DECODE_ERROR, INVALID_FIELD, ProtocolError
from pairbus.amqp.types import (
    Array,
    Described,
    Symbol,
    Timestamp,
    UByte,
    ULong,
    UShort,
    decode,
    encode,
    encode_binary,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    list_of,
)


class Kind:
    """One type of field: what is accepted, and how it is written."""

    def __init__(self, name: str, accepts: Callable[[Any], bool], write: Callable[[Any], bytes]) -> None:
        self.name = name
        self.accepts = accepts
        self.write = write

    def read(self, value: Any) -> Any:
        return value


def _unsigned(bits: int) -> Callable[[Any], bool]:
    top = (1 << bits) - 1
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= top


def _is(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _write_fields(value: dict[Any, Any]) -> bytes:
    return encode({Symbol(key): element for key, element in value.items()})


def _write_symbols(value: Any) -> bytes:
    return encode(Array([Symbol(element) for element in value], 0xB3))


BOOLEAN = Kind("boolean", _is(bool), encode)
UBYTE = Kind("ubyte", _unsigned(8), lambda v: encode(UByte(v)))
USHORT = Kind("ushort", _unsigned(16), lambda v: encode(UShort(v)))
UINT = Kind("uint", _unsigned(32), encode_uint)
ULONG = Kind("ulong", _unsigned(64), encode_ulong)
TIMESTAMP = Kind("timestamp", _is(int), lambda v: encode(Timestamp(v)))
BINARY = Kind("binary", _is(bytes), encode_binary)
STRING = Kind("string", _is(str), encode_string)
SYMBOL = Kind("symbol", _is(str), encode_symbol)
SYMBOLS = Kind("symbol, multiple", _is(str, list), _write_symbols)
FIELDS = Kind("fields", _is(dict), _write_fields)
ANY = Kind("*", lambda value: True, encode)


class _Composed(Kind):
    """A field that holds one of the composites named by `codes`; none named: any."""

    def __init__(self, name: str, *codes: int) -> None:
        super().__init__(name, lambda value: isinstance(value, Described), lambda value: bytes(value.encode()))
        self.codes = codes

    def read(self, value: Any) -> Any:
        composite = from_described(value)
        if self.codes and getattr(composite, "CODE", None) not in self.codes:
            raise ProtocolError(INVALID_FIELD, f"{self.name} expected, found {value!r:.80}")
        return composite


ERROR = _Composed("error", 0x1D)
SOURCE = _Composed("source", 0x28)
TARGET = _Composed("target", 0x29, 0x30)
STATE = _Composed("delivery-state")


def row(kind: Kind, default: Any = None, *, required: bool = False) -> Any:
    """One field of a composite."""
    return dataclasses.field(default=default, metadata={"kind": kind, "required": required})


class Composite:
    """A described list. Subclasses are tables of rows."""

    __slots__ = ()
    CODE: ClassVar[int]
    NAME: ClassVar[str]
    ROWS: ClassVar[tuple[tuple[str, Kind, Any, bool], ...]]
    TRIM: ClassVar[bool] = True

    def encode(self) -> bytes:
        parts = []
        for name, kind, _, _ in self.ROWS:
            value = getattr(self, name)
            parts.append(b"\x40" if value is None else kind.write(value))
        if self.TRIM:
            while parts and parts[-1] == b"\x40":
                parts.pop()
        return b"\x00\x53" + bytes((self.CODE,)) + list_of(parts)

    @classmethod
    def from_values(cls, values: list[Any]) -> Composite:
        """Check each value against its row. More values than rows is an error; fewer means the defaults."""
        rows = cls.ROWS
        if len(values) > len(rows):
            raise ProtocolError(DECODE_ERROR, f"{cls.NAME} has {len(values)} fields, at most {len(rows)} are known")
        checked = []
        for (name, kind, default, required), value in zip(rows, values, strict=False):
            if value is None:
                if required:
                    raise ProtocolError(INVALID_FIELD, f"{cls.NAME}.{name} is mandatory")
                checked.append(default)
            elif kind.accepts(value):
                checked.append(kind.read(value))
            else:
                raise ProtocolError(INVALID_FIELD, f"{cls.NAME}.{name} must be {kind.name}, is {value!r:.80}")
        for name, _, _, required in rows[len(values) :]:
            if required:
                raise ProtocolError(INVALID_FIELD, f"{cls.NAME}.{name} is mandatory")
        return cls(*checked)


BY_CODE: dict[int, type[Composite]] = {}
_T = TypeVar("_T", bound=type)


@dataclass_transform()
def composite(code: int, name: str, *, trim: bool = True) -> Callable[[_T], _T]:
    """Make the class a dataclass whose rows are read from its fields, and register its descriptor."""

    def make(cls: _T) -> _T:
        made: Any = dataclass(slots=True)(cls)
        made.CODE, made.NAME, made.TRIM = code, name, trim
        made.ROWS = tuple(
            (f.name, f.metadata["kind"], f.default, f.metadata["required"]) for f in dataclasses.fields(made)
        )
        BY_CODE[code] = made
        return made  # type: ignore[no-any-return]

    return make


# ── Performatives (2.7) ─────────────────────────────────────────────────────


@composite(0x10, "open")
class Open(Composite):
    container_id: str = row(STRING, required=True)
    hostname: str | None = row(STRING)
    max_frame_size: int = row(UINT, 0xFFFFFFFF)
    channel_max: int = row(USHORT, 0xFFFF)
    idle_time_out: int | None = row(UINT)
    outgoing_locales: Any = row(SYMBOLS)
    incoming_locales: Any = row(SYMBOLS)
    offered_capabilities: Any = row(SYMBOLS)
    desired_capabilities: Any = row(SYMBOLS)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x11, "begin")
class Begin(Composite):
    remote_channel: int | None = row(USHORT)
    next_outgoing_id: int = row(UINT, required=True)
    incoming_window: int = row(UINT, required=True)
    outgoing_window: int = row(UINT, required=True)
    handle_max: int = row(UINT, 0xFFFFFFFF)
    offered_capabilities: Any = row(SYMBOLS)
    desired_capabilities: Any = row(SYMBOLS)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x12, "attach")
class Attach(Composite):
    name: str = row(STRING, required=True)
    handle: int = row(UINT, required=True)
    role: bool = row(BOOLEAN, required=True)
    snd_settle_mode: int = row(UBYTE, 2)
    rcv_settle_mode: int = row(UBYTE, 0)
    source: Source | None = row(SOURCE)
    target: Target | Coordinator | None = row(TARGET)
    unsettled: dict[Any, Any] | None = row(Kind("map", _is(dict), encode))
    incomplete_unsettled: bool = row(BOOLEAN)
    initial_delivery_count: int | None = row(UINT)
    max_message_size: int | None = row(ULONG)
    offered_capabilities: Any = row(SYMBOLS)
    desired_capabilities: Any = row(SYMBOLS)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x13, "flow")
class Flow(Composite):
    next_incoming_id: int | None = row(UINT)
    incoming_window: int = row(UINT, required=True)
    next_outgoing_id: int = row(UINT, required=True)
    outgoing_window: int = row(UINT, required=True)
    handle: int | None = row(UINT)
    delivery_count: int | None = row(UINT)
    link_credit: int | None = row(UINT)
    available: int | None = row(UINT)
    drain: bool = row(BOOLEAN, False)
    echo: bool = row(BOOLEAN, False)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x14, "transfer")
class Transfer(Composite):
    handle: int = row(UINT, required=True)
    delivery_id: int | None = row(UINT)
    delivery_tag: bytes | None = row(BINARY)
    message_format: int | None = row(UINT)
    settled: bool | None = row(BOOLEAN)
    more: bool = row(BOOLEAN, False)
    rcv_settle_mode: int | None = row(UBYTE)
    state: Any = row(STATE)
    resume: bool = row(BOOLEAN, False)
    aborted: bool = row(BOOLEAN, False)
    batchable: bool = row(BOOLEAN, False)


@composite(0x15, "disposition")
class Disposition(Composite):
    role: bool = row(BOOLEAN, required=True)
    first: int = row(UINT, required=True)
    last: int | None = row(UINT)
    settled: bool = row(BOOLEAN, False)
    state: Any = row(STATE)
    batchable: bool = row(BOOLEAN, False)


@composite(0x16, "detach")
class Detach(Composite):
    handle: int = row(UINT, required=True)
    closed: bool = row(BOOLEAN, False)
    error: Error | None = row(ERROR)


@composite(0x17, "end")
class End(Composite):
    error: Error | None = row(ERROR)


@composite(0x18, "close")
class Close(Composite):
    error: Error | None = row(ERROR)


# ── Errors, outcomes, termini (2.8, 3.4, 3.5, 4.5) ──────────────────────────


@composite(0x1D, "error", trim=False)  # never trimmed: a shortened error list blocks the Python SDK for ever
class Error(Composite):
    condition: str = row(SYMBOL, required=True)
    description: str | None = row(STRING)
    info: dict[Any, Any] | None = row(FIELDS)


@composite(0x23, "received")
class Received(Composite):
    section_number: int = row(UINT, required=True)
    section_offset: int = row(ULONG, required=True)


@composite(0x24, "accepted")
class Accepted(Composite):
    pass


@composite(0x25, "rejected")
class Rejected(Composite):
    error: Error | None = row(ERROR)


@composite(0x26, "released")
class Released(Composite):
    pass


@composite(0x27, "modified")
class Modified(Composite):
    delivery_failed: bool | None = row(BOOLEAN)
    undeliverable_here: bool | None = row(BOOLEAN)
    message_annotations: dict[Any, Any] | None = row(FIELDS)


@composite(0x28, "source")
class Source(Composite):
    address: Any = row(ANY)
    durable: int = row(UINT, 0)
    expiry_policy: str | None = row(SYMBOL)
    timeout: int = row(UINT, 0)
    dynamic: bool = row(BOOLEAN, False)
    dynamic_node_properties: dict[Any, Any] | None = row(FIELDS)
    distribution_mode: str | None = row(SYMBOL)
    filter: dict[Any, Any] | None = row(FIELDS)
    default_outcome: Any = row(STATE)
    outcomes: Any = row(SYMBOLS)
    capabilities: Any = row(SYMBOLS)


@composite(0x29, "target")
class Target(Composite):
    address: Any = row(ANY)
    durable: int = row(UINT, 0)
    expiry_policy: str | None = row(SYMBOL)
    timeout: int = row(UINT, 0)
    dynamic: bool = row(BOOLEAN, False)
    dynamic_node_properties: dict[Any, Any] | None = row(FIELDS)
    capabilities: Any = row(SYMBOLS)


@composite(0x30, "coordinator")
class Coordinator(Composite):
    capabilities: Any = row(SYMBOLS)


# ── SASL (5.3) ──────────────────────────────────────────────────────────────


@composite(0x40, "sasl-mechanisms")
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Any = row(SYMBOLS, required=True)


@composite(0x41, "sasl-init")
class SaslInit(Composite):
    mechanism: str = row(SYMBOL, required=True)
    initial_response: bytes | None = row(BINARY)
    hostname: str | None = row(STRING)


@composite(0x44, "sasl-outcome")
class SaslOutcome(Composite):
    code: int = row(UBYTE, required=True)
    additional_data: bytes | None = row(BINARY)


# ── Reading ─────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class UnknownState:
    """A delivery state of an extension (a transactional one, say): kept, so that it can be refused by name."""

    descriptor: Any
    value: Any

    def encode(self) -> bytes:
        return encode(Described(self.descriptor, self.value))


_BY_SYMBOL = {f"amqp:{cls.NAME}:list": cls for cls in BY_CODE.values()}


def from_described(described: Described) -> Composite | UnknownState:
    descriptor = described.descriptor
    cls = _BY_SYMBOL.get(descriptor) if isinstance(descriptor, str) else None
    if cls is None and type(descriptor) is ULong:
        cls = BY_CODE.get(descriptor)
    if cls is None:
        return UnknownState(descriptor, described.value)
    if not isinstance(described.value, list):
        raise ProtocolError(DECODE_ERROR, f"{cls.NAME} is not a list")
    return cls.from_values(described.value)


def decode_performative(buf: bytes, pos: int) -> tuple[Composite, int]:
    """The performative at `pos` and where it ends (which is where a transfer's payload begins)."""
    value, end = decode(buf, pos)
    if isinstance(value, Described):
        performative = from_described(value)
        if isinstance(performative, Composite):
            return performative, end
    raise ProtocolError(DECODE_ERROR, f"no performative: {value!r:.80}")


# ── Written out for speed: one of each for every message ────────────────────

_UINT = struct.Struct(">I")
_FRAME = struct.Struct(">IBBH")
ACCEPTED_BYTES = Accepted().encode()


def transfer_frame_head(
    channel: int, handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool, size: int
) -> bytes:
    """Frame header and transfer performative of the first frame of a delivery, before `size` bytes of payload."""
    fields = (
        (b"\x52" + bytes((handle,)) if handle < 256 else b"\x70" + _UINT.pack(handle))
        + b"\x70"
        + _UINT.pack(delivery_id)
        + b"\xa0"
        + bytes((len(tag),))
        + tag
        + (b"\x43" if message_format == 0 else b"\x70" + _UINT.pack(message_format))
        + (b"\x41" if settled else b"\x42")
        + (b"\x41" if more else b"\x42")
    )
    # fields: 6 of them, at most 53 bytes with a 32-byte tag, so a list8 always suffices
    return (
        _FRAME.pack(8 + 6 + len(fields) + size, 2, 0, channel)
        + b"\x00\x53\x14\xc0"
        + bytes((len(fields) + 1, 6))
        + fields
    )


def transfer_continuation_head(channel: int, handle: int, more: bool, size: int) -> bytes:
    """Frame header and transfer performative of the second and later frames of a delivery."""
    body = b"\x00\x53\x14" + list_of([encode_uint(handle), *[b"\x40"] * 4, b"\x41" if more else b"\x42"])
    return _FRAME.pack(8 + len(body) + size, 2, 0, channel) + body


def disposition_frame(channel: int, role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """A whole disposition frame; `state` is an encoded delivery state."""
    body = b"\x00\x53\x15" + list_of(
        [
            b"\x41" if role else b"\x42",
            encode_uint(first),
            b"\x40" if last == first else encode_uint(last),
            b"\x41" if settled else b"\x42",
            state,
        ]
    )
    return _FRAME.pack(8 + len(body), 2, 0, channel) + body


TransferFields = tuple[int, int | None, bytes | None, int | None, bool, bool, bool, int]
"(handle, delivery-id, delivery-tag, message-format, settled, more, aborted, where the payload begins)"


def decode_transfer(buf: bytes, pos: int, end: int) -> TransferFields:
    """The transfer at `pos` of a frame that ends at `end`. Unusual encodings take the general road."""
    form = buf[pos + 3]
    if form == 0xC0:
        payload, count, at = pos + 5 + buf[pos + 4], buf[pos + 5], pos + 6
    elif form == 0xD0:
        payload = pos + 8 + int.from_bytes(buf[pos + 4 : pos + 8], "big")
        count, at = int.from_bytes(buf[pos + 8 : pos + 12], "big"), pos + 12
    else:
        return _decode_unusual_transfer(buf, pos, end)
    if payload > end or not 1 <= count <= 11:
        return _decode_unusual_transfer(buf, pos, end)
    values: list[Any] = []
    for _ in range(count):
        code = buf[at]
        if code == 0x40:
            values.append(None)
            at += 1
        elif code == 0x52:
            values.append(buf[at + 1])
            at += 2
        elif code == 0x43:
            values.append(0)
            at += 1
        elif code == 0x70:
            values.append(int.from_bytes(buf[at + 1 : at + 5], "big"))
            at += 5
        elif code in (0x41, 0x42):
            values.append(code == 0x41)
            at += 1
        elif code == 0x56:
            values.append(buf[at + 1] == 1)
            at += 2
        elif code == 0xA0:
            size = buf[at + 1]
            values.append(buf[at + 2 : at + 2 + size])
            at += 2 + size
        else:
            return _decode_unusual_transfer(buf, pos, end)
        if at > payload:
            return _decode_unusual_transfer(buf, pos, end)
    if at != payload or tuple(map(type, values[:6])) not in _USUAL_TYPES:
        return _decode_unusual_transfer(buf, pos, end)
    values += [None] * (11 - count)
    handle, delivery_id, tag, message_format, settled, more, _, state, _, aborted, _ = values
    if type(state) not in (type(None), bool) or type(aborted) not in (type(None), bool):
        return _decode_unusual_transfer(buf, pos, end)
    return handle, delivery_id, tag, message_format, bool(settled), bool(more), bool(aborted), payload


def _types_of_usual_transfers() -> set[tuple[type, ...]]:
    """Every mixture of given and absent values in the first six fields, and every shorter prefix of it."""
    none = type(None)
    mixtures: set[tuple[type, ...]] = {(int,)}
    longest = {(int,)}
    for kind in (int, bytes, int, bool, bool):
        longest = {(*mixture, choice) for mixture in longest for choice in (kind, none)}  # type: ignore[misc]
        mixtures |= longest
    return mixtures


_USUAL_TYPES = _types_of_usual_transfers()


def _decode_unusual_transfer(buf: bytes, pos: int, end: int) -> TransferFields:
    transfer, size = decode_performative(buf[pos:end], 0)
    assert isinstance(transfer, Transfer)
    return (
        transfer.handle,
        transfer.delivery_id,
        transfer.delivery_tag,
        transfer.message_format,
        bool(transfer.settled),
        transfer.more,
        transfer.aborted,
        pos + size,
    )
