"""The way into a queue or a topic: duplicates are recognised, new messages are written, each send is answered once.

Answers come in the order of the calls. The one exception: a send whose message id is in an uncommitted earlier send is
answered after that one's commit, because only then it is known whether it is a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Any, Generic, Protocol, TypeVar

from pairbus.amqp.errors import RESOURCE_LIMIT_EXCEEDED
from pairbus.broker.entities.duplicates import Claim, DuplicateWindow
from pairbus.broker.entities.entity import Entity, EntityDone, Settings
from pairbus.broker.kit.recorder import Recorder
from pairbus.broker.refusal import Refusal, entity_not_found, refusal_of
from pairbus.broker.store import Delete, Done, Forget, Remember
from pairbus.broker.wire.draft import Draft
from pairbus.errors import StoreError

DROPPED = 0

A = TypeVar("A")


class SendingSettings(Settings, Protocol):
    """The settings of an entity that is sent to."""

    @property
    def max_size_mb(self) -> int: ...
    @property
    def max_message_size_kb(self) -> int: ...
    @property
    def requires_duplicate_detection(self) -> bool: ...
    @property
    def duplicate_window_ms(self) -> int: ...


class Admission(Generic[A]):
    """Sends to one entity.

    `accept(drafts, now_ms)` gives the drafts the entity's next sequence numbers, one each, and writes them;
    `accepted(its result, error)` is called when the write is committed or has failed, before the sender is told;
    `admitted` after the sender was told of a success; `size()` is compared with the quota.
    """

    def __init__(
        self,
        entity: Entity,
        *,
        accept: Callable[[Sequence[Draft], int], A],
        accepted: Callable[[A, StoreError | None], None],
        admitted: Callable[[A], None],
        size: Callable[[], int],
    ) -> None:
        self._entity = entity
        self._accept = accept
        self._accepted = accepted
        self._admitted = admitted
        self._size = size
        self._duplicates = DuplicateWindow(entity.budget.index.share())
        self.successor: Admission[A] | None = None
        "Way into the empty entity that has replaced this one in a reset; None: no reset has."
        self.recorder: Recorder | None = None
        "Recorder of every accepted message, for tests; None: there is none."

    def describe(self, settings: SendingSettings) -> None:
        """Take the settings, after the entity itself has taken them."""
        self._detects_duplicates = settings.requires_duplicate_detection
        self._window_ms = settings.duplicate_window_ms
        self._size_max = settings.max_size_mb << 20
        self.message_size_max = settings.max_message_size_kb << 10

    def recover(self) -> None:
        self._duplicates.recover(self._entity.store.remembered(self._entity.entity_id))

    def check_room(self) -> None:
        entity = self._entity
        if not entity.sendable:
            entity.check_send()
        self.check_quota()

    def check_memory(self) -> None:
        """Refuse a new message when the broker keeps too much in memory. A forwarded one takes the place of another."""
        index = self._entity.budget.index
        if index.is_full:
            raise Refusal(
                RESOURCE_LIMIT_EXCEEDED,
                f"The broker takes no messages now: what it keeps in memory for waiting messages and ids has reached "
                f"{index.limit >> 20} MB.",
            )

    def check_quota(self) -> None:
        """Refuse when the entity is full."""
        entity = self._entity
        if self._size() >= self._size_max:
            raise Refusal(
                RESOURCE_LIMIT_EXCEEDED,
                f"The messaging entity '{entity.path}' has reached its maximum size of {self._size_max >> 20} MB"
                f" ({self._size()} bytes are in use).",
            )

    def is_claimed(self, drafts: Sequence[Draft]) -> bool:
        """Return whether a send of these drafts must wait for an earlier send with the same message id."""
        return (
            self._detects_duplicates and self._duplicates.claim_on([draft.message_id for draft in drafts]) is not None
        )

    def send(self, drafts: Sequence[Draft], now_ms: int, done: EntityDone) -> None:
        """Take all drafts or none. Raises when disabled or full; otherwise `done` is called after the commit."""
        self.check_room()
        self.check_memory()
        self._entity.accessed_ms = now_ms
        self._offer(drafts, now_ms, False, done)

    def forward(self, drafts: Sequence[Draft], now_ms: int, leaving: Delete, left: Done) -> None:
        """Send drafts that leave another place with the same commit, which `leaving` describes.

        `left` is told how that commit ended, also when no draft was written because all are duplicates. Nothing is
        written when this raises, so no message leaves its place without entering here. The drafts must not be claimed.
        """
        self.check_room()
        self._entity.accessed_ms = now_ms
        self._offer(drafts, now_ms, False, _ignore, move=(leaving, left))

    def schedule(self, drafts: Sequence[Draft], now_ms: int, done: Callable[[Refusal | list[int]], None]) -> None:
        """Send, and answer with the sequence numbers; a dropped duplicate has 0, which no message has.

        A number for the duplicate would not be stored, so after a restart another message might get it.
        """
        self.check_room()
        self.check_memory()
        self._entity.accessed_ms = now_ms
        self._offer(drafts, now_ms, True, done)

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
        """Write the drafts that are no duplicates; `done` (of a send or a schedule) follows.

        `_accept` comes first: where it raises, no id is claimed and nothing is written. All writes are before
        `commits.then`, so they are in one group.
        """
        numbers: Iterator[int] = iter(range(self._entity.last_seq + 1, self._entity.last_seq + 1 + len(drafts)))
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
        if drafts:
            if self.recorder is not None:
                entity = self._entity
                done = self.recorder.watched(entity.path, entity.entity_id, drafts, entity.last_seq + 1, now_ms, done)
            accepted = self._accept(drafts, now_ms)
        elif was_parked:  # all drafts are duplicates of messages that have just been committed
            done(seqs)
            return
        else:
            accepted = None
        claim = self._claim(drafts, now_ms) if self._detects_duplicates else None
        if move is None:
            self._entity.commits.then(self._offered, (accepted, claim, seqs), done)
        else:
            leaving, left = move
            self._entity.store.write(leaving)
            self._entity.commits.then(self._moved, (accepted, claim), left)

    def _claim(self, drafts: Sequence[Draft], now_ms: int) -> Claim:
        """Claim the message ids of drafts, and write that they are remembered."""
        until_ms = now_ms + self._window_ms
        claim = self._duplicates.claim([(draft.message_id, until_ms) for draft in drafts if draft.message_id])
        if claim.ids:
            self._entity.store.write(Remember(self._entity.entity_id, claim.ids))
        return claim

    def _offered(
        self,
        subject: tuple[A | None, Claim | None, list[int] | None],
        done: Callable[[Refusal | list[int] | None], None],
        error: StoreError | None,
    ) -> None:
        accepted, claim, seqs = subject
        if accepted is None:  # no message was written, so a failed commit does not matter
            done(seqs)
        else:
            self._accepted(accepted, error)
            done(seqs if error is None else refusal_of(error))
        if claim is not None:
            self._duplicates.resolve(claim, committed=error is None)
            self._unpark(claim, error)
        if error is None and accepted is not None:
            self._admitted(accepted)

    def _moved(self, subject: tuple[A | None, Claim | None], left: Done, error: StoreError | None) -> None:
        """Finish a forward. The source is told of the error even when no message was written here."""
        try:
            self._offered((*subject, None), _ignore, error)
        finally:
            left(error)

    def _unpark(self, claim: Claim, error: StoreError | None) -> None:
        """Answer sends that repeated an id of this claim: they fail with it, or go on now that the id is known."""
        for drafts, now_ms, wants_seqs, done in claim.parked:
            if error is not None:
                done(refusal_of(error))
            elif not self._entity.closed:
                self._offer(drafts, now_ms, wants_seqs, done, was_parked=True)
            elif self.successor is None:
                done(entity_not_found(self._entity.path))
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

    # ── due work, and the end ──

    def next_ms(self) -> int | None:
        return self._duplicates.next_ms()

    def run_due(self, now_ms: int) -> None:
        """Forget message ids whose time is over."""
        self._duplicates.run_due(now_ms, self._forget)

    def _forget(self, until_ms: int) -> None:
        self._entity.store.write(Forget(self._entity.entity_id, until_ms))

    def discharge(self) -> None:
        """Count the remembered ids against the budget no more."""
        self._duplicates.discharge()

    def ends(self) -> list[int]:
        """Return when each remembered id expires, ascending. For the end of the entity."""
        self._duplicates.discharge()
        return self._duplicates.ends()


def _ignore(_answer: Refusal | list[int] | None) -> None:
    """Take the answer to a forward: no client waits for one."""
