"""The way into a queue or a topic: duplicates are recognised, new messages are written, each send is answered once.

Answers come in the order of the calls. The one exception: a send whose message id is in an uncommitted earlier send is
answered after that one's commit, because only then it is known whether it is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import compress
from typing import Any, ClassVar

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.broker.description import QueueDescription, TopicDescription
from pairbus.broker.entities.draft import Draft
from pairbus.broker.entities.duplicates import Claim, DuplicateWindow
from pairbus.broker.entities.entity import Entity, EntityDescription, EntityDone, NamespaceParts
from pairbus.broker.entities.schedule import Schedule
from pairbus.broker.entities.sweep import Drain, Remains
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.refusal import Refusal, entity_not_found, refusal_of
from pairbus.broker.store import SCHEDULED, Delete, Done, Forget, IndexRow, Remember, StoredMessage
from pairbus.errors import StoreError

DROPPED = 0


class Destination(Entity):
    """An entity to which clients send and other entities forward: a queue or a topic.

    A subclass says what is written for new messages (`_write`), and for scheduled ones whose time has come
    (`_activate`).
    """

    description: QueueDescription | TopicDescription
    _activates_with_bodies: ClassVar[bool] = False
    "True when `_activate` needs the bodies of messages."

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
        self._duplicates = DuplicateWindow(self.budget.index.share())
        self._schedule = Schedule(self, self.main, self._activate, with_bodies=self._activates_with_bodies)
        self.successor: Destination | None = None
        "Empty entity that has replaced this one in a reset; None: no reset has."
        self.recorder: Recorder | None = None
        "Recorder of every message that is accepted from now on, for tests; None: there is none."

    def _apply_settings(self) -> None:
        super()._apply_settings()
        settings = self.description
        self._detects_duplicates = settings.requires_duplicate_detection
        self._window_ms = settings.duplicate_window_ms
        self._size_max = settings.max_size_mb << 20
        self.message_size_max = settings.max_message_size_kb << 10

    # ── what a subclass does ──

    def _write(self, drafts: Sequence[Draft], now_ms: int) -> Done:
        """Give the drafts the entity's next sequence numbers, one each, and write them.

        The function that is returned is told how the commit ended, before the sender is.
        """
        raise NotImplementedError

    def _activate(self, messages: list[StoredMessage], now_ms: int) -> None:
        """Write the activation of scheduled messages whose time has come, and tell the schedule of its end."""
        raise NotImplementedError

    # ── refusals ──

    def check_room(self) -> None:
        """Refuse when the status forbids sending, or the entity is full."""
        if not self.sendable:
            self.check_send()
        self.check_quota()

    def check_memory(self) -> None:
        """Refuse a new message when the broker keeps too much in memory. A forwarded one takes the place of another."""
        index = self.budget.index
        if index.is_full:
            raise Refusal(
                RESOURCE_LIMIT_EXCEEDED,
                f"The broker takes no messages now: what it keeps in memory for waiting messages and ids has reached "
                f"{index.limit >> 20} MB.",
            )

    def check_quota(self) -> None:
        """Refuse when the entity is full."""
        size = self.size_bytes
        if size >= self._size_max:
            raise Refusal(
                RESOURCE_LIMIT_EXCEEDED,
                f"The messaging entity '{self.path}' has reached its maximum size of {self._size_max >> 20} MB"
                f" ({size} bytes are in use).",
            )

    def is_claimed(self, drafts: Sequence[Draft]) -> bool:
        """Return whether a send of these drafts must wait for an earlier send with the same message id."""
        return (
            self._detects_duplicates and self._duplicates.claim_on([draft.message_id for draft in drafts]) is not None
        )

    # ── sends ──

    def send(self, drafts: Sequence[Draft], now_ms: int, done: EntityDone) -> None:
        """Take all drafts or none. Raises when disabled or full; otherwise `done` is called after the commit."""
        self.check_room()
        self.check_memory()
        self.used_ms = now_ms
        self._offer(drafts, now_ms, False, done)

    def schedule(self, drafts: Sequence[Draft], now_ms: int, done: Callable[[Refusal | list[int]], None]) -> None:
        """Send, and answer with the sequence numbers; a dropped duplicate has 0, which no message has.

        A number for the duplicate would not be stored, so after a restart another message might get it.
        """
        self.check_room()
        self.check_memory()
        self.used_ms = now_ms
        self._offer(drafts, now_ms, True, done)

    def cancel_scheduled(self, seqs: Sequence[int], now_ms: int, done: EntityDone) -> None:
        """Cancel all of these scheduled messages or none; `done` is called after the commit."""
        self._schedule.cancel(seqs, now_ms, done)

    def forward(self, drafts: Sequence[Draft], now_ms: int, leaving: Delete, left: Done) -> None:
        """Send drafts that leave another place with the same commit, which `leaving` describes.

        `left` is told how that commit ended, also when no draft was written because all are duplicates. Nothing is
        written when this raises, so no message leaves its place without entering here. The drafts must not be claimed.
        """
        self.check_room()
        self.used_ms = now_ms
        self._offer(drafts, now_ms, False, _ignore, move=(leaving, left))

    def _offer(
        self,
        drafts: Sequence[Draft],
        now_ms: int,
        wants_seqs: bool,
        done: Any,
        *,
        was_parked: bool = False,
        move: tuple[Delete, Done] | None = None,
    ) -> None:
        """Write the drafts that are no duplicates; `done` (of a send or a schedule) follows the commit.

        `_write` comes first: where it raises, no id is claimed and nothing is written. All writes are before
        `after_commit`, so they are in one group.
        """
        numbers: Iterator[int] = iter(range(self.last_seq + 1, self.last_seq + 1 + len(drafts)))
        if self._detects_duplicates:
            ids = [draft.message_id for draft in drafts]
            earlier = self._duplicates.claim_on(ids)
            if earlier is not None:
                assert move is None, "forwarded messages wait in their source for the claim"
                earlier.parked.append((drafts, now_ms, wants_seqs, done))
                return
            fresh = self._duplicates.fresh(ids, now_ms)
            seqs = [next(numbers) if is_fresh else DROPPED for is_fresh in fresh] if wants_seqs else None
            drafts = list(compress(drafts, fresh))
        else:
            seqs = list(numbers) if wants_seqs else None
        written: Done | None = None
        if drafts:
            if self.recorder is not None:
                done = self.recorder.watched(self.path, self.entity_id, drafts, self.last_seq + 1, now_ms, done)
            written = self._write(drafts, now_ms)
        elif was_parked:  # all drafts are duplicates of messages that have just been committed
            done(seqs)
            return
        claim = self._claim(drafts, now_ms) if self._detects_duplicates else None
        if move is None:
            self.store.after_commit(partial(self._committed, written, claim, seqs, done))
        else:
            leaving, left = move
            self.store.write(leaving)
            self.store.after_commit(partial(self._moved, written, claim, left))

    def _claim(self, drafts: Sequence[Draft], now_ms: int) -> Claim:
        """Claim the message ids of drafts, and write that they are remembered."""
        until_ms = now_ms + self._window_ms
        claim = self._duplicates.claim([(draft.message_id, until_ms) for draft in drafts if draft.message_id])
        if claim.ids:
            self.store.write(Remember(self.entity_id, claim.ids))
        return claim

    def _committed(
        self,
        written: Done | None,
        claim: Claim | None,
        seqs: list[int] | None,
        done: Callable[[Refusal | list[int] | None], None],
        error: StoreError | None,
    ) -> None:
        """Let the messages of a committed send in, then answer it; after an error, answer that it failed."""
        if written is None:  # no message was written, so a failed commit does not matter
            done(seqs)
        else:
            written(error)
            done(seqs if error is None else refusal_of(error))
        if claim is not None:
            self._duplicates.resolve(claim, committed=error is None)
            self._unpark(claim, error)
        if error is None and written is not None:
            self.announce(self.main)

    def _moved(self, written: Done | None, claim: Claim | None, left: Done, error: StoreError | None) -> None:
        """Finish a forward. The source is told of the error even when no message was written here."""
        try:
            self._committed(written, claim, None, _ignore, error)
        finally:
            left(error)

    def _unpark(self, claim: Claim, error: StoreError | None) -> None:
        """Answer sends that repeated an id of this claim: they fail with it, or go on now that the id is known."""
        for drafts, now_ms, wants_seqs, done in claim.parked:
            if error is not None:
                done(refusal_of(error))
            elif not self.closed:
                self._offer(drafts, now_ms, wants_seqs, done, was_parked=True)
            elif self.successor is None:
                done(entity_not_found(self.path))
            else:
                self.successor._take_over(drafts, now_ms, wants_seqs, done)

    def _take_over(self, drafts: Sequence[Draft], now_ms: int, wants_seqs: bool, done: Any) -> None:
        """Take a send that waited in an entity until a reset replaced it: the send comes after the reset."""
        try:
            self.check_room()
            self.check_memory()
        except Refusal as refusal:
            done(refusal)
        else:
            self._offer(drafts, now_ms, wants_seqs, done)

    def give_way(self, successor: Destination) -> None:
        """Close, because a reset has put an empty entity in this one's place; sends that wait go on there."""
        self.close()
        self.successor = successor

    # ── start and end ──

    def taker(self, box: int) -> Callable[[IndexRow], bool]:
        return self._recover_own if box == self.main.number else super().taker(box)

    def _recover_own(self, row: IndexRow) -> bool:
        return self._schedule.recover(row) if row[3] == SCHEDULED else self.main.recover(row)

    def recovered(self, now_ms: int) -> None:
        super().recovered(now_ms)
        self._duplicates.recover(self.store.remembered(self.entity_id))

    def leave_budget(self) -> None:
        super().leave_budget()
        self._schedule.leave_budget()
        self._duplicates.leave_budget()

    def remains(self) -> Remains:
        remains = super().remains()
        self._duplicates.leave_budget()
        remains.ends = self._duplicates.ends()
        return remains

    def _drains(self) -> list[tuple[int, Drain]]:
        return [(self.main.number, self._schedule.drain), *super()._drains()]

    # ── due work ──

    def _due_times(self) -> list[int | None]:
        return [*super()._due_times(), self._schedule.next_ms(), self._duplicates.next_ms()]

    @property
    def is_catching_up(self) -> bool:
        return self._schedule.is_busy or super().is_catching_up

    def _do_due(self, now_ms: int) -> None:
        self._duplicates.run_due(now_ms, self._forget_ids)
        super()._do_due(now_ms)
        self._schedule.run(now_ms)

    def _forget_ids(self, until_ms: int) -> None:
        """Write that the message ids whose time is over by `until_ms` are remembered no more."""
        self.store.write(Forget(self.entity_id, until_ms))


def _ignore(_answer: Refusal | list[int] | None) -> None:
    """Take the answer to a forward: no client waits for one."""
