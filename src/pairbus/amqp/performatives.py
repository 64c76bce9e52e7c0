"""Performatives, termini, outcomes and errors as field tables, in the order of the standard (AMQP 2.7, 2.8, 3.4, 3.5).

A row is a field: its name, its kind, its default. Decoder, encoder, defaults and checks are made from the rows. The
two performatives that every message needs have hand-written codecs in `transfers`.

Laws.
 1. A row can write every value that it accepts from the wire. A server echoes the termini that a peer chose.
 2. Performatives and errors are written whole, with a null for each field that has no value. The standard lets a writer
    leave out trailing nulls, but azure-servicebus 7.11 to 7.14 reads fields by their position and fails without them.
"""

from __future__ import annotations

import dataclasses
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


class FieldKind:
    """One type of field: the values that are accepted, and how they are written."""

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


def _is_symbol(value: Any) -> bool:
    """Return True for a symbol, and for a string that could be one: some peers write names as strings."""
    return isinstance(value, str) and value.isascii()


def _is_symbols(value: Any) -> bool:
    return _is_symbol(value) or (isinstance(value, list) and all(map(_is_symbol, value)))


def _is_fields(value: Any) -> bool:
    """Return True for a map whose keys are symbols or, as in annotations, numbers (3.2.10)."""
    return isinstance(value, dict) and all(_is_symbol(key) or type(key) is ULong for key in value)


def _is_timestamp(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def _write_fields(value: dict[Any, Any]) -> bytes:
    return encode({Symbol(key) if isinstance(key, str) else key: element for key, element in value.items()})


def _write_symbols(value: Any) -> bytes:
    if isinstance(value, str):
        return encode_symbol(value)
    return encode(Array([Symbol(element) for element in value], 0xB3))


BOOLEAN = FieldKind("boolean", _is(bool), encode)
UBYTE = FieldKind("ubyte", _unsigned(8), lambda v: encode(UByte(v)))
USHORT = FieldKind("ushort", _unsigned(16), lambda v: encode(UShort(v)))
UINT = FieldKind("uint", _unsigned(32), encode_uint)
ULONG = FieldKind("ulong", _unsigned(64), encode_ulong)
TIMESTAMP = FieldKind("timestamp", _is_timestamp, lambda v: encode(Timestamp(v)))
BINARY = FieldKind("binary", _is(bytes), encode_binary)
STRING = FieldKind("string", _is(str), encode_string)
SYMBOL = FieldKind("symbol", _is_symbol, encode_symbol)
SYMBOLS = FieldKind("symbol, multiple", _is_symbols, _write_symbols)
FIELDS = FieldKind("fields", _is_fields, _write_fields)
ANY = FieldKind("*", lambda value: True, encode)


class _Composed(FieldKind):
    """A field that holds one of the composites named by `codes`; without codes, any composite."""

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


def row(kind: FieldKind, default: Any = None, *, required: bool = False, shown: bool = True) -> Any:
    """Describe one field of a composite; a secret is not `shown` when the composite is printed."""
    return dataclasses.field(default=default, repr=shown, metadata={"kind": kind, "required": required})


class Composite:
    """A described list. Subclasses are tables of rows."""

    __slots__ = ()
    CODE: ClassVar[int]
    NAME: ClassVar[str]
    ROWS: ClassVar[tuple[tuple[str, FieldKind, Any, bool], ...]]
    IS_WHOLE: ClassVar[bool] = False
    "True: trailing nulls are written."

    def encode(self) -> bytes:
        parts = []
        for name, kind, _, _ in self.ROWS:
            value = getattr(self, name)
            parts.append(b"\x40" if value is None else kind.write(value))
        if not self.IS_WHOLE:
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
def composite(code: int, name: str, *, whole: bool = False) -> Callable[[_T], _T]:
    """Make the class a dataclass whose rows are read from its fields, and register its descriptor."""

    def make(cls: _T) -> _T:
        made: Any = dataclass(slots=True)(cls)
        made.CODE, made.NAME, made.IS_WHOLE = code, name, whole
        made.ROWS = tuple(
            (f.name, f.metadata["kind"], f.default, f.metadata["required"]) for f in dataclasses.fields(made)
        )
        BY_CODE[code] = made
        return made  # type: ignore[no-any-return]

    return make


# ── performatives (2.7) ──


@composite(0x10, "open", whole=True)
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


@composite(0x11, "begin", whole=True)
class Begin(Composite):
    remote_channel: int | None = row(USHORT)
    next_outgoing_id: int = row(UINT, required=True)
    incoming_window: int = row(UINT, required=True)
    outgoing_window: int = row(UINT, required=True)
    handle_max: int = row(UINT, 0xFFFFFFFF)
    offered_capabilities: Any = row(SYMBOLS)
    desired_capabilities: Any = row(SYMBOLS)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x12, "attach", whole=True)
