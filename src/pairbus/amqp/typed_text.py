"""AMQP values as text with the name of their type, and back: the form of properties in a row.

| type | value |
| --- | --- |
| `null` | null |
| `boolean` | `true`, `false` |
| `ubyte` `ushort` `uint` `ulong` `byte` `short` `int` `long` | digits |
| `float` `double` | as Python writes it: `0.1`, `1e-07`, `nan`, `inf` |
| `timestamp` | milliseconds since 1970 |
| `string` `symbol` `char` | the text |
| `uuid` | `123e4567-e89b-12d3-a456-426614174000` |
| `binary` | base64 |
| `decimal32` `decimal64` `decimal128` | hexadecimal digits of its bytes |
| `amqp` | base64 of the encoded value: described values, lists, maps and arrays |

`from_text(*to_text(value))` is the value, of the same type, for every value of AMQP.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal,
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
    decode_all,
    encode,
)

Text = tuple[str, str | None]
_ENCODED = "amqp"


def to_text(value: Any) -> Text:
    """Return (name of the type, text); every value that was decoded has one."""
    known = _TO_TEXT.get(type(value))
    if known is None:
        if type(value) is Decimal:
            return f"decimal{8 * len(value)}", value.hex()
        return _ENCODED, base64.b64encode(encode(value)).decode()
    return known[0], known[1](value)


def from_text(kind: str, text: str | None) -> Any:
    """Return the value; ValueError with the expected form when the text is wrong."""
    read = _FROM_TEXT.get(kind)
    if read is None:
        raise ValueError(f"{kind!r} is no AMQP type; known are {', '.join(_FROM_TEXT)}")
    if text is None and kind != "null":
        raise ValueError(f"a {kind} needs a value")
    try:
        return read(text or "")
    except (ValueError, OverflowError, struct.error, ProtocolError, binascii.Error) as error:
        raise ValueError(f"{text!r:.80} is no {kind}: {error}") from None


def _whole(wrap: Callable[[int], Any], low: int, high: int) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"not within {low} … {high}")
        return wrap(value)

    return read


def _unsigned(wrap: Callable[[int], Any], bits: int) -> Callable[[str], Any]:
    return _whole(wrap, 0, (1 << bits) - 1)


def _signed(wrap: Callable[[int], Any], bits: int) -> Callable[[str], Any]:
    return _whole(wrap, -(1 << bits - 1), (1 << bits - 1) - 1)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _single(text: str) -> Float:
    value = float(text)
    struct.pack(">f", value)  # OverflowError when single precision cannot hold it
    return Float(value)


def _char(text: str) -> Char:
    if len(text) != 1:
        raise ValueError(f"it has {len(text)} characters")
    text.encode("utf-32-be")  # ValueError for half of a surrogate pair
    return Char(text)


def _string(text: str) -> str:
    text.encode()  # UnicodeEncodeError, which is a ValueError, for half of a surrogate pair
    return text


def _symbol(text: str) -> Symbol:
    text.encode("ascii")  # UnicodeEncodeError is a ValueError
    return Symbol(text)


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decimal(width: int) -> Callable[[str], Decimal]:
    def read(text: str) -> Decimal:
        raw = bytes.fromhex(text)
        if len(raw) != width:
            raise ValueError(f"it has {len(raw)} bytes instead of {width}")
        return Decimal(raw)

    return read


def _plain(value: Any) -> str:
    return str.__str__(value)


_DIGITS: Callable[[Any], str] = int.__repr__
_TO_TEXT: dict[type, tuple[str, Callable[[Any], str | None]]] = {
    type(None): ("null", lambda value: None),
    bool: ("boolean", lambda value: "true" if value else "false"),
    UByte: ("ubyte", _DIGITS),
    UShort: ("ushort", _DIGITS),
    UInt: ("uint", _DIGITS),
    ULong: ("ulong", _DIGITS),
    Byte: ("byte", _DIGITS),
    Short: ("short", _DIGITS),
    Int: ("int", _DIGITS),
    Long: ("long", _DIGITS),
    int: ("long", _DIGITS),
    Timestamp: ("timestamp", _DIGITS),
    Float: ("float", float.__repr__),
    float: ("double", float.__repr__),
    str: ("string", _plain),
    Symbol: ("symbol", _plain),
    Char: ("char", _plain),
    UUID: ("uuid", str),
    bytes: ("binary", lambda value: base64.b64encode(value).decode()),
}
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "null": lambda text: None,
    "boolean": _boolean,
    "ubyte": _unsigned(UByte, 8),
    "ushort": _unsigned(UShort, 16),
    "uint": _unsigned(UInt, 32),
    "ulong": _unsigned(ULong, 64),
    "byte": _signed(Byte, 8),
    "short": _signed(Short, 16),
    "int": _signed(Int, 32),
    "long": _signed(Long, 64),
    "timestamp": _signed(Timestamp, 64),
    "float": _single,
    "double": float,
    "string": _string,
    "symbol": _symbol,
    "char": _char,
    "uuid": UUID,
    "binary": _base64,
    "decimal32": _decimal(4),
    "decimal64": _decimal(8),
    "decimal128": _decimal(16),
    _ENCODED: lambda text: decode_all(_base64(text)),
}
TYPES = tuple(_FROM_TEXT)
