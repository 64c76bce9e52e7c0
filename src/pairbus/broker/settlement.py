"""The two boxes of a queue, and every way in which a message that was handed out ends.

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
from pairbus.broker.box import CHUNK_MAX, Box, Commits, Lock
from pairbus.broker.description import UNLIMITED_MS, QueueDescription
from pairbus.broker.refusal import (
    ARGUMENT_ERROR,
    ENTITY_DISABLED,
    MESSAGE_NOT_FOUND,
    Refusal,
    entity_not_found,
    lock_lost,
    refusal_of,
)
from pairbus.broker.store import ACTIVE, DEFERRED, Delete, Move, Store, StoredMessage, Update, box_of, dead_box_of
from pairbus.errors import StoreError

DEFERRED_SIZE_MAX = 32 << 20  # of deferred messages received together: they are all in memory, and in one answer
PATCH_SIZE_MAX = 64 * 1024  # changed properties of one message; the service allows 64 KB of properties in all


class Outcome(Enum):
    COMPLETE = auto()
    ABANDON = auto()
    DEFER = auto()
    DEAD_LETTER = auto()
    RELEASE = auto()


Done = Callable[[Refusal | None], None]
Change = tuple[StoredMessage, StoredMessage, Box]
"(the message before, after, the box that it is then in): written, not yet committed."


class BoxPair:
    """The queue's own box and its dead-letter box under one description."""

    def __init__(
        self,
        queue_id: int,
        description: QueueDescription,
        store: Store,
        *,
        now_ms: int,
        on_ready: Callable[[Box], None],
        on_expired: Callable[[list[StoredMessage], int], None],
    ) -> None:
        self.queue_id = queue_id
        self.closed = False
        self._store = store
        self._commits = Commits(store)
        self._on_ready = on_ready
        self._accessed_ms = now_ms
        self.main = Box(box_of(queue_id), store, self._commits, on_expired=on_expired)
        self.dead = Box(dead_box_of(queue_id), store, self._commits, on_expired=on_expired)
        self._describe(description)

    def _describe(self, description: QueueDescription) -> None:
        self.description = description
        self.path = description.path
        self._size_max = description.max_size_mb << 20
        self.message_size_max = description.max_message_size_kb << 10
        ttl_ms = description.default_ttl_ms
        self._ttl_ceiling_ms = 0 if ttl_ms is None or ttl_ms >= UNLIMITED_MS else ttl_ms
        self._sendable = description.status in ("Active", "ReceiveDisabled")
        for box in (self.main, self.dead):
            box.lock_duration_ms = description.lock_duration_ms
            box.receivable = description.status in ("Active", "SendDisabled") and not self.closed

    def check_send(self) -> None:
        if self.closed:
            raise entity_not_found(self.path)
        if not self._sendable:
            raise self._disabled()

    def check_receive(self) -> None:
        """The status counts for the dead-letter queue as well."""
        if self.closed:
            raise entity_not_found(self.path)
        if not self.main.receivable:
            raise self._disabled()

    def _disabled(self) -> Refusal:
        return Refusal(ENTITY_DISABLED, f"The messaging entity '{self.path}' is in status {self.description.status}.")

    def _announce(self, box: Box) -> None:
        if not self.closed:
            self._on_ready(box)

    def _answer_later(self, answer: Any, done: Callable[[Any], None]) -> None:
        """Behind the answers to earlier calls; a failing commit does not change this one."""
        self._commits.then(_answer, answer, done)

    # ── settling ──

    def settle(self, box: Box, token: bytes, outcome: Outcome, now_ms: int, done: Done, *, patch: bytes = b"") -> None:
        """End one lock. `patch`: encoded pairs of application properties to change (abandon, defer, dead-letter).

        When the answer is a refusal, nothing has changed: a lock that was held runs on.
        """
        self._accessed_ms = now_ms
        lock = None if self.closed else box.held(token, now_ms)
        refusal = self._objection(box, lock, outcome, patch)
        if lock is None or refusal is not None:
            self._answer_later(refusal, done)
            return
        del box.locks[token]
        if outcome is Outcome.RELEASE:
            self._commits.then(self._released, (box, lock), done)
        elif outcome is Outcome.COMPLETE:
            self._store.write(Delete(box.number, (lock.message.seq,)))
            self._commits.then(self._settled, (box, lock, None), done)
        else:
            change = self._change(box, lock.message, outcome, patch)
            self._commits.then(self._settled, (box, lock, change), done)

    def _objection(self, box: Box, lock: Lock | None, outcome: Outcome, patch: bytes) -> Refusal | None:
        if lock is None:
            return lock_lost()
        if outcome is Outcome.DEAD_LETTER and box is self.dead:
            return Refusal(NOT_ALLOWED, f"A message of the dead-letter queue of '{self.path}' cannot be dead-lettered.")
        if patch and len(lock.message.patch) + len(patch) > PATCH_SIZE_MAX:
            return Refusal(ARGUMENT_ERROR, f"The changed properties of a message exceed {PATCH_SIZE_MAX} bytes.")
        return None

    def _settled(self, payload: tuple[Box, Lock, Change | None], done: Done, error: StoreError | None) -> None:
        box, lock, change = payload
        if error is not None:
            box.restore((lock,))
            done(refusal_of(error))
            self._announce(box)
            return
        if change is None:
            box.forget(lock.message)
        else:
            self._apply(box, change)
        done(None)
        if change is not None:
            self._announce(change[2])

    def _released(self, payload: tuple[Box, Lock], done: Done, _error: StoreError | None) -> None:
        """Nothing was written, so a failed commit has nothing to say about it."""
        box, lock = payload
        box.give_back(lock.message)
        done(None)
        self._announce(box)

    def complete_many(
        self, box: Box, tokens: Sequence[bytes], now_ms: int, done: Callable[[list[bytes], Refusal | None], None]
    ) -> None:
        """Complete every lock that is held, in one write. `done(tokens that are lost, None)` after the commit.

        When the store failed, `done(all tokens, refusal)`: nothing was completed and the locks run on.
        """
        self._accessed_ms = now_ms
        held, lost = ([], list(tokens)) if self.closed else box.release(tokens, now_ms)
        if held:
            self._store.write(Delete(box.number, [lock.message.seq for lock in held]))
        self._commits.then(self._completed, (box, held, lost), done)

    def _completed(
        self,
        payload: tuple[Box, list[Lock], list[bytes]],
        done: Callable[[list[bytes], Refusal | None], None],
        error: StoreError | None,
    ) -> None:
        box, held, lost = payload
        if error is not None:
            box.restore(held)
            done(lost + [lock.token for lock in held], refusal_of(error))
            self._announce(box)
            return
        forget = box.forget
        for lock in held:
            forget(lock.message)
        done(lost, None)

    def renew(self, box: Box, tokens: Sequence[bytes], now_ms: int) -> list[int]:
        """The new ends of the locks; Refusal when one of them is not held, and then none is renewed."""
        self._accessed_ms = now_ms
        locks = [lock for token in tokens if (lock := box.held(token, now_ms)) is not None]
        if len(locks) < len(tokens):
            raise lock_lost(len(tokens) - len(locks))
        return [box.renew(lock, now_ms) for lock in locks]

    # ── deferred messages ──

    def receive_deferred(
        self, box: Box, seqs: Sequence[int], now_ms: int, lock: bool, done: Callable[[Refusal | list[Lock]], None]
    ) -> None:
        """All or none, in the order asked for. Without `lock` they are deleted before they are handed out."""
        self._accessed_ms = now_ms
        seqs = list(dict.fromkeys(seqs))
        try:
            self.check_receive()
            messages = self._deferred(box, seqs)
        except Refusal as refusal:
            self._answer_later(refusal, done)
            return
        box.deferred.difference_update(seqs)
        if lock:
            self._answer_later([box.lock(message, now_ms) for message in messages], done)
            return
        self._store.write(Delete(box.number, seqs))
        taken = [Lock(box.new_token(), message, 0) for message in messages]
        self._commits.then(self._deferred_taken, (box, taken), done)

    def _deferred(self, box: Box, seqs: list[int]) -> list[StoredMessage]:
        unknown = [seq for seq in seqs if seq not in box.deferred]
        loaded: dict[int, StoredMessage] = {}
        if not unknown:
            ordered, step, size = sorted(seqs), box.chunk_size(), 0
            for at in range(0, len(ordered), step):
                try:
                    messages, _ = self._store.load(box.number, ordered[at : at + step])
                except StoreError as error:
                    raise refusal_of(error) from error
                size += sum(message.size for message in messages)
                if size > DEFERRED_SIZE_MAX and len(seqs) > 1:
                    text = (
                        f"The deferred messages asked for have more than {DEFERRED_SIZE_MAX >> 20} MB: ask for fewer."
                    )
                    raise Refusal(ARGUMENT_ERROR, text)
                loaded.update((message.seq, message) for message in messages)
            unknown = [seq for seq in seqs if seq not in loaded]  # damaged
        if unknown:
            raise not_found(unknown, "deferred", self.path)
        return [loaded[seq] for seq in seqs]

    def _deferred_taken(
        self, payload: tuple[Box, list[Lock]], done: Callable[[Refusal | list[Lock]], None], error: StoreError | None
    ) -> None:
        box, taken = payload
        for lock in taken:
            if error is None:
                box.forget(lock.message)
            else:
                box.give_back(lock.message)
        done(taken if error is None else refusal_of(error))

    # ── changes that are written ──

    def _change(self, box: Box, message: StoredMessage, outcome: Outcome, patch: bytes) -> Change:
        if outcome is Outcome.DEAD_LETTER:
            return self._bury(message, patch)
        if outcome is Outcome.DEFER:
            return self._update(box, message, state=DEFERRED, patch=message.patch + patch)
        count, count_max = message.delivery_count + 1, self.description.max_delivery_count
        if count >= count_max and box is self.main:
            patch += reason(
                "MaxDeliveryCountExceeded", f"Message could not be consumed after {count_max} delivery attempts."
            )
            return self._bury(message, patch, delivery_count=count)
        return self._update(box, message, delivery_count=count, patch=message.patch + patch)

    def _update(self, box: Box, message: StoredMessage, **changes: Any) -> Change:
        after = message.revised(**changes)
        self._store.write(Update(box.number, after))
        return message, after, box

    def _bury(self, message: StoredMessage, patch: bytes, **changes: Any) -> Change:
        """From the queue to its dead-letter queue, where no time to live counts."""
        after = message.revised(state=ACTIVE, expires_ms=0, patch=message.patch + patch, **changes)
        self._store.write(Move(self.main.number, message.seq, self.dead.number, after))
        return message, after, self.dead

    def _apply(self, box: Box, change: Change) -> None:
        before, after, to_box = change
        if to_box is not box:
            box.forget(before)
            to_box.size_bytes += after.size
            to_box.admit([after])
            return
        box.size_bytes += after.size - before.size
        if after.state == before.state:
            box.give_back(after)
        else:
            box.defer(after)

    def _lapse(self, box: Box, now_ms: int) -> None:
        """Locks that have ended count as deliveries, like abandoning."""
        changes = [self._change(box, lock.message, Outcome.ABANDON, b"") for lock in box.lapse(now_ms, CHUNK_MAX)]
        if changes:
            self._commits.then(self._lapsed, box, changes)

    def _lapsed(self, box: Box, changes: list[Change], error: StoreError | None) -> None:
        for change in changes:
            if error is None:
                self._apply(box, change)
            else:
                box.give_back(change[0])  # the lock is over in any case; only the count was not kept
        self._announce(box)
        if any(to_box is not box for _, _, to_box in changes):
            self._announce(self.dead)


def reason(name: str, description: str) -> bytes:
    """The application properties of a message that the broker itself dead-letters."""
    return encode_pair("DeadLetterReason", name) + encode_pair("DeadLetterErrorDescription", description)


def not_found(seqs: Sequence[int], state: str, path: str) -> Refusal:
    first = ", ".join(map(str, seqs[:5])) + (", …" if len(seqs) > 5 else "")
    return Refusal(MESSAGE_NOT_FOUND, f"'{path}' has no {state} message with sequence number {first}.")


def _answer(answer: Any, done: Callable[[Any], None], _error: StoreError | None) -> None:
    done(answer)
