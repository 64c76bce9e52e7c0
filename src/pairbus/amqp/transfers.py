"""Transfer and disposition, hand-written for speed: every message needs one of each.

Work that is the same for all messages is done once. A sending link encodes the constant parts of its frame head
once for each shape of delivery. Of an incoming performative only handle, delivery ids and tag are read anew; the bytes
behind them (format, settled, more, …; settled, state) come in a handful of patterns and are looked up. Frames that do
not fit this mould are decoded in the general way, so speed never decides what is accepted.

All fields are written, as `performatives` says: eleven of a transfer, six of a disposition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pairbus.amqp.encoding import encode_binary, encode_uint, list_of
from pairbus.amqp.errors import INVALID_FIELD, ProtocolError
from pairbus.amqp.performatives import (
    Accepted,
    Disposition,
    Released,
    TransactionalState,
    Transfer,
    decode_performative,
)

TAG_SIZE_MAX = 32  # 2.8.7
FIRST_HEAD_MAX = 72  # frame head and performative of the first frame of a delivery, with a tag of 32 bytes
LATER_HEAD_MAX = 32  # the same for the frames behind it

_UINT = struct.Struct(">I")
_TWO_UINTS = struct.Struct(">II")
_FRAME = struct.Struct(">IBBH")
_FIELDS_OF_TRANSFER = 11
_BEHIND_MORE = b"\x40" * 5  # rcv-settle-mode, state, resume, aborted, batchable

# ── writing ──


class TransferHeads:
    """Frame heads and transfer performatives of one sending link."""

    __slots__ = ("_channel", "_handle", "_shapes")

    def __init__(self, channel: int, handle: int) -> None:
        self._channel = channel
        self._handle = handle
        self._shapes: dict[tuple[int, int, bool, bool], tuple[Any, int, bytes, bytes, bytes]] = {}

    def first(self, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool, size: int) -> bytes:
        """Return the head of the first frame of a delivery, before `size` bytes of payload."""
        shape = len(tag), message_format, settled, more
        pack, head_size, before, between, behind = self._shapes.get(shape) or self._encode_shape(*shape)
        head: bytes = pack(head_size + size, before, delivery_id, between, tag, behind)
        return head

    def first_in(self, state: bytes, delivery_id: int, tag: bytes, message_format: int, more: bool, size: int) -> bytes:
        """Return `first` for an unsettled delivery with an encoded state: it belongs to a transaction."""
        fields = [encode_uint(self._handle), encode_uint(delivery_id), encode_binary(tag), encode_uint(message_format)]
        fields += [b"\x42", b"\x41" if more else b"\x42", b"\x40", state, *[b"\x40"] * 3]
        body = b"\x00\x53\x14" + list_of(fields)
        return _FRAME.pack(8 + len(body) + size, 2, 0, self._channel) + body

    def run(self, ids: Sequence[int], tags: Sequence[bytes], payloads: Sequence[bytes]) -> list[bytes]:
        """Return heads and payloads, in turns, of unsettled deliveries of one frame each; their tags have one size."""
        shape = len(tags[0]), 0, False, False
        pack, head_size, before, between, behind = self._shapes.get(shape) or self._encode_shape(*shape)
        written: list[bytes] = []
        for delivery_id, tag, payload in zip(ids, tags, payloads, strict=True):
            written += pack(head_size + len(payload), before, delivery_id, between, tag, behind), payload
        return written

    def _encode_shape(
        self, tag_size: int, message_format: int, settled: bool, more: bool
    ) -> tuple[Any, int, bytes, bytes, bytes]:
        assert tag_size <= TAG_SIZE_MAX, f"a delivery tag of {tag_size} bytes"
        handle = encode_uint(self._handle)
        between = b"\xa0" + bytes((tag_size,))
        flags = (b"\x41" if settled else b"\x42") + (b"\x41" if more else b"\x42")
        behind = encode_uint(message_format) + flags + _BEHIND_MORE
        # 11 fields of at most 56 bytes: a list8 always suffices
        list_size = 1 + len(handle) + 5 + len(between) + tag_size + len(behind)
        before = (
            _FRAME.pack(0, 2, 0, self._channel)[4:]
            + b"\x00\x53\x14\xc0"
            + bytes((list_size, _FIELDS_OF_TRANSFER))
            + handle
            + b"\x70"  # the delivery id, always in its wide form
        )
        layout = struct.Struct(f">I{len(before)}sI{len(between)}s{tag_size}s{len(behind)}s")
        made = layout.pack, layout.size, before, between, behind
        self._shapes[tag_size, message_format, settled, more] = made
        return made

    def later(self, more: bool, size: int) -> bytes:
        """Return the head of the second and every later frame of a delivery."""
        fields = [encode_uint(self._handle), *[b"\x40"] * 4, b"\x41" if more else b"\x42", *[b"\x40"] * 5]
        body = b"\x00\x53\x14" + list_of(fields)
        return _FRAME.pack(8 + len(body) + size, 2, 0, self._channel) + body

    def abort(self, delivery_id: int | None, tag: bytes) -> bytes:
        """Return a whole frame that takes a delivery back; with the id of the delivery when this is its first frame."""
        begun = [b"\x40"] * 2 if delivery_id is None else [encode_uint(delivery_id), encode_binary(tag)]
        rest = [*[b"\x40"] * 2, b"\x42", *[b"\x40"] * 3, b"\x41", b"\x40"]
        body = b"\x00\x53\x14" + list_of([encode_uint(self._handle), *begun, *rest])
        return _FRAME.pack(8 + len(body), 2, 0, self._channel) + body


_DISPOSITION_OF_ONE = struct.Struct(">IHH4sBBBBIBB")
_DISPOSITION_OF_RANGE = struct.Struct(">IHH4sBBBBIBIB")


def disposition_frame(channel: int, role: bool, first: int, last: int, settled: bool, state: bytes) -> bytes:
    """Return a whole disposition frame; `state` is an encoded delivery state."""
    size = len(state)
    settled_code = 0x41 if settled else 0x42
    role_code = 0x41 if role else 0x42
    if size > 0xC0:
        fields = [bytes((role_code,)), encode_uint(first), encode_uint(last), bytes((settled_code,)), state, b"\x40"]
        body = b"\x00\x53\x15" + list_of(fields)
        return _FRAME.pack(8 + len(body), 2, 0, channel) + body
    if first == last:
        head = _DISPOSITION_OF_ONE.pack(
            23 + size, 0x0200, channel, b"\x00\x53\x15\xc0", 10 + size, 6, role_code, 0x70, first, 0x40, settled_code
        )
    else:
        head = _DISPOSITION_OF_RANGE.pack(
            27 + size,
            0x0200,
            channel,
            b"\x00\x53\x15\xc0",
            14 + size,
            6,
            role_code,
            0x70,
            first,
            0x70,
            last,
            settled_code,
        )
    return head + state + b"\x40"  # batchable


# ── reading ──

TransferFields = tuple[int, int | None, bytes | None, int | None, bool, bool, bool, TransactionalState | None, int]
"(handle, delivery-id, delivery-tag, message-format, settled, more, aborted, transaction, start of the payload)"

TAILS_MAX = 256  # number of patterns that are remembered, so that a peer that invents new ones cannot fill the memory
TAIL_SIZE_MAX = 32

_transfer_tails: dict[bytes, tuple[int, int | None, bool, bool, bool]] = {}
"Bytes behind the tag → (number of fields, message-format, settled, more, aborted)."
_disposition_tails: dict[bytes, tuple[int, bool, Any, bool]] = {}
"Bytes behind `last` → (number of fields, settled, state, batchable)."


def decode_transfer(buf: bytes, pos: int, end: int) -> TransferFields:  # noqa: PLR0911, PLR0912 - one return for each case
    """Decode the transfer at `pos` of a frame that ends at `end`; its descriptor is known. ProtocolError when wrong."""
    tail = b""
    try:
        form = buf[pos + 3]
        if form == 0xC0:
            payload, count, at = pos + 5 + buf[pos + 4], buf[pos + 5], pos + 6
        elif form == 0xD0:
            size, count = _TWO_UINTS.unpack_from(buf, pos + 4)
            payload, at = pos + 8 + size, pos + 12
        else:
            return _decode_any_transfer(buf, pos, end)
        code = buf[at]
        if code == 0x52:
            handle = buf[at + 1]
            at += 2
        elif code == 0x43:
            handle = 0
            at += 1
        else:
            return _decode_any_transfer(buf, pos, end)
        code = buf[at]
        delivery_id: int | None
        if code == 0x70:
            delivery_id = _UINT.unpack_from(buf, at + 1)[0]
            at += 5
        elif code == 0x52:
            delivery_id = buf[at + 1]
            at += 2
        elif code == 0x43:
            delivery_id = 0
            at += 1
        elif code == 0x40:
            delivery_id = None
            at += 1
        else:
            return _decode_any_transfer(buf, pos, end)
        code = buf[at]
        tag: bytes | None
        if code == 0xA0:
            behind = at + 2 + buf[at + 1]
            tag = buf[at + 2 : behind]
            at = behind
        elif code == 0x40:
            tag = None
            at += 1
        else:
            return _decode_any_transfer(buf, pos, end)
    except (IndexError, struct.error):
        return _decode_any_transfer(buf, pos, end)
    if payload <= end:
        tail = buf[at:payload]  # empty also when the fields overrun their list; the empty tail is never remembered
        known = _transfer_tails.get(tail)
        if known is not None and known[0] == count - 3 and (tag is None or len(tag) <= TAG_SIZE_MAX):
            return handle, delivery_id, tag, known[1], known[2], known[3], known[4], None, payload
    return _decode_any_transfer(buf, pos, end, tail, count)


def _decode_any_transfer(buf: bytes, pos: int, end: int, tail: bytes = b"", count: int = 0) -> TransferFields:
    """Decode a transfer in the general way. A `tail` of `count` - 3 fields that proves good is remembered."""
    transfer, size = decode_performative(buf[pos:end], 0)
    assert isinstance(transfer, Transfer), transfer.NAME
    tag = transfer.delivery_tag
    if tag is not None and len(tag) > TAG_SIZE_MAX:
        raise ProtocolError(INVALID_FIELD, f"delivery tag of {len(tag)} bytes")
    settled, more, aborted = bool(transfer.settled), transfer.more, transfer.aborted
    state = transfer.state if isinstance(transfer.state, TransactionalState) else None
    if 0 < len(tail) <= TAIL_SIZE_MAX and state is None:
        if len(_transfer_tails) >= TAILS_MAX:
            _transfer_tails.clear()
        _transfer_tails[tail] = count - 3, transfer.message_format, settled, more, aborted
    payload_at = pos + size
    return (
        transfer.handle,
        transfer.delivery_id,
        tag,
        transfer.message_format,
        settled,
        more,
        aborted,
        state,
        payload_at,
    )


class TransferMould(NamedTuple):
    """A frame with a whole message; the frames behind it differ only in size, delivery id and tag."""

    unpack: Callable[[bytes, int], tuple[Any, ...]]
    "(size, bytes up to the delivery id, delivery id, bytes up to the tag, tag, bytes up to the payload)"
    head_size: int
    before: bytes
    between: bytes
    behind: bytes
    handle: int
    message_format: int
    settled: bool


def mould_of(buf: bytes, pos: int, end: int) -> TransferMould | None:
    """Return the mould of the valid transfer from `pos` to `end`, one frame; None when it is not whole or unusual.

    The usual form: an 8-byte frame head, a list8, a delivery id of four bytes. A frame that agrees with the mould in
    `before`, `between` and `behind` has its fields in the same places, with any id and any tag.
    """
    handle, delivery_id, tag, message_format, settled, more, aborted, state, payload_at = decode_transfer(buf, pos, end)
    id_at = pos + (7 if buf[pos + 6] == 0x43 else 8)  # behind the constructor of the handle: uint0 or smalluint
    usual = buf[pos - 4] == 2 and buf[pos : pos + 4] == b"\x00\x53\x14\xc0" and buf[pos + 6] in b"\x43\x52"
    if not usual or tag is None or delivery_id is None or more or aborted or state is not None:
        return None
    if buf[id_at] != 0x70 or buf[id_at + 5] != 0xA0:
        return None
    start, tag_at = pos - 8, id_at + 7
    tail_at = tag_at + len(tag)
    layout = _mould_layout(id_at + 1 - start - 4, len(tag), payload_at - tail_at)
    return TransferMould(
        layout.unpack_from,
        layout.size,
        buf[start + 4 : id_at + 1],
        buf[id_at + 5 : tag_at],
        buf[tail_at:payload_at],
        handle,
        message_format or 0,
        settled,
    )


@lru_cache(maxsize=256)
def _mould_layout(before_size: int, tag_size: int, behind_size: int) -> struct.Struct:
    return struct.Struct(f">I{before_size}sI2s{tag_size}s{behind_size}s")


def decode_disposition(buf: bytes, pos: int, end: int) -> Disposition:  # noqa: PLR0912 - one branch for each case
    """Decode the disposition at `pos` of a frame up to `end`. Its descriptor is known. ProtocolError if wrong."""
    tail = b""
    try:
        form = buf[pos + 3]
        if form == 0xC0:
            stop, count, at = pos + 5 + buf[pos + 4], buf[pos + 5], pos + 6
        elif form == 0xD0:
            size, count = _TWO_UINTS.unpack_from(buf, pos + 4)
            stop, at = pos + 8 + size, pos + 12
        else:
            return _decode_any_disposition(buf, pos, end)
        code = buf[at]
        if code == 0x56 and buf[at + 1] <= 1:
            role = buf[at + 1] == 1
            at += 2
        elif code in (0x41, 0x42):
            role = code == 0x41
            at += 1
        else:
            return _decode_any_disposition(buf, pos, end)
        ids: list[int | None] = []
        for _ in range(2):
            code = buf[at]
            if code == 0x70:
                ids.append(_UINT.unpack_from(buf, at + 1)[0])
                at += 5
            elif code == 0x52:
                ids.append(buf[at + 1])
                at += 2
            elif code == 0x43:
                ids.append(0)
                at += 1
            elif code == 0x40:
                ids.append(None)
                at += 1
            else:
                return _decode_any_disposition(buf, pos, end)
    except (IndexError, struct.error):
        return _decode_any_disposition(buf, pos, end)
    first, last = ids
    if stop <= end and first is not None:
        tail = buf[at:stop]
        known = _disposition_tails.get(tail)
        if known is not None and known[0] == count - 3:
            return Disposition(role, first, last, known[1], known[2], known[3])
    return _decode_any_disposition(buf, pos, end, tail, count)


def _decode_any_disposition(buf: bytes, pos: int, end: int, tail: bytes = b"", count: int = 0) -> Disposition:
    disposition, _ = decode_performative(buf[pos:end], 0)
    assert isinstance(disposition, Disposition), disposition.NAME
    # Only states without fields are remembered, and shared by later dispositions.
    if 0 < len(tail) <= TAIL_SIZE_MAX and isinstance(disposition.state, Accepted | Released | None):
        if len(_disposition_tails) >= TAILS_MAX:
            _disposition_tails.clear()
        _disposition_tails[tail] = count - 3, disposition.settled, disposition.state, disposition.batchable
    return disposition
