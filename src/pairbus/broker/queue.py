"""The life of a message in a queue.

              send                    lock_next                complete
    ──────────────────▶  waiting  ─────────────────▶  locked  ──────────▶ gone
    schedule   ▲ due        ▲  ▲── abandon, release, lock expired ──┤
       ▼       │            │                                       ├─ defer ──▶ deferred ──▶ locked …
    scheduled ─┘            │ time to live over                     │
       └─ cancel ──▶ gone   └──────────▶ gone, or dead              └─ dead-letter, delivered too often ──▶ dead

Every arrow but lock and release is a write. From the write to its commit the message is in none of these places:
it belongs to the step that waits for the commit (`Commits`), which moves it on, or back when the commit failed. So a
settlement cannot meet an expiring lock, nor a cancellation an activation: who takes the message first has it.

Answers (`done`) are never given from within the call that asked, and come in the order of the calls. The one exception
to the order: a send whose message id is in an uncommitted earlier send is answered after that one's commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.broker.box import CHUNK_MAX, Box
from pairbus.broker.description import UNLIMITED_MS, QueueDescription
from pairbus.broker.due import Agenda
from pairbus.broker.duplicates import Claim, DuplicateWindow
from pairbus.broker.refusal import Refusal, entity_not_found, refusal_of
from pairbus.broker.settlement import BoxPair, Change, Done, Outcome, not_found, reason
from pairbus.broker.store import ACTIVE, SCHEDULED, Delete, Forget, Insert, Move, Remember, Store, StoredMessage
from pairbus.errors import StoreError

__all__ = ["Draft", "Outcome", "Queue"]

DROPPED = 0
RETRY_PAUSE_MS = 1000  # before due work is tried again after the store failed


@dataclass(slots=True)
class Draft:
    """A message as its sender gave it."""

    body: bytes
    annotations: bytes = b""
    message_id: str = ""
    ttl_ms: int | None = None
    "None or 0: as long as the queue allows."
    scheduled_ms: int = 0
    "Unix time of activation; 0 or past: now."
    is_ping: bool = False
    "Proves that the queue takes messages; whoever reads it from the wire keeps it from the queue."


class Queue(BoxPair):
    """One queue. `settle`, `complete_many`, `renew` and `receive_deferred` are in `BoxPair`, locking is in `Box`."""

    def __init__(
        self,
        queue_id: int,
        description: QueueDescription,
        store: Store,
        *,
        now_ms: int,
        last_seq: int = 0,
        on_ready: Callable[[Box], None],
    ) -> None:
        """`on_ready(box)`: a message may have become available, or `next_due_ms` moved, by itself: in a commit, in an
        `update`. After calls of one's own (a lock, `run_due`) one asks for `next_due_ms` oneself."""
        super().__init__(queue_id, description, store, now_ms=now_ms, on_ready=on_ready, on_expired=self._expire)
        self.last_seq = last_seq
        "The highest sequence number given out: never given again, also when its commit failed."
        self._scheduled: dict[int, tuple[int, int]] = {}
        "(activation time, size) of every scheduled message that no write carries."
        self._activations: Agenda[int] = Agenda()
        self._duplicates = DuplicateWindow()
        # One batch of each at a time: a million messages that fall due together are not loaded together.
        self._expiring = self._activating = False
        self._is_stopping = False
        self._paused_until_ms = 0
        self._look_again_ms = 0
        "While such a batch is under way: it may fail, and is then due again."

    def __repr__(self) -> str:
        return (
            f"<Queue {self.path} {self.description.status} active={self.active_count} dead={self.dead_count}"
            f" scheduled={self.scheduled_count} deferred={self.deferred_count} {self.size_bytes} B>"
        )

    @property
    def active_count(self) -> int:
        return self.main.active_count

    @property
    def dead_count(self) -> int:
        return self.dead.active_count + self.dead.deferred_count

    @property
    def scheduled_count(self) -> int:
        return self.main.scheduled_count

    @property
    def deferred_count(self) -> int:
        return self.main.deferred_count

    @property
    def size_bytes(self) -> int:
        return self.main.size_bytes + self.dead.size_bytes

    @property
    def accessed_ms(self) -> int:
        return max(self._accessed_ms, self.main.accessed_ms, self.dead.accessed_ms)

    def touch(self, now_ms: int) -> None:
        """The queue is in use in a way that it cannot see itself, such as a receiver that waits with credit."""
        self._accessed_ms = max(self._accessed_ms, now_ms)

    @property
    def idle_until_ms(self) -> int | None:
        """When the queue has been idle long enough to be deleted; None: never, or not while messages are scheduled."""
        idle_ms = self.description.auto_delete_on_idle_ms
        if idle_ms is None or idle_ms >= UNLIMITED_MS or self.scheduled_count:
            return None
        return self.accessed_ms + idle_ms

    # ── start, change, end ──

    def recover(self, now_ms: int) -> None:
        """Read the store's index. Whatever fell due meanwhile is done by the next `run_due`."""
        for row in self._store.index(self.main.number):
            if row[1] == SCHEDULED:
                self.main.size_bytes += row[4]
                self.main.scheduled_count += 1
                self._await_activation(row[0], row[3], row[4])
            else:
                self.main.recover(row)
        for row in self._store.index(self.dead.number):
            self.dead.recover(row)
        self._duplicates.recover(self._store.remembered(self.queue_id))
        self.touch(now_ms)

    def update(self, description: QueueDescription, now_ms: int) -> None:
        """New settings for what happens from now on: locks and times to live given out stay as they are."""
        self._describe(description)
        self.touch(now_ms)
        for box in (self.main, self.dead):
            if box.available(now_ms):
                self._announce(box)

    def close(self) -> None:
        """Before `DropQueue` is written: nothing is handed out or written any more. Answers that are due still come.

        A write behind the drop would fail its whole group, and with it the sends of other queues.
        """
        self.closed = True
        self._describe(self.description)

    def stop(self) -> None:
        """Before the store is closed: `run_due` does nothing any more, also not for itself between two commits."""
        self._is_stopping = True

    def reopen(self, now_ms: int) -> None:
        """The drop could not be committed: the queue is as it was."""
        self.closed = False
        self.update(self.description, now_ms)

    # ── sending ──

    def send(self, drafts: Sequence[Draft], now_ms: int, done: Done) -> None:
        """Take all or none. Refused at once by raising (disabled, full), otherwise `done` after the commit."""
        self.check_room()
        self._accessed_ms = now_ms
        self._offer(drafts, now_ms, False, done)

    def schedule(self, drafts: Sequence[Draft], now_ms: int, done: Callable[[Refusal | list[int]], None]) -> None:
        """`send` that answers with the sequence numbers; that of a dropped duplicate is 0, which no message bears.

        A number of its own would not be stored with anything, and after a restart another message might get it.
        """
        self.check_room()
        self._accessed_ms = now_ms
        self._offer(drafts, now_ms, True, done)

    def check_room(self) -> None:
        if self.closed or not self._sendable:
            self.check_send()
        if self.main.size_bytes + self.dead.size_bytes >= self._size_max:
            raise Refusal(
                RESOURCE_LIMIT_EXCEEDED,
                f"The messaging entity '{self.path}' has reached its maximum size of {self.description.max_size_mb} MB"
                f" ({self.size_bytes} bytes are in use).",
            )

    def _offer(
        self, drafts: Sequence[Draft], now_ms: int, wants_seqs: bool, done: Any, *, was_parked: bool = False
    ) -> None:
        """Write what is no duplicate; `done` (of a send or a schedule) follows."""
        claim: Claim | None = None
        seqs: list[int] | None = None
        if self.description.requires_duplicate_detection:
            ids = [draft.message_id for draft in drafts]
            earlier = self._duplicates.claim_on(ids)
            if earlier is not None:
                earlier.parked.append((drafts, now_ms, wants_seqs, done))
                return
            fresh = self._duplicates.fresh(ids, now_ms)
            messages = self._new(list(compress(drafts, fresh)), now_ms)
            if wants_seqs:
                numbers = iter(messages)
                seqs = [next(numbers).seq if is_fresh else DROPPED for is_fresh in fresh]
            until_ms = now_ms + self.description.duplicate_window_ms
            claim = self._duplicates.claim([(m.message_id, until_ms) for m in messages if m.message_id])
            if claim.ids:
                self._store.write(Remember(self.queue_id, claim.ids))
        else:
            messages = self._new(drafts, now_ms)
            if wants_seqs:
                seqs = [message.seq for message in messages]
        if messages:
            self._store.write(Insert(self.main.number, messages))
        elif was_parked:  # nothing but duplicates of what has just been committed
            done(seqs)
            return
        self._commits.then(self._offered, (messages, claim, seqs), done)

    def _new(self, drafts: Sequence[Draft], now_ms: int) -> list[StoredMessage]:
        """Numbers and times for the drafts. A bare object instead of a call for each: every message passes here."""
        messages: list[StoredMessage] = []
        new, seq, ceiling_ms, size = StoredMessage.__new__, self.last_seq, self._ttl_ceiling_ms, 0
        for draft in drafts:
            seq += 1
            ttl_ms = draft.ttl_ms or 0
            if ceiling_ms and (not ttl_ms or ttl_ms > ceiling_ms):
                ttl_ms = ceiling_ms
            message = new(StoredMessage)
            message.seq = seq
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
            size += len(body) + len(annotations)
            messages.append(message)
        self.last_seq = seq
        self.main.size_bytes += size
        return messages

    def _offered(
        self,
        payload: tuple[list[StoredMessage], Claim | None, list[int] | None],
        done: Callable[[Refusal | list[int] | None], None],
        error: StoreError | None,
    ) -> None:
        messages, claim, seqs = payload
        main = self.main
        if error is not None and messages:
            main.size_bytes -= sum(message.size for message in messages)
            done(refusal_of(error))
        else:
            main.admit([message for message in messages if message.state == ACTIVE])
            for message in messages:
                if message.state == SCHEDULED:
                    main.scheduled_count += 1
                    self._await_activation(message.seq, message.scheduled_ms, message.size)
            done(seqs)
        if claim is not None:
            self._duplicates.resolve(claim, committed=error is None)
            self._unpark(claim, error)
        if error is None:
            self._announce(main)

    def _unpark(self, claim: Claim, error: StoreError | None) -> None:
        """Sends that repeated an id of this claim: they fail with it, or go on now that the id is known."""
        for drafts, now_ms, wants_seqs, done in claim.parked:
            if error is not None:
                done(refusal_of(error))
            elif self.closed:
                done(entity_not_found(self.path))
            else:
                self._offer(drafts, now_ms, wants_seqs, done, was_parked=True)

    # ── scheduled messages ──

    def _await_activation(self, seq: int, at_ms: int, size: int) -> None:
        self._scheduled[seq] = (at_ms, size)
        self._activations.set(seq, at_ms)

    def cancel_scheduled(self, seqs: Sequence[int], now_ms: int, done: Done) -> None:
        """All or none."""
        self._accessed_ms = now_ms
        seqs = list(dict.fromkeys(seqs))
        unknown = [seq for seq in seqs if self.closed or seq not in self._scheduled]
        if unknown:
            self._answer_later(not_found(unknown, "scheduled", self.path), done)
            return
        cancelled = [(seq, *self._scheduled.pop(seq)) for seq in seqs]
        for seq in seqs:
            self._activations.set(seq, None)
        self._store.write(Delete(self.main.number, seqs))
        self._commits.then(self._cancelled, cancelled, done)

    def _cancelled(self, cancelled: list[tuple[int, int, int]], done: Done, error: StoreError | None) -> None:
        for seq, at_ms, size in cancelled:
            if error is None:
                self.main.size_bytes -= size
                self.main.scheduled_count -= 1
            else:
                self._await_activation(seq, at_ms, size)
        done(None if error is None else refusal_of(error))
        if error is not None:
            self._announce(self.main)

    def _activate(self, now_ms: int) -> None:
        """Scheduled messages whose time has come go to the end of the queue, under new numbers."""
        seqs = self._activations.pop_due(now_ms, CHUNK_MAX)
        if not seqs:
            return
        try:
            loaded = {message.seq: message for message in self._store.load(self.main.number, sorted(seqs))[0]}
        except StoreError:
            for seq in seqs:
                self._activations.set(seq, self._scheduled[seq][0])
            raise
        for seq in seqs:
            del self._scheduled[seq]
        self.main.scheduled_count -= len(seqs) - len(loaded)  # damaged ones: the store reports them
        changes: list[Change] = []
        for seq in seqs:
            if (before := loaded.get(seq)) is not None:
                self.last_seq += 1
                expires_ms = now_ms + before.ttl_ms if before.ttl_ms else 0
                after = before.revised(
                    seq=self.last_seq,
                    state=ACTIVE,
                    enqueued_ms=now_ms,
                    expires_ms=expires_ms,
                    scheduled_ms=0,
                )
                self._store.write(Move(self.main.number, seq, self.main.number, after))
                changes.append((before, after, self.main))
        self._activating = True
        self._commits.then(self._activated, changes, now_ms)

    def _activated(self, changes: list[Change], now_ms: int, error: StoreError | None) -> None:
        self._activating = False
        self.touch(now_ms)
        for before, after, main in changes:
            if error is None:
                main.scheduled_count -= 1
                main.admit([after])
            else:
                self._await_activation(before.seq, before.scheduled_ms, before.size)
        self._go_on(now_ms, error)

    # ── looking ──

    def peek(
        self, box: Box, from_seq: int, count: int, now_ms: int, *, size_max: int | None = None
    ) -> list[StoredMessage]:
        """Committed messages of every state, without a lock; not those whose time to live is over.

        No more are read when those that were found have `size_max` bytes.
        """
        self._accessed_ms = now_ms
        locked = {lock.message.seq for lock in box.locks.values()}
        seen: list[StoredMessage] = []
        size = 0
        while len(seen) < count and (size_max is None or size < size_max):
            page = self._store.scan(box.number, from_seq, min(count - len(seen), box.chunk_size()))
            if not page:
                break
            from_seq = page[-1].seq + 1
            for message in page:
                over = message.state == ACTIVE and 0 < message.expires_ms <= now_ms
                if not over or message.seq in locked:
                    seen.append(message)
                    size += message.size
        return seen

    # ── what falls due ──

    def next_due_ms(self) -> int | None:
        """When `run_due` has something to do: not later than that, perhaps earlier. Ask again after every call."""
        times = [self.main.next_lapse_ms(), self.dead.next_lapse_ms(), self._duplicates.next_ms()]
        times.append(self._look_again_ms if self._expiring else self.main.next_expiry_ms())
        times.append(self._look_again_ms if self._activating else self._activations.next_ms())
        known = [at_ms for at_ms in times if at_ms is not None]
        return max(min(known), self._paused_until_ms) if known else None

    def run_due(self, now_ms: int) -> None:
        """Do a bounded part of what is due: locks and times to live that end, scheduled messages, old message ids."""
        if self.closed or self._is_stopping or now_ms < self._paused_until_ms:
            return
        for box in (self.main, self.dead):
            self._lapse(box, now_ms)
        try:
            if not self._expiring and (expired := self.main.withdraw_expired(now_ms)):
                self._expiring = True
                self._expire(expired, now_ms, batch=True)
            if not self._activating:
                self._activate(now_ms)
        except StoreError:
            # Unreadable for now, which the store itself reports: everything is as it was, and is tried again.
            self._paused_until_ms = now_ms + RETRY_PAUSE_MS
        self._look_again_ms = now_ms + RETRY_PAUSE_MS
        next_ms = self._duplicates.next_ms()
        if next_ms is not None and next_ms <= now_ms:
            until_ms = self._duplicates.purge(now_ms)
            if until_ms is not None:
                self._store.write(Forget(self.queue_id, until_ms))

    def _expire(self, messages: list[StoredMessage], now_ms: int, batch: bool = False) -> None:
        """Drop waiting messages whose time to live is over, or dead-letter them; `batch`: withdrawn by `run_due`."""
        changes: list[Change] | None = None
        if self.description.dead_letter_on_expiration:
            patch = reason("TTLExpiredException", "The message expired and was dead lettered.")
            changes = [self._bury(message, patch) for message in messages]
        else:
            self._store.write(Delete(self.main.number, [message.seq for message in messages]))
        self._commits.then(self._expired, (messages, changes, batch), now_ms)

    def _expired(
        self, payload: tuple[list[StoredMessage], list[Change] | None, bool], now_ms: int, error: StoreError | None
    ) -> None:
        messages, changes, batch = payload
        for message in messages:
            if error is not None:
                self.main.give_back(message)
            elif changes is None:
                self.main.forget(message)
        if error is None and changes is not None:
            for change in changes:
                self._apply(self.main, change)
            self._announce(self.dead)
        if batch:
            self._expiring = False
            self.main.trim()
        self._go_on(now_ms, error)

    def _go_on(self, now_ms: int, error: StoreError | None) -> None:
        """After a batch of due work: the rest of it, or a pause when the store failed."""
        if error is not None:
            self._paused_until_ms = now_ms + RETRY_PAUSE_MS
            return
        self._announce(self.main)
        self.run_due(now_ms)
