"""The codec of AMQP values: every type, every width, every constructor byte, and bytes that are no value."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import DECODE_ERROR, ProtocolError
from pairbus.amqp.types import (
    NO_WIDTH_COUNT_MAX,
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
    decode,
    decode_all,
    encode,
    skip,
)


def integers(kind: type[int], low: int, high: int) -> st.SearchStrategy[Any]:
    edges = [n for n in (low, low + 1, -129, -128, -1, 0, 1, 127, 128, 255, 256, high - 1, high) if low <= n <= high]
    return (st.integers(low, high) | st.sampled_from(edges)).map(kind)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
long_text = st.integers(250, 260).map(lambda n: "é" * (n // 2) + "x" * (n % 2))
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": integers(UByte, 0, 255),
    "ushort": integers(UShort, 0, 0xFFFF),
    "uint": integers(UInt, 0, 0xFFFFFFFF),
    "ulong": integers(ULong, 0, (1 << 64) - 1),
    "byte": integers(Byte, -128, 127),
    "short": integers(Short, -(1 << 15), (1 << 15) - 1),
    "int": integers(Int, -(1 << 31), (1 << 31) - 1),
    "long": integers(Long, -(1 << 63), (1 << 63) - 1),
    "timestamp": integers(Timestamp, -(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False).map(Float),
    "double": st.floats(allow_nan=False),
    "decimal32": st.binary(min_size=4, max_size=4).map(Decimal),
    "decimal64": st.binary(min_size=8, max_size=8).map(Decimal),
    "decimal128": st.binary(min_size=16, max_size=16).map(Decimal),
    "char": st.characters(exclude_categories=["Cs"]).map(Char),
    "uuid": st.uuids(),
    "binary": st.binary(max_size=20) | st.integers(250, 260).map(bytes),
    "string": text | long_text,
    "symbol": st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
    | st.integers(250, 260).map(lambda n: Symbol("s" * n)),
}
scalars = st.one_of(*SCALARS.values())
arrays = st.one_of(*[st.lists(kind, min_size=1, max_size=5).map(Array) for kind in SCALARS.values()])
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(text, inner, max_size=4)
        | st.builds(Described, st.integers(0, 255).map(ULong) | text.map(lambda t: Symbol("s")), inner)
        | st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3).map(Array)
        | st.lists(st.dictionaries(text, inner, max_size=2), min_size=1, max_size=3).map(Array)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and in AMQP type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(same(one[k], other.get(k)) for k in one)
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    return bool(one == other)


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_keeps_its_value_and_its_type(name: str) -> None:
    """A broker that turned an int into a long would change what a receiver's filter or cast sees."""

    @given(SCALARS[name])
    def holds(value: Any) -> None:
        raw = encode(value)
        expected = Long(value) if type(value) is int else value
        assert same(decode_all(raw), expected)
        assert skip(raw, 0) == len(raw)

    holds()


@given(values)
def test_any_nesting_keeps_its_values_and_types(value: Any) -> None:
    """Arrays, maps, lists and described values inside each other come back as they were."""
    raw = encode(value)
    assert same(decode_all(raw), value)
    assert skip(raw, 0) == len(raw)


@given(values, st.binary(max_size=8), st.binary(max_size=8))
def test_a_value_is_read_in_the_middle_of_a_buffer(value: Any, before: bytes, behind: bytes) -> None:
    """`decode` says where the value ends and looks at nothing else."""
    raw = encode(value)
    got, end = decode(before + raw + behind, len(before))
    assert same(got, value) and end == len(before) + len(raw)


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
def test_elements_without_width_are_counted_up_to_a_bound(code: int) -> None:
    """An array of nulls is legal (1.6.24); a count of four billion in ten bytes must not fill the memory."""
    element = decode_all(bytes((code,)))
    for count in (1, NO_WIDTH_COUNT_MAX):
        array = decode_all(b"\xe0" + bytes((2, count, code)))
        assert array == [element] * count
        assert decode_all(encode(array)) == array
    with pytest.raises(ProtocolError):
        decode_all(b"\xe0" + bytes((2, NO_WIDTH_COUNT_MAX + 1, code)))


@given(st.one_of(*[st.lists(kind, min_size=1, max_size=3) for kind in SCALARS.values()]))
def test_an_array_of_described_values_keeps_the_descriptors(elements: list[Any]) -> None:
    """One constructor serves all elements, descriptors included, also when one stands inside another."""
    array = Array([Described(ULong(7), Described(Symbol("in"), element)) for element in elements])
    assert same(decode_all(encode(array)), array)


WIRE = [  # (hex, value) for every constructor of AMQP 1.6
    ("40", None),
    ("41", True),
    ("42", False),
    ("5600", False),
    ("5601", True),
    ("50ff", UByte(255)),
    ("60ffff", UShort(65535)),
    ("43", UInt(0)),
    ("52ff", UInt(255)),
    ("70ffffffff", UInt(0xFFFFFFFF)),
    ("44", ULong(0)),
    ("53ff", ULong(255)),
    ("80ffffffffffffffff", ULong((1 << 64) - 1)),
    ("5180", Byte(-128)),
    ("618000", Short(-32768)),
    ("54ff", Int(-1)),
    ("7180000000", Int(-(1 << 31))),
    ("55ff", Long(-1)),
    ("818000000000000000", Long(-(1 << 63))),
    ("723fc00000", Float(1.5)),
    ("823ff8000000000000", 1.5),
    ("7401020304", Decimal(b"\x01\x02\x03\x04")),
    ("840102030405060708", Decimal(bytes(range(1, 9)))),
    ("94" + "00" * 16, Decimal(bytes(16))),
    ("730001f600", Char("😀")),
    ("83000000000000000a", Timestamp(10)),
    ("98" + "11" * 16, UUID("11" * 16)),
    ("a00161", b"a"),
    ("b00000000161", b"a"),
    ("a102c3a9", "é"),
    ("b100000002c3a9", "é"),
    ("a30161", Symbol("a")),
    ("b30000000161", Symbol("a")),
    ("45", []),
    ("c00100", []),
    ("c0020140", [None]),
    ("d00000000400000000", []),
    ("d0000000050000000140", [None]),
    ("c10100", {}),
    ("c10502a1016b40", {"k": None}),
    ("d10000000400000000", {}),
    ("d10000000800000002a1016b40", {"k": None}),
    ("e0020070", Array([], 0x70)),
    ("e0020140", Array([None], 0x40)),
    ("e00a0270" + "0000000100000002", Array([UInt(1), UInt(2)], 0x70)),
    ("f00000000d0000000270" + "0000000100000002", Array([UInt(1), UInt(2)], 0x70)),
    ("e0020145", Array([[]], 0x45)),
    ("00530140", Described(ULong(1), None)),
    ("00a3016140", Described(Symbol("a"), None)),
]


