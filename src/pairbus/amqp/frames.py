"""Frames: the 8-byte head, an incremental buffer, and the size limit (AMQP 2.3)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pairbus.amqp.errors import FRAMING_ERROR, ProtocolError

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE = 8
MIN_MAX_FRAME_SIZE = 512  # what every peer must be able to take (2.4.1)

AMQP_FRAME, SASL_FRAME = 0, 1
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEAD = struct.Struct(">IBBH")


def frame(channel: int, body: bytes, frame_type: int = AMQP_FRAME) -> bytes:
    return _HEAD.pack(8 + len(body), 2, frame_type, channel) + body


Frame = tuple[int, int, bytes, int, int]
"(frame type, channel, buffer, where the body begins, where it ends)"


class FrameBuffer:
    """Bytes in, whole frames out. Holds at most one frame that is not yet whole."""

    __slots__ = ("_held", "_need", "max_frame_size", "position")

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._held = bytearray()
        self._need = 8
        "Bytes that must be held before a frame can be given out; saves a look at every byte of a slow peer."
        self.position = 0
        "Position of the next frame; the caller of `frames` may move it behind frames that it has read itself."

    def __len__(self) -> int:
        return len(self._held)

    def take_header(self, data: bytes) -> tuple[bytes | None, bytes]:
        """Return (the protocol header, or None before 8 bytes are there; the bytes behind it)."""
        self._held += data
        if len(self._held) < HEADER_SIZE:
            return None, b""
        header, rest = bytes(self._held[:HEADER_SIZE]), bytes(self._held[HEADER_SIZE:])
        self._held.clear()
        return header, rest

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield each whole frame. ProtocolError when a head is wrong; the frames before it have been given out by then.

        Between two frames the caller may stop asking and take the rest with `unread`.
        """
        if self._held:
            if len(self._held) + len(data) < self._need:
                self._held += data
                return
            data = b"".join((self._held, data))
            self._held.clear()
        self.position, total = 0, len(data)
        try:
            while total - (pos := self.position) >= 8:
                size, doff, frame_type, channel = _HEAD.unpack_from(data, pos)
                if size > self.max_frame_size:
                    raise ProtocolError(FRAMING_ERROR, f"frame of {size} bytes, at most {self.max_frame_size} allowed")
                if doff < 2 or doff * 4 > size:
                    raise ProtocolError(FRAMING_ERROR, f"frame of {size} bytes with data offset {doff}")
                if total - pos < size:
                    self._need = size
                    return
                self.position = pos + size
                yield frame_type, channel, data, pos + doff * 4, pos + size
            self._need = 8
        finally:
            if self.position < total:
                self._held += data[self.position :]

    def unread(self) -> bytes:
        """Return the bytes that are held: the next ones are not frames but a protocol header."""
        rest = bytes(self._held)
        self._held.clear()
        self._need = 8
        return rest
