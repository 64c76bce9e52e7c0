"""The AMQP 1.0 type system: one table row for each constructor byte.

Laws of this file.
 1. `decode` reads one value at a position and says where it ends. Whatever the bytes are, it ends in a value or in
    ProtocolError(amqp:decode-error); it never reads past the buffer and never builds more than the bytes could hold.
 2. A value remembers its AMQP type: numbers decode to the int and float subclasses below, so encode(decode(x)) keeps
    every type (the widths of the encoding may shrink, the type never changes).
 3. A plain Python value encodes as its natural type: int → long, float → double, str → string, bytes → binary,
    dict → map, list → list, UUID → uuid, bool, None.

In the high nibble of a constructor stands the width of what follows (AMQP 1.6), which is why `skip` needs no table
of types: 4x none, 5x one, 6x two, 7x four, 8x eight, 9x sixteen bytes, Ax/Cx/Ex an 8-bit size, Bx/Dx/Fx a 32-bit one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn
from uuid import UUID

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError

DEPTH_MAX = 32  # nested lists, maps, arrays and described values; the performatives need 6


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970."""

    __slots__ = ()


class Float(float):
    """Single precision; a plain float is a double."""

    __slots__ = ()


class Char(str):
    __slots__ = ()


class Symbol(str):
    __slots__ = ()


class Decimal(bytes):
    """decimal32, 64 or 128 as its 4, 8 or 16 bytes; nothing here computes with them."""

    __slots__ = ()


class Array(list[Any]):
    """Elements of one type. `code` is the constructor that they share on the wire."""

    __slots__ = ("code",)

    def __init__(self, values: Any = (), code: int = 0xB1) -> None:
        super().__init__(values)
        self.code = code


