"""Values of AMQP as text that people edit: every type comes back as it was, and bad text says what is right."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.typed_text import from_text, to_text
from pairbus.amqp.types import (
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
    encode,
)

VALUES: list[tuple[Any, str]] = [
    (None, "null"),
    (True, "boolean"),
    (False, "boolean"),
    (UByte(255), "ubyte"),
    (UShort(65_535), "ushort"),
    (UInt(7), "uint"),
    (ULong(1 << 63), "ulong"),
    (Byte(-128), "byte"),
    (Short(-32_768), "short"),
    (Int(-7), "int"),
    (Long(-(1 << 63)), "long"),
    (Float(0.5), "float"),
    (0.1, "double"),
    (Char("€"), "char"),
    (Timestamp(1_700_000_000_123), "timestamp"),
    (UUID(int=5), "uuid"),
    (b"\0\xff", "binary"),
    ("ünï", "string"),
    (Symbol("com.microsoft:timespan"), "symbol"),
    (Decimal(bytes(range(4))), "decimal32"),
    (Decimal(bytes(range(8))), "decimal64"),
    (Decimal(bytes(range(16))), "decimal128"),
    ([Int(1), "two"], "amqp"),
    (Described(Symbol("com.microsoft:timespan"), Long(9)), "amqp"),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda each: str(each)[:30])
def test_every_type_comes_back_from_its_text_as_it_was(value: Any, kind: str) -> None:
    """To the byte: an edited message must not turn a long into an int."""
    name, text = to_text(value)
    assert name == kind
    assert encode(from_text(name, text)) == encode(value)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("integer", "1", "'integer' is no AMQP type; known are .*, uint"),
        ("int", None, "a int needs a value"),
        ("ubyte", "256", "not within 0 … 255"),
        ("byte", "-129", "not within -128 … 127"),
        ("long", "one", "'one' is no long"),
        ("boolean", "True", "write true or false"),
        ("float", "1e39", "is no float"),
        ("char", "ab", "it has 2 characters"),
        ("symbol", "ü", "is no symbol"),
        ("binary", "not base64!", "is no binary"),
        ("decimal64", "00", "it has 1 bytes instead of 8"),
        ("amqp", "AAAA", "is no amqp"),
    ],
)
def test_text_that_is_no_such_value_says_what_is_right(kind: str, text: str | None, says: str) -> None:
    """A user who edits a message by hand reads the error, and nothing is sent."""
    with pytest.raises(ValueError, match=says):
        from_text(kind, text)
