"""The way out of a queue or a subscription: every way in which a delivery ends, deferred messages, and peeking.

Azure leaves one case open, dead-lettering a message of the dead-letter queue itself: here it is refused
(amqp:not-allowed) and the lock goes on, since there is no queue behind the dead-letter queue and a settlement that
does nothing would look like success. For the same reason a dead message is never delivered too often: it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.amqp.types import encode_pair
from pairbus.broker.boxes.box import Box, deletion
from pairbus.broker.boxes.locks import Lock
from pairbus.broker.boxes.sessions import MessageSession
from pairbus.broker.budget import Share
from pairbus.broker.description import QueueDescription, SubscriptionDescription
from pairbus.broker.entities.entity import Entity, EntityDescription, EntityDone, NamespaceParts
from pairbus.broker.entities.overdue import Overdue
from pairbus.broker.entities.session_service import SessionService
from pairbus.broker.entities.sweep import Remains
from pairbus.broker.refusal import ARGUMENT_ERROR, Refusal, lock_lost, messages_not_found, refusal_of, unreadable
from pairbus.broker.store import (
    ACTIVE,
    DEFERRED,
    TRANSFER,
    UNLIMITED,
    IndexRow,
    StoredMessage,
    Update,
    dead_box_of,
    transfer_box_of,
)
from pairbus.errors import StoreError

DEFERRED_SIZE_MAX = 32 << 20  # bytes of deferred messages received together: they are all in memory, and in one answer
DELETED_SIZE_MAX = 32 << 20  # bytes of waiting messages that one request deletes: each is read on the event loop
PATCH_SIZE_MAX = 64 * 1024  # changed properties of one message; the service allows 64 KB of properties in all


class Outcome(Enum):
    COMPLETE = auto()
    ABANDON = auto()
    DEFER = auto()
    DEAD_LETTER = auto()
    RELEASE = auto()


MessageChange = tuple[StoredMessage, StoredMessage, Box]
"(the message before, the message after, its new box): written, not yet committed."


class Receivable(Entity):
    """An entity from which clients receive: a queue or a subscription. Its boxes lock messages for receivers."""

    description: QueueDescription | SubscriptionDescription

    def __init__(
        self,
        entity_id: int,
        description: EntityDescription,
        parts: NamespaceParts,
        *,
        now_ms: int,
        last_seq: int = 0,
    ) -> None:
        super().__init__(entity_id, description, parts, now_ms=now_ms, last_seq=last_seq)
        self.dead = self._make_box(dead_box_of(entity_id))
        self.boxes = (self.main, self.dead)
        "Boxes that exist: the box for transfer dead letters is made at its first use."
        self._overdue = Overdue(self)
        self.sessions = SessionService(self, self._overdue.expire) if self.requires_session else None
        "Sessions of the entity; None where it has none."

    def _apply_settings(self) -> None:
        super()._apply_settings()
        for box in self.boxes:
            box.locks.duration_ms = self.description.lock_duration_ms
            box.receivable = self.receivable

    @property
    def requires_session(self) -> bool:
        return self.description.requires_session

    # ── boxes and counts ──

    @property
    def transfer(self) -> Box:
        """The box of transfer dead letters, made at its first use: without transactions no message gets there."""
        if len(self.boxes) == 2:
            self.boxes = (self.main, self.dead, self._make_box(transfer_box_of(self.entity_id)))
            self._apply_settings()
        return self.boxes[2]

    def box_of(self, number: int) -> Box:
        """Return the box of this number."""
        kind = number - self.main.number
        return self.transfer if kind == TRANSFER else self.boxes[kind]

    @property
    def active_count(self) -> int:
        return self.main.active_count

    @property
    def dead_count(self) -> int:
        return self.dead.active_count + self.dead.deferred_count

    @property
    def transfer_dead_count(self) -> int:
        return sum(box.active_count + box.deferred_count for box in self.boxes[2:])

    @property
    def deferred_count(self) -> int:
        return self.main.deferred_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages; those of a subscription include payloads that other subscriptions share."""
        size = self.main.size_bytes + self.dead.size_bytes
        if self.sessions is not None:
            size += self.sessions.state_bytes
        return size if len(self.boxes) == 2 else size + self.boxes[2].size_bytes

    @property
    def accessed_ms(self) -> int:
        return max(self.used_ms, *[box.accessed_ms for box in self.boxes])

    # ── start, change, end ──

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        return self.box_of(box).recover

    def update(self, description: EntityDescription, now_ms: int) -> None:
        super().update(description, now_ms)
        for box in self.boxes:
            if box.available(now_ms):
                self.announce(box)

    def remains(self) -> Remains:
        remains = super().remains()
        if self.sessions is not None:
            remains.states = self.sessions.state_rows()
        return remains

    # ── due work ──

    def _due_times(self) -> list[int | None]:
        return [*super()._due_times(), *self._overdue.times()]

    @property
    def is_catching_up(self) -> bool:
        return self._overdue.is_busy or super().is_catching_up

    def _do_due(self, now_ms: int) -> None:
        super()._do_due(now_ms)
        self._overdue.run(now_ms)

    def _expired_in_search(self, messages: list[StoredMessage], now_ms: int) -> None:
        self._overdue.end(messages, now_ms)

    # ── settlements of receivers ──

    def settle(
        self,
        box: Box,
        token: bytes,
        outcome: Outcome,
        now_ms: int,
        done: EntityDone,
        *,
        patch: bytes = b"",
        in_unit: bool = False,
    ) -> None:
        """End one lock. `patch`: encoded pairs of application properties to change (abandon, defer, dead-letter).

        When the answer is a refusal, the message is unchanged: a lock that was held runs on. `in_unit`: the settlement
        is part of a unit of the store, and fails with it, although a release writes nothing.
        """
        self.used_ms = now_ms
        lock = None if self.closed else box.locks.held(token, now_ms)
        refusal = self._objection(box, lock, outcome, patch)
        if lock is None or refusal is not None:
            self.answer_later(refusal, done)
            return
        box.locks.remove(lock)
        if outcome is Outcome.RELEASE:
            self.store.after_commit(partial(self._released, box, lock, done, in_unit))
        elif outcome is Outcome.COMPLETE:
            self.store.write(deletion(box, [lock.message]))
            self.store.after_commit(partial(self._settled, box, lock, None, done))
        else:
            change = self.change(box, lock.message, outcome, patch)
            self.store.after_commit(partial(self._settled, box, lock, change, done))

    def check_settlement(self, box: Box, token: bytes, outcome: Outcome, now_ms: int, patch: bytes = b"") -> None:
        """Raise the Refusal with which `settle` would answer now."""
        lock = None if self.closed else box.locks.held(token, now_ms)
        refusal = self._objection(box, lock, outcome, patch)
        if refusal is not None:
            raise refusal

    def _objection(self, box: Box, lock: Lock | None, outcome: Outcome, patch: bytes) -> Refusal | None:
        if lock is None:
            return lock_lost()
        if outcome is Outcome.DEAD_LETTER and box is self.dead:
            return Refusal(NOT_ALLOWED, f"A message of the dead-letter queue of '{self.path}' cannot be dead-lettered.")
        if patch and len(lock.message.patch) + len(patch) > PATCH_SIZE_MAX:
            return Refusal(ARGUMENT_ERROR, f"The changed properties of a message exceed {PATCH_SIZE_MAX} bytes.")
        return None

    def _settled(
        self, box: Box, lock: Lock, change: MessageChange | None, done: EntityDone, error: StoreError | None
    ) -> None:
        if error is not None:
            box.locks.restore((lock,))
            done(refusal_of(error))
            self.announce(box)
            return
        if change is None:
            box.forget((lock.message,))
        else:
            self.apply(box, change)
        done(None)
        if change is not None:
            self.announce(change[2])

    def _released(self, box: Box, lock: Lock, done: EntityDone, in_unit: bool, error: StoreError | None) -> None:
        """Answer a release: it needed no write, so a failed commit does not matter, but that of its own unit."""
        if error is not None and in_unit:
            self._settled(box, lock, None, done, error)
            return
        box.give_back(lock.message)
        done(None)
        self.announce(box)

    def complete_many(
        self, box: Box, tokens: Sequence[bytes], now_ms: int, done: Callable[[list[bytes], Refusal | None], None]
    ) -> None:
        """Complete every lock that is held, in one write. `done(tokens that are lost, None)` is called after the
        commit.

        When the store failed, `done(all tokens, refusal)` is called: no message was completed and the locks run on.
        """
        self.used_ms = now_ms
        held, lost = ([], list(tokens)) if self.closed else box.locks.release(tokens, now_ms)
        if held:
            self.store.write(deletion(box, [lock.message for lock in held]))
        self.store.after_commit(partial(self._completions_committed, box, held, lost, done))

    def _completions_committed(
        self,
        box: Box,
        held: list[Lock],
        lost: list[bytes],
        done: Callable[[list[bytes], Refusal | None], None],
        error: StoreError | None,
    ) -> None:
        """Answer completions, which are durable now; after an error, put their locks back."""
        if error is not None and held:
            box.locks.restore(held)
            done(lost + [lock.token for lock in held], refusal_of(error))
            self.announce(box)
            return
        box.forget([lock.message for lock in held])
        done(lost, None)

    def renew(self, box: Box, tokens: Sequence[bytes], now_ms: int) -> list[int]:
        """Renew the locks and return their new ends; Refusal when one of them is not held, and then none is renewed."""
        self.used_ms = now_ms
        locks = [lock for token in tokens if (lock := box.locks.held(token, now_ms)) is not None]
        if len(locks) < len(tokens):
            raise lock_lost(len(tokens) - len(locks))
        return [box.locks.renew(lock, now_ms) for lock in locks]

    # ── deleting what waits ──

    def delete_waiting(
        self,
        box: Box,
        count: int,
        before_ms: int,
        now_ms: int,
        done: Callable[[Refusal | int], None],
        *,
        session: MessageSession | None = None,
    ) -> None:
        """Delete up to `count` waiting messages that were enqueued before a time, oldest first; answer how many.

        `session`: a held one, where the box has sessions.
        """
        self.used_ms = now_ms
        messages: list[StoredMessage] = []
        size = 0
        try:
            self.check_receive()
            while len(messages) < count and size < DELETED_SIZE_MAX and (first := box.withdraw(1, now_ms, session)):
                [message] = first
                if message.enqueued_ms >= before_ms:
                    box.give_back(message)
                    break
                messages.append(message)
                size += message.size
                message.drop_body()
        except (Refusal, StoreError) as error:
            for message in messages:
                box.give_back(message)
            self.answer_later(error if isinstance(error, Refusal) else unreadable(error), done)
            return
        if messages:
            self.store.write(deletion(box, messages))
        self.store.after_commit(partial(self._deleted, box, messages, done))

    def _deleted(
        self, box: Box, messages: list[StoredMessage], done: Callable[[Refusal | int], None], error: StoreError | None
    ) -> None:
        if error is None or not messages:
            box.forget(messages)
            done(len(messages))
            return
        for message in messages:
            box.give_back(message)
        done(refusal_of(error))
        self.announce(box)

    # ── deferred messages ──

    def receive_deferred(
        self,
        box: Box,
        seqs: Sequence[int],
        now_ms: int,
        lock: bool,
        done: Callable[[Refusal | list[Lock]], None],
        *,
        share: Share | None = None,
    ) -> None:
        """Receive all of the deferred messages or none, in the order asked for. Without `lock` they are deleted before
        they are handed out. `share` is what the receiver holds of the budget; until the answer the bodies count too."""
        self.used_ms = now_ms
        seqs = list(dict.fromkeys(seqs))
        try:
            self.check_receive()
            messages = self._deferred(box, seqs)
        except Refusal as refusal:
            self.answer_later(refusal, done)
            return
        box.take_deferred(messages)
        if share is not None:
            done = _answered_with(share, sum([message.size for message in messages]), done)
        if lock:
            self.answer_later(box.locks.make(messages, now_ms, share), done)
            return
        self.store.write(deletion(box, messages))
        tokens = box.locks.new_tokens(len(messages))
        taken = [Lock(token, message, 0) for token, message in zip(tokens, messages, strict=True)]
        self.store.after_commit(partial(self._deferred_taken, box, taken, done))

    def _deferred(self, box: Box, seqs: list[int]) -> list[StoredMessage]:
        unknown = [seq for seq in seqs if seq not in box.deferred]
        loaded: dict[int, StoredMessage] = {}
        if not unknown:
            ordered = sorted(box.deferred[seq] for seq in seqs)
            try:
                heads, unread = box.heads(ordered)
                if len(seqs) > 1 and (unread or sum([head.size for head in heads]) > DEFERRED_SIZE_MAX):
                    text = (
                        f"The deferred messages asked for have more than {DEFERRED_SIZE_MAX >> 20} MB: ask for fewer."
                    )
                    raise Refusal(ARGUMENT_ERROR, text)
                messages = self.store.load(box.number, ordered).messages
            except StoreError as error:
                raise unreadable(error) from error
            loaded.update((message.seq, message) for message in messages)
            unknown = [seq for seq in seqs if seq not in loaded]  # damaged
        if unknown:
            raise messages_not_found(unknown, "deferred", self.path)
        return [loaded[seq] for seq in seqs]

    def _deferred_taken(
        self, box: Box, taken: list[Lock], done: Callable[[Refusal | list[Lock]], None], error: StoreError | None
    ) -> None:
        messages = [lock.message for lock in taken]
        if error is None or not taken:
            box.forget(messages)
            done(taken)
            return
        for message in messages:
            box.give_back(message)
        done(refusal_of(error))

    # ── changes that are written ──

    def change(self, box: Box, message: StoredMessage, outcome: Outcome, patch: bytes) -> MessageChange:
        """Write how the end of a delivery changes a message that stays in the entity."""
        if outcome is Outcome.DEAD_LETTER:
            return self.to_dead_letters(message, patch)
        if outcome is Outcome.DEFER:
            count = message.delivery_count + 1
            return self._update(box, message, state=DEFERRED, delivery_count=count, patch=message.patch + patch)
        if box is not self.main:  # as on Azure, a message that is a dead letter is counted no further
            return self._update(box, message, patch=message.patch + patch)
        count, count_max = message.delivery_count + 1, self.description.max_delivery_count
        if count >= count_max:
            patch += reason(
                "MaxDeliveryCountExceeded", f"Message could not be consumed after {count_max} delivery attempts."
            )
            return self.to_dead_letters(message, patch, delivery_count=count)
        return self._update(box, message, delivery_count=count, patch=message.patch + patch)

    def _update(self, box: Box, message: StoredMessage, **changes: Any) -> MessageChange:
        after = message.revised(**changes)
        self.store.write(Update(box.number, after))
        return message, after, box

    def abandon(self, box: Box, message: StoredMessage) -> MessageChange:
        """Write that a delivery has ended without a settlement: it counts, and too many of them dead-letter."""
        return self.change(box, message, Outcome.ABANDON, b"")

    def dead_letter_expired(self, message: StoredMessage) -> MessageChange:
        """Write the move of a message whose time to live is over to the dead letters."""
        return self.to_dead_letters(
            message, reason("TTLExpiredException", "The message expired and was dead lettered.")
        )

    def to_dead_letters(self, message: StoredMessage, patch: bytes, **changes: Any) -> MessageChange:
        """Write the move of a message from the entity's own box to its dead letters, where no time to live counts."""
        after = message.revised(state=ACTIVE, expires_ms=0, patch=message.patch + patch, **changes)
        self.store.write(Update(self.dead.number, after))
        return message, after, self.dead

    def dead_letter(self, messages: list[StoredMessage], name: str, text: str, done: Callable[[], None]) -> None:
        """Dead-letter withdrawn messages of the entity's own box; `done` is called when that is committed or has
        failed."""
        changes = [self.to_dead_letters(message, reason(name, text)) for message in messages]
        self.store.after_commit(partial(self._dead_lettered, changes, done))

    def _dead_lettered(self, changes: list[MessageChange], done: Callable[[], None], error: StoreError | None) -> None:
        for change in changes:
            if error is None:
                self.apply(self.main, change)
            else:
                self.main.give_back(change[0])
        self.announce(self.main)
        self.announce(self.dead)
        done()

    def apply(self, box: Box, change: MessageChange) -> None:
        """Put a message whose change is committed into its place."""
        before, after, to_box = change
        if to_box is not box:
            to_box.accept([after])
            box.forget((before,))
            return
        box.size_bytes += after.size - before.size
        if after.state == before.state:
            box.give_back(after)
        else:
            box.defer(after)

    # ── looking ──

    def _unknown_numbers(self, session_id: str | None) -> Iterable[tuple[int, int]]:
        """Return (sequence number, row number) of messages that are in the main box and that the box does not know; of
        one session, or of all."""
        return ()

    def peek(
        self,
        box: Box,
        from_seq: int,
        count: int,
        now_ms: int,
        *,
        session_id: str | None = None,
        size_max: int | None = None,
    ) -> list[StoredMessage]:
        """Return committed messages of every state, of one session or of all, without a lock; messages whose time to
        live is over and messages that a write carries now are left out.

        Reading stops when the messages found have `size_max` bytes. StoreError: messages cannot be read now.
        """
        self.used_ms = now_ms
        scheduled = list(self._unknown_numbers(session_id)) if box is self.main else []
        others = [n for _, n in scheduled]
        locked = {lock.message.n for lock in box.locks}
        seen: list[StoredMessage] = []
        size, from_n = 0, box.first_from(from_seq, scheduled, session_id)
        while from_n and len(seen) < count and (size_max is None or size < size_max):
            count_max = min(count - len(seen), box.chunk_size())
            numbers = box.numbers_from(from_n, count_max, others, session_id)
            if not numbers:
                break
            left = UNLIMITED if size_max is None else size_max - size
            messages, _, rest = self.store.load(box.number, numbers, left)
            from_n = rest[0] if rest else numbers[-1] + 1
            for message in messages:
                over = message.state == ACTIVE and 0 < message.expires_ms <= now_ms
                if not over or message.n in locked:
                    seen.append(message)
                    size += message.size
        return seen


def _answered_with(
    share: Share, size: int, done: Callable[[Refusal | list[Lock]], None]
) -> Callable[[Refusal | list[Lock]], None]:
    """Count bytes against the budget until the answer was given."""
    share.take(size)

    def answered(result: Refusal | list[Lock]) -> None:
        share.give(size)
        done(result)

    return answered


def reason(name: str, description: str) -> bytes:
    """Return the application properties of a message that the broker itself dead-letters."""
    return encode_pair("DeadLetterReason", name) + encode_pair("DeadLetterErrorDescription", description)
