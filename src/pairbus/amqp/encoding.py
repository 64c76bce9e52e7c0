"""AMQP values → bytes. Every value that `decode` can return is accepted, so that a received value can always be sent.

A plain Python value encodes as its natural type: int → long, float → double, str → string, bytes → binary,
dict → map, list → list, UUID → uuid, bool, None. The shortest form of each type is chosen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

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

_UINT = struct.Struct(">I")
_TWO_UINTS = struct.Struct(">II")


def encode(value: Any) -> bytes:
    """Return the value as AMQP bytes. TypeError when AMQP has no type for it: the caller's mistake, not a peer's."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"no AMQP type for {type(value).__name__}: {value!r}")
    return encoder(value)


def encode_pairs(pairs: dict[Any, Any]) -> bytes:
    """Return the keys and values of a map, one behind the other, without the map's own head."""
    return b"".join([encode(part) for pair in pairs.items() for part in pair])


def map_of(pairs: bytes, count: int) -> bytes:
    """Return a map of `count` elements (keys and values both count) whose elements are already encoded."""
    if count <= 0xFF and len(pairs) < 0xFF:
        return b"\xc1" + bytes((len(pairs) + 1, count)) + pairs
    return b"\xd1" + _TWO_UINTS.pack(len(pairs) + 4, count) + pairs


def list_of(parts: list[bytes]) -> bytes:
    """Return a list whose elements are already encoded."""
    if not parts:
        return b"\x45"
    body = b"".join(parts)
    if len(parts) <= 0xFF and len(body) < 0xFF:
        return b"\xc0" + bytes((len(body) + 1, len(parts))) + body
    return b"\xd0" + _TWO_UINTS.pack(len(body) + 4, len(parts)) + body


def _bool_out(value: bool) -> bytes:
    return b"\x41" if value else b"\x42"


def _small(code: int, fmt: str, small_code: int | None, zero_code: int | None, low: int, high: int) -> Any:
    """Return the encoder of an integer type: zero and small values have shorter forms."""
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
    """Encode every element with the one constructor of the array, which is the wide one of its type."""
    constructor = b""
    elements: list[Any] = value
    while elements and isinstance(elements[0], Described):
        constructor += b"\x00" + encode(elements[0].descriptor)
        elements = [element.value for element in elements]
    if not elements:
        return b"\xf0" + _TWO_UINTS.pack(5, 0) + bytes((value.code,))
    kind = type(elements[0])
    code, write = _ARRAY_ELEMENTS.get(kind, (0, None))
    if write is None or any(type(element) is not kind for element in elements):
        raise TypeError(f"no AMQP array of {kind.__name__}, or not of it alone")
    if kind is Decimal:
        code = _DECIMAL_CODES[len(elements[0])][0]
    body = constructor + bytes((code,)) + b"".join([write(element) for element in elements])
    return b"\xf0" + _TWO_UINTS.pack(len(body) + 4, len(elements)) + body


def _packed(fmt: str) -> Callable[[Any], bytes]:
    return struct.Struct(fmt).pack


def _sized(raw: bytes) -> bytes:
    return _UINT.pack(len(raw)) + raw


def _compound_element(encoded: bytes) -> bytes:
    """Return an encoded list or map as an element of an array that has the 32-bit constructor."""
    if encoded[0] == 0x45:
        return _TWO_UINTS.pack(4, 0)
    if encoded[0] in (0xC0, 0xC1):
        return _TWO_UINTS.pack(encoded[1] + 3, encoded[2]) + encoded[3:]
    return encoded[1:]


_ARRAY_ELEMENTS: dict[Any, tuple[int, Callable[[Any], bytes] | None]] = {
    type(None): (0x40, lambda v: b""),
    Decimal: (0x74, bytes),  # the code depends on the width
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
    """Encode one string key with its string value, as a piece of a map."""
    return encode_string(key) + encode_string(value)
