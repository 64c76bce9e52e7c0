"""Lists and maps that are cut as bytes: long names, and values that do not end where they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairbus.amqp.errors import ProtocolError
from pairbus.amqp.types import Symbol, UInt, encode
from pairbus.backlog.splice import field_span, list_fields, map_without, with_field


def test_name_in_any_form_is_cut_out() -> None:
    """A sender may write a name in the long form, and use keys that are no text at all."""
    long_name = b"\xb1" + len(b"name").to_bytes(4, "big") + b"name"
    pairs = [(long_name, b"\x41"), (encode(UInt(7)), b"\x42"), (encode(Symbol("other")), encode("x" * 300))]
    body = b"".join(key + value for key, value in pairs)
    whole = b"\xd1" + (len(body) + 4).to_bytes(4, "big") + (6).to_bytes(4, "big") + body
    kept, count, cut = map_without(whole, 0, len(whole), frozenset({b"name"}))
    assert cut == {b"name": b"\x41"}
    assert (kept, count) == (body[len(long_name) + 1 :], 4)


# (operation, bytes of the value)
DAMAGED: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "a map with a name and no value": (
        lambda raw: map_without(raw, 0, len(raw), frozenset({b"n"})),
        b"\xc1\x06\x03\xa1\x01a\x40\xa1",
    ),
    "a map that ends before its last value": (
        lambda raw: map_without(raw, 0, len(raw) - 1, frozenset({b"n"})),
        b"\xc1\x05\x02\xa1\x01a\x40",
    ),
    "a list with bytes left over": (lambda raw: list_fields(raw, 0, len(raw)), b"\xc0\x03\x01\x40\x40"),
    "a list whose field runs past it": (lambda raw: list_fields(raw, 0, len(raw)), b"\xc0\x04\x01\xa1\x05x"),
    "a field that runs past its list": (lambda raw: field_span(raw, 0, len(raw), 0), b"\xc0\x04\x01\xa1\x05x"),
    "a new field for one that runs past its list": (
        lambda raw: with_field(raw, 0, len(raw), 0, b"\x40"),
        b"\xc0\x04\x01\xa1\x05x",
    ),
    "a map where a list should be": (lambda raw: list_fields(raw, 0, len(raw)), b"\xc1\x01\x00"),
    "an empty list where a map should be": (lambda raw: map_without(raw, 0, len(raw), frozenset()), b"\x45"),
}


@pytest.mark.parametrize(("cut", "raw"), DAMAGED.values(), ids=DAMAGED.keys())
def test_value_that_does_not_end_where_it_says_is_refused(cut: Callable[[bytes], object], raw: bytes) -> None:
    """Bytes of the next section would travel as part of this one, and the message come home altered."""
    with pytest.raises(ProtocolError):
        cut(raw)
