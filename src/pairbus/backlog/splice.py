"""Changes to encoded lists and maps: one entry is removed or added, the bytes of all others stay.

Every function takes the whole message and the position of the value in it. ProtocolError or IndexError when the bytes
are cut or not such a value; callers catch both at one place.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from pairbus.amqp.encoding import list_of, map_of
from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.types import skip

NULL = b"\x40"
_TWO_UINTS = struct.Struct(">II")


class Span(NamedTuple):
    """Offsets of a section: its beginning, the beginning of its value, its end."""

    start: int
    value_at: int
    end: int


def is_wide(buf: bytes, value_at: int) -> bool:
    """Return True for a list or map whose size has four bytes."""
    return buf[value_at] in (0xD0, 0xD1)


def map_value(pairs: bytes, count: int, *, wide: bool = False) -> bytes:
    """Return a map of `count` encoded elements, in its shortest form unless `wide`."""
    return b"\xd1" + _TWO_UINTS.pack(len(pairs) + 4, count) + pairs if wide else map_of(pairs, count)


def list_value(fields: list[bytes], *, wide: bool = False) -> bytes:
    if not wide:
        return list_of(fields)
    body = b"".join(fields)
    return b"\xd0" + _TWO_UINTS.pack(len(body) + 4, len(fields)) + body


def map_without(buf: bytes, value_at: int, end: int, names: frozenset[bytes]) -> tuple[bytes, int, dict[bytes, bytes]]:
    """Remove pairs by name; return (the other pairs, their number of elements, encoded values of the removed pairs)."""
    count, at = _head(buf, value_at, 0xC1)
    if not names:
        return buf[at:end], count, {}
    cut: dict[bytes, bytes] = {}
    kept, run, left = [], at, count
    for _ in range(count >> 1):
        form = buf[at]
        if form in _SHORT_TEXT:
            key_end = at + 2 + buf[at + 1]
            key = buf[at + 2 : key_end]
        else:
            key_end = skip(buf, at)
            key = buf[at + 5 : key_end] if form in _LONG_TEXT else b""
        stop = key_end + 2 + buf[key_end + 1] if buf[key_end] == 0xA1 else skip(buf, key_end)
        if key in names:
            cut[key] = buf[key_end:stop]
            kept.append(buf[run:at])
            run, left = stop, left - 2
        at = stop
    if at != end or count & 1:
        raise ProtocolError(DECODE_ERROR, f"a map of {count} elements ends at {end}, they end at {at}")
    if not cut:
        return buf[run:end], count, cut
    kept.append(buf[run:end])
    return b"".join(kept), left, cut


_SHORT_TEXT, _LONG_TEXT = b"\xa1\xa3", b"\xb1\xb3"  # strings and symbols


def field_span(buf: bytes, value_at: int, end: int, index: int) -> tuple[int, int] | None:
    """Return the offset of a list's field; None when it is null or absent."""
    count, at = _head(buf, value_at, 0xC0)
    if count <= index:
        return None
    at = _nth(buf, at, index)
    if buf[at] == 0x40:
        return None
    return at, _within(skip(buf, at), end)


def list_fields(buf: bytes, value_at: int, end: int) -> list[bytes]:
    count, at = _head(buf, value_at, 0xC0)
    fields = []
    for _ in range(count):
        stop = skip(buf, at)
        fields.append(buf[at:stop])
        at = stop
    if at != end:
        raise ProtocolError(DECODE_ERROR, f"a list of {count} fields ends at {end}, they end at {at}")
    return fields


def with_field(buf: bytes, value_at: int, end: int, index: int, encoded: bytes) -> bytes:
    """Return the list with this field; a list that was shorter is filled up with nulls."""
    count, first_at = _head(buf, value_at, 0xC0)
    if count <= index:
        body, count = buf[first_at:end] + NULL * (index - count) + encoded, index + 1
    else:
        at = _nth(buf, first_at, index)
        body = buf[first_at:at] + encoded + buf[_within(skip(buf, at), end) : end]
    if not is_wide(buf, value_at) and count <= 0xFF and len(body) < 0xFF:
        return b"\xc0" + bytes((len(body) + 1, count)) + body
    return b"\xd0" + _TWO_UINTS.pack(len(body) + 4, count) + body


def _head(buf: bytes, value_at: int, narrow: int) -> tuple[int, int]:
    """Return (number of elements, position of the first one) of a list (0xC0) or map (0xC1)."""
    code = buf[value_at]
    if code == narrow:
        return buf[value_at + 2], value_at + 3
    if code == narrow + 0x10:
        return int.from_bytes(buf[value_at + 5 : value_at + 9], "big"), value_at + 9
    if code == 0x45 and narrow == 0xC0:
        return 0, value_at + 1
    raise ProtocolError(DECODE_ERROR, f"0x{code:02x} is no {'list' if narrow == 0xC0 else 'map'}")


def _nth(buf: bytes, at: int, index: int) -> int:
    for _ in range(index):
        at = at + 1 if buf[at] == 0x40 else skip(buf, at)
    return at


def _within(stop: int, end: int) -> int:
    if stop > end:
        raise ProtocolError(DECODE_ERROR, f"a field ends at {stop}, its list at {end}")
    return stop
