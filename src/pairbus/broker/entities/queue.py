"""The life of a message in a queue.

              send                    lock_next                complete
    ──────────────────▶  waiting  ─────────────────▶  locked  ──────────▶ gone
    schedule   ▲ due        ▲  ▲── abandon, release, lock expired ──┤
       ▼       │            │                                       ├─ defer ──▶ deferred ──▶ locked …
    scheduled ─┘            │ time to live over                     │
       └─ cancel ──▶ gone   └──────────▶ gone, or dead              └─ dead-letter, delivered too often ──▶ dead

Every arrow but lock and release is a write. From the write to its commit the message is in none of these places: it
belongs to the step that waits for the commit (`after_commit`), which moves it on, or back when the commit failed. So a
settlement cannot meet an expiring lock, nor a cancellation an activation: the first step that takes the message has it.

Answers (`done`) are never given from within the call that asked, and come in the order of the calls (but see
destination.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pairbus.broker.boxes.payloads import LARGE_BODY_BYTES
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.destination import Destination
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.entity import NamespaceParts
from pairbus.broker.entities.receivable import Outcome, Receivable
from pairbus.broker.store import ACTIVE, SCHEDULED, Done, Insert, InsertPayload, Move, StoredMessage
from pairbus.errors import StoreError

__all__ = ["Draft", "Outcome", "Queue"]


class Queue(Destination, Receivable):
    """A queue: its way in is `Destination`, its way out `Receivable`."""

    description: QueueDescription

    def __init__(
        self,
        queue_id: int,
        description: QueueDescription,
        parts: NamespaceParts,
        *,
        now_ms: int,
        last_seq: int = 0,
    ) -> None:
        shared = parts.payloads.forwarded()
        super().__init__(queue_id, description, parts._replace(payloads=shared), now_ms=now_ms, last_seq=last_seq)
        if self.sessions is not None:
            self.sessions.check_quota = self.check_quota
        self._apply_settings()

    def __repr__(self) -> str:
        return (
            f"<Queue {self.path} {self.description.status} active={self.active_count} dead={self.dead_count}"
            f" scheduled={self.scheduled_count} deferred={self.deferred_count} {self.size_bytes} B>"
        )

    # ── sending ──

    def _write(self, drafts: Sequence[Draft], now_ms: int) -> Done:
        messages = self._numbered(drafts, now_ms)
        self.store.write(Insert(self.main.number, messages))
        return partial(self._take_in, messages)

    def _numbered(self, drafts: Sequence[Draft], now_ms: int) -> list[StoredMessage]:
        """Give the drafts numbers and times. Bare objects instead of calls, because every message passes here."""
        messages: list[StoredMessage] = []
        new, seq, ceiling_ms, size = StoredMessage.__new__, self.last_seq, self.ttl_ceiling_ms, 0
        n = self.store.number(len(drafts)) - 1
        for draft in drafts:
            seq += 1
            n += 1
            ttl_ms = draft.ttl_ms or 0
            if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms):
                ttl_ms = ceiling_ms
            message = new(StoredMessage)
            message.n = n
            message.seq = seq
            message.payload = draft.payload
            if len(draft.body) >= LARGE_BODY_BYTES and not draft.payload:
                message.payload = self._payload_of(draft.body)
            message.origin_seq = draft.origin_seq
            message.hops = draft.hops
            message.session_id = draft.session_id or ""
            message.body = body = draft.body
            message.annotations = annotations = draft.annotations
            message.message_id = draft.message_id
            message.enqueued_ms = now_ms
            message.ttl_ms = ttl_ms
            message.delivery_count = 0
            message.patch = b""
            is_scheduled = draft.scheduled_ms > now_ms
            message.state = SCHEDULED if is_scheduled else ACTIVE
            message.scheduled_ms = draft.scheduled_ms if is_scheduled else 0
            message.expires_ms = now_ms + ttl_ms if ttl_ms and not is_scheduled else 0
            message.size = len(body) + len(annotations)
            size += message.size
            messages.append(message)
        self.last_seq = seq
        self.main.size_bytes += size
        return messages

    def _payload_of(self, body: bytes) -> int:
        """Write a large body as a payload, and return its number."""
        payload = self.store.number()
        self.store.write(InsertPayload(payload, self.entity_id, body))
        return payload

    def _take_in(self, messages: list[StoredMessage], error: StoreError | None) -> None:
        """Put messages whose write is committed into the box."""
        main = self.main
        if error is not None:
            main.size_bytes -= sum(message.size for message in messages)
            return
        main.admit([message for message in messages if message.state == ACTIVE])
        for message in messages:
            if message.payload:
                self.payloads.admit(message.payload, self.entity_id, len(message.body))
                main.share(message)
            if message.state == SCHEDULED:
                self._schedule.add(message)

    # ── scheduled messages ──

    def _activate(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Move scheduled messages whose time has come to the end of the queue, under new numbers."""
        n = self.store.number(len(messages)) - 1
        active: list[StoredMessage] = []
        for message in messages:
            self.last_seq += 1
            n += 1
            after = message.revised(
                n=n,
                seq=self.last_seq,
                state=ACTIVE,
                enqueued_ms=now_ms,
                expires_ms=now_ms + message.ttl_ms if message.ttl_ms else 0,
                scheduled_ms=0,
            )
            self.store.write(Move(self.main.number, message.n, self.main.number, after))
            active.append(after)
        self.store.after_commit(partial(self._activated, messages, active, now_ms))

    def _activated(
        self, messages: list[StoredMessage], active: list[StoredMessage], now_ms: int, error: StoreError | None
    ) -> None:
        self._schedule.activated(messages, now_ms, error)
        if error is None:
            self.main.admit(active)
        self.go_on(self.main, now_ms, error)

    def _unknown_numbers(self, session_id: str | None) -> Iterable[tuple[int, int]]:
        return self._schedule.numbers(session_id)
