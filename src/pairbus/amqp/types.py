"""The AMQP 1.0 type system: one table row for each constructor byte. Decoding is here, encoding in `encoding`.

Laws of this file.
 1. `decode` reads one value at a position and returns the position behind it. For all bytes it ends with a value or a
    ProtocolError(amqp:decode-error); it never reads past the buffer and never builds more than the bytes could hold.
 2. A value remembers its AMQP type: numbers decode to the int and float subclasses of `values`, so encode(decode(x))
    keeps every type (the widths of the encoding may shrink, the type never changes) and never fails.

The high nibble of a constructor has the width of the bytes that follow (AMQP 1.6), so `skip` needs no table
of types: 4x none, 5x one, 6x two, 7x four, 8x eight, 9x sixteen bytes, Ax/Cx/Ex an 8-bit size, Bx/Dx/Fx a 32-bit one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn
from uuid import UUID

from pairbus.amqp.encoding import (
    encode,
    encode_binary,
    encode_int,
    encode_long,
    encode_pair,
    encode_pairs,
    encode_string,
    encode_symbol,
    encode_uint,
    encode_ulong,
    list_of,
    map_of,
)
from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

__all__ = [
    "Array", "Byte", "Char", "Decimal", "Described", "Float", "Int", "Long", "Short", "Symbol", "Timestamp",
    "UByte", "UInt", "ULong", "UShort", "decode", "decode_all", "encode", "encode_binary", "encode_int",
    "encode_long", "encode_pair", "encode_pairs", "encode_string", "encode_symbol", "encode_uint", "encode_ulong",
    "list_of", "map_of", "skip",
]  # fmt: skip

NO_WIDTH_COUNT_MAX = 100  # elements of an array that take no bytes: more could fill the memory for free
DEPTH_MAX = 32  # nested lists, maps, arrays and described values; the performatives need 6

Decoder = Callable[[bytes, int, int], tuple[Any, int]]


def _refuse(text: str) -> NoReturn:
    raise ProtocolError(DECODE_ERROR, text)


# ── decoding ──


def decode(buf: bytes, pos: int = 0) -> tuple[Any, int]:
    """Return the value at `pos` and the position behind it."""
    try:
        return _DECODERS[buf[pos]](buf, pos + 1, 0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise ProtocolError(DECODE_ERROR, f"value at byte {pos}: {error}") from error


def decode_all(buf: bytes) -> Any:
    """Return the one value that fills the buffer."""
    value, end = decode(buf)
    if end != len(buf):
        _refuse(f"{len(buf) - end} bytes behind the value")
    return value


def skip(buf: bytes, pos: int) -> int:
    """Return the position behind the value at `pos`, which is not built. May be past the buffer: the caller checks."""
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


def _compound_head(buf: bytes, pos: int, wide: bool, *, may_have_no_width: bool = False) -> tuple[int, int, int]:
    """Return (count, position of the first element, end), checked against the buffer."""
    if wide:
        size, count = _TWO_UINTS.unpack_from(buf, pos)
        start, end = pos + 8, pos + 4 + size
    else:
        size, count = buf[pos], buf[pos + 1]
        start, end = pos + 2, pos + 1 + size
    if end > len(buf) or start > end:
        _refuse(f"compound of {size} bytes at {pos} does not fit")
    if count > end - start and not (may_have_no_width and count <= NO_WIDTH_COUNT_MAX):
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
        # null, true, list0 and the like: elements may take no bytes at all (1.6.24)
        count, start, end = _compound_head(buf, pos, wide, may_have_no_width=True)
        descriptors: list[Any] = []
        while buf[start] == 0x00:
            if len(descriptors) == DEPTH_MAX:
                _refuse(f"nested deeper than {DEPTH_MAX}")
            descriptor, start = _DECODERS[buf[start + 1]](buf, start + 2, depth + 1)
            descriptors.append(descriptor)
        code = buf[start]
        start += 1
        read_one = _DECODERS[code]
        values = []
        for _ in range(count):
            value, start = read_one(buf, start, depth + 1)
            for descriptor in reversed(descriptors):
                value = Described(descriptor, value)
            values.append(value)
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
