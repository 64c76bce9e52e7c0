"""Deliveries that do not go out at once: larger than a frame, or held up by the peer's window.

Frames of one session stay in order, and so do the deliveries of its links. The sessions are in a ring: in a
paced connection each call of `Connection.feed` writes one frame of the next session in turn, so that a message
of many megabytes lets the others through. An unpaced connection writes at once all that the windows allow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.amqp.transfers import FIRST_HEAD_MAX, LATER_HEAD_MAX

if TYPE_CHECKING:
    from pairbus.amqp.link import SenderLink

PIECE_MAX = 32_768  # of a frame in a paced connection, even if the peer takes more: others wait for one frame at most


class OutgoingDelivery:
    """One delivery; its next frame begins at `at`."""

    __slots__ = ("aborted", "at", "delivery_id", "link", "message_format", "payload", "settled", "state", "tag")

    def __init__(  # noqa: PLR0917 - the fields of a transfer
        self,
        link: SenderLink,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        payload: bytes,
        state: bytes = b"",
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.payload = payload
        self.state = state
        "Encoded transactional state; empty: the delivery belongs to no transaction."
        self.at = 0
        self.aborted = False

    @property
    def is_begun(self) -> bool:
        return self.at > 0

    def next_frame(self, limit: int) -> tuple[bytes, bytes, bool]:
        """Return head and payload of the next frame of at most `limit` bytes, and True when more frames follow."""
        at, size = self.at, len(self.payload)
        if self.aborted:
            return self._abort(), b"", False
        room = limit - (LATER_HEAD_MAX if at else FIRST_HEAD_MAX + len(self.state))
        piece = self.payload[at : at + room]  # the payload itself when it fits
        self.at = at + len(piece)
        more = self.at < size
        heads = self.link.heads
        if at:
            return heads.later(more, len(piece)), piece, more
        if self.state:
            head = heads.first_in(self.state, self.delivery_id, self.tag, self.message_format, more, len(piece))
            return head, piece, more
        return heads.first(self.delivery_id, self.tag, self.message_format, self.settled, more, len(piece)), piece, more

    def _abort(self) -> bytes:
        """Return the one frame that takes back the frames before it (2.6.14)."""
        return self.link.heads.abort(None if self.is_begun else self.delivery_id, self.tag)
