"""The life of a message in a queue.

              send                    lock_next                complete
    ──────────────────▶  waiting  ─────────────────▶  locked  ──────────▶ gone
    schedule   ▲ due        ▲  ▲── abandon, release, lock expired ──┤
       ▼       │            │                                       ├─ defer ──▶ deferred ──▶ locked …
    scheduled ─┘            │ time to live over                     │
       └─ cancel ──▶ gone   └──────────▶ gone, or dead              └─ dead-letter, delivered too often ──▶ dead

Every arrow but lock and release is a write. From the write to its commit the message is in none of these places: it
belongs to the step that waits for the commit (`Commits`), which moves it on, or back when the commit failed. So a
settlement cannot meet an expiring lock, nor a cancellation an activation: the first step that takes the message has it.

Answers (`done`) are never given from within the call that asked, and come in the order of the calls (but see
admission.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairbus.broker.boxes.box import Box
from pairbus.broker.budget import MemoryBudget
from pairbus.broker.description import QueueDescription
from pairbus.broker.entities.admission import Admission
from pairbus.broker.entities.entity import RETRY_PAUSE_MS, Entity
from pairbus.broker.entities.payloads import LARGE_BODY_BYTES, Payloads
from pairbus.broker.entities.receiving import Receiving
from pairbus.broker.entities.receiving_entity import ReceivingEntity
from pairbus.broker.entities.schedule import Schedule
from pairbus.broker.entities.settlement import Outcome
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.store import ACTIVE, SCHEDULED, IndexRow, Insert, InsertPayload, Move, Store, StoredMessage
from pairbus.broker.sweep import Remains
from pairbus.broker.wire.draft import Draft
from pairbus.errors import StoreError

__all__ = ["Draft", "Outcome", "Queue"]


class Queue(ReceivingEntity[QueueDescription]):
    """One queue: a way in (`Admission`), scheduled messages (`Schedule`), and a receiving half (`Receiving`)."""

    def __init__(
        self,
        queue_id: int,
        description: QueueDescription,
        store: Store,
        payloads: Payloads,
        *,
        now_ms: int,
        last_seq: int = 0,
        on_ready: Callable[[Box], None],
        budget: MemoryBudget | None = None,
    ) -> None:
        """Make the queue. `on_ready(box)` is called when a message may have become available, or `next_due_ms` may have
        changed, in a commit or an `update`. After a call of its own (a lock, `run_due`) the caller asks for
        `next_due_ms` itself."""
        self.queue_id = queue_id
        self._store = store
        self._entity = entity = Entity(
            queue_id,
            description.path,
            description,
            store,
            payloads.forwarded(),
            budget or MemoryBudget(),
            now_ms=now_ms,
            last_seq=last_seq,
            on_ready=on_ready,
            run_due=self.run_due,
        )
        self._receiving = Receiving(entity, description, lambda session_id: self._schedule.numbers(session_id))
        self._show(self._receiving)
        self._schedule = Schedule(entity, self.main, self._activate, with_bodies=False)
        self._admission: Admission[list[StoredMessage]] = Admission(
            entity,
            accept=self._accept,
            accepted=self._accepted,
            admitted=lambda messages: entity.announce(self.main),
            size=lambda: self._receiving.size_bytes,
        )
        self._describe(description)
        self.send, self.schedule = self._admission.send, self._admission.schedule
        self.forward = self._admission.forward
        self.cancel_scheduled = self._schedule.cancel
        self.check_room, self.is_claimed = self._admission.check_room, self._admission.is_claimed
        self.check_memory = self._admission.check_memory
        self.check_send = entity.check_send
        if self.sessions is not None:
            self.sessions.check_quota = self._admission.check_quota

    def __repr__(self) -> str:
        return (
            f"<Queue {self.path} {self.description.status} active={self.active_count} dead={self.dead_count}"
            f" scheduled={self.scheduled_count} deferred={self.deferred_count} {self.size_bytes} B>"
        )

    @property
    def scheduled_count(self) -> int:
        return self.main.scheduled_count

    @property
    def idle_until_ms(self) -> int | None:
        """The time at which the queue may be deleted as idle; None: never, or not while messages are scheduled."""
        return None if self.scheduled_count else self._entity.idle_until_ms(self._receiving.accessed_ms)

    # ── start, change, end ──

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        """Return `recover` for the rows of one box."""
        return self._recover_main if box == self.main.number else self._receiving.box_of(box).recover

    def _recover_main(self, row: IndexRow) -> bool:
        return self._schedule.recover(row) if row[3] == SCHEDULED else self.main.recover(row)

    def recovered(self, now_ms: int) -> None:
        """Note that the index was read to its end."""
        self._receiving.recovered()
        self._admission.recover()
        self.touch(now_ms)

    def _describe(self, description: QueueDescription) -> None:
        super()._describe(description)
        self.path = description.path
        self._admission.describe(description)
        self.message_size_max = self._admission.message_size_max

    def record_sends(self, recorder: Recorder) -> None:
        """Tell the recorder of every message that is accepted from now on."""
        self._admission.recorder = recorder

    def give_way(self, after: Queue) -> None:
        """Close, because a reset has put an empty queue in this one's place; sends that wait go on there."""
        self.close()
        self._admission.successor = after._admission

    def discharge(self) -> None:
        super().discharge()
        self._schedule.discharge()
        self._admission.discharge()

    def remains(self) -> Remains:
        """Return the rows to sweep once the drop is committed."""
        self._receiving.discharge()
        drains = [(self.main.number, self._schedule.drain), *self._receiving.drains()]
        ends, row_bytes = self._admission.ends(), self._receiving.row_bytes()
        states = self._receiving.state_rows()
        return Remains(self.queue_id, drains, ends, row_bytes, states=states, payloads=self._entity.payloads)

    # ── sending ──

    def _accept(self, drafts: Sequence[Draft], now_ms: int) -> list[StoredMessage]:
        messages = self._new(drafts, now_ms)
        self._store.write(Insert(self.main.number, messages))
        return messages

    def _new(self, drafts: Sequence[Draft], now_ms: int) -> list[StoredMessage]:
        """Give the drafts numbers and times. Bare objects instead of calls, because every message passes here."""
        messages: list[StoredMessage] = []
        new, seq, ceiling_ms, size = StoredMessage.__new__, self._entity.last_seq, self._entity.ttl_ceiling_ms, 0
        n = self._store.number(len(drafts)) - 1
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
        self._entity.last_seq = seq
        self.main.size_bytes += size
        return messages

    def _payload_of(self, body: bytes) -> int:
        """Write a large body as a payload, and return its number."""
        payload = self._store.number()
        self._store.write(InsertPayload(payload, self.queue_id, body))
        return payload

    def _accepted(self, messages: list[StoredMessage], error: StoreError | None) -> None:
        main = self.main
        if error is not None:
            main.size_bytes -= sum(message.size for message in messages)
            return
        main.admit([message for message in messages if message.state == ACTIVE])
        for message in messages:
            if message.payload:
                self._entity.payloads.admit(message.payload, self.queue_id, len(message.body))
                main.share(message)
            if message.state == SCHEDULED:
                self._schedule.add(message)

    # ── scheduled messages ──

    def _activate(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Move scheduled messages whose time has come to the end of the queue, under new numbers."""
        n = self._store.number(len(messages)) - 1
        active: list[StoredMessage] = []
        for message in messages:
            self._entity.last_seq += 1
            n += 1
            after = message.revised(
                n=n,
                seq=self._entity.last_seq,
                state=ACTIVE,
                enqueued_ms=now_ms,
                expires_ms=now_ms + message.ttl_ms if message.ttl_ms else 0,
                scheduled_ms=0,
            )
            self._store.write(Move(self.main.number, message.n, self.main.number, after))
            active.append(after)
        self._entity.commits.then(self._activated, (messages, active), now_ms)

    def _activated(
        self, subject: tuple[list[StoredMessage], list[StoredMessage]], now_ms: int, error: StoreError | None
    ) -> None:
        messages, active = subject
        self._schedule.activated(messages, now_ms, error)
        if error is None:
            self.main.admit(active)
        self._entity.go_on(self.main, now_ms, error)

    # ── due work ──

    def next_due_ms(self) -> int | None:
        """Return a time not later than the next work of `run_due`, perhaps earlier. Ask again after every call."""
        times = [*self._receiving.next_due_ms(), self._schedule.next_ms(), self._admission.next_ms()]
        known = [at_ms for at_ms in times if at_ms is not None]
        return max(min(known), self._entity.paused_until_ms) if known else None

    @property
    def is_catching_up(self) -> bool:
        """True while a batch of due work is being committed; the next one follows by itself."""
        return self._receiving.is_catching_up or self._schedule.is_busy

    def run_due(self, now_ms: int) -> None:
        """Do a bounded part of the due work: locks and times to live that end, scheduled messages, old message ids."""
        if not self._entity.may_run_due(now_ms):
            return
        self._receiving.run_due(now_ms, self._schedule.run)
        self._entity.look_again_ms = now_ms + RETRY_PAUSE_MS
        self._admission.run_due(now_ms)
