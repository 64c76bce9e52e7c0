"""The AMQP types that Python has no type for (AMQP 1.6): a value remembers its type on the wire."""

from __future__ import annotations

from typing import Any


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
    """A decimal32, 64 or 128 as its 4, 8 or 16 bytes; no code here computes with it."""

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