class Described:
    """A value with its descriptor."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and (self.descriptor, self.value) == (other.descriptor, other.value)

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


Decoder = Callable[[bytes, int, int], tuple[Any, int]]


def _refuse(text: str) -> NoReturn:
    raise ProtocolError(DECODE_ERROR, text)


# ── Decoding ────────────────────────────────────────────────────────────────


def decode(buf: bytes, pos: int = 0) -> tuple[Any, int]:
    """The value at `pos` and the position behind it."""
    try:
        return _DECODERS[buf[pos]](buf, pos + 1, 0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ProtocolError(DECODE_ERROR, f"value at byte {pos}: {error}") from error


def decode_all(buf: bytes) -> Any:
    """The one value that fills the buffer."""
    value, end = decode(buf)
    if end != len(buf):
        _refuse(f"{len(buf) - end} bytes behind the value")
    return value


def skip(buf: bytes, pos: int) -> int:
    """The position behind the value at `pos`, without building it. May point past the buffer: the caller checks."""
    code = buf[pos]
    while code == 0x00:
        if buf[pos + 1] == 0x00:
            _refuse("a descriptor that is described itself")
        pos = skip(buf, pos + 1)
        code = buf[pos]
    nibble = code >> 4
    if nibble < 0xA:
        if nibble < 4:
            _refuse(f"unknown constructor 0x{code:02x}")
        return pos + 1 + _FIXED_WIDTHS[nibble]
    if nibble & 1:
        return pos + 5 + int.from_bytes(buf[pos + 1 : pos + 5], "big")
    return pos + 2 + buf[pos + 1]


_FIXED_WIDTHS = (0, 0, 0, 0, 0, 1, 2, 4, 8, 16)


def _constant(value: Any) -> Decoder:
    return lambda buf, pos, depth: (value, pos)


def _number(fmt: str, wrap: Callable[[Any], Any]) -> Decoder:
    unpack_from = struct.Struct(fmt).unpack_from
    size = struct.calcsize(fmt)

    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        return wrap(unpack_from(buf, pos)[0]), pos + size

    return read


def _boolean(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if buf[pos] > 1:
        _refuse(f"boolean of value {buf[pos]}")
    return buf[pos] == 1, pos + 1


def _char(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return Char(bytes(_exactly(buf, pos, 4)).decode("utf-32-be")), pos + 4


def _uuid(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    return UUID(bytes=bytes(_exactly(buf, pos, 16))), pos + 16


def _decimal(width: int) -> Decoder:
    return lambda buf, pos, depth: (Decimal(_exactly(buf, pos, width)), pos + width)


def _exactly(buf: bytes, pos: int, size: int) -> bytes:
    if pos + size > len(buf):
        _refuse(f"{size} bytes wanted at {pos}, {len(buf) - pos} are there")
    return buf[pos : pos + size]


def _variable(wide: bool, wrap: Callable[[bytes], Any]) -> Decoder:
    def read8(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        end = pos + 1 + buf[pos]
        if end > len(buf):
            _refuse(f"{buf[pos]} bytes wanted at {pos}, {len(buf) - pos - 1} are there")
        return wrap(buf[pos + 1 : end]), end

    def read32(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        size = _UINT.unpack_from(buf, pos)[0]
        return wrap(_exactly(buf, pos + 4, size)), pos + 4 + size

    return read32 if wide else read8


def _text(raw: bytes) -> str:
    return raw.decode("utf-8")


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _compound_head(buf: bytes, pos: int, wide: bool) -> tuple[int, int, int]:
    """(count, position of the first element, end), checked against the buffer."""
    if wide:
        size, count = _TWO_UINTS.unpack_from(buf, pos)
        start, end = pos + 8, pos + 4 + size
    else:
        size, count = buf[pos], buf[pos + 1]
        start, end = pos + 2, pos + 1 + size
    if end > len(buf) or start > end:
        _refuse(f"compound of {size} bytes at {pos} does not fit")
    if count > end - start:
        _refuse(f"{count} elements cannot stand in {end - start} bytes")
    return count, start, end


def _elements(buf: bytes, pos: int, count: int, end: int, depth: int) -> list[Any]:
    if depth >= DEPTH_MAX:
        _refuse(f"nested deeper than {DEPTH_MAX}")
    values = []
    for _ in range(count):
        if pos >= end:
            _refuse("element past the end of its compound")
        value, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
        values.append(value)
    if pos != end:
        _refuse(f"compound ends at {end}, its elements at {pos}")
    return values


def _list(wide: bool) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        count, start, end = _compound_head(buf, pos, wide)
        return _elements(buf, start, count, end, depth), end

    return read


def _map(wide: bool) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        count, start, end = _compound_head(buf, pos, wide)
        if count % 2:
            _refuse(f"map of {count} elements")
        values = _elements(buf, start, count, end, depth)
        try:
            return dict(zip(values[::2], values[1::2], strict=True)), end
        except TypeError:
            _refuse("a compound value as the key of a map")

    return read


def _array(wide: bool) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        if depth >= DEPTH_MAX:
            _refuse(f"nested deeper than {DEPTH_MAX}")
        if wide:
            size, count = _TWO_UINTS.unpack_from(buf, pos)
            start, end = pos + 8, pos + 4 + size
        else:
            size, count = buf[pos], buf[pos + 1]
            start, end = pos + 2, pos + 1 + size
        if end > len(buf) or start >= end:
            _refuse(f"array of {size} bytes at {pos} does not fit")
        if count > end - start:  # elements of no width (null, true, list0) could otherwise fill the memory for free
            _refuse(f"{count} elements cannot stand in {end - start} bytes")
        descriptor = None
        described = buf[start] == 0x00
        if described:
            descriptor, start = _DECODERS[buf[start + 1]](buf, start + 2, depth + 1)
        code = buf[start]
        start += 1
        read_one = _DECODERS[code]
        values = []
        for _ in range(count):
            value, start = read_one(buf, start, depth + 1)
            values.append(Described(descriptor, value) if described else value)
        if start != end:
            _refuse(f"array ends at {end}, its elements at {start}")
        return Array(values, code), end

    return read


def _described(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
    if depth >= DEPTH_MAX:
        _refuse(f"nested deeper than {DEPTH_MAX}")
    descriptor, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    value, pos = _DECODERS[buf[pos]](buf, pos + 1, depth + 1)
    return Described(descriptor, value), pos


def _unknown(code: int) -> Decoder:
    def read(buf: bytes, pos: int, depth: int) -> tuple[Any, int]:
        _refuse(f"unknown constructor 0x{code:02x} at {pos - 1}")

    return read


_UINT = struct.Struct(">I")
_TWO_UINTS = struct.Struct(">II")

_BY_CONSTRUCTOR: dict[int, Decoder] = {
    0x00: _described,
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x56: _boolean,
    0x50: _number(">B", UByte),
    0x60: _number(">H", UShort),
    0x43: _constant(UInt(0)),
    0x52: _number(">B", UInt),
    0x70: _number(">I", UInt),
    0x44: _constant(ULong(0)),
    0x53: _number(">B", ULong),
    0x80: _number(">Q", ULong),
    0x51: _number(">b", Byte),
    0x61: _number(">h", Short),
    0x54: _number(">b", Int),
    0x71: _number(">i", Int),
    0x55: _number(">b", Long),
    0x81: _number(">q", Long),
    0x72: _number(">f", Float),
    0x82: _number(">d", float),
    0x74: _decimal(4),
    0x84: _decimal(8),
    0x94: _decimal(16),
    0x73: _char,
    0x83: _number(">q", Timestamp),
    0x98: _uuid,
    0xA0: _variable(False, bytes),
    0xB0: _variable(True, bytes),
    0xA1: _variable(False, _text),
    0xB1: _variable(True, _text),
    0xA3: _variable(False, _symbol),
    0xB3: _variable(True, _symbol),
    0x45: lambda buf, pos, depth: ([], pos),
    0xC0: _list(False),
    0xD0: _list(True),
    0xC1: _map(False),
    0xD1: _map(True),
    0xE0: _array(False),
    0xF0: _array(True),
}
_DECODERS: list[Decoder] = [_BY_CONSTRUCTOR.get(code) or _unknown(code) for code in range(256)]


# ── Encoding ────────────────────────────────────────────────────────────────


def encode(value: Any) -> bytes:
    """The value as AMQP bytes. TypeError for what AMQP has no type for: that is the caller's mistake, not a peer's."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"no AMQP type for {type(value).__name__}: {value!r}")
    return encoder(value)


