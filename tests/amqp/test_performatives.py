"""Composites from their field tables, and the written-out codecs of transfer and disposition against the tables."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp import message  # registers header and properties
from pairbus.amqp import performatives as p
from pairbus.amqp.errors import DECODE_ERROR, INVALID_FIELD, ProtocolError
from pairbus.amqp.transfers import TAILS_MAX, TransferHeads, decode_disposition, decode_transfer, disposition_frame
from pairbus.amqp.types import Array, Described, Symbol, UInt, ULong, UShort, decode, encode, list_of

names = st.text(st.characters(max_codepoint=127), min_size=1, max_size=8)
fields = st.dictionaries(names.map(Symbol), st.none() | st.booleans() | names | st.binary(max_size=4), max_size=3)
errors = st.builds(p.Error, names, st.none() | names, st.none() | fields)
outcomes = st.sampled_from([p.Accepted(), p.Released(), p.Received(1, 2), p.Modified(True, False, None)]) | st.builds(
    p.Rejected, st.none() | errors
)
states = outcomes | st.builds(p.TransactionalState, st.binary(max_size=32), st.none() | outcomes)
termini = [
    st.builds(p.Source, st.none() | names, filter=st.none() | fields, outcomes=st.none() | st.lists(names)),
    st.builds(p.Target, st.none() | names, capabilities=st.none() | names),
]
BY_KIND: dict[int, st.SearchStrategy[Any]] = {
    id(p.BOOLEAN): st.booleans(),
    id(p.UBYTE): st.integers(0, 255),
    id(p.USHORT): st.integers(0, 0xFFFF),
    id(p.UINT): st.integers(0, 0xFFFFFFFF),
    id(p.ULONG): st.integers(0, (1 << 64) - 1),
    id(p.TIMESTAMP): st.integers(-(1 << 63), (1 << 63) - 1),
    id(p.BINARY): st.binary(max_size=300),
    id(p.STRING): st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    id(p.SYMBOL): names,
    id(p.SYMBOLS): names | st.lists(names, max_size=3),
    id(p.FIELDS): fields,
    id(p.ANY): st.none() | names,
    id(p.ERROR): errors,
    id(p.SOURCE): termini[0],
    id(p.TARGET): termini[1] | st.just(p.Coordinator()),
    id(p.STATE): states,
}


def composites(cls: type[p.Composite]) -> st.SearchStrategy[Any]:
    parts = []
    for _, kind, default, required in cls.ROWS:
        some = BY_KIND.get(id(kind), fields)
        parts.append(some if required or default is not None else st.none() | some)
    return st.tuples(*parts).map(lambda values: cls(*values))


PERFORMATIVES = [
    (p.Open("a"), 10),
    (p.Begin(None, 0, 1, 1), 8),
    (p.Attach("a", 0, True), 14),
    (p.Flow(None, 1, 0, 1), 11),
    (p.Transfer(0), 11),
    (p.Disposition(True, 0), 6),
    (p.Detach(0), 3),
    (p.End(), 1),
    (p.Close(), 1),
    (p.Error("a"), 3),
]
HEADS = TransferHeads(0, 7)
FRAMES = {
    "first": (HEADS.first(1, b"tag", 0, False, False, 0), 11),
    "first of several": (HEADS.first(1, b"tag", 0, True, True, 0), 11),
    "run": (HEADS.run([1], [b"tag"], [b""])[0], 11),
    "later": (HEADS.later(False, 0), 11),
    "aborted first": (HEADS.abort(1, b"tag"), 11),
    "aborted later": (HEADS.abort(None, b"tag"), 11),
    "disposition": (disposition_frame(0, True, 1, 1, True, p.ACCEPTED_BYTES), 6),
    "range": (disposition_frame(0, True, 1, 2, True, p.ACCEPTED_BYTES), 6),
    "large": (disposition_frame(0, True, 1, 2, True, p.Rejected(p.Error("a", "b" * 300)).encode()), 6),
}


@pytest.mark.parametrize(("performative", "count"), PERFORMATIVES, ids=[each.NAME for each, _ in PERFORMATIVES])
def test_performatives_are_written_with_all_their_fields(performative: p.Composite, count: int) -> None:
    """azure-servicebus 7.11 to 7.14 reads fields by position: trailing nulls that are left out are an IndexError."""
    assert len(decode(performative.encode(), 0)[0].value) == count


@pytest.mark.parametrize(("frame", "count"), FRAMES.values(), ids=list(FRAMES))
def test_frames_of_messages_have_all_their_fields(frame: bytes, count: int) -> None:
    """The same for the frames that are not written from the tables."""
    assert len(decode(frame, 8)[0].value) == count


@pytest.mark.parametrize("cls", p.BY_CODE.values(), ids=[cls.NAME for cls in p.BY_CODE.values()])
def test_a_composite_comes_back_as_it_was(cls: type[p.Composite]) -> None:
    """An object of every row of every table is encoded, and decodes to an equal object."""

    @given(composites(cls))
    def holds(made: Any) -> None:
        raw = made.encode()
        got, end = p.decode_performative(raw + b"payload", 0)
        assert got == made and end == len(raw)
        assert got.encode() == raw

    holds()


def test_the_tables_are_those_of_the_standard() -> None:
    """Descriptor, name and number of fields of each composite, by hand from AMQP 2.7, 2.8, 3.2, 3.4, 3.5, 4.5, 5.3."""
    assert {code: (cls.NAME, len(cls.ROWS)) for code, cls in p.BY_CODE.items()} == {
        0x10: ("open", 10), 0x11: ("begin", 8), 0x12: ("attach", 14), 0x13: ("flow", 11), 0x14: ("transfer", 11),
        0x15: ("disposition", 6), 0x16: ("detach", 3), 0x17: ("end", 1), 0x18: ("close", 1), 0x1D: ("error", 3),
        0x23: ("received", 2), 0x24: ("accepted", 0), 0x25: ("rejected", 1), 0x26: ("released", 0),
        0x27: ("modified", 3), 0x28: ("source", 11), 0x29: ("target", 7), 0x30: ("coordinator", 1),
        0x31: ("declare", 1), 0x32: ("discharge", 2), 0x33: ("declared", 1), 0x34: ("transactional-state", 2),
        0x40: ("sasl-mechanisms", 1), 0x41: ("sasl-init", 3), 0x44: ("sasl-outcome", 2),
        message.HEADER: ("header", 5), message.PROPERTIES: ("properties", 13),
    }  # fmt: skip


def test_fields_left_out_at_the_end_take_their_defaults() -> None:
    """The defaults of the standard, which peers rely on when they say less."""
    opened, _ = p.decode_performative(encode(Described(ULong(0x10), ["c"])), 0)
    assert opened == p.Open("c", max_frame_size=0xFFFFFFFF, channel_max=0xFFFF)
    attach, _ = p.decode_performative(encode(Described(Symbol("amqp:attach:list"), ["n", UInt(1), True])), 0)
    assert isinstance(attach, p.Attach)
    assert (attach.snd_settle_mode, attach.rcv_settle_mode, attach.source, attach.unsettled) == (2, 0, None, None)


def test_an_error_is_never_shortened() -> None:
    """The Python SDK waits for ever for a rejection whose error has fewer than three fields."""
    assert p.Rejected(p.Error("c")).encode().endswith(b"\xa3\x01c\x40\x40")


WRONG = {
    "a mandatory field is null": (Described(ULong(0x11), [None, None, UInt(1), UInt(1)]), INVALID_FIELD),
    "a mandatory field is missing": (Described(ULong(0x11), []), INVALID_FIELD),
    "a string for a number": (Described(ULong(0x16), ["1"]), INVALID_FIELD),
    "a boolean for a number": (Described(ULong(0x16), [True]), INVALID_FIELD),
    "a number out of range": (Described(ULong(0x11), [UInt(65536), UInt(0), UInt(0), UInt(0)]), INVALID_FIELD),
    "more fields than are known": (Described(ULong(0x17), [None, None]), DECODE_ERROR),
    "a map for a list": (Described(ULong(0x17), {}), DECODE_ERROR),
    "not described": ([], DECODE_ERROR),
    "an unknown descriptor": (Described(ULong(0x99), []), DECODE_ERROR),
    "a terminus for an error": (Described(ULong(0x18), [Described(ULong(0x28), [])]), INVALID_FIELD),
    "a symbol that is no ASCII": (Described(ULong(0x1D), ["é"]), INVALID_FIELD),
    "symbols that are numbers": (Described(ULong(0x30), [Array([UInt(1)])]), INVALID_FIELD),
    "properties with a key that is no symbol": (Described(ULong(0x1D), ["c", None, {True: 1}]), INVALID_FIELD),
}


@pytest.mark.parametrize(("value", "condition"), WRONG.values(), ids=WRONG.keys())
def test_a_composite_that_breaks_its_table_is_refused(value: Any, condition: str) -> None:
    """The condition says whether the bytes or the fields were wrong."""
    with pytest.raises(ProtocolError) as caught:
        p.decode_performative(encode(value), 0)
    assert caught.value.condition == condition


def test_one_symbol_stands_for_many() -> None:
    """`multiple` fields may hold a bare symbol; an echo must not cut it into letters."""
    source, _ = p.decode_performative(encode(Described(ULong(0x28), [None] * 10 + [Symbol("queue")])), 0)
    assert isinstance(source, p.Source) and source.capabilities == "queue"
    assert source.encode().endswith(b"\xa3\x05queue")


# ── the written-out codecs ──


def general(transfer: p.Transfer, at: int) -> Any:
    return (
        transfer.handle, transfer.delivery_id, transfer.delivery_tag, transfer.message_format, bool(transfer.settled),
        transfer.more, transfer.aborted,
        transfer.state if isinstance(transfer.state, p.TransactionalState) else None, at,
    )  # fmt: skip


def reencoded(transfer: p.Transfer, wide_list: bool, wide_booleans: bool, keep: int) -> bytes:
    """The same transfer as other peers write it: list32, booleans of two bytes, fields left out or null."""
    parts = []
    for name, kind, default, _ in transfer.ROWS:
        value = getattr(transfer, name)
        if value is None or (keep == 1 and value == default):
            parts.append(b"\x40")
        elif wide_booleans and isinstance(value, bool):
            parts.append(b"\x56\x01" if value else b"\x56\x00")
        else:
            parts.append(kind.write(value))
    while keep == 2 and parts[-1] in (b"\x40", b"\x42", b"\x56\x00"):
        parts.pop()
    body = b"".join(parts)
    if wide_list:
        size = (len(body) + 4).to_bytes(4, "big")
        return b"\x00\x53\x14\xd0" + size + len(parts).to_bytes(4, "big") + body
    return b"\x00\x53\x14" + list_of(parts)


tags = st.none() | st.binary(max_size=32)
transfers = st.builds(
    p.Transfer,
    st.integers(0, 300),
    st.none() | st.integers(0, 300) | st.integers(0, 0xFFFFFFFF),
    tags,
    st.none() | st.sampled_from([0, 0x80013700, 5]),
    st.none() | st.booleans(),
    st.booleans(),
    st.none() | st.integers(0, 1),
    st.none() | states,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(transfers, st.booleans(), st.booleans(), st.integers(0, 2), st.binary(max_size=20))
def test_the_fast_reader_of_transfers_agrees_with_the_table(
    transfer: p.Transfer, wide_list: bool, wide_booleans: bool, keep: int, payload: bytes
) -> None:
    """A peer may choose any encoding; the second read uses the remembered pattern."""
    body = reencoded(transfer, wide_list, wide_booleans, keep)
    frame = b"head" + body + payload
    expected = general(transfer, 4 + len(body))
    assert decode_transfer(frame + b"next frame", 4, len(frame)) == expected
    assert decode_transfer(frame + b"next frame", 4, len(frame)) == expected


@given(transfers, st.integers(0, 80), st.integers(0, 255), st.integers(0, 90))
def test_a_damaged_transfer_is_read_as_the_table_reads_it(transfer: p.Transfer, at: int, value: int, cut: int) -> None:
    """Speed never decides what is accepted: fast and general reader refuse the same bytes."""
    raw = bytearray(transfer.encode() + b"payload")
    raw[3 + at % (len(raw) - 3)] = value
    data = bytes(raw)[: max(cut, 4)]
    for _ in range(2):
        try:
            performative, end = p.decode_performative(data, 0)
            assert isinstance(performative, p.Transfer)
            expected = general(performative, end)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode_transfer(data, 0, len(data))
        else:
            assert decode_transfer(data, 0, len(data)) == expected


dispositions = st.builds(
    p.Disposition,
    st.booleans(),
    st.integers(0, 300) | st.integers(0, 0xFFFFFFFF),
    st.none() | st.integers(0, 0xFFFFFFFF),
    st.booleans(),
    st.none() | states,
    st.booleans(),
)


@given(dispositions, st.integers(0, 60), st.none() | st.integers(0, 255), st.integers(0, 90))
def test_the_fast_reader_of_dispositions_agrees_with_the_table(
    disposition: p.Disposition, at: int, value: int | None, cut: int
) -> None:
    """Whole, damaged or cut; new and remembered."""
    raw = bytearray(disposition.encode())
    if value is not None:
        raw[3 + at % (len(raw) - 3)] = value
        raw = raw[: max(cut, 4)]
    data = bytes(raw)
    for _ in range(2):
        try:
            expected, _ = p.decode_performative(data, 0)
        except ProtocolError:
            with pytest.raises(ProtocolError):
                decode_disposition(data, 0, len(data))
        else:
            assert decode_disposition(data, 0, len(data)) == expected


def test_patterns_invented_without_end_are_not_kept() -> None:
    """The memory of patterns is bounded, and a pattern that was forgotten is still read."""
    from pairbus.amqp import transfers as module

    for number in range(4 * TAILS_MAX):
        raw = p.Transfer(1, 2, b"t", number + 1000).encode()
        assert decode_transfer(raw, 0, len(raw))[3] == number + 1000
    assert len(module._transfer_tails) <= TAILS_MAX
    flags = [b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"]
    names = [form + code for form in (b"\x53", b"\x80" + bytes(7)) for code in (b"\x24", b"\x26")]
    names += [encode(Symbol("amqp:accepted:list")), encode(Symbol("amqp:released:list"))]
    states = [b"\x40", *(b"\x00" + name + fields for name in names for fields in (b"\x45", b"\xc0\x01\x00"))]
    for settled, state, batchable in itertools.product(flags, states, flags):
        fields = b"\x41\x43\x43" + settled + state + batchable
        raw = b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 6)) + fields
        assert decode_disposition(raw, 0, len(raw)) == p.decode_performative(raw, 0)[0]
    assert len(module._disposition_tails) <= TAILS_MAX


@given(
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.binary(max_size=32),
    st.sampled_from([0, 1, 0x80013700]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1000),
)
def test_frame_heads_say_what_the_table_would(
    channel: int, handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool, size: int
) -> None:
    """The cached pieces make up a transfer of the right size within the 72 bytes that are set aside for it."""
    heads = TransferHeads(channel, handle)
    for _ in range(2):
        head = heads.first(delivery_id, tag, message_format, settled, more, size)
        assert len(head) <= 72
        assert head[:8] == (len(head) + size).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big")
        got, end = p.decode_performative(head, 8)
        assert got == p.Transfer(handle, delivery_id, tag, message_format, settled, more) and end == len(head)
    later = heads.later(more, size)
    assert len(later) <= 32 and int.from_bytes(later[:4], "big") == len(later) + size
    assert p.decode_performative(later, 8)[0] == p.Transfer(handle, more=more)


def test_a_tag_of_33_bytes_is_our_own_mistake() -> None:
    """The standard allows 32; a longer tag is a bug of ours, so it is asserted."""
    with pytest.raises(AssertionError):
        TransferHeads(0, 0).first(0, b"x" * 33, 0, False, False, 0)


def test_a_tag_of_33_bytes_from_a_peer_is_refused() -> None:
    """Tags are kept while a delivery is unsettled, so their size is a limit on memory."""
    for size in (33, 300):
        raw = p.Transfer(0, 0, b"x" * size, 0, False).encode()
        with pytest.raises(ProtocolError, match="tag"):
            decode_transfer(raw, 0, len(raw))


@given(
    st.integers(0, 0xFFFF), st.booleans(), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.booleans(), states
)
def test_disposition_frames_say_what_the_table_would(
    channel: int, role: bool, first: int, last: int, settled: bool, state: Any
) -> None:
    """The frames settle one delivery or a range, with a short state or a long error."""
    for said in (state, p.Rejected(p.Error("c", "long " * 80))):
        raw = disposition_frame(channel, role, first, last, settled, said.encode())
        assert raw[:8] == len(raw).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big")
        got, end = p.decode_performative(raw, 8)
        assert isinstance(got, p.Disposition) and end == len(raw)
        assert got.last in (last, None) and (got.last is not None or first == last)
        assert dataclasses.replace(got, last=last) == p.Disposition(role, first, last, settled, said)


def test_a_ushort_is_written_as_one() -> None:
    """rhea reads channel-max by its type."""
    assert encode(UShort(7)) in p.Open("c", channel_max=7).encode()
