"""Settlement: every way in which the delivery of a message ends.

Azure leaves one case open, dead-lettering a message of the dead-letter queue itself: here it is refused
(amqp:not-allowed) and the lock goes on, since there is no queue behind the dead-letter queue and a settlement that
does nothing would look like success. For the same reason a dead message is never delivered too often: it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

from pairbus.amqp.errors import NOT_ALLOWED
from pairbus.amqp.types import encode_pair
from pairbus.broker.boxes.box import CHUNK_MAX, Box, deletion
from pairbus.broker.boxes.locks import Lock
from pairbus.broker.boxes.sessions import MessageSession
from pairbus.broker.budget import MOVE_BYTES, Share
from pairbus.broker.entities.entity import Entity, EntityDone
from pairbus.broker.refusal import ARGUMENT_ERROR, MESSAGE_NOT_FOUND, Refusal, lock_lost, refusal_of, unreadable
from pairbus.broker.store import ACTIVE, DEFERRED, StoredMessage, Update
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


class Settlement:
    """Settlement of the messages of two boxes, an entity's own and its dead letters."""

    def __init__(self, entity: Entity, main: Box, dead: Box) -> None:
        self.max_delivery_count = 1
        "Deliveries after which a message is dead-lettered; set by the entity."
        self._entity = entity
        self._main = main
        self._dead = dead
        self._store = entity.store
        self._commits = entity.commits
        self.is_lapsing = False
        "True while the ends of some locks are being committed: those of a million locks are not written together."

    # ── settling ──

    def settle(
        self, box: Box, token: bytes, outcome: Outcome, now_ms: int, done: EntityDone, *, patch: bytes = b""
    ) -> None:
        """End one lock. `patch`: encoded pairs of application properties to change (abandon, defer, dead-letter).

        When the answer is a refusal, the message is unchanged: a lock that was held runs on.
        """
        self._entity.accessed_ms = now_ms
        lock = None if self._entity.closed else box.locks.held(token, now_ms)
        refusal = self._objection(box, lock, outcome, patch)
        if lock is None or refusal is not None:
            self._entity.answer_later(refusal, done)
            return
        box.locks.remove(lock)
        if outcome is Outcome.RELEASE:
            self._commits.then(self._released, (box, lock), done)
        elif outcome is Outcome.COMPLETE:
            self._store.write(deletion(box, [lock.message]))
            self._commits.then(self._settled, (box, lock, None), done)
        else:
            change = self._change(box, lock.message, outcome, patch)
            self._commits.then(self._settled, (box, lock, change), done)

    def _objection(self, box: Box, lock: Lock | None, outcome: Outcome, patch: bytes) -> Refusal | None:
        if lock is None:
            return lock_lost()
        if outcome is Outcome.DEAD_LETTER and box is self._dead:
            return Refusal(
                NOT_ALLOWED, f"A message of the dead-letter queue of '{self._entity.path}' cannot be dead-lettered."
            )
        if patch and len(lock.message.patch) + len(patch) > PATCH_SIZE_MAX:
            return Refusal(ARGUMENT_ERROR, f"The changed properties of a message exceed {PATCH_SIZE_MAX} bytes.")
        return None

    def _settled(
        self, payload: tuple[Box, Lock, MessageChange | None], done: EntityDone, error: StoreError | None
    ) -> None:
        box, lock, change = payload
        if error is not None:
            box.locks.restore((lock,))
            done(refusal_of(error))
            self._entity.announce(box)
            return
        if change is None:
            box.forget((lock.message,))
        else:
            self.apply(box, change)
        done(None)
        if change is not None:
            self._entity.announce(change[2])

    def _released(self, payload: tuple[Box, Lock], done: EntityDone, _error: StoreError | None) -> None:
        """Answer a release: it needed no write, so a failed commit does not matter."""
        box, lock = payload
        box.give_back(lock.message)
        done(None)
        self._entity.announce(box)

    def complete_many(
        self, box: Box, tokens: Sequence[bytes], now_ms: int, done: Callable[[list[bytes], Refusal | None], None]
    ) -> None:
        """Complete every lock that is held, in one write. `done(tokens that are lost, None)` is called after the
        commit.

        When the store failed, `done(all tokens, refusal)` is called: no message was completed and the locks run on.
        """
        self._entity.accessed_ms = now_ms
        held, lost = ([], list(tokens)) if self._entity.closed else box.locks.release(tokens, now_ms)
        if held:
            self._store.write(deletion(box, [lock.message for lock in held]))
        self._commits.then(self._completed, (box, held, lost), done)

    def _completed(
        self,
        payload: tuple[Box, list[Lock], list[bytes]],
        done: Callable[[list[bytes], Refusal | None], None],
        error: StoreError | None,
    ) -> None:
        box, held, lost = payload
        if error is not None and held:
            box.locks.restore(held)
            done(lost + [lock.token for lock in held], refusal_of(error))
            self._entity.announce(box)
            return
        box.forget([lock.message for lock in held])
        done(lost, None)

    def renew(self, box: Box, tokens: Sequence[bytes], now_ms: int) -> list[int]:
        """Renew the locks and return their new ends; Refusal when one of them is not held, and then none is renewed."""
        self._entity.accessed_ms = now_ms
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
        """Delete up to `count` waiting messages that were enqueued before a time, oldest first; tell how many.

        `session`: a held one, where the box has sessions.
        """
        self._entity.accessed_ms = now_ms
        found: list[StoredMessage] = []
        size = 0
        try:
            self._entity.check_receive()
            while len(found) < count and size < DELETED_SIZE_MAX and (next_one := box.withdraw(1, now_ms, session)):
                if next_one[0].enqueued_ms >= before_ms:
                    box.give_back(next_one[0])
                    break
                found += next_one
                size += next_one[0].size
                next_one[0].drop_body()
        except (Refusal, StoreError) as error:
            for message in found:
                box.give_back(message)
            self._entity.answer_later(error if isinstance(error, Refusal) else unreadable(error), done)
            return
        if found:
            self._store.write(deletion(box, found))
        self._commits.then(self._deleted, (box, found), done)

    def _deleted(
        self,
        payload: tuple[Box, list[StoredMessage]],
        done: Callable[[Refusal | int], None],
        error: StoreError | None,
    ) -> None:
        box, found = payload
        if error is None or not found:
            box.forget(found)
            done(len(found))
            return
        for message in found:
            box.give_back(message)
        done(refusal_of(error))
        self._entity.announce(box)

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
        self._entity.accessed_ms = now_ms
        seqs = list(dict.fromkeys(seqs))
        try:
            self._entity.check_receive()
            messages = self._deferred(box, seqs)
        except Refusal as refusal:
            self._entity.answer_later(refusal, done)
            return
        box.take_deferred(messages)
        if share is not None:
            done = _answered_with(share, sum([message.size for message in messages]), done)
        if lock:
            self._entity.answer_later(box.locks.make(messages, now_ms, share), done)
            return
        self._store.write(deletion(box, messages))
        tokens = box.locks.new_tokens(len(messages))
        taken = [Lock(token, message, 0) for token, message in zip(tokens, messages, strict=True)]
        self._commits.then(self._deferred_taken, (box, taken), done)

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
                messages = self._store.load(box.number, ordered).messages
            except StoreError as error:
                raise unreadable(error) from error
            loaded.update((message.seq, message) for message in messages)
            unknown = [seq for seq in seqs if seq not in loaded]  # damaged
        if unknown:
            raise not_found(unknown, "deferred", self._entity.path)
        return [loaded[seq] for seq in seqs]

    def _deferred_taken(
        self, payload: tuple[Box, list[Lock]], done: Callable[[Refusal | list[Lock]], None], error: StoreError | None
    ) -> None:
        box, taken = payload
        messages = [lock.message for lock in taken]
        if error is None or not taken:
            box.forget(messages)
            done(taken)
            return
        for message in messages:
            box.give_back(message)
        done(refusal_of(error))

    # ── changes that are written ──

    def _change(self, box: Box, message: StoredMessage, outcome: Outcome, patch: bytes) -> MessageChange:
        if outcome is Outcome.DEAD_LETTER:
            return self.to_dead_letters(message, patch)
        if outcome is Outcome.DEFER:
            count = message.delivery_count + 1
            return self._update(box, message, state=DEFERRED, delivery_count=count, patch=message.patch + patch)
        if box is not self._main:  # as on Azure, a message that is a dead letter is counted no further
            return self._update(box, message, patch=message.patch + patch)
        count, count_max = message.delivery_count + 1, self.max_delivery_count
        if count >= count_max:
            patch += reason(
                "MaxDeliveryCountExceeded", f"Message could not be consumed after {count_max} delivery attempts."
            )
            return self.to_dead_letters(message, patch, delivery_count=count)
        return self._update(box, message, delivery_count=count, patch=message.patch + patch)

    def _update(self, box: Box, message: StoredMessage, **changes: Any) -> MessageChange:
        after = message.revised(**changes)
        self._store.write(Update(box.number, after))
        return message, after, box

    def to_dead_letters(self, message: StoredMessage, patch: bytes, **changes: Any) -> MessageChange:
        """Write the move of a message from the entity's own box to its dead letters, where no time to live counts."""
        after = message.revised(state=ACTIVE, expires_ms=0, patch=message.patch + patch, **changes)
        self._store.write(Update(self._dead.number, after))
        return message, after, self._dead

    def dead_letter(self, messages: list[StoredMessage], name: str, text: str, done: Callable[[], None]) -> None:
        """Dead-letter withdrawn messages of the entity's own box; `done` is called when that is committed or has
        failed."""
        changes = [self.to_dead_letters(message, reason(name, text)) for message in messages]
        self._commits.then(self._dead_lettered, changes, done)

    def _dead_lettered(self, changes: list[MessageChange], done: Callable[[], None], error: StoreError | None) -> None:
        for change in changes:
            if error is None:
                self.apply(self._main, change)
            else:
                self._main.give_back(change[0])
        self._entity.announce(self._main)
        self._entity.announce(self._dead)
        done()

    def apply(self, box: Box, change: MessageChange) -> None:
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

    def lapse(self, box: Box, now_ms: int) -> None:
        """Count some locks that have expired as deliveries, like abandoning: the store writes the bodies again."""
        next_ms = box.locks.next_lapse_ms()
        if self.is_lapsing or next_ms is None or next_ms > now_ms or not self._entity.may_move(box, now_ms):
            return
        locks = box.locks.lapse(now_ms, CHUNK_MAX, MOVE_BYTES)
        if locks:
            self.is_lapsing = True
            box.lapsed_count += len(locks)
            changes = [self._change(box, lock.message, Outcome.ABANDON, b"") for lock in locks]
            self._entity.moving.take(sum([change[0].size for change in changes]))
            self._commits.then(self._lapsed, box, changes)

    def _lapsed(self, box: Box, changes: list[MessageChange], error: StoreError | None) -> None:
        self.is_lapsing = False
        self._entity.moving.give(sum([change[0].size for change in changes]))
        for change in changes:
            if error is None:
                self.apply(box, change)
            else:
                box.give_back(change[0])  # the lock is over in any case; only the count was not stored
        self._entity.announce(box)
        if any(to_box is not box for _, _, to_box in changes):
            self._entity.announce(self._dead)


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


def not_found(seqs: Sequence[int], state: str, path: str) -> Refusal:
    first = ", ".join(map(str, seqs[:5])) + (", …" if len(seqs) > 5 else "")
    return Refusal(MESSAGE_NOT_FOUND, f"'{path}' has no {state} message with sequence number {first}.")