def encode_pairs(pairs: dict[Any, Any]) -> bytes:
    """The keys and values of a map, one behind the other, without the map's own head."""
    return b"".join([encode(part) for pair in pairs.items() for part in pair])


def map_of(pairs: bytes, count: int) -> bytes:
    """A map of `count` elements (keys and values both count) whose elements are already encoded."""
    if count <= 0xFF and len(pairs) < 0xFF:
        return b"\xc1" + bytes((len(pairs) + 1, count)) + pairs
    return b"\xd1" + _TWO_UINTS.pack(len(pairs) + 4, count) + pairs


def list_of(parts: list[bytes]) -> bytes:
    """A list whose elements are already encoded."""
    if not parts:
        return b"\x45"
    body = b"".join(parts)
    if len(parts) <= 0xFF and len(body) < 0xFF:
        return b"\xc0" + bytes((len(body) + 1, len(parts))) + body
    return b"\xd0" + _TWO_UINTS.pack(len(body) + 4, len(parts)) + body


def _bool_out(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def _small(code: int, fmt: str, small_code: int | None, zero_code: int | None, low: int, high: int) -> Any:
    """Encoder of an integer type: zero and small values have shorter forms."""
    pack = struct.Struct(fmt).pack
    wide = bytes((code,))

    def write(value: int) -> bytes:
        if zero_code is not None and value == 0:
            return bytes((zero_code,))
        if small_code is not None and low <= value <= high:
            return bytes((small_code, value & 0xFF))
        return wide + pack(value)

    return write


encode_uint = _small(0x70, ">I", 0x52, 0x43, 0, 255)
encode_ulong = _small(0x80, ">Q", 0x53, 0x44, 0, 255)
encode_long = _small(0x81, ">q", 0x55, None, -128, 127)
encode_int = _small(0x71, ">i", 0x54, None, -128, 127)


def encode_binary(value: bytes) -> bytes:
    if len(value) <= 0xFF:
        return b"\xa0" + bytes((len(value),)) + value
    return b"\xb0" + _UINT.pack(len(value)) + value


def encode_string(value: str) -> bytes:
    raw = value.encode("utf-8")
    if len(raw) <= 0xFF:
        return b"\xa1" + bytes((len(raw),)) + raw
    return b"\xb1" + _UINT.pack(len(raw)) + raw


def encode_symbol(value: str) -> bytes:
    raw = value.encode("ascii")
    if len(raw) <= 0xFF:
        return b"\xa3" + bytes((len(raw),)) + raw
    return b"\xb3" + _UINT.pack(len(raw)) + raw


def _map_out(value: dict[Any, Any]) -> bytes:
    return map_of(encode_pairs(value), 2 * len(value))


def _list_out(value: list[Any]) -> bytes:
    return list_of([encode(element) for element in value])


def _array_out(value: Array) -> bytes:
    """Every element in the array's one constructor, which is the wide one of its type."""
    descriptor = b""
    elements: list[Any] = value
    if value and isinstance(value[0], Described):
        descriptor = b"\x00" + encode(value[0].descriptor)
        elements = [element.value for element in value]
    code, write = _ARRAY_ELEMENTS.get(type(elements[0]) if elements else None, (value.code, None))
    if write is None and elements:
        raise TypeError(f"no AMQP array of {type(elements[0]).__name__}")
    body = descriptor + bytes((code,)) + b"".join([write(element) for element in elements] if write else [])
    return b"\xf0" + _TWO_UINTS.pack(len(body) + 4, len(elements)) + body


def _packed(fmt: str) -> Callable[[Any], bytes]:
    return struct.Struct(fmt).pack


def _sized(raw: bytes) -> bytes:
    return _UINT.pack(len(raw)) + raw


def _compound_element(encoded: bytes) -> bytes:
    """An encoded list or map as an element of an array of the 32-bit constructor."""
    if encoded[0] == 0x45:
        return _TWO_UINTS.pack(4, 0)
    if encoded[0] in (0xC0, 0xC1):
        return _TWO_UINTS.pack(encoded[1] + 3, encoded[2]) + encoded[3:]
    return encoded[1:]


_ARRAY_ELEMENTS: dict[Any, tuple[int, Callable[[Any], bytes]]] = {
    bool: (0x56, lambda v: b"\x01" if v else b"\x00"),
    UByte: (0x50, _packed(">B")),
    UShort: (0x60, _packed(">H")),
    UInt: (0x70, _packed(">I")),
    ULong: (0x80, _packed(">Q")),
    Byte: (0x51, _packed(">b")),
    Short: (0x61, _packed(">h")),
    Int: (0x71, _packed(">i")),
    Long: (0x81, _packed(">q")),
    int: (0x81, _packed(">q")),
    Float: (0x72, _packed(">f")),
    float: (0x82, _packed(">d")),
    Timestamp: (0x83, _packed(">q")),
    Char: (0x73, lambda v: v.encode("utf-32-be")),
    UUID: (0x98, lambda v: v.bytes),
    bytes: (0xB0, _sized),
    str: (0xB1, lambda v: _sized(v.encode("utf-8"))),
    Symbol: (0xB3, lambda v: _sized(v.encode("ascii"))),
    list: (0xD0, lambda v: _compound_element(_list_out(v))),
    dict: (0xD1, lambda v: _compound_element(_map_out(v))),
    Array: (0xF0, lambda v: _array_out(v)[1:]),
}

_DECIMAL_CODES = {4: b"\x74", 8: b"\x84", 16: b"\x94"}

_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda v: b"\x40",
    bool: _bool_out,
    UByte: lambda v: b"\x50" + bytes((v,)),
    UShort: lambda v: b"\x60" + v.to_bytes(2, "big"),
    UInt: encode_uint,
    ULong: encode_ulong,
    Byte: lambda v: b"\x51" + v.to_bytes(1, "big", signed=True),
    Short: lambda v: b"\x61" + v.to_bytes(2, "big", signed=True),
    Int: encode_int,
    Long: encode_long,
    int: encode_long,
    Float: lambda v: b"\x72" + struct.pack(">f", v),
    float: lambda v: b"\x82" + struct.pack(">d", v),
    Decimal: lambda v: _DECIMAL_CODES[len(v)] + bytes(v),
    Char: lambda v: b"\x73" + v.encode("utf-32-be"),
    Timestamp: lambda v: b"\x83" + v.to_bytes(8, "big", signed=True),
    UUID: lambda v: b"\x98" + v.bytes,
    bytes: encode_binary,
    str: encode_string,
    Symbol: encode_symbol,
    list: _list_out,
    dict: _map_out,
    Array: _array_out,
    Described: lambda v: b"\x00" + encode(v.descriptor) + encode(v.value),
}


def encode_pair(key: str, value: str) -> bytes:
    """One string key with its string value, as a piece of a map."""
    return encode_string(key) + encode_string(value)