@pytest.mark.parametrize(("raw", "value"), WIRE, ids=[raw for raw, _ in WIRE])
def test_every_constructor_is_read(raw: str, value: Any) -> None:
    """The bytes are the standard's, not this encoder's: wide forms of small values included."""
    data = bytes.fromhex(raw)
    assert same(decode_all(data), value)
    assert same(decode_all(encode(decode_all(data))), value)
    assert skip(data, 0) == len(data)


def test_every_constructor_byte_is_a_type_or_a_decode_error() -> None:
    """A byte that is no constructor must not be read as a value."""
    known = {bytes.fromhex(raw)[0] for raw, _ in WIRE}
    for code in range(256):
        if code not in known:
            with pytest.raises(ProtocolError, match="unknown constructor"):
                decode(bytes((code,)) + bytes(40))
    assert len(known) == 39 + 1  # 39 in the table of the standard, and 0x00 of a descriptor


SHORTEST = [
    (UInt(0), "43"), (UInt(255), "52ff"), (UInt(256), "7000000100"), (ULong(0), "44"), (ULong(255), "53ff"),
    (Int(-128), "5480"), (Int(128), "7100000080"), (Long(127), "557f"), (Long(-129), "81ffffffffffffff7f"),
    ([], "45"), ([None] * 254, "c0fffe" + "40" * 254), ([None] * 255, "d000000103000000ff" + "40" * 255),
    ({}, "c10100"), (b"x" * 255, "a0ff" + "78" * 255), (b"x" * 256, "b000000100" + "78" * 256),
]  # fmt: skip


@pytest.mark.parametrize(("value", "raw"), SHORTEST, ids=[raw[:12] for _, raw in SHORTEST])
def test_the_shortest_form_is_written(value: Any, raw: str) -> None:
    """The values are at each boundary of a width, one below and one above."""
    assert encode(value).hex() == raw


MALFORMED = {
    "nothing at all": "",
    "a boolean of 2": "5602",
    "a cut ulong": "80ffff",
    "a string longer than the buffer": "a10561",
    "a binary of 4 GB": "b0ffffffff61",
    "a string that is no UTF-8": "a101ff",
    "a symbol that is no ASCII": "a302c3a9",
    "a char that is a surrogate": "730000d800",
    "a char beyond Unicode": "7300110000",
    "a list of more elements than bytes": "c00205",
    "a list of 4 billion": "d000000004ffffffff",
    "a list whose size lies below its count": "d00000000000000000",
    "a list with bytes left over": "c0030140ff",
    "a list whose element runs past it": "c00201a105616161",
    "a list that has no bytes for its second element": "c00302a100",
    "a value and more": "4040",
    "a map of three": "c10403404040",
    "a map with a list as its key": "c1030245" + "40",
    "an array without a constructor": "e00100",
    "an array of 4 billion nulls": "f000000005ffffffff40",
    "an array whose elements end early": "e0040150" + "0000",
    "a described value without a value": "005301",
    "a descriptor alone": "00",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_bytes_that_are_no_value_are_a_decode_error(raw: str) -> None:
    """No other exception leaves the codec: its caller answers with the condition."""
    with pytest.raises(ProtocolError) as caught:
        decode_all(bytes.fromhex(raw))
    assert caught.value.condition == DECODE_ERROR


@pytest.mark.parametrize("kind", ["lists", "described", "arrays", "descriptors of an array"])
def test_nesting_without_end_is_a_decode_error(kind: str) -> None:
    """A thousand levels fit into a small frame and would exhaust the stack of a recursive reader."""
    raw = b"\x40"
    for _ in range(1000):
        if kind == "lists":
            raw = b"\xd0" + struct.pack(">II", len(raw) + 4, 1) + raw
        elif kind == "described":
            raw = b"\x00\x43" + raw
        elif kind == "arrays":
            raw = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
        else:
            raw = b"\x00\x43" + raw
    if kind == "descriptors of an array":
        raw = b"\xf0" + struct.pack(">II", len(raw) + 4, 1) + raw
    with pytest.raises(ProtocolError):
        decode(raw)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_value_or_a_decode_error(data: bytes) -> None:
    """Every value that was read can be written again: a server echoes values that it was sent."""
    try:
        value, end = decode(data)
    except ProtocolError as error:
        assert error.condition == DECODE_ERROR
    else:
        assert end <= len(data)
        again, _ = decode(encode(value))
        assert repr(again) == repr(value)


def test_what_amqp_has_no_type_for_is_the_callers_mistake() -> None:
    """A TypeError names the value; nothing is guessed."""
    for value in (object(), {1, 2}, Array([object()]), Array([UInt(1), "x"])):
        with pytest.raises(TypeError):
            encode(value)
