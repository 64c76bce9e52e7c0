"""Looks of a stream's driver at its queue, by peeks: are there messages, how many, is a message still there?

A peek shows locked, deferred and scheduled messages too. Deferred and scheduled messages are marked, and skipped;
locked ones look like others, and show only when a task receives nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.spark.connections import run
from pairbus.spark.options import LONG_MAX, Options
from pairbus.spark.source.batch_reader import PEEK_COUNT, Peeker, extent
from pairbus.spark.source.rows import ENQUEUED_TIME, SEQUENCE_NUMBER
from pairbus.spark.staging.stage_file import StagedIdentity, annotations_of, identity_of

PASS_PAGES_MAX = 20  # pages of deferred and scheduled messages that one look skips
PASS_COUNT = 50
PARTITIONED = 1 << 48  # numbers from here on contain the partition: they are neither dense nor in one order
MESSAGE_STATE = "x-opt-message-state"


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """The first message that could be received."""

    sequence_number: int
    enqueued_ms: int | None


class QueueView:
    def __init__(self, options: Options) -> None:
        self._options = options

    def first(self, patience_s: float) -> FirstMessage | None:
        """Return the first message; one operation, more only when deferred or scheduled messages come before it."""
        return run(self._first(patience_s))

    def extent(self) -> tuple[int, int] | None:
        """Return lowest and highest sequence number; about 2 × log₂(numbers between them / 256) + 2 operations."""
        return run(self._extent())

    def gone(self, identities: set[StagedIdentity]) -> set[StagedIdentity]:
        """Return the messages that left the queue; one operation for each 250 messages between them."""
        return run(self._gone(identities))

    def _peeker(self, patience_s: float) -> Peeker:
        return Peeker(self._options, patience_s=patience_s)

    async def _first(self, patience_s: float) -> FirstMessage | None:
        peeker = self._peeker(patience_s)
        from_number, count = 0, 1
        for _ in range(PASS_PAGES_MAX):
            page = await peeker.peek(from_number, count)
            for payload in page:
                annotations, _ = annotations_of(payload)
                number, enqueued_ms = annotations.get(SEQUENCE_NUMBER), annotations.get(ENQUEUED_TIME)
                from_number = max(from_number, number if isinstance(number, int) else 0)
                if annotations.get(MESSAGE_STATE, 0) == 0:
                    return FirstMessage(from_number, enqueued_ms if isinstance(enqueued_ms, int) else None)
            if not page:
                return None
            from_number, count = from_number + 1, PASS_COUNT
        return FirstMessage(from_number, None)  # not found, but it may exist

    async def _extent(self) -> tuple[int, int] | None:
        return await extent(self._peeker(self._options.patience_s), 0, LONG_MAX)

    async def _gone(self, identities: set[StagedIdentity]) -> set[StagedIdentity]:
        # For a partitioned entity a peek from a number on does not prove that a message is not there.
        left = {identity for identity in identities if identity[0] < PARTITIONED}
        absent: set[StagedIdentity] = set()
        peeker = self._peeker(self._options.patience_s)
        while left:
            page = await peeker.peek(min(number for number, _, _ in left), PEEK_COUNT)
            present = {identity for identity in map(identity_of, page) if identity is not None}
            # A page may be short because of its size: only an empty page says that no message comes after.
            last = max((number for number, _, _ in present), default=LONG_MAX)
            covered = {identity for identity in left if identity[0] <= last}
            absent |= covered - present
            left -= covered
        return absent