class Attach(Composite):
    name: str = row(STRING, required=True)
    handle: int = row(UINT, required=True)
    role: bool = row(BOOLEAN, required=True)
    snd_settle_mode: int = row(UBYTE, 2)
    rcv_settle_mode: int = row(UBYTE, 0)
    source: Source | None = row(SOURCE)
    target: Target | Coordinator | None = row(TARGET)
    unsettled: dict[Any, Any] | None = row(FieldKind("map", _is(dict), encode))
    incomplete_unsettled: bool | None = row(BOOLEAN)
    initial_delivery_count: int | None = row(UINT)
    max_message_size: int | None = row(ULONG)
    offered_capabilities: Any = row(SYMBOLS)
    desired_capabilities: Any = row(SYMBOLS)
    properties: dict[Any, Any] | None = row(FIELDS)


@composite(0x13, "flow", whole=True)
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


@composite(0x14, "transfer", whole=True)
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


@composite(0x15, "disposition", whole=True)
class Disposition(Composite):
    role: bool = row(BOOLEAN, required=True)
    first: int = row(UINT, required=True)
    last: int | None = row(UINT)
    settled: bool = row(BOOLEAN, False)
    state: Any = row(STATE)
    batchable: bool = row(BOOLEAN, False)


@composite(0x16, "detach", whole=True)
class Detach(Composite):
    handle: int = row(UINT, required=True)
    closed: bool = row(BOOLEAN, False)
    error: Error | None = row(ERROR)


@composite(0x17, "end", whole=True)
class End(Composite):
    error: Error | None = row(ERROR)


@composite(0x18, "close", whole=True)
class Close(Composite):
    error: Error | None = row(ERROR)


# ── errors, outcomes, termini (2.8, 3.4, 3.5, 4.5.1) ──


@composite(0x1D, "error", whole=True)  # a shortened error list blocks the Python SDK for ever
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


# ── transactions (4.5) ──


@composite(0x31, "declare")
class Declare(Composite):
    """Body of a message to a coordinator: begin a transaction."""

    global_id: Any = row(ANY)


@composite(0x32, "discharge")
class Discharge(Composite):
    """Body of a message to a coordinator: end a transaction."""

    txn_id: bytes = row(BINARY, required=True)
    fail: bool = row(BOOLEAN, False)


@composite(0x33, "declared")
class Declared(Composite):
    """Outcome of a declare."""

    txn_id: bytes = row(BINARY, required=True)


@composite(0x34, "transactional-state")
class TransactionalState(Composite):
    """State of a delivery that belongs to a transaction; the outcome holds if the transaction is committed."""

    txn_id: bytes = row(BINARY, required=True)
    outcome: Any = row(STATE)


# ── SASL (5.3) ──


@composite(0x40, "sasl-mechanisms")
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Any = row(SYMBOLS, required=True)


@composite(0x41, "sasl-init")
class SaslInit(Composite):
    """A client's choice of a mechanism. The `initial_response` of PLAIN is a key and is never printed."""

    mechanism: str = row(SYMBOL, required=True)
    initial_response: bytes | None = row(BINARY, shown=False)
    hostname: str | None = row(STRING)


@composite(0x44, "sasl-outcome")
class SaslOutcome(Composite):
    code: int = row(UBYTE, required=True)
    additional_data: bytes | None = row(BINARY)


# ── reading ──


@dataclass(slots=True)
class UnknownState:
    """A delivery state of an extension: kept, so that it can be refused by name."""

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
    """Return the performative at `pos` and the position behind it (where a transfer's payload begins)."""
    value, end = decode(buf, pos)
    if isinstance(value, Described):
        performative = from_described(value)
        if isinstance(performative, Composite):
            return performative, end
    raise ProtocolError(DECODE_ERROR, f"no performative: {value!r:.80}")


ACCEPTED_BYTES = Accepted().encode()
RELEASED_BYTES = Released().encode()
